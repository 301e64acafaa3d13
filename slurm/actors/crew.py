"""What the one who waits for the rl job does about its actors: asks for them, says when none is left, ends them."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from slurm.actors.arrays import Array, folder_of, read_arrays
from slurm.actors.ask import start_once, withdrawn
from slurm.actors.tasks import by_hand, living
from slurm.ask.share import has_actors
from slurm.attempt import Request
from slurm.query.queue import NoAnswer, QueueFull, SubmitError
from slurm.record import Record
from slurm.verdict import Verdict, read_verdict
from slurm.wait.background import in_background
from slurm.wait.state import Kind, State

RETRY_SECONDS = 10.0
LOOK_SECONDS = 15.0
"""Between two looks at whether there are any actors."""
SHOWN = 3


class Crew:
    """The actors of one rl job; of any other job there are none."""

    def __init__(
        self, request: Request, attempt: Path, record: Record, say: Callable[[str], None], interrupts: list[int]
    ) -> None:
        self.request, self.attempt, self.record, self.say, self.interrupts = request, attempt, record, say, interrupts
        self.wanted = has_actors(request)
        shape = request.slurm.actors
        self.per_task = shape.nodes * shape.tasks_per_node if record.executor == "slurm" else 1
        self.start = ""
        """The start of the job for which the actors were asked for."""
        self.next_try = self.next_look = 0.0
        self.said, self.none_left = "", False
        self.question: Future[tuple[str, bool]] | None = None

    def look(self, found: State) -> str:
        """Act on a state of the rl job that may still succeed; why it cannot, since its actors do not."""
        if not self.wanted or found.kind is not Kind.ACTIVE or self.interrupts:
            return ""
        restarts = found.said.restarts if found.said else None
        start = f"{self.record.job_id}+{restarts or 0}"
        if start != self.start and time.monotonic() >= self.next_try:
            self._ask_for_them(start)
        return self._count() if found.is_running else ""

    def end(self) -> None:
        """The job is over: no actor stays behind."""
        if self.wanted:
            withdrawn(self.attempt)

    def _ask_for_them(self, start: str) -> None:
        self.next_try = time.monotonic() + RETRY_SECONDS
        try:
            array = start_once(self.request, self.attempt, self.record, start, self.interrupts)
        except (QueueFull, NoAnswer) as error:
            self._say_once(f"Slurm takes no actors now, so it is asked again: {error}")
            return
        except SubmitError as error:
            self.start = start
            self._say_once(f"the actors cannot be had: {error}\nmend slurm.actors, and `qianka actors add` brings them")
            return
        self.start = start
        if array:
            evaluator = " and an evaluator" if array.evaluator else ""
            job = f"Slurm job {array.job_id}" if array.executor == "slurm" else "processes of this machine"
            self.say(f"actors: {array.actors}{evaluator}, {job}")

    def _count(self) -> str:
        """Say why when no actor is left, once, in answer to a question that is asked now and then.

        Returns the same when none can be expected any more.
        """
        if self.question is None:
            if time.monotonic() >= self.next_look:
                self.next_look = time.monotonic() + LOOK_SECONDS
                self.question = in_background(lambda: none_left(self.attempt, self.per_task))
        elif self.question.done():
            error, answer, self.question = self.question.exception(), self.question, None
            if error is not None:
                return ""
            said, all_failed = answer.result()
            if all_failed:
                return said
            if said and not self.none_left:
                self.say(said)
            self.none_left = bool(said)
        return ""

    def _say_once(self, text: str) -> None:
        if text != self.said:
            self.said = text
            self.say(text)


def none_left(attempt: Path, per_task: int = 1) -> tuple[str, bool]:
    """What a person is told when all actors of an attempt are gone; nothing while one waits or runs.

    And whether all that were asked for at this start of the rl job have failed of an error of their own, as more of
    them would: not those that were killed, preempted, or lost with their node, and not those that a person has
    submitted. There are `per_task` in each task.
    Raises NoAnswer when Slurm could not be asked.
    """
    arrays = read_arrays(attempt)
    if not arrays or any(living(attempt, array) for array in arrays) or by_hand(attempt):
        return "", False
    first = max((array for array in arrays if array.start), key=lambda array: array.number, default=arrays[0])
    ours = [array for array in arrays if array.number >= first.number]
    asked = per_task * sum(array.tasks for array in ours)
    failed = [
        f"{member}: {said.message}"
        for member, said in _verdicts(attempt).items()
        if said.why != "node" and said.time >= first.submitted and _is_of(member, ours)
    ]
    if len(failed) >= asked:
        return f"has no actor left, for all {asked} have failed; {failed[-1]}", True
    lines = ["no actor is left; the learners wait, and `qianka actors add N` brings more"]
    why = [f"{member}: {message}" for member, message in failures(attempt).items()]
    return "\n    ".join([*lines, *why[-SHOWN:]]), False


def _is_of(member: str, arrays: list[Array]) -> bool:
    """Whether a task of one of them has this name: that of a local one is its process, which no array knows."""
    job_ids = {array.job_id for array in arrays}
    return "local" in job_ids or member.partition("_")[0] in job_ids


def failures(attempt: Path) -> dict[str, str]:
    """By the name of an actor that said so itself: why its last start failed."""
    return {member: said.message for member, said in _verdicts(attempt).items()}


def _verdicts(attempt: Path) -> dict[str, Verdict]:
    found = {folder.name: read_verdict(folder) for folder in sorted(folder_of(attempt).glob("*.*/"))}
    return {member: said for member, said in found.items() if said}
