"""What a stage is told about where it runs, so that it never asks who started it."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


class Flag:
    """What signal handlers raise.

    It has no lock, unlike threading.Event: there a second signal, while the first one is handled, waits for ever.
    """

    def __init__(self) -> None:
        self.raised = False

    def set(self) -> None:
        """Raise it, for good."""
        self.raised = True

    def is_set(self) -> bool:
        """Whether it was raised."""
        return self.raised

    def wait(self, seconds: float) -> bool:
        """Wait until it is raised, at most so long; whether it was."""
        end = time.monotonic() + seconds
        while not self.is_set() and time.monotonic() < end:
            time.sleep(0.05)
        return self.is_set()


@dataclass
class Pulse:
    """A rank's last sign of life. The watchdog (`slurm.inside.watchdog`) looks at it from a thread of its own."""

    event: str = "start"
    at: float = field(default_factory=time.monotonic)
    slow: int = 0
    """How many long operations are under way, inside one another."""
    starting: bool = True
    """Up to the end of the first step: imports, loading, compiling."""
    paused: float = 0.0
    """Seconds in which the scheduler had suspended the job."""

    @property
    def is_slow(self) -> bool:
        """Whether what is under way may take long."""
        return self.starting or self.slow > 0

    def beat(self, event: str) -> None:
        """Something was done; `event` says what, for the one who reads why the job was ended."""
        self.event, self.at = event, time.monotonic()

    def has_started(self) -> None:
        """The first step is done, and the next ones should take no longer than a step."""
        self.starting = False


@dataclass(frozen=True)
class Job:
    """One rank's view of its job. Filled in by `slurm.job` from Slurm, torchrun or for one local process.

    A stage polls `stop_requested` between steps. Ranks may see a signal at different moments, so the ranks of a stage
    agree on it (`stages.trainer.device.any_rank`) before they act.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: str = "localhost"
    rendezvous: Path | None = None
    """A file that rank 0 creates with the host and port of its store; None when there is one rank."""
    supernode: str = ""
    """Of the node, by the site's topology: fast links join its nodes. Without a topology all nodes are of one."""
    interface: str | None = None
    """The network interface for gloo, for sites where host names do not resolve to a routable address."""
    cpus: int = 1
    """Cores that this rank may use."""
    shard_ranks: int | None = None
    """Ranks, consecutive ones, over which weights are sharded, a divisor of the world size; None: all."""
    job_id: str = "local"
    restarts: int = 0
    """How often the scheduler has started this same job again."""
    ends_at: float | None = None
    """Unix time at which the allocation ends, as known at the start; None when nothing ends it."""
    find_end: Callable[[], float | None] = lambda: None
    """Asks the scheduler for the end again, which may have been moved; None when it does not answer."""
    start_seconds: float = 600.0
    """How long ranks wait for each other at the start."""
    collective_seconds: float = 7500.0
    """How long ranks wait for each other later on. The watchdog, which names the one that hangs, comes first."""
    stop: Flag = field(default_factory=Flag)
    """Set by the signal handlers: commit at the next step boundary and return."""
    pulse: Pulse = field(default_factory=Pulse)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that writes the files of which there is only one."""
        return self.rank == 0

    @property
    def stop_requested(self) -> bool:
        """Whether a signal has asked the stage to commit and end."""
        return self.stop.is_set()

    def beat(self, event: str) -> None:
        """Tell the watchdog that this rank goes on, and with what: "step 12: rollout"."""
        self.pulse.beat(event)

    @contextmanager
    def slow(self, event: str) -> Generator[None]:
        """Tell the watchdog that what the block does may take long: a save, a compilation, a download."""
        self.beat(event)
        self.pulse.slow += 1
        try:
            yield
        finally:
            self.pulse.slow -= 1
            self.beat(f"{event}: done")


def check_shards(shard_ranks: int | None, ranks: int, key: str, which: str = "") -> None:
    """ValueError, which names `key`, when weights sharded over so many of the `ranks` make no whole copies."""
    if shard_ranks and ranks % shard_ranks:
        divisors = (size for size in range(1, ranks + 1) if ranks % size == 0)
        near = min(divisors, key=lambda size: (abs(size - shard_ranks), size))
        raise ValueError(f"{key} is {shard_ranks}, but the {ranks} ranks{which} are no multiple of it; {near} is near")


class Stopped(Exception):
    """A stage raises it after it has committed its progress because the job was asked to stop."""
