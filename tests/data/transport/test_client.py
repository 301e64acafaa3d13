"""What a caller does about a server that does not answer, or answers nonsense."""

import traceback
from itertools import islice

import pytest
from pydantic import BaseModel, ConfigDict

from data.transport.client import PAUSES, Caller, Unreachable, pauses
from data.transport.server import Action, Server


class Secret(BaseModel):
    """A message that somebody else sends."""

    token: str


class Number(BaseModel):
    """A message."""

    model_config = ConfigDict(extra="forbid")
    n: int = 0


class Wrong(Server):
    """Answers what nobody has asked for."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", {"ask": Action(Number, lambda _: Secret(token="do-not-tell"))})


def test_what_an_answer_says_is_not_told_where_it_is_no_such_message() -> None:
    with pytest.raises(Unreachable) as caught:
        Caller(Wrong().endpoint).call("ask", Number(), Number)
    assert "this is no Number: n" in str(caught.value) or "this is no Number: token" in str(caught.value)
    assert "do-not-tell" not in "".join(traceback.format_exception(caught.value))


def test_pauses_between_tries_double_up_to_the_longest_and_no_two_callers_have_the_same() -> None:
    each = [list(islice(pauses(), 12)) for _ in range(100)]
    for found in each:
        doubled = [min(PAUSES[0] * 2**number, PAUSES[1]) for number in range(12)]
        assert all(most / 2 <= pause <= most for pause, most in zip(found, doubled, strict=True))
    assert len({found[0] for found in each}) > 90
