"""Worker processes that compute, and leave all writing to the process that asked."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from data.job import Job, Stopped

Item = TypeVar("Item")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
SIGNAL_SECONDS = 2.0
"""How long after the death of a worker the signal that killed it may take to reach this process."""
IN_FLIGHT = 2
"""Items that a worker has in hand or waiting; more would only fill the memory with results."""


def compute(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, job: Job
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, function(item)) as they are ready, in any order. Raises Stopped when the job is asked to stop.

    One worker computes in this process. More are spawned, never forked, because a fork copies the locks of threads that
    it does not copy; `function` and items must pickle.
    """
    if min(workers, len(items)) <= 1:
        for item in items:
            stop_if_asked(job)
            yield item, function(item)
        return
    pool = ProcessPoolExecutor(min(workers, len(items)), multiprocessing.get_context("spawn"), end_with_parent)
    try:
        yield from drain(pool, function, items, workers, job)
    except BrokenProcessPool:
        # Schedulers signal every process of a job, so workers may be gone before this one hears that it is to stop.
        job.stop.wait(SIGNAL_SECONDS)
        stop_if_asked(job)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def drain(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Sequence[Item], workers: int, job: Job
) -> Iterator[tuple[Item, Result]]:
    """Keep the pool busy, and yield what is ready."""
    waiting = iter(items)
    pending: dict[Future[Result], Item] = {}
    while True:
        stop_if_asked(job)
        while len(pending) < workers * IN_FLIGHT and (item := next(waiting, None)) is not None:
            pending[pool.submit(function, item)] = item
        if not pending:
            return
        for future in wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future.result()


def stop_if_asked(job: Job) -> None:
    """Raise Stopped when the job is asked to stop: all blocks that were yielded are committed by now."""
    if job.stop_requested:
        raise Stopped("synth stops between two blocks; the finished ones are kept")


def end_with_parent() -> None:
    """Set up a worker: when the parent is gone, however it went, so is the worker.

    Signals end it as well. It must not ignore them, because the pool ends its workers by SIGTERM when one has died.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a worker process is set up"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
