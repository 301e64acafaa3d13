"""Functions called in processes of their own, which a limit of time or memory ends.

A policy that learns will write the few words over which sympy computes for hours, and a reward of the user's own may
wait for ever. An alarm signal reaches only the main thread, and only between two instructions of Python; the kernel's
limits hold everywhere, and a crash takes nothing else with it.
"""

import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")

CPU_SECONDS = 30
"""Processor time of one call: unlike time on the clock, it does not run out because the machine is busy."""
CLOCK_SECONDS = 120
"""Time on the clock of one call, for a process that hangs without computing."""
MEMORY_BYTES = 8 * 2**30
"""Address space of a process: torch alone, where a reward imports it, maps some GiB."""
SIDE_BY_SIDE = 4
"""Calls at the same time, where nobody says otherwise."""
SERVE = "import sys; sys.path[:] = {path}; from stages.environments.processes import serve; serve()"


class CallError(Exception):
    """A call failed: its error, a limit, or the end of its process, as text."""


class Process:
    """A child, started at the first call, and again after something has ended it."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None

    def call(self, call: bytes, cpu_seconds: int) -> Any:
        """What the pickled (function, arguments, cpu_seconds) returns. Raises CallError."""
        reply = self._ask(call, cpu_seconds)
        if reply is None:
            # Something ended it from outside, such as a signal to the whole job: that says nothing of the call.
            reply = self._ask(call, cpu_seconds)
        if reply is None:
            raise CallError("its process crashed, or was ended twice from outside")
        failed, value = reply
        if failed:
            raise CallError(value)
        return value

    def _ask(self, call: bytes, cpu_seconds: int) -> tuple[bool, Any] | None:
        """The child's reply, or None when it ended without one, not by its own limit."""
        child = self.child if self.child is not None and self.child.poll() is None else self._start()
        assert child.stdin is not None and child.stdout is not None
        with suppress(BrokenPipeError, EOFError, pickle.UnpicklingError):
            pickle.dump(call, child.stdin)
            child.stdin.flush()
            if not select.select([child.stdout], [], [], CLOCK_SECONDS)[0]:
                end(child)
                raise CallError(f"took more than {CLOCK_SECONDS} s on the clock")
            return pickle.load(child.stdout)
        end(child)
        if child.returncode == -signal.SIGXCPU:
            raise CallError(f"took more than {cpu_seconds} s of processor time")
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        """A new child. It ends when its standard input does, so it does not outlive this process."""
        # It finds the modules where this process does. A session of its own: no Ctrl-C, and its children end with it.
        command = [sys.executable, "-P", "-c", SERVE.format(path=sys.path)]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        weakref.finalize(self, end, self.child)
        return self.child


IDLE: list[Process] = []
"""Processes that wait for a call; so there are as many as calls that were under way at the same time."""


def call(function: Callable[..., Result], *arguments: Any, cpu_seconds: int = CPU_SECONDS) -> Result:
    """What `function` of a module returns, called in a process of its own. Threads may call it side by side.

    Raises CallError when the function fails, when a limit is reached, and when the process crashes.
    """
    pickled = pickle.dumps((function, arguments, cpu_seconds))
    try:
        process = IDLE.pop()
    except IndexError:
        process = Process()
    try:
        return process.call(pickled, cpu_seconds)
    finally:
        IDLE.append(process)


def reason(error: BaseException) -> str:
    """What failed, in words."""
    return str(error) if isinstance(error, CallError) else f"{type(error).__name__}: {error}"


@contextmanager
def threads(count: int = SIDE_BY_SIDE) -> Generator[ThreadPoolExecutor]:
    """`count` threads that wait for calls; at the end those that have not begun are dropped."""
    pool = ThreadPoolExecutor(count, "grading")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def later(
    pool: ThreadPoolExecutor | None, function: Callable[[Given], Result], argument: Given
) -> Callable[[], Result]:
    """Gives what `function(argument)` does: begun now in a thread of `pool`, or without one when it is asked for."""
    return pool.submit(function, argument).result if pool else partial(function, argument)


def end(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child with what it has started, and reap it."""
    if child.returncode is None:  # not reaped yet, so its number is still its own
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def serve() -> None:
    """The child: for each call a reply, (whether it failed, what it returned or the error)."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to the log, and not between the replies
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            pickled = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        replies.write(_reply(pickled))
        replies.flush()


def _reply(pickled: bytes) -> bytes:
    try:
        function, arguments, cpu_seconds = pickle.loads(pickled)
        used, hard = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)[1]
        limit = int(used.ru_utime + used.ru_stime) + cpu_seconds + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
        return pickle.dumps((False, function(*arguments)))
    except BaseException as error:  # noqa: BLE001  # SystemExit too: the parent raises it again
        return pickle.dumps((True, f"{type(error).__name__}: {error}"))
