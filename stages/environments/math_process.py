"""math-verify in a process of its own, with limits on its processor time and memory.

Sympy can be made to compute for hours by a short completion, and a policy that learns will write one. An alarm signal
reaches only the main thread, and only between two instructions of Python; the kernel's limits hold everywhere.
"""

import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref

CPU_SECONDS = 5
"""Processor time of one grading: unlike time on the clock, it does not run out because the machine is busy."""
CLOCK_SECONDS = 120
"""Time on the clock of one grading, for a process that hangs without computing."""
MEMORY_BYTES = 4 * 2**30
SERVE = "from stages.environments.math_process import serve; serve()"


class MathProcess:
    """Grades in a child process that is started at the first call, and again after a limit has ended it."""

    def __init__(self, cpu_seconds: int = CPU_SECONDS) -> None:
        self.cpu_seconds = cpu_seconds
        self.lock = threading.Lock()
        self.child: subprocess.Popen[str] | None = None

    def grade(self, answer: str, completion: str) -> tuple[bool, bool]:
        """(Whether the completion has an expression equal to the answer, whether it has one at all).

        Raises ValueError when math-verify fails, TimeoutError when a limit of time is reached.
        """
        with self.lock:
            reply = self.ask(answer, completion)
            if reply is None:
                # Something ended it from outside, such as a signal to the whole job: that says nothing of the answer.
                reply = self.ask(answer, completion)
        if reply is None:
            raise RuntimeError("the grader's process was ended twice from outside")
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply["correct"], reply["parsed"]

    def ask(self, answer: str, completion: str) -> dict[str, bool] | None:
        """The child's reply, or None when it ended without one, not by its own limit."""
        child = self.child if self.child is not None and self.child.poll() is None else self.start()
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps([answer, completion]) + "\n")
            child.stdin.flush()
            if not select.select([child.stdout], [], [], CLOCK_SECONDS)[0]:
                child.kill()
                raise TimeoutError(f"math-verify took more than {CLOCK_SECONDS} s on the clock")
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        if child.wait() == -signal.SIGXCPU:
            raise TimeoutError(f"math-verify took more than {self.cpu_seconds} s of processor time")
        return None

    def start(self) -> subprocess.Popen[str]:
        """A new child. It ends when its standard input does, so it does not outlive this process."""
        # -P: a folder `data` where the user happens to stand must not hide ours. A session of its own: no Ctrl-C.
        command = [sys.executable, "-P", "-c", SERVE, str(self.cpu_seconds)]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        weakref.finalize(self, end, self.child)
        return self.child


def end(child: "subprocess.Popen[str]") -> None:
    """Kill a child and reap it."""
    child.kill()
    child.wait()


def serve() -> None:
    """The child: for each line [answer, completion] of JSON, one line with the verdict or the error."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log, and not between the replies
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    # At the first grading the import of sympy counts too, a second or two.
    import math_verify  # noqa: F401  # pyright: ignore[reportUnusedImport]

    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + int(sys.argv[1]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
        replies.write(json.dumps(verdict(*json.loads(line))) + "\n")
        replies.flush()


def verdict(answer: str, completion: str) -> dict[str, bool | str]:
    """Parse both and compare; an error is a reply too."""
    from math_verify import parse, verify

    bare = answer.strip()
    # Plain "x^2+1" is an expression to math-verify only between dollar signs.
    marked = bare if "$" in bare or "\\boxed" in bare else f"${bare}$"
    try:
        gold = parse(marked, parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]
        if all(isinstance(part, str) for part in gold):
            return {"error": f"the answer {answer!r} is not an expression that math-verify can read"}
        found = parse(completion, parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]
        return {
            "correct": verify(gold, found, timeout_seconds=None, raise_on_error=True),
            "parsed": bool(found),
        }
    except Exception as error:  # noqa: BLE001  # the parent raises it again
        return {"error": f"{type(error).__name__}: {error}"}
