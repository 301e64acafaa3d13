"""An actor that is appointed hands weights on to its supernode: through a child process, so that it goes on playing."""

import os
import subprocess
import sys
from pathlib import Path

from data.transport.endpoint import Endpoint

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
        self.restarts = 0

    def appointed(self, yes: bool) -> Endpoint | None:
        """Start or end it, as the coordinator says (`Orders.relay`), and start one that has died again.

        Returns at once: where it listens, or None as long as it does not.
        """
        if not yes:
            self.close()
            return None
        if self._process is None or self._process.poll() is not None:
            self.restarts += self._process is not None
            self._begin()
        return Endpoint.read(self._announced) if self._announced.exists() else None

    def close(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._announced.unlink(missing_ok=True)

    def _begin(self) -> None:
        self._announced.parent.mkdir(parents=True, exist_ok=True)
        if self._process is None:
            self._announced.unlink(missing_ok=True)  # of an earlier process of this member
        command = [sys.executable, "-m", "stages.rl.weights", "--parent", str(os.getpid()), *self._arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
