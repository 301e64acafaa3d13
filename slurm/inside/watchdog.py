"""A thread in each rank that ends the job when nothing moves, and says who hangs where.

It keeps the rank's file of the roll (`slurm.inside.roll_call`), looks once whether all ranks have started, and looks at
`Job.pulse`. A call in C that holds the interpreter's lock stops this thread too, so faulthandler's own timer, which
needs no lock, is wound up again at each look.
"""

import faulthandler
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil

from data.job import Job
from slurm.attempt import LOGS, JobFile
from slurm.exclusions import exclude
from slurm.inside.place import Place
from slurm.inside.roll_call import PERIOD_SECONDS, Entry, missing, open_roll, ranks_in, read_roll, sign, stuck
from slurm.verdict import Verdict, write_verdict

STALLED = 70
"""Exit code of a rank that ended the job because nothing moved."""
LOOKS = 20
"""How often a limit is looked at while it runs out."""
SILENT_SECONDS = 60.0
"""A rank that does not write its file for so long, or for half the limit, is frozen or gone."""
LOOKS_FOR_ALL = "stalled"
"""Who makes this file of the roll finds out for whom all wait: a thousand ranks need not read a thousand files each."""
PAUSE_SECONDS = 2.0
"""When this thread did not run for so much longer than it wanted to sleep, the whole process stood still, as after
`scontrol suspend`, or a call in C held the lock and has returned. The time does not count."""
SUSPEND_SECONDS = 5.0
"""Slurm sends TSTP two seconds before it stops the ranks of a job that is suspended. For so long this thread looks
often, so that it knows how long they stood still."""
OFTEN_SECONDS = 0.5
LAST_SECONDS = 5.0
"""Between the verdict and the exit, after which Slurm kills the others: they dump their stacks as well."""
LOCK_SECONDS = 60.0
"""How much longer than the limit faulthandler's timer waits: first the thread, which can say more."""


def stacks_file(attempt: Path, place: Place) -> Path:
    """Where a rank that hangs leaves its stacks."""
    return attempt / LOGS / f"{place.job_id}_{place.rank}_stacks.txt"


