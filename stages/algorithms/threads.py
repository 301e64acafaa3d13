"""Threads that wait for work, and that do not keep the process from ending, as those of concurrent.futures do."""

import itertools
from collections.abc import Callable
from queue import SimpleQueue
from threading import Semaphore, Thread

LIMIT = 16
"""Threads of this process. With all of them at work, a further task waits for one."""

_tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
_idle = Semaphore(0)
_numbers = itertools.count(1)
_threads: list[Thread] = []


def start(task: Callable[[], None]) -> None:
    """Run `task` in a thread. It must not raise, and whatever it starts, it starts from here too."""
    _tasks.put(task)
    if not _idle.acquire(blocking=False) and len(_threads) < LIMIT:
        thread = Thread(target=_work, name=f"operators-{next(_numbers)}", daemon=True)
        _threads.append(thread)
        thread.start()


def _work() -> None:
    while True:
        _tasks.get()()
        _idle.release()
