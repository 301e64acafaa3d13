"""The checks that compute: `python -m stages.trainer.health`, in processes of their own, and what they said."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from slurm.health.finding import Finding

COMPUTE_SECONDS = 120.0
"""A first import of torch from a cold shared file system takes a minute; the work itself a second."""
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
    """It was killed."""

    def find(self, what: str) -> dict[str, Any] | None:
        """The line on `what`."""
        return next((line for line in self.lines if line["what"] == what), None)


def ask(check: str, argument: Any, seconds: float, env: dict[str, str] | None = None) -> Said:
    """Run a check, and kill it after `seconds`. One that the kernel does not let die is left behind."""
    command = [sys.executable, "-P", "-m", "stages.trainer.health", check, json.dumps(argument)]
    is_late = False
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        out, errors = process.communicate(timeout=seconds)
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        trouble = "" if process.returncode == 0 else " ".join(last) or f"ended with {process.returncode}"
    except subprocess.TimeoutExpired as error:
        process.kill()
        out, trouble, is_late = error.stdout or b"", f"no answer within {seconds:g} s", True
    lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
    return Said(lines, trouble, is_late)


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
