"""What the state of a job, and what its ranks say, mean for the one who waits: go on waiting, or how it ended."""

import contextlib
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from slurm.attempt import is_cancelled, read_job_file
from slurm.exclusions import exclude
from slurm.inside.roll_call import has_begun
from slurm.query.queue import NoAnswer
from slurm.query.words import is_held, way_out
from slurm.record import Record
from slurm.verdict import explain, read_verdict
from slurm.wait import state
from slurm.wait.background import in_background
from slurm.wait.launch import blamed_by_srun, blamed_for_silence
from slurm.wait.state import Kind, State

RETURN_SECONDS = 900.0
"""How long a job that the cluster ended, or holds, may take to be in the queue again."""
FINAL_SECONDS = 60.0
"""The same when slurmctld itself says that the job was lost or preempted: one that it starts again is pending."""
ENDED_SECONDS = {"local": 1.0, "slurm": 75.0}
"""How long a job must seem over before it is: states lag behind a requeue, and NFS may show a new file after 60 s."""
CLEAR = {"CANCELLED": 3.0, "TIMEOUT": 3.0, "OUT_OF_MEMORY": 3.0, "DEADLINE": 3.0}
"""Seconds after which there is no doubt about states in which a job that Slurm starts again is never seen."""
LOST = ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")
"""States in which a job ends though nothing is wrong with it."""
STRAGGLER_SECONDS = {"mistake": 60.0, "node": 30.0, "error": 600.0}
"""How long the others may go on after a rank has failed on Slurm. An error may be the loss of a node, which Slurm
notices after its SlurmdTimeout (300 s by default), and then starts the job again."""
LOCAL_STRAGGLER_SECONDS = 60.0
START_SECONDS = 1.0
"""A job runs for so long before it is judged by which of its ranks have started."""


class End(Enum):
    """How the waiting ended."""

    FINISHED = 0
    FAILED = 1
    AGAIN = 2
    """The job is over, and another one can go on with what it committed."""
    DETACHED = 75
    CANCELLED = 130


