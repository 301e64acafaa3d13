"""Threads that work for an object as long as it lives: what one of them fails with, the next call of its owner raises.

In a process that is nothing but a server, a thread that fails ends it (`transport.server.threads_end_the_process`).
"""

import threading
from collections.abc import Callable


class Worker(threading.Thread):
    """One of them. It does not keep the process from ending."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._failed: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Work; what it raises is printed as well."""
        try:
            super().run()
        except BaseException as error:
            self._failed = error
            raise

    @property
    def trouble(self) -> str:
        """What it has failed with; "" as long as it has not."""
        return f"the thread {self.name!r} has failed: {self._failed!r}" if self._failed else ""

    def check(self) -> None:
        """RuntimeError once it has failed."""
        if self._failed:
            raise RuntimeError(self.trouble) from self._failed
