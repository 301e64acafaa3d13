"""Who waits for a stage: the commands above this one, whose death it notices, and those below, which it tells."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import psutil

from slurm.wait.local import is_alive

WATCHED = "QIANKA_CALLERS"
"""Variable with the process ids of the callers: when one of them is gone, nobody waits for the result."""
STANDARD_ERROR = 2
"""Where Snakemake writes."""
NOBODY_WAITS = 75
"""Exit code of a process whose caller is gone."""
COMMAND = ("workflow.cli", "stage")
"""In the command line of one who waits for a stage."""


def watch_me() -> None:
    """Have the children of this process notice when it dies."""
    os.environ[WATCHED] = ",".join(filter(None, [os.environ.get(WATCHED, ""), str(os.getpid())]))


def callers_alive() -> Callable[[], bool]:
    """A check that the callers of this process, of which all live when it starts, do so still."""
    callers: list[psutil.Process] = []
    for number in filter(None, os.environ.get(WATCHED, "").split(",")):
        try:
            callers.append(psutil.Process(int(number)))
        except psutil.NoSuchProcess:
            return lambda: False
    return lambda: all(is_alive(caller) for caller in callers)


def end_with_callers() -> None:
    """End this process, from a thread, soon after one of its callers has died, or the reader of its messages has.

    For Snakemake, which waits for ever for a job whose end it could not print.
    """
    alive = callers_alive()

    def watch() -> None:
        while alive() and not _is_gone(STANDARD_ERROR):
            time.sleep(1)
        os._exit(NOBODY_WAITS)

    threading.Thread(target=watch, daemon=True).start()


def _is_gone(file: int) -> bool:
    """Whether nobody is left at the other end of a pipe or a terminal; never so of a file."""
    poll = select.poll()
    poll.register(file, 0)  # asks for nothing, and is told of errors all the same
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def pass_signals_on() -> None:
    """Tell the stage commands below this process what it is told, before it does what it did so far.

    For Snakemake, which waits for its commands when it alone is interrupted, and leaves them alone when it is hung up.
    A command that gets Ctrl-C from the terminal as well takes the two for one.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        _pass_on(number, signal.getsignal(number))


def _pass_on(wanted: int, before: Callable[[int, FrameType | None], object] | int | None) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if set(COMMAND) <= set(process.cmdline()):
                    process.send_signal(number)
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if before != signal.SIG_IGN:  # nohup
        signal.signal(wanted, handle)
