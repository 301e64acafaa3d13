"""Positions on their way: as ranges, and the same when they arrive."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.transport.endpoint import Endpoint
from stages.rl.messages import Advance, Source
from stages.rl.state import State
from stages.rl.store.wire import Done

SOURCE = Source(version=0, digest="", num_bytes=0, endpoint=Endpoint("127.0.0.1", 1, ""))


def _advance(ahead: Any) -> Advance:
    return Advance(version=0, source=SOURCE, window=1, cursor=0, ahead=ahead)


@given(st.sets(st.integers(0, 50)))
def test_what_is_ahead_arrives_as_it_was_in_messages_and_in_checkpoints(places: set[int]) -> None:
    ahead = tuple(sorted(places))
    assert Advance.model_validate_json(_advance(ahead).model_dump_json()).ahead == ahead
    assert Done.model_validate_json(Done(start="s", cursor=0, ahead=ahead).model_dump_json()).ahead == ahead
    state = State(ahead=ahead)
    assert State.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert {position for position in range(60) if state.is_done(position)} == places


def test_windows_of_positions_ahead_are_few_bytes() -> None:
    ahead = tuple(position for position in range(200_000) if position % 50_000)
    assert len(_advance(ahead).model_dump_json()) < 1000
    assert len(json.dumps(State(ahead=ahead).to_json())) < 1000


@pytest.mark.parametrize("ahead", ["[[0, 1000000000000]]", "[[0]]", '[["a", "b"]]', "3", "[[0, 1], 5]"])
def test_what_is_no_such_list_or_would_take_all_memory_is_refused(ahead: str) -> None:
    with pytest.raises(ValueError):
        Done.model_validate_json(f'{{"start": "s", "cursor": 0, "ahead": {ahead}}}')
