import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.trajectories import Trajectories
from stages.algorithms.kinds import Kind
from stages.rl.config import RLConfig
from stages.rl.experience import Experience
from stages.rl.prompts import draw_prompts, request_seed
from stages.rl.samples import Samples, token_places
from stages.rl.state import MAX_FAILURES, State
from stages.rl.update import split

IDS = pa.chunked_array([[f"row-{number}" for number in range(10)]])


@given(st.integers(0, 1000), st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_every_prompt_comes_once_an_epoch_however_the_steps_are_cut(seed: int, counts: list[int]) -> None:
    cursor, drawn = 0, []
    for count in counts:
        rows, cursor = draw_prompts(seed, IDS, cursor, count, frozenset())
        drawn += rows
    whole, end = draw_prompts(seed, IDS, 0, sum(counts), frozenset())
    assert (drawn, cursor) == (whole, end)
    for epoch in range(len(whole) // 10):
        assert sorted(whole[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_a_prompt_that_was_set_aside_is_passed_over() -> None:
    rows, cursor = draw_prompts(1, IDS, 0, 9, {"row-4"})
    assert 4 not in rows and len(set(rows)) == 9 and cursor in (9, 10)
    with pytest.raises(ValueError, match="all 10 prompts were set aside"):
        draw_prompts(1, IDS, 0, 1, set(IDS.to_pylist()))


def test_a_prompt_is_set_aside_after_its_last_failure_and_the_state_survives_json() -> None:
    state = State()
    for step in range(MAX_FAILURES):
        assert state.set_aside == frozenset()
        state = state.after_step(4 * (step + 1), 100, 0.5, ["row-2", "row-2"])
    assert state.set_aside == {"row-2"}
    assert (state.cursor, state.policy_version, state.tokens, state.seconds) == (12, 3, 300, 1.5)
    assert State.from_json(state.to_json()) == state


def test_request_seeds_are_distinct_and_fit_the_file() -> None:
    seeds = {request_seed(1, step, slot, sample) for step in range(9) for slot in range(9) for sample in range(9)}
    assert len(seeds) == 729
    assert all(0 <= seed < 2**63 for seed in seeds)


def trajectories(sizes: list[int], graded: list[bool], groups: list[int]) -> Trajectories:
    lengths = np.array([2 + size for size in sizes], np.int64)
    mask = np.concatenate([[False, False, *[True] * size] for size in sizes])
    return Trajectories(
        tokens=np.arange(len(mask), dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -np.arange(len(mask)), 0).astype(np.float32),
        versions=np.zeros(len(mask), np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        prompt_lengths=np.full(len(sizes), 2, np.int32),
        limits=np.full(len(sizes), 9, np.int32),
        terms=np.arange(len(sizes), dtype=np.float32)[:, None],
        rewards=np.arange(len(sizes), dtype=np.float32),
        finished=np.ones(len(sizes), np.bool_),
        graded=np.array(graded),
        groups=np.array(groups, np.int32),
        seeds=np.arange(len(sizes)),
        prompt_ids=tuple(f"row-{group}" for group in groups),
    )


def test_samples_leave_out_what_was_not_graded_and_keep_their_numbers() -> None:
    samples = Samples.of(trajectories([1, 2, 3, 1], [True, False, True, True], [1, 1, 3, 3]), 2, torch.device("cpu"))
    assert samples.sizes.tolist() == [1, 3, 1]
    assert samples.numbers.tolist() == [2, 6, 7]
    assert samples.given["reward"].tolist() == [0, 2, 3]
    assert samples.given["rollout_logprobs"].tolist() == [-2, -9, -10, -11, -14]
    assert [tokens[chosen].tolist() for tokens, chosen in samples.sequences] == [[2], [9, 10, 11], [14]]
    batch = samples.batch(np.array([0, 2]), 9, 9, lambda _: pytest.fail("no forward"))
    assert batch.groups.tolist() == [0, 1] and batch.lengths.tolist() == [1, 1]
    picked = samples.pick(samples.given["rollout_logprobs"], Kind.TOKEN, np.array([2, 1]))
    assert picked.tolist() == [-14, -9, -10, -11]


@given(st.lists(st.integers(0, 5), max_size=6), st.randoms())
def test_token_places_are_the_tokens_of_the_picked(sizes: list[int], random: object) -> None:
    owners = [index for index, size in enumerate(sizes) for _ in range(size)]
    picked = list(range(len(sizes)))[::-2]
    found = token_places(np.array(sizes, np.int64), np.array(picked, np.int64))
    assert found.tolist() == [place for index in picked for place, owner in enumerate(owners) if owner == index]


def test_ranks_split_a_step_into_the_minibatches_of_one_rank() -> None:
    rl = RLConfig(prompts_per_step=4, samples_per_prompt=2)

    def split_of(slots: list[int]) -> list[set[int]]:
        played = trajectories([1] * (2 * len(slots)), [True] * (2 * len(slots)), [slot for slot in slots for _ in "ab"])
        samples = Samples.of(played, 2, torch.device("cpu"))
        experience = Experience(samples, {}, np.ones(len(samples.sizes), np.bool_), {})
        return [set(samples.numbers[part].tolist()) for part in split(experience, 2, rl, (1, 2, 0))]

    alone, first, second = split_of([0, 1, 2, 3]), split_of([0, 2]), split_of([1, 3])
    assert [len(part) for part in alone] == [4, 4]
    assert [one | other for one, other in zip(first, second, strict=True)] == alone