class Judge:
    """Judges one job. `say` tells the person a line about it."""

    def __init__(self, attempt: Path, record: Record, say: Callable[[str], None]) -> None:
        self.attempt, self.record, self.say = attempt, record, say
        self.since: dict[str, float] = {}
        self.begun = False
        self.ended_by_us = False

    def look(self, found: State) -> End | None:
        """The end that a state of the job means, or None while it may still succeed."""
        if found.kind is Kind.FINISHED:
            return End.FINISHED
        if found.kind is Kind.ENDED:
            patience = self._patience(found)
            return self._over(found) if self._lasts("ended", True) > patience or self._explained() else None
        if found.kind is Kind.UNKNOWN:
            return None
        self._lasts("ended", False)
        if self._lasts("returning", found.kind is Kind.RETURNING) > self._return_seconds(found):
            return self._over(found)
        if found.said and found.word == "PENDING" and way_out(found.said.reason):
            return self._give_up(f"{found.text}; {way_out(found.said.reason)}")
        held = found.said is not None and is_held(found.said.state, found.said.reason)
        if self._lasts("held", held) > RETURN_SECONDS:
            return self._give_up(f"{found.text}, for {RETURN_SECONDS / 60:.0f} minutes by now")
        if found.kind is Kind.ACTIVE:
            self._end_stragglers(found)
            self._end_silence(found)
        return None

    def _lasts(self, what: str, holds: bool) -> float:
        """Seconds since `what` holds without a break; a negative number when it does not."""
        if not holds:
            self.since.pop(what, None)
            return -1.0
        return time.monotonic() - self.since.setdefault(what, time.monotonic())

    def _patience(self, found: State) -> float:
        return CLEAR.get(found.word, ENDED_SECONDS[self.record.executor])

    def _return_seconds(self, found: State) -> float:
        return FINAL_SECONDS if found.said and found.said.by == "squeue" else RETURN_SECONDS

    def _explained(self) -> bool:
        """Whether it is known why there will be no result: from a rank, from its log, or from srun if none started."""
        verdict = explain(self.attempt, self.record.job_id)
        return bool(self._blamed()) if verdict is None else verdict.why != "stopped"

    def _blamed(self) -> dict[str, str]:
        """Nodes on which srun could not start a rank, if none has started, and what it said."""
        job_id = self.record.job_id
        if job_id is None or self.record.executor == "local" or has_begun(self.attempt, job_id):
            return {}
        return blamed_by_srun(self.attempt, job_id)

    def _over(self, found: State) -> End:
        """Whether another job may succeed. Not when somebody has cancelled this one, and wants no other one for it."""
        cancelled = found.word == "CANCELLED" and not self.ended_by_us
        if cancelled or is_cancelled(self.attempt, self.record.job_id):
            return End.FAILED
        verdict = read_verdict(self.attempt)
        why = verdict.why if verdict else None
        if why == "stopped":
            return End.AGAIN
        if self.record.executor == "local":
            return End.FAILED
        if verdict and why == "node":
            self.say(f"{', '.join(verdict.nodes)} failed: {verdict.message}; avoided from now on, a new job starts")
            return End.AGAIN
        if why is None and not self.ended_by_us:
            self._avoid(self._blamed())
        if why is None and self.ended_by_us:  # it did not start
            return End.AGAIN
        if found.word in LOST and why in (None, "error"):  # the error of a rank is that the others were gone
            self.say(f"job {self.record.job_id} {found.text}; a new job goes on from what was committed")
            return End.AGAIN
        return End.FAILED

    def _give_up(self, why: str) -> End:
        self.say(f"job {self.record.job_id} {why}. It is cancelled, and the same command submits it again")
        with contextlib.suppress(NoAnswer):
            state.cancel(self.attempt.parent, self.record)
        return End.FAILED

    def _end_stragglers(self, found: State) -> None:
        """When a rank has failed and the others do not notice, free their nodes.

        A job that waits for its next start, after the loss of a node for example, still has the verdicts of the last.
        """
        verdict = read_verdict(self.attempt) if found.is_running else None
        lasts = self._lasts("failed", verdict is not None and verdict.why != "stopped")
        if verdict is None or verdict.why == "stopped":
            return
        on_slurm = self.record.executor == "slurm"
        if lasts > (STRAGGLER_SECONDS[verdict.why] if on_slurm else LOCAL_STRAGGLER_SECONDS):
            self.say(f"rank {verdict.rank} has failed and others go on: ending the job")
            self._cancel()
            self.since.pop("failed")

    def _end_silence(self, found: State) -> None:
        """End a job that has its nodes while no rank starts on them, and avoid the node that is to blame."""
        runs = found.is_running and found.said is not None
        seconds = self._lasts("running", runs)
        if not runs or found.said is None or self.begun or self.record.job_id is None:
            self.begun = self.begun and runs  # a requeued job has to begin again
            return
        self.begun = has_begun(self.attempt, self.record.job_id)
        if self.begun or seconds < START_SECONDS:  # rank 0 of a requeued job is just about to sign the roll anew
            return
        blamed = self._blamed()
        watch = read_job_file(self.attempt).watch
        if not blamed and seconds > 60 * watch.start_minutes:
            reason = f"no rank of job {self.record.job_id} had started after {watch.start_minutes:g} minutes"
            blamed = dict.fromkeys(blamed_for_silence(found.said.nodes), reason)
        if blamed:
            self._avoid(blamed)
            self._cancel()

    def _avoid(self, blamed: dict[str, str]) -> None:
        """Keep the next jobs of the run away from nodes, by node why. None: nothing happens."""
        job_file = read_job_file(self.attempt)
        for node, reason in blamed.items():
            exclude(self.attempt / job_file.run_folder, [node], reason, job_file.watch.exclude_hours)
            self.say(f"node {node}: {reason}; it is avoided from now on, and the job starts elsewhere")
            self.ended_by_us = True

    def _cancel(self) -> None:
        """Ask for the end of the job; nobody waits for the answer, and where it fails it is asked again."""
        self.ended_by_us = True

        def cancel() -> None:
            with contextlib.suppress(NoAnswer):
                state.cancel(self.attempt.parent, self.record)

        in_background(cancel)
