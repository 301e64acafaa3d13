"""What the one who waits for the rl job does about its actors: asks for them, says when none is left, ends them."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from slurm.actors.arrays import folder_of, read_arrays
from slurm.actors.ask import start_once, withdrawn
from slurm.actors.tasks import living
from slurm.ask.share import has_actors
from slurm.attempt import Request
from slurm.query.queue import NoAnswer, QueueFull, SubmitError
from slurm.record import Record
from slurm.verdict import read_verdict
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
        self.start = ""
        """The start of the job for which the actors were asked for."""
        self.next_try = self.next_look = 0.0
        self.said, self.none_left = "", False
        self.question: Future[str] | None = None

    def look(self, found: State) -> None:
        """Act on a state of the rl job that may still succeed."""
        if not self.wanted or found.kind is not Kind.ACTIVE or self.interrupts:
            return
        restarts = found.said.restarts if found.said else None
        start = f"{self.record.job_id}+{restarts or 0}"
        if start != self.start and time.monotonic() >= self.next_try:
            self._ask_for_them(start)
        if found.is_running:
            self._count()

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

    def _count(self) -> None:
        """Say why when no actor is left, once, in answer to a question that is asked now and then."""
        if self.question is None:
            if time.monotonic() >= self.next_look:
                self.next_look = time.monotonic() + LOOK_SECONDS
                self.question = in_background(lambda: none_left(self.attempt))
        elif self.question.done():
            error, said = self.question.exception(), ""
            said = self.question.result() if error is None else ""
            self.question = None
            if said and not self.none_left:
                self.say(said)
            self.none_left = bool(said) if error is None else self.none_left

    def _say_once(self, text: str) -> None:
        if text != self.said:
            self.said = text
            self.say(text)


def none_left(attempt: Path) -> str:
    """What a person is told when all actors of an attempt are gone; nothing while one waits or runs.

    Raises NoAnswer when Slurm could not be asked.
    """
    arrays = read_arrays(attempt)
    if not arrays or any(living(attempt, array) for array in arrays):
        return ""
    lines = ["no actor is left; the learners wait, and `qianka actors add N` brings more"]
    lines += [f"    {member}: {why}" for member, why in failures(attempt).items()][-SHOWN:]
    return "\n".join(lines)


def failures(attempt: Path) -> dict[str, str]:
    """By the name of an actor that said so itself: why it failed."""
    found: dict[str, str] = {}
    for folder in sorted(folder_of(attempt).glob("*.*/")):
        verdict = read_verdict(folder)
        if verdict:
            found[folder.name] = verdict.message
    return found