class Watchdog:
    """Watches one rank."""

    def __init__(self, attempt: Path, place: Place, job: Job, job_file: JobFile, roll: Path) -> None:
        """`roll` is the folder of this start."""
        self.attempt, self.place, self.job, self.job_file, self.roll = attempt, place, job, job_file, roll
        self.stall, self.slow = 60 * job_file.watch.stall_minutes, 60 * job_file.watch.slow_minutes
        self.began, self.no_timer_before = time.monotonic(), 0.0
        self.ended = False
        self.ear, self.mouth = socket.socketpair()
        self.mouth.setblocking(False)
        self.tick = min(PERIOD_SECONDS, self.stall / LOOKS, job.start_seconds / LOOKS)
        self.silent = min(SILENT_SECONDS, self.stall / 2)
        self.all_here, self.can_sign = place.world_size == 1, True
        self.stacks = stacks_file(attempt, place)
        self.stream = self.stacks.open("w")

    def watch(self) -> None:
        """Until `end` is called."""
        before = time.monotonic()
        while True:
            is_suspended = before < self.no_timer_before
            if not is_suspended:
                faulthandler.dump_traceback_later(self._limit() + LOCK_SECONDS, exit=True, file=self.stream)
            tick = min(self.tick, OFTEN_SECONDS) if is_suspended else self.tick
            self._listen(tick)
            if self.ended:
                return
            now = time.monotonic()
            pause, before = now - before - tick, now  # wherever in the loop it was
            if pause > PAUSE_SECONDS:
                self.job.pulse.paused += pause if is_suspended else 0.0
                self.job.beat(self.job.pulse.event)
            self._look()

    def end(self) -> None:
        """Let `watch` return."""
        self.ended = True
        self.mouth.send(bytes([0]))

    def _listen(self, seconds: float) -> None:
        """Sleep, until there is a signal.

        Python's own handlers wait for the main thread, which may be in a collective; Python's C handler writes the
        signal's number at once. The timer is put away before the ranks are stopped: else it rings as they go on.
        """
        if select.select([self.ear], [], [], seconds)[0] and signal.SIGTSTP in self.ear.recv(4096):
            self.no_timer_before = time.monotonic() + SUSPEND_SECONDS
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        self._sign()
        waited = time.monotonic() - self.began - self.job.pulse.paused
        if not self.all_here and waited > self.job.start_seconds:
            self._call_roll()
        if self._age() > self._limit():
            self._end_stalled()

    def close(self) -> None:
        """Put the timer away, and sign off."""
        faulthandler.cancel_dump_traceback_later()
        self.ear.close()
        self.mouth.close()
        self._sign(ended=True)
        self.stream.close()
        self.stacks.unlink(missing_ok=True)

    def _limit(self) -> float:
        return self.slow if self.job.pulse.is_slow else self.stall

    def _age(self) -> float:
        return time.monotonic() - self.job.pulse.at

    def _sign(self, ended: bool = False) -> None:
        try:
            sign(self.roll, entry_of(self.place, self.job, self.began).model_copy(update={"ended": ended}))
            self.can_sign = True
        except FileNotFoundError:
            say(f"{self.attempt.name} was started again elsewhere: rank {self.place.rank} of {self.place.start} ends")
            os._exit(STALLED)
        except OSError as error:
            if self.can_sign:
                say(f"rank {self.place.rank} cannot write its file of the roll: {error}")
            self.can_sign = False

    def _call_roll(self) -> None:
        """The lowest of the ranks that are there says who is not, and whose nodes are avoided."""
        signed = ranks_in(self.roll)
        self.all_here = len(signed) == self.place.world_size
        if self.all_here or min(signed, default=self.place.rank) != self.place.rank:
            return
        present = read_roll(self.roll)
        if present.keys() != signed:  # one has come meanwhile, or writes its file: look again
            return
        absent = missing(self.place, present)
        minutes = f"{self.job_file.watch.start_minutes:g} minutes"
        message = f"{absent} did not start within {minutes} (slurm.watch.start_minutes)"
        if absent.nodes:
            try:
                run = (self.attempt / self.job_file.run_folder).resolve()
                exclude(run, absent.nodes, message, self.job_file.watch.exclude_hours)
            except OSError as error:
                say(f"{', '.join(absent.nodes)} cannot be noted as to be avoided: {error}")
        self._end(Verdict.of("node" if absent.nodes else "error", message, self.place, absent.nodes))

    def _end_stalled(self) -> NoReturn:
        """Name the rank for which the others wait, which is this one when there are no others."""
        said_already = any(self.attempt.glob("verdict-*.json"))
        try:
            self._dump()
        except OSError as error:
            say(f"the stacks are not on disk: {error}")
        if said_already:
            self._exit()
        looks_for_all = self._looks_for_all()
        before = self._read_roll() if looks_for_all else {}
        end = time.monotonic() + self.silent
        while time.monotonic() < end:  # as often as makes the ages of their last events comparable
            self._sign()
            time.sleep(min(self.tick, OFTEN_SECONDS))
        if not looks_for_all:
            self._exit()
        found, frozen = stuck(before, self._read_roll())
        age = max(found.time - found.at, self._age()) if frozen else found.time - found.at
        key = "slow_minutes" if self.job.pulse.is_slow else "stall_minutes"
        message = (
            f"rank {found.rank} on {found.node} hangs: its last event was {found.event!r}, {age:.0f} "
            f"s ago{', and it is frozen or gone' if frozen else ''}; rank {self.place.rank} on {self.place.node} has "
            f"waited {self._limit() / 60:g} minutes (slurm.watch.{key}); its stacks: {self.stacks}"
        )
        verdict = Verdict.of("error", message, self.place)
        self._end(verdict.model_copy(update={"rank": found.rank, "node": found.node}))

    def _looks_for_all(self) -> bool:
        try:
            os.close(os.open(self.roll / LOOKS_FOR_ALL, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        except OSError as error:
            say(f"rank {self.place.rank} cannot make a file of the roll: {error}")
        return True

    def _read_roll(self) -> dict[int, Entry]:
        """All that have signed, and this rank in any case."""
        return read_roll(self.roll) | {self.place.rank: entry_of(self.place, self.job, self.began)}

    def _end(self, verdict: Verdict) -> NoReturn:
        write_verdict(self.attempt, verdict, self.place.rank)
        say(f"error: {verdict.message}")
        self._exit()

    def _exit(self) -> NoReturn:
        time.sleep(LAST_SECONDS)
        os._exit(STALLED)

    def _dump(self) -> None:
        age = self._age()
        self.stream.write(f"{self.place.node}, rank {self.place.rank}: {self.job.pulse.event!r} {age:.0f} s ago\n")
        self.stream.write(_children())
        self.stream.flush()
        faulthandler.dump_traceback(file=self.stream, all_threads=True)


@contextmanager
def watched(attempt: Path, place: Place, job: Job, job_file: JobFile, roll: Path) -> Generator[None]:
    """Watch this rank for the length of the block."""
    watchdog = Watchdog(attempt, place, job, job_file, roll)
    handler, wakeup = signal.getsignal(signal.SIGTSTP), signal.set_wakeup_fd(watchdog.mouth.fileno())
    if place.starter != "hand":  # there it is a Ctrl-Z
        signal.signal(signal.SIGTSTP, lambda number, frame: None)
    thread = threading.Thread(target=watchdog.watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.end()
        thread.join()
        signal.signal(signal.SIGTSTP, handler)
        signal.set_wakeup_fd(wakeup)
        watchdog.close()


def begin(attempt: Path, place: Place) -> Path:
    """Sign the roll for the first time, and return its folder."""
    roll = open_roll(attempt, place)
    sign(roll, entry_of(place, Job(), time.monotonic()))
    return roll


def entry_of(place: Place, job: Job, began: float) -> Entry:
    """What the roll says of this rank now; `began` is on the monotonic clock."""
    now, moment = time.time(), time.monotonic()
    return Entry(
        rank=place.rank,
        node=place.node,
        pid=os.getpid(),
        job_id=place.job_id,
        began=now - (moment - began),
        event=job.pulse.event,
        at=now - (moment - job.pulse.at),
        time=now,
    )


def say(text: str) -> None:
    """A line of the job's log, past Python's stream, whose lock the thread that hangs may hold."""
    os.write(1, f"{text}\n".encode())


def _children() -> str:
    """Processes below this one: a rank may hang because it waits for one of them."""
    lines: list[str] = []
    for child in psutil.Process().children(recursive=True):
        try:
            lines.append(f"child {child.pid}, {child.status()}: {' '.join(child.cmdline())[:200]}\n")
        except psutil.NoSuchProcess:
            continue
    return "".join(lines)
