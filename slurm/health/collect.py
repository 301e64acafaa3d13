"""The reports of the nodes of the doctor's job, waited for by the one who started it."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoints.manifest import write_json
from slurm.health.finding import Finding
from slurm.health.node import PRESENT, Report

POLL_SECONDS = 0.5
DRAIN = "ask the administrator to look at the node, and avoid it: slurm.additional.exclude"


@dataclass(frozen=True)
class Limits:
    """Seconds for a node's first sign of life, and for all that it does."""

    answer: float = 60.0
    """From the start of the job: a cold Python from a shared file system starts in half of it."""
    node: float = 600.0


def collect(
    folder: Path, steps: Mapping[str, subprocess.Popen[bytes]], limits: Limits, say: Callable[[str], None]
) -> list[Finding]:
    """Wait for the reports of the nodes of `steps`, and of those that gave none say so.

    Those who say hello in time are told of each other. A node whose step has ended is not waited for.
    """
    begin, last = time.monotonic(), ""
    present: list[str] | None = None
    while True:
        waited = time.monotonic() - begin
        ended = {node: step.poll() for node, step in steps.items()}  # before the files are read
        hello = [node for node in steps if (folder / f"hello-{node}.json").exists()]
        silent = [node for node in steps if node not in hello and ended[node] is None]
        if present is None and (not silent or waited > limits.answer):
            present = hello
            entries = [json.loads((folder / f"hello-{node}.json").read_bytes()) for node in present]
            write_json(folder / PRESENT, {"peers": entries})
        reports = {node: _report(folder, node) for node in hello}
        doing = Counter(report.doing or "done" for report in reports.values())
        now = ", ".join(f"{count} {what}" for what, count in doing.items())
        if now != last:
            say(f"{len(hello)} of {len(steps)} nodes have answered: {now}")
            last = now
        if present is not None:
            at_work = [node for node in present if ended[node] is None and reports[node].doing]
            if not at_work or waited > limits.answer + limits.node:
                absent = [node for node in steps if node not in present]
                found = [_absent(folder, node, ended[node], limits) for node in absent]
                found += [each for node in present for each in _of_node(folder, reports[node], ended[node], limits)]
                return found + compare(found, list(steps))
        time.sleep(POLL_SECONDS)


def _report(folder: Path, node: str) -> Report:
    """What a node has found so far; it has said so before it said hello."""
    return Report.model_validate_json((folder / f"node-{node}.json").read_bytes())


def _absent(folder: Path, node: str, code: int | None, limits: Limits) -> Finding:
    if code is None:
        return Finding("answer", node, "bad", f"no answer within {limits.answer:g} s of the job's start", DRAIN)
    return Finding("answer", node, "bad", f"no answer: {_ending(folder, node, code)}", DRAIN)


def _of_node(folder: Path, report: Report, code: int | None, limits: Limits) -> list[Finding]:
    if not report.doing:
        return list(report.findings)
    why = f"not done after {limits.node:g} s" if code is None else _ending(folder, report.node, code)
    return [*report.findings, Finding("answer", report.node, "bad", f"{why}; it was at: {report.doing}", DRAIN)]


def _ending(folder: Path, node: str, code: int) -> str:
    """How a step ended, with the last error that srun printed, or the last line."""
    said = (folder / f"step-{node}.log").read_text(errors="replace").strip().splitlines()
    errors = [line for line in said if "error:" in line] or said
    return f"its step ended with {code}" + (f": {errors[-1]}" if errors else "")


def compare(found: Sequence[Finding], nodes: Sequence[str]) -> list[Finding]:
    """A finding when not all nodes have the same versions."""
    versions = {finding.node: finding.measured for finding in found if finding.check == "versions"}
    if len(set(versions.values())) < 2:
        return []
    usual, _ = Counter(versions.values()).most_common(1)[0]
    way_out = "use one environment on a shared file system"
    return [
        Finding("same versions", node, "bad", f"other ones than most nodes have: {versions[node]}", way_out)
        for node in nodes
        if versions.get(node, usual) != usual
    ]
