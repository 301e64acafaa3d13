"""Puts of many threads on their way to one shard."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from data.segments import num_bytes
from stages.rl.store.sending import Sending, Sent
from stages.rl.store.shelf import Decision
from stages.rl.store.wire import Offer
from tests.stages.rl.store.conftest import played


def put(sending: Sending, position: int) -> Decision:
    group = played(position)
    offer = Offer(
        position=position, attempt=0, whole=True, member="a", lease="l", samples=len(group), tokens=len(group.tokens),
        num_bytes=num_bytes(group),
    )  # fmt: skip
    return sending.put(offer, group)


def test_who_waits_for_an_answer_holds_up_nobody_so_what_comes_meanwhile_goes_together() -> None:
    streams: list[int] = []

    def send(groups: Sequence[Sent]) -> list[Decision]:
        streams.append(len(groups))
        time.sleep(0.02)  # until a segment is on disk
        return ["kept"] * len(groups)

    sending = Sending(send)
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda position: put(sending, position), range(640)))
    assert found == ["kept"] * 640 and sum(streams) == 640
    assert len(streams) < 640 / 6, "some 16 could go in each"


def test_a_group_that_is_refused_harms_no_other_and_what_else_fails_is_told_to_all_that_went() -> None:
    def send(groups: Sequence[Sent]) -> list[Decision]:
        time.sleep(0.02)
        positions = [one.offer.position for one in groups]
        if 7 in positions:
            raise ValueError("position 7 is wrong")
        if 9 in positions and len(groups) == 1:
            raise ZeroDivisionError
        return ["kept"] * len(groups)

    sending = Sending(send)
    with ThreadPoolExecutor(16) as pool:
        futures = {position: pool.submit(put, sending, position) for position in range(8)}
    assert {position for position, future in futures.items() if future.exception()} == {7}
    with pytest.raises(ValueError, match="position 7"):
        futures[7].result()
    with pytest.raises(ZeroDivisionError):
        put(sending, 9)
