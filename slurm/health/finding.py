"""What a check found, and the time limit under which every check runs."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import psutil

from checkpoints.disk import REASONS

Judgement = Literal["ok", "bad", "unknown", "not run"]


@dataclass(frozen=True)
class Finding:
    """One line of the table. What could not be found out is `unknown`, never `ok`."""

    check: str
    node: str
    verdict: Judgement
    measured: str
    way_out: str = ""
    """What to do, or whom to ask, when it is bad."""


def is_bad(findings: Iterable[Finding]) -> bool:
    """Whether something has to be done before a run."""
    return any(finding.verdict == "bad" for finding in findings)


def within(
    seconds: float, check: str, node: str, find: Callable[[], list[Finding]], way_out: str = ""
) -> list[Finding]:
    """What `find` finds, in a child process that is killed, with all that it started, after `seconds`.

    A thread would not do: a process one of whose threads hangs in a dead file system cannot end.
    A check that hangs, or that the system refuses, is `bad`; one that fails for a reason of its own is `unknown`.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        _answer(writer, find, check, node, way_out)
    os.close(writer)
    try:
        said = _read(reader, seconds)
    finally:
        os.close(reader)
        _end(child)
    if said is None:
        return [Finding(check, node, "bad", f"no answer within {seconds:g} s", way_out)]
    if not said:
        return [Finding(check, node, "unknown", "the check ended without a word")]
    return [Finding(**entry) for entry in json.loads(said)]


def _answer(writer: int, find: Callable[[], list[Finding]], check: str, node: str, way_out: str) -> None:
    """In the child: send the findings, and leave."""
    try:
        found = find()
    except OSError as error:
        reason = REASONS.get(error.errno or 0) or f"{error.strerror or error}: {error.filename or ''}".strip(": ")
        found = [Finding(check, node, "bad", reason, way_out)]
    except BaseException as error:  # noqa: BLE001 - a forked child must not return into its parent's code
        found = [Finding(check, node, "unknown", f"the check itself failed: {type(error).__name__}: {error}")]
    try:
        with os.fdopen(writer, "w") as stream:
            json.dump([asdict(finding) for finding in found], stream)
    finally:
        os._exit(0)


def _read(reader: int, seconds: float) -> bytes | None:
    """All that the child sends; None when it has not ended in time."""
    end, parts = time.monotonic() + seconds, list[bytes]()
    while True:
        if not select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _end(child: int) -> None:
    """Kill the child and all that it started. What a dead file system holds in the kernel is left to the kernel."""
    with suppress(psutil.NoSuchProcess):
        for process in [*psutil.Process(child).children(recursive=True), psutil.Process(child)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    end = time.monotonic() + 1
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.005)
