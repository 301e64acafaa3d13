"""A quick look at the nodes of a large job before it starts, so that a bad one is avoided and not waited for.

The first rank of each node looks at its node, and each rank at its own card, since MetaX's cards refuse a second
process; nobody waits for the others while all is well. A rank that finds its node bad looks what others have found:
what is wrong on many nodes is no fault of theirs. On nodes without cards torch is not started for it.
"""

import errno
import json
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from checkpoints.disk import REASONS
from slurm.attempt import JobFile
from slurm.devices.device import Devices
from slurm.devices.read import kind_of_node, read_devices
from slurm.health.cards import judge_devices
from slurm.health.files import check_space
from slurm.health.finding import Finding, within
from slurm.health.node import CARDS_SECONDS
from slurm.health.torch import COMPUTE_SECONDS, LIMIT_SECONDS, ask
from slurm.inside.place import Place
from slurm.inside.roll_call import folder_of
from slurm.verdict import BadNode, is_everywhere

WITH_CARDS = ("metax", "nvidia")
RUN_FOLDER = "run folder"
FOLDER_SECONDS = 120.0
"""A parallel file system may stand still for a minute or two when one of its servers is replaced by another."""
WAIT = (5.0, 60.0)
"""Seconds that a rank with a bad node waits for others: half of what its own look took, within these limits."""
FULL = (REASONS[errno.ENOSPC], REASONS[errno.EDQUOT])
"""Of the run folder these are no fault of the node: others would find the same."""


def preflight(place: Place, job_file: JobFile, attempt: Path) -> None:
    """Look at this node if the job has `watch.preflight_nodes` nodes or more. Every rank calls it.

    Raises BadNode, and ValueError for a full run folder, which is no fault of the node.
    """
    if place.starter != "slurm" or len(place.tasks) < job_file.watch.preflight_nodes:
        return
    begin = time.monotonic()
    found = check_node(attempt, place.node) if place.local_rank == 0 else []
    if given_cards() and kind_of_node() in WITH_CARDS:
        found += within(LIMIT_SECONDS, "card", place.node, lambda: check_own_card(place.node, place.local_rank))
    bad = [finding for finding in found if finding.verdict == "bad"]
    if bad:
        raise _trouble(bad, place, attempt, wait=sorted((WAIT[0], (time.monotonic() - begin) / 2, WAIT[1]))[1])
    if place.rank == 0:
        print(f"preflight: {place.node} is well as far as it shows ({time.monotonic() - begin:.1f} s)", flush=True)


def _trouble(bad: list[Finding], place: Place, attempt: Path, wait: float) -> Exception:
    """What to raise: whose fault it is."""
    what = "; ".join(f"{finding.check}: {finding.measured}" for finding in bad)
    if all(finding.check == RUN_FOLDER and finding.measured in FULL for finding in bad):
        return ValueError(f"{attempt}: {bad[0].measured}; make room, and the same command goes on")
    nodes = _nodes_with({re.sub(r"\d+", "N", finding.check) for finding in bad}, place, attempt, wait)
    if is_everywhere(len(nodes), len(place.tasks)):
        return ValueError(
            f"{', '.join(sorted(nodes))} all have it, so it is everywhere and no fault of theirs, and none is avoided: "
            f"{what}; the same command goes on when it is mended"
        )
    return BadNode((place.node,), f"node {place.node}: {what}")


def _nodes_with(checks: set[str], place: Place, attempt: Path, wait: float) -> set[str]:
    """The nodes that fail one of these checks, this one among them. Others may be later, so they are waited for."""
    reports, end, nodes = folder_of(attempt, place), time.monotonic() + wait, {place.node}
    try:
        reports.mkdir(parents=True, exist_ok=True)
        (reports / f"{place.rank}.bad").write_text(json.dumps({"node": place.node, "checks": sorted(checks)}))
        while not is_everywhere(len(nodes), len(place.tasks)) and time.monotonic() < end:
            time.sleep(0.5)
            for path in reports.glob("*.bad"):
                with suppress(json.JSONDecodeError):  # it is being written
                    report = json.loads(path.read_text())
                    nodes |= {report["node"]} if checks & set(report["checks"]) else set()
    except OSError as error:
        print(f"what other nodes have found cannot be read: {error}", flush=True)
    return nodes


def check_node(attempt: Path, node: str) -> list[Finding]:
    """Run folder, free space, and what the vendor's tool says of the cards. What is unknown is left to the job."""
    found = within(FOLDER_SECONDS, RUN_FOLDER, node, lambda: _write(attempt))
    if any(finding.verdict == "bad" for finding in found):
        return found
    return [
        *found,
        *check_space(None, node),
        *within(CARDS_SECONDS, "cards", node, lambda: _cards(node)),
    ]


def _write(folder: Path) -> list[Finding]:
    """Nothing, or the system's refusal. How long it takes is no fault of the node, within the limit."""
    with tempfile.NamedTemporaryFile(prefix=".preflight-", dir=folder) as stream:
        stream.write(bytes(1 << 20))
        stream.flush()
        os.fsync(stream.fileno())
    return []


def _cards(node: str) -> list[Finding]:
    """Fewer cards than Slurm has given are a fault where there are cards at all."""
    found: Devices = read_devices()
    return judge_devices(node, found, given_cards() if found.kind in WITH_CARDS else 0)


def given_cards() -> int:
    """Cards of this node that Slurm gave to the job; others may be in use by somebody else."""
    given = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return int(given) if given.isdecimal() else 0


def check_own_card(node: str, card: int) -> list[Finding]:
    """A known product on a card and on a stream of its own. What would fail on any node is left to the stage."""
    said = ask("compute", card, COMPUTE_SECONDS)
    device = said.find("device")
    if device is None:
        verdict = "bad" if said.is_late else "unknown"
        return [Finding(f"card {card}", node, verdict, said.trouble)]
    wanted = ("matmul", "stream") if device["kind"] == "cuda" else ("matmul",)
    for check in wanted:
        line = said.find(check)
        if line is None:
            return [Finding(f"{check} on card {card}", node, "bad", said.trouble)]
        if not line["right"]:
            return [Finding(f"{check} on card {card}", node, "bad", "a wrong product")]
    return [Finding(f"card {card}", node, "ok", device["name"])]
