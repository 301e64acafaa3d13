"""Who is there, who is missing, and for whom the others wait."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm.inside.place import Place
from slurm.inside.roll_call import (
    Entry,
    has_begun,
    last_begun,
    missing,
    nodes_begun,
    open_roll,
    ranks_in,
    read_roll,
    sign,
    stuck,
)

PLACE = Place("slurm", 0, 8, 0, "mx0", "42", 0, "slurm-42-0-0", None, {"mx0": 4, "mx1": 4})


def entry(rank, node="mx0", at=0.0, time=100.0):
    return Entry(rank=rank, node=node, pid=1, job_id="42", began=0, event="step 1", at=at, time=time)


def test_all_that_have_signed_are_read_and_a_later_start_sweeps_an_earlier_one(tmp_path):
    roll = open_roll(tmp_path, PLACE)
    for rank in (0, 3):
        sign(roll, entry(rank))
    assert read_roll(roll) == {0: entry(0), 3: entry(3)}
    assert has_begun(tmp_path, "42", 0) and has_begun(tmp_path, "42", None)
    assert not has_begun(tmp_path, "43", None)
    later = open_roll(tmp_path, replace(PLACE, start="slurm-42-0-1"))
    assert [path.name for path in later.parent.iterdir()] == ["slurm-42-0-1"]
    assert not has_begun(tmp_path, "42", 1)
    sign(later, entry(5, "mx1"))
    assert nodes_begun(tmp_path, "42", 1) == {"mx1"}
    assert (last_begun(tmp_path, "42"), last_begun(tmp_path, "43")) == (1, -1)
    with pytest.raises(FileNotFoundError):
        sign(roll, entry(3))


def test_ranks_of_an_earlier_start_that_sign_while_it_is_swept_end(tmp_path):
    def end(roll, rank):
        latest = time.monotonic() + 20
        with contextlib.suppress(FileNotFoundError):
            while time.monotonic() < latest:
                sign(roll, entry(rank))
            return False
        return True

    later = replace(PLACE, start="slurm-42-0-1")
    for attempt in (tmp_path / str(number) for number in range(50)):
        roll = open_roll(attempt, PLACE)
        left = roll.with_name(f".{roll.name}")  # by a rank 0 that was killed while it swept
        left.mkdir()
        (left / "0.json").touch()
        with ThreadPoolExecutor(4) as pool:
            ranks = [pool.submit(end, roll, rank) for rank in range(4)]
            while len(ranks_in(roll)) < 4:
                time.sleep(0.001)
            open_roll(attempt, later)
        assert all(rank.result() for rank in ranks)
        assert [path.name for path in roll.parent.iterdir() if path != left] == [later.start]


def test_half_a_file_is_not_an_answer(tmp_path):
    roll = open_roll(tmp_path, PLACE)
    (roll / "0.json").write_text(entry(0).model_dump_json()[:20])
    assert read_roll(roll) == {}


@settings(deadline=None)  # the machine may pause
@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_missing_nodes_are_those_with_too_few_ranks_however_ranks_were_dealt(order, absent):
    nodes = {rank: f"mx{index // 4}" for index, rank in enumerate(order)}
    found = missing(PLACE, {rank: entry(rank, nodes[rank]) for rank in range(8) if rank not in absent})
    assert set(found.ranks) == absent
    assert set(found.nodes) == {nodes[rank] for rank in absent}


def test_what_is_missing_is_said_in_words():
    present = {rank: entry(rank) for rank in range(4)}
    assert str(missing(PLACE, present)) == "ranks 4, 5, 6, 7 on node mx1"
    assert str(missing(replace(PLACE, tasks={}), present)) == "ranks 4, 5, 6, 7"
    assert "and 12 more" in str(missing(replace(PLACE, world_size=20), {}))


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_the_others_wait_for_one_that_is_silent_and_else_for_the_one_whose_last_event_is_oldest(clocks):
    """However wrong the clocks of the nodes are."""

    def look(now, *ranks):
        return {rank: entry(rank, at=clocks[rank] + at, time=clocks[rank] + now) for rank, at in ranks}

    before, after = look(100, (0, 20), (1, 10), (2, 30)), look(130, (0, 20), (1, 10), (2, 30))
    assert stuck(before, after) == (after[1], False)
    assert stuck(before, after | {2: before[2]}) == (before[2], True)
    assert stuck({0: before[0]}, after) == (after[1], False)  # two have come since
    ended = before[2].model_copy(update={"ended": True})
    assert stuck(before | {2: ended}, after | {2: ended}) == (after[1], False)
