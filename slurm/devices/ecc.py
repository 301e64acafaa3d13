"""`mx-smi --count-ecc`."""

import re

from slurm.devices.cells import BANNER, Found, attached, count, lines_of
from slurm.devices.device import Device
from slurm.devices.listing import CARD, parse_card

UNCORRECTABLE = re.compile(r"(\w+) uncorrectable(?: errors?| parity| sec-ded)?")


def parse_ecc(text: str) -> Found:
    """`--count-ecc`: below each card `SRAM Correctable : 0`, and `Double Bit ECC : 0` below `Retired Pages`.

    The uncorrectable errors count as read when both SRAM's and DRAM's were. The counts begin at 0 when a node starts;
    retired pages stay.
    """
    counts: dict[int, dict[str, int | None]] = {}
    addresses: dict[int, str | None] = {}
    left: list[str] = []
    index: int | None = None
    section = ""
    for line in lines_of(text):
        card = CARD.fullmatch(line)
        name, colon, value = (part.strip() for part in line.partition(":"))
        if card:
            index = int(card[1])
            addresses[index] = parse_card(index, card[2]).bus_id
            counts.setdefault(index, {})
            section = ""
        elif BANNER.fullmatch(line):
            continue
        elif index is None or not (colon or re.fullmatch(r"[A-Za-z ]+", line)):
            left.append(line)
        elif not colon:
            section = line.casefold()
        else:
            key = f"{section}/{name.casefold()}"
            number = count(value)
            left += [line] if number is None else []
            counts[index][key] = _worse(counts[index][key], number) if key in counts[index] else number
    devices = [_counted(index, addresses[index], found) for index, found in counts.items()]
    return Found(devices=tuple(devices), attached=attached(text), left=tuple(left))


def _worse(one: int | None, other: int | None) -> int | None:
    """Two counts of one thing: the larger, and none when one was not read."""
    return None if one is None or other is None else max(one, other)


def _counted(index: int, address: str | None, counts: dict[str, int | None]) -> Device:
    retired = {key: number for key, number in counts.items() if key.startswith("retired pages/")}
    errors = {key.partition("/")[2]: number for key, number in counts.items() if key not in retired}
    bad = {key: number for key, number in errors.items() if "uncorrect" in key}
    read = {found[1] for key in bad if (found := UNCORRECTABLE.fullmatch(key))}
    complete = {"sram", "dram"} <= read
    good = {key: number for key, number in errors.items() if "correct" in key and key not in bad}
    return Device(
        index,
        bus_id=address,
        ecc_corrected=_sum(good),
        ecc_uncorrected=_sum(bad) if complete or any(bad.values()) else None,
        retired_pages=_sum(retired),
    )


def _sum(counts: dict[str, int | None]) -> int | None:
    """The sum; None when nothing was counted or a count is missing, unless the others tell of errors already."""
    known = [number for number in counts.values() if number is not None]
    return sum(known) if known and (len(known) == len(counts) or sum(known)) else None
