"""What the state of a job, and what its ranks say, mean for the one who waits: go on waiting, or how it ended."""

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from pathlib import Path

from slurm.attempt import is_cancelled, read_job_file
from slurm.exclusions import exclude
from slurm.query.queue import NoAnswer
from slurm.query.words import is_held, may_pass, way_out
from slurm.record import Record
from slurm.verdict import explain, lost_peer, read_verdict
from slurm.wait import launch, state
from slurm.wait.background import in_background
from slurm.wait.launch import Launch
from slurm.wait.lost import gone, listed, wait_for_loss
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
HOPELESS_SECONDS = 600.0
"""How long a reason that may pass is waited for: slurmdbd may have been started again."""
SUSPECT_HOURS = 1.0
"""How long a node is avoided on which no rank has begun though nothing is known against it."""
NO_LOG = ("exit code 0:53", "JobLaunchFailure")
"""Reasons of a job whose first node could not open the log."""
NO_LOG_SECONDS = 3.0


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
        self.again = False
        """Another job may succeed, whatever is said of this one."""
        self.doubt = ""
        """What is strange about the end of this job, which another one may do better: but not a third one."""
        self.suspects: tuple[str, ...] = ()
        """Nodes that are avoided because of a doubt."""
        self.launch = Launch(attempt, record)
        self.loss: Future[dict[str, str]] | None = None

    def look(self, found: State) -> End | None:
        """The end that a state of the job means, or None while it may still succeed."""
        if found.kind is Kind.FINISHED:
            return End.FINISHED
        if self.launch.note(found):
            self.begun, self.loss = False, None
            self._lasts("running", False)
        if found.kind is Kind.ENDED:
            patience = self._patience(found)
            return self._over(found) if self._lasts("ended", True) > patience or self._explained() else None
        if found.kind is Kind.UNKNOWN:
            return None
        self._lasts("ended", False)
        if self._lasts("returning", found.kind is Kind.RETURNING) > self._return_seconds(found):
            return self._over(found)
        hopeless = way_out(found.said.reason) if found.said and found.word == "PENDING" else None
        patience = HOPELESS_SECONDS if found.said and may_pass(found.said.reason) else 0.0
        if self._lasts("hopeless", hopeless is not None) >= patience:
            return self.give_up(f"{found.text}; {hopeless}")
        if found.word == "PENDING" and self.launch.in_vain():
            return self.give_up(
                f"was started {launch.LAUNCHES} times by Slurm, and no rank has begun. As a rule Slurm does not know "
                f"this user on its machines (`getent passwd {os.getuid()}` there), or a prolog fails; slurmctld's log, "
                "which an administrator can read, says what is wrong with a job of this number"
            )
        held = found.said is not None and is_held(found.said.state, found.said.reason)
        if self._lasts("held", held) > RETURN_SECONDS:
            return self.give_up(f"{found.text}, for {RETURN_SECONDS / 60:.0f} minutes by now")
        if found.kind is Kind.ACTIVE:
            self._end_stragglers(found)
            self._end_silence(found)
        return None

    def _lasts(self, what: str, holds: bool) -> float:
        """Seconds since `what` holds without a break; a negative number when it does not."""
        if not holds:
            self.since.pop(what, None)
            return -1.0
        now = time.monotonic()
        return now - self.since.setdefault(what, now)

    def _patience(self, found: State) -> float:
        if found.said and found.said.reason in NO_LOG:
            return NO_LOG_SECONDS
        return CLEAR.get(found.word, ENDED_SECONDS[self.record.executor])

    def _return_seconds(self, found: State) -> float:
        return FINAL_SECONDS if found.said and found.said.by == "squeue" else RETURN_SECONDS

    def _explained(self) -> bool:
        """Whether it is known why there will be no result: from a rank, from its log, or from srun."""
        verdict = explain(self.attempt, self.record.job_id)
        return bool(self.launch.blamed()) if verdict is None or verdict.why == "stopped" else True

    def _over(self, found: State) -> End | None:
        """Whether another job may succeed. Not when somebody has cancelled this one, and wants no other one for it.

        None while Slurm may yet miss a node.
        """
        cancelled = found.word == "CANCELLED" and not self.ended_by_us
        if cancelled or is_cancelled(self.attempt, self.record.job_id):
            return End.FAILED
        verdict = read_verdict(self.attempt)
        why = verdict.why if verdict else None
        if self.record.executor == "local" or why == "mistake":
            return End.AGAIN if why == "stopped" else End.FAILED
        if verdict and why == "node":
            self.say(f"{', '.join(verdict.nodes)} failed: {verdict.message}; avoided from now on, a new job starts")
            return End.AGAIN
        told = explain(self.attempt, self.record.job_id)
        if not self.again and (told is None or told.why == "stopped" or lost_peer(told)):
            self._avoid(self.launch.blamed())
        if self.again or why == "stopped":
            return End.AGAIN
        if found.word in LOST and why in (None, "error"):  # the error of a rank is that the others were gone
            self.say(f"job {self.record.job_id} {found.text}; a new job goes on from what was committed")
            return End.AGAIN
        if told is None and found.said and found.said.reason in NO_LOG and not self.launch.has_begun():
            self._suspect(f"could not open its log on its first node, {self.launch.first_node()}")
            return End.AGAIN
        return self._over_for_a_peer() if lost_peer(told) else End.FAILED

    def _over_for_a_peer(self) -> End | None:
        """The error of a rank is that another one is gone: Slurm notices the loss of a node later, or there is none."""
        if self.loss is None:
            nodes = self.launch.find_nodes()
            self.loss = in_background(lambda: wait_for_loss(nodes))
            self.say(f"job {self.record.job_id} has lost a rank; waiting for Slurm to say whether a node is gone")
        if not self.loss.done():
            return None
        lost = self.loss.result()
        if lost:
            self.say(
                f"job {self.record.job_id} lost a node, which failed or does not answer: {listed(lost)}; "
                "a new job goes on from what was committed"
            )
        else:
            self.doubt = f"lost a rank, though Slurm misses none of its nodes {self.launch.nodes}"
        return End.AGAIN

    def give_up(self, why: str) -> End:
        """End a job that cannot succeed; `why` goes on after its name."""
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
        self.begun = self.launch.has_begun()
        if self.begun or seconds < START_SECONDS:  # ranks of a requeued job are just about to sign the roll anew
            return
        blamed, minutes = self.launch.blamed(), read_job_file(self.attempt).watch.start_minutes
        silent = f"started no rank on {self.launch.nodes} within {minutes:g} minutes (slurm.watch.start_minutes)"
        if not blamed and seconds > 60 * minutes:
            blamed = {
                node: f"job {self.record.job_id} {silent}, and it is {said}"
                for node, said in gone(self.launch.nodes).items()
            }
            if not blamed:
                self._suspect(f"{silent}; does a line of slurm.setup hang?")
        self._avoid(blamed)
        if self.again:
            self._cancel()

    def _suspect(self, doubt: str) -> None:
        """The batch script runs on the first node, and may have failed because of it: the next job shows it."""
        self.doubt, self.again = doubt, True
        first = self.launch.first_node()
        said = f"job {self.record.job_id} {doubt}"
        self.suspects = (first,) if first else ()
        exclude(self._run_folder(), self.suspects, said, SUSPECT_HOURS)
        self.say(f"{said}; another job tries it{f' without {first}' if first else ''}")

    def _run_folder(self) -> Path:
        return self.attempt / read_job_file(self.attempt).run_folder

    def _avoid(self, blamed: dict[str, str]) -> None:
        """Keep the next jobs of the run away from nodes, by node why. None: nothing happens."""
        for node, reason in blamed.items():
            exclude(self._run_folder(), [node], reason, read_job_file(self.attempt).watch.exclude_hours)
            self.say(f"node {node}: {reason}; it is avoided from now on, and the job starts elsewhere")
            self.again = True

    def _cancel(self) -> None:
        """Ask for the end of the job; nobody waits for the answer, and where it fails it is asked again."""
        self.ended_by_us = True

        def cancel() -> None:
            with contextlib.suppress(NoAnswer):
                state.cancel(self.attempt.parent, self.record)

        in_background(cancel)
