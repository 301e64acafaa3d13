"""Slurm's short form of a list of host names, `mx[0-3,07-09],a1`, read without scontrol: compute nodes may lack it."""

import re
from collections.abc import Iterable
from itertools import product


def expand(text: str) -> list[str]:
    """The names in the order that is written: `mx[08-10],a` are mx08, mx09, mx10 and a.

    A name may have several brackets, of which the last one counts fastest. ValueError when the text is not such a list.
    """
    names: list[str] = []
    for item in filter(None, re.split(r",(?![^\[]*\])", text.strip())):
        parts = re.split(r"\[([^\[\]]*)\]", item)  # what is in brackets has an odd index
        if any("[" in part or "]" in part for part in parts):
            raise ValueError(f"{text!r} is not a node list of Slurm: its brackets do not match")
        choices = [_numbers(part, text) if index % 2 else [part] for index, part in enumerate(parts)]
        names += ["".join(choice) for choice in product(*choices)]
    return names


def fold(names: Iterable[str]) -> str:
    """The short form of names, in their order: mx0, mx1, mx2 and a1 are `mx[0-2],a1`."""
    stems: list[tuple[str, list[tuple[str, str]]]] = []  # each with its ranges, first and last number as written
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        ranges = stems[-1][1] if stems and stems[-1][0] == stem else []
        if not digits or not ranges or not ranges[-1][1]:
            stems.append((stem, [(digits, digits)]))
            continue
        first, last = ranges[-1]
        if digits == str(int(last) + 1).zfill(len(first)):
            ranges[-1] = (first, digits)
        else:
            ranges.append((digits, digits))
    return ",".join(_folded(stem, ranges) for stem, ranges in stems)


def _folded(stem: str, ranges: list[tuple[str, str]]) -> str:
    parts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    return stem + (parts[0] if len(ranges) == 1 and "-" not in parts[0] else f"[{','.join(parts)}]")


def _numbers(ranges: str, text: str) -> list[str]:
    """The numbers of a bracket, padded with zeros as their first one is."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit() and int(first) <= int(last)):
            raise ValueError(f"{text!r} is not a node list of Slurm: {part!r} is no number and no range of numbers")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """The counts of SLURM_STEP_TASKS_PER_NODE, one a node: `2(x3),1` are 2, 2, 2 and 1. ValueError when it is none."""
    counts: list[int] = []
    for item in text.strip().split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if not found:
            raise ValueError(f"{text!r} is not a list of counts of Slurm: {item!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts
