"""What one node finds out: alone, and together with the other nodes of the doctor's job."""

import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from checkpoints.manifest import write_json
from slurm.config import SlurmConfig
from slurm.devices.read import kind_of_node
from slurm.health import links, peers, serve
from slurm.health.cards import check_cards
from slurm.health.files import check_files, check_space
from slurm.health.finding import Finding, within
from slurm.health.serve import Peer
from slurm.health.torch import HANG, LIMIT_SECONDS, check_compute
from slurm.health.versions import check_name, check_versions
from slurm.inside.environment import plan
from slurm.topology.site import load

CARDS_SECONDS = 90.0
"""The vendor's tool is asked several times, and each time has a limit of its own (`slurm.devices.command`)."""
VERSIONS_SECONDS = 60.0
PEERS_SECONDS = 2 * peers.VISIBLE_SECONDS
POLL_SECONDS = 0.2
JOB, PRESENT = "job.json", "present.json"


class Report(BaseModel):
    """`node-NODE.json`: what a node has found so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    node: str
    doing: str
    """What it is at; empty when it is done."""
    findings: tuple[Finding, ...]


class Plan(BaseModel):
    """`job.json`: what the nodes of the doctor's job are told."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    slurm: SlurmConfig
    cards: int
    """How many a run asks for on each node."""
    seconds: float
    """For all of it."""


def check_alone(
    folder: Path, node: str, cards: int, say: Callable[[str], None], needs_torch: bool = True
) -> list[Finding]:
    """All that a node finds out without the others, each check under a time limit. `say` hears what is under way."""
    say("file system")
    found = [*check_files(folder, node), *check_space(folder, node)]
    say("cards")
    found += within(CARDS_SECONDS, "cards", node, lambda: check_cards(node, cards), "the driver may be stuck")
    say("versions")
    found += within(VERSIONS_SECONDS, "versions", node, lambda: check_versions(node), "is the environment's disk slow?")
    say("torch")
    return found + within(LIMIT_SECONDS, "torch", node, lambda: check_compute(node, cards, needs_torch), HANG)


class Member:
    """A node in the doctor's job. The folder is shared; every file in it has one writer."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder, self.node = folder, node
        self.plan = Plan.model_validate_json((folder / JOB).read_bytes())
        self.end = time.monotonic() + self.plan.seconds
        self.found: list[Finding] = []

    def run(self) -> None:
        """Find out everything, and then serve the others until the job is ended."""
        config, node = self.plan.slurm, self.node
        for setting in plan(config.environment, config.interface, kind_of_node(), os.environ):
            os.environ.pop(setting.name, None)
            if setting.value is not None:
                os.environ[setting.name] = setting.value
        token = secrets.token_hex(16)
        me = Peer(node, serve.address_of(config.interface), serve.serve(self.folder, token), token)
        self.report("start")
        write_json(self.folder / f"hello-{node}.json", asdict(me))
        self.found += within(10, "own name", node, lambda: self.names(me))
        self.found += check_alone(self.folder, node, self.plan.cards, self.report)
        self.report("the other nodes")
        if not self.wait_for(self.folder / PRESENT):
            return
        present = [Peer(**entry) for entry in serve.read(self.folder / PRESENT)["peers"]]
        if self.node not in {peer.node for peer in present}:  # too late
            return
        self.found += self.among(present, me)
        self.report("all-reduce")
        self.found += self.reduce([peer.node for peer in present])
        self.report("")
        self.wait_for(self.folder / "never")

    def names(self, me: Peer) -> list[Finding]:
        """The node's own name, and its address on the configured interface."""
        interface = self.plan.slurm.interface
        found = check_name(self.node, has_peers=interface is None)
        if interface is not None and me.address is None:
            measured = f"{self.node} has no interface {interface!r} with an IPv4 address"
            found.append(Finding("interface", self.node, "bad", measured, "name another one in slurm.interface"))
        return found

    def among(self, present: list[Peer], me: Peer) -> list[Finding]:
        """Connections to all, the clock of the first, files and locks of the next one."""
        others = [peer for peer in present if peer.node != self.node]
        if not others:
            return [Finding("other nodes", self.node, "not run", "it is the only node")]
        limit = max(PEERS_SECONDS, 2 * serve.CONNECT_SECONDS * len(others))
        found = within(limit, "connect", self.node, lambda: peers.check_connect(self.node, others))
        names = [peer.node for peer in present]
        following = present[(names.index(self.node) + 1) % len(present)]
        first = present[0]
        checks: list[tuple[str, Callable[[], list[Finding]]]] = [
            ("visible files", lambda: peers.check_visible(self.folder, self.node, following)),
            ("locks between nodes", lambda: peers.check_shared_lock(self.folder, self.node, following)),
        ]
        if first.node != self.node:
            checks.insert(0, (f"clock against {first.node}", lambda: peers.check_clock(self.node, first)))
        for name, check in checks:
            found += within(PEERS_SECONDS, name, self.node, check, "see the row on connections")
        return found

    def reduce(self, nodes: list[str]) -> list[Finding]:
        """All-reduce with each of this node's partners."""
        topology = load(Path(self.plan.slurm.topology)) if self.plan.slurm.topology else None
        pairs = links.pair_up(nodes, topology)
        mine = links.rounds(self.node, pairs, self.folder, self.plan.slurm.interface)
        if not mine:
            return [Finding("all-reduce", self.node, "not run", "no partner")]
        with ThreadPoolExecutor(len(mine)) as pool:
            said = list(pool.map(lambda card: links.reduce_pairs(mine[card]), mine))
        found: list[Finding] = []
        for card, answer in zip(mine, said, strict=True):
            found += links.judge_pairs(self.node, mine[card], answer, topology)
        return found

    def report(self, doing: str) -> None:
        """Tell the one who waits what was found so far, and what is next."""
        report = Report(node=self.node, doing=doing, findings=tuple(self.found))
        write_json(self.folder / f"node-{self.node}.json", report.model_dump())

    def wait_for(self, path: Path) -> bool:
        """Whether the file came before the time was up."""
        while not path.exists():
            if time.monotonic() > self.end:
                return False
            time.sleep(POLL_SECONDS)
        return True
