"""The child processes of a learner rank: its shard, on rank 0 the coordinator and the weights server as well.

A thread looks after them: one that has died is started again at once, whatever the rank is busy with. They import no
torch, so that takes about a second, and the others ask again until then.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.job import Job
from data.threads import Worker

ENDPOINTS = "endpoints"
"""Folder of the attempt in which they announce themselves."""
LOGS = "log"
LOOK_SECONDS = 0.1
MOST_RESTARTS = 5
"""Of one child without a step, or HEALTHY_SECONDS, between them; then what ends it will end it again."""
HEALTHY_SECONDS = 300.0
"""So long it has run, and what ended it then is nothing that has ended it before."""
PAUSE_SECONDS = 0.5
"""Before a restart, and more before each further one without a step between them."""
LAST_LINES = 20
END_SECONDS = 5.0


def endpoint(folder: Path, name: str) -> Path:
    """Where the child `name` of an attempt announces itself."""
    return folder / ENDPOINTS / f"{name}.json"


@dataclass
class Child:
    """One of them."""

    name: str
    """Also of its announcement."""
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    """Since the last step."""
    begin_at: float = 0.0
    """Its last start, or its next one where it does not run."""

    def begin(self) -> None:
        """Start it; what it says is added to its log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (its log is empty)"


@dataclass
class Children:
    """Those of one rank. Use it in a with block: they end with it."""

    job: Job
    folder: Path
    """Of the attempt."""
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    total_restarts: int = 0
    _hopeless: str = ""
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: Worker | None = None

    def __enter__(self) -> "Children":
        """Nothing runs yet."""
        (self.folder / LOGS).mkdir(parents=True, exist_ok=True)
        (self.folder / ENDPOINTS).mkdir(mode=0o700, exist_ok=True)
        self._thread = Worker(self._look_after, "children")
        return self

    def __exit__(self, *_: object) -> None:
        """End them all."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        running = [child.process for child in self.children.values() if child.process]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def begin(self, name: str, module: str, arguments: Sequence[str]) -> Path:
        """Start `python -m module` as the child `name`. Returns where it announces itself; what was there is removed.

        It is told this process, whose end is its own, as `--parent`.
        """
        announced = endpoint(self.folder, name)
        announced.unlink(missing_ok=True)
        command = [sys.executable, "-m", module, "--parent", str(os.getpid()), *arguments]
        log = self.folder / LOGS / f"{self.job.job_id}_{self.job.rank}_{name}.log"
        child = Child(name, command, log, begin_at=time.monotonic())
        child.begin()
        with self._lock:
            self.children[name] = child
        return announced

    def check(self) -> None:
        """RuntimeError, with its last words, when a child ends again and again; also when nobody looks after them."""
        if self._thread:
            self._thread.check()
        if self._hopeless:
            raise RuntimeError(self._hopeless)

    def stepped(self) -> None:
        """A step is done: whatever ended a child did not hold up the run."""
        for child in self.children.values():
            child.restarts = 0

    def _look_after(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            with self._lock:
                children = list(self.children.values())
            for child in children:
                self._look_at(child)

    def _look_at(self, child: Child) -> None:
        if child.process and child.process.poll() is not None:
            code, child.process = child.process.returncode, None
            if time.monotonic() - child.begin_at > HEALTHY_SECONDS:
                child.restarts = 0
            child.restarts, self.total_restarts = child.restarts + 1, self.total_restarts + 1
            how = f"rank {self.job.rank} on {self.job.node}: its {child.name} has ended with {code}"
            if child.restarts > MOST_RESTARTS:
                often = f"{how}, {child.restarts} times without a step in between"
                self._hopeless = f"{often}; the end of its log, {child.log}, says\n{child.last_words()}"
                return
            print(f"{how}, and is started again", flush=True)
            child.begin_at = time.monotonic() + PAUSE_SECONDS * (child.restarts - 1)
        if child.process is None and not self._hopeless and time.monotonic() >= child.begin_at:
            child.begin()
