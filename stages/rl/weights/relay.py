"""An actor that is appointed hands weights on to its supernode: through a child process, so that it goes on playing."""

import os
import subprocess
import sys
import time
from pathlib import Path

from data.transport.endpoint import Endpoint

LOOK_SECONDS = 1.0
"""Between two looks at the child: it is asked about between any two steps of an engine."""
PAUSE_SECONDS = (1.0, 30.0)
"""Before one that has died is started again: the first time, and at most; each is twice the one before."""
HEALTHY_SECONDS = 60.0
"""One that has lived for so long is started again after the first pause."""
END_SECONDS = 5.0


class Relay:
    """The relay of an actor; none runs until it is appointed."""

    def __init__(self, root: Path, folder: Path, name: str, host: str, supernode: str, *, tls: bool = False) -> None:
        """Weights come from the server that is announced in `root`.

        The relay announces itself in `folder`, which is also for weights that have no room in memory, and writes its
        log there. `name` is of this member alone; other nodes reach this one at `host`.
        """
        self._announced, self._log = folder / f"relay-{name}.json", folder / f"relay-{name}.log"
        self._arguments = ["--announce", str(self._announced), "--host", host, "--supernode", supernode]
        self._arguments += ["--folder", str(folder / f"relay-{name}"), "--source", str(root)]
        self._arguments += ["--tls"] * tls
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint: Endpoint | None = None
        self._begun = self._look_at = self._begin_at = self._kill_at = 0.0
        self._pause = PAUSE_SECONDS[0]
        self.restarts = 0

    def appointed(self, yes: bool) -> Endpoint | None:
        """Start or end it, as the coordinator says (`Orders.relay`), and start one that has died again.

        Returns at once: where it listens, or None as long as it does not.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(now)
        if self._process is not None and not self._kill_at and not yes:
            self._end(now)
        elif self._process is None and yes and now >= self._begin_at:
            self._begin(now)
        return self._endpoint

    def close(self) -> None:
        """End it, and wait for that."""
        if self._process is None:
            return
        self._end(time.monotonic())
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _look(self, now: float) -> None:
        """Whether it has ended, or listens by now."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self._process, self._endpoint = None, None
            if not self._kill_at:
                self._has_died(now)
            self._kill_at = 0.0
        elif self._kill_at:
            if now > self._kill_at:
                self._process.kill()
        elif self._endpoint is None and self._announced.exists():
            self._endpoint = Endpoint.read(self._announced)

    def _has_died(self, now: float) -> None:
        self.restarts += 1
        if now > self._begun + HEALTHY_SECONDS:
            self._pause = PAUSE_SECONDS[0]
        self._begin_at, self._pause = now + self._pause, min(2 * self._pause, PAUSE_SECONDS[1])

    def _begin(self, now: float) -> None:
        self._announced.parent.mkdir(parents=True, exist_ok=True)
        self._announced.unlink(missing_ok=True)  # of an earlier one
        command = [sys.executable, "-m", "stages.rl.weights", "--parent", str(os.getpid()), *self._arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._begun = now

    def _end(self, now: float) -> None:
        """Tell it to; another one begins only when it has, since they have one folder."""
        assert self._process
        self._process.terminate()
        self._endpoint, self._kill_at = None, now + END_SECONDS
        self._announced.unlink(missing_ok=True)
