"""The checks that compute: `python -m stages.trainer.health`, in processes of their own, and what they said."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slurm.health.finding import Finding

START_SECONDS = 300.0
"""For the import of torch, which a thousand ranks may do at once from a cold shared file system."""
COMPUTE_SECONDS = 120.0
"""From then on. The work takes a second."""
LIMIT_SECONDS = START_SECONDS + COMPUTE_SECONDS + 10
"""For a child process that does both."""
MISSING = "No module named 'torch'"
HANG = "a known fault of cards: free the node, have it reset, or take another"
INSTALL = "install torch in this environment: the vendor's on cards, `.[cpu]` elsewhere (docs/install.md)"


@dataclass(frozen=True)
class Said:
    """What such a process said before it ended, and how it ended."""

    lines: list[dict[str, Any]]
    trouble: str
    """Empty when it ended well."""
    is_late: bool
    """It had imported torch, and was killed."""
    is_cold: bool = False
    """It was killed before, which tells nothing of the card."""

    def find(self, what: str) -> dict[str, Any] | None:
        """The line on `what`."""
        return next((line for line in self.lines if line["what"] == what), None)


def ask(check: str, argument: Any, seconds: float, env: dict[str, str] | None = None) -> Said:
    """Run a check, and kill it `seconds` after its start. One that the kernel does not let die is left behind."""
    command = [sys.executable, "-P", "-m", "stages.trainer.health", check, json.dumps(argument)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env)
        text, code = _listen(process, seconds)
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    if code is None:
        started = any(line["what"] == "started" for line in lines)
        trouble = f"no answer within {seconds:g} s" if started else f"torch is not imported after {START_SECONDS:g} s"
        return Said(lines, trouble, is_late=started, is_cold=not started)
    return Said(lines, "" if code == 0 else " ".join(last) or f"ended with {code}", is_late=False)


def _listen(process: subprocess.Popen[bytes], seconds: float) -> tuple[str, int | None]:
    """What the process says, and how it ended; None when it had to be killed. Its clock starts with its first word."""
    assert process.stdout is not None
    end, text = time.monotonic() + START_SECONDS, b""
    while select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(process.stdout.fileno(), 65536)
        if not part:
            with suppress(subprocess.TimeoutExpired):
                return text.decode(), process.wait(max(1.0, end - time.monotonic()))
            break
        end = time.monotonic() + seconds if not text else end
        text += part
    process.kill()
    return text.decode(), None


def check_compute(node: str, cards: int, needed: bool = True) -> list[Finding]:
    """Compute on `cards` cards at once, or on the CPU for none. Without torch: bad where it is `needed`."""
    with ThreadPoolExecutor(max(1, cards)) as pool:
        found = pool.map(lambda card: check_card(node, card, needed), range(max(1, cards)))
        return [finding for each in found for finding in each]


def check_card(node: str, card: int, needed: bool = True, seconds: float = COMPUTE_SECONDS) -> list[Finding]:
    """A product of matrices that is known, and the same on a stream, on one card or on the CPU."""
    said = ask("compute", card, seconds)
    device = said.find("device")
    if device is None:
        return [_no_answer("torch", node, said, needed, HANG)]
    where = f"card {card}, {device['name']}" if device["kind"] == "cuda" else "CPU"
    found = [Finding("torch", node, "ok", f"{device['torch']} on {where}")]
    found.append(_product("matmul", node, where, said))
    if device["kind"] == "cuda":
        found.append(_product("stream", node, where, said))
    else:
        found.append(Finding("stream", node, "not run", "no card"))
    return found


def _product(check: str, node: str, where: str, said: Said) -> Finding:
    line = said.find(check)
    if line is None:
        return Finding(check, node, "bad", f"{where}: {said.trouble}", HANG)
    if not line["right"]:
        return Finding(check, node, "bad", f"{where}: a wrong product", "take the node out of service")
    speed = f", {line['gflops']:.0f} GFLOP/s in {line['dtype']} at {line['size']}" if "gflops" in line else ""
    return Finding(check, node, "ok", f"{where}: exact{speed}")


def _no_answer(check: str, node: str, said: Said, needed: bool, way_out: str) -> Finding:
    """Login nodes have no torch, and need none."""
    if said.is_cold:
        return Finding(check, node, "unknown", said.trouble, "is the file system of the environment cold, or busy?")
    if MISSING not in said.trouble:
        return Finding(check, node, "bad", said.trouble, way_out)
    if needed:
        return Finding(check, node, "bad", said.trouble, INSTALL)
    return Finding(check, node, "not run", "there is no torch here, as on many login nodes")


def check_tokenizer(node: str, config: dict[str, Any], needed: bool = True) -> list[Finding]:
    """Answers of the environment, to token ids and back, with the tokenizer of the config's model."""
    said = ask("tokenizer", config, COMPUTE_SECONDS)
    line = said.find("tokenizer")
    if line is None:
        return [_no_answer("tokenizer", node, said, needed, "see the message")]
    if line["wrong"]:
        return [Finding("tokenizer", node, "bad", line["wrong"], "choose a tokenizer that knows these characters")]
    return [Finding("tokenizer", node, "ok", f"{line['rows']} answers come back; {line['vocabulary']} tokens")]
