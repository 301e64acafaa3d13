"""Questions that may take long, asked in a thread, so that the one who asks goes on meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(ask: Callable[[], T]) -> Future[T]:
    """Call `ask` in a thread that does not keep the process from ending. What it raises is raised by `result()`."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
