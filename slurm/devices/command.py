"""Running a vendor's tool. It may be missing, fail, hang, or print what is no text: all of that is an answer."""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20.0
"""Eight cards are read in a few seconds; a tool that takes longer waits for a driver that does not answer."""
HUNG = "gave no answer"
"""In what is said of a tool that had to be ended."""
MOST_BYTES = 1 << 20
"""Longer answers are cut: nothing that a tool says of a node is so long."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and what went wrong, if anything."""

    text: str
    trouble: str = ""
    hung: bool = False


def ask(tool: Path, *arguments: str) -> Answer:
    """Run a tool, its standard error apart, and end it with all that it started when it takes too long."""
    command = " ".join((tool.name, *arguments))
    try:
        process = subprocess.Popen(
            [tool, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Answer("", f"`{command}` cannot be started: {error.strerror}")
    try:
        out, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Answer("", f"`{command}` {HUNG} in {SECONDS:g} s and was ended; {_end(process)}", hung=True)
    text = out[:MOST_BYTES].decode(errors="replace")
    if process.returncode != 0:
        said = (errors.decode(errors="replace").strip() or text.strip()).splitlines()
        return Answer(text, f"`{command}` ended with {process.returncode}: {said[-1][:200] if said else 'no word'}")
    return Answer(text)


def _end(process: subprocess.Popen[bytes]) -> str:
    """Kill the tool's session. One that waits inside the kernel cannot be ended, and is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        return "it hangs in the driver and cannot be ended"
    return "the driver may be stuck"
