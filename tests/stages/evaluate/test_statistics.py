import itertools

import numpy as np
import pytest

from stages.evaluate.statistics import Bootstrap, compare, pass_at_k, prompt_means


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_sample(n: int) -> None:
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        draws = list(itertools.combinations([1] * correct + [0] * (n - correct), k))
        expected = sum(any(draw) for draw in draws) / len(draws)
        assert pass_at_k(np.array([n]), np.array([correct]), k)[0] == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_takes_prompts_with_unequal_numbers_of_graded_samples() -> None:
    assert pass_at_k(np.array([2, 4]), np.array([1, 1]), 2) == pytest.approx([1.0, 0.5])


def test_the_interval_covers_the_true_share_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        values = (generator.random(120) < 0.3).astype(float)
        low, high = Bootstrap(400, 0.9, seed=1).interval(values)
        covered += low <= 0.3 <= high
    assert 0.84 <= covered / 300 <= 0.95


def test_samples_of_one_prompt_do_not_narrow_the_interval() -> None:
    solved = np.repeat(np.random.default_rng(3).random(50) < 0.5, 8).astype(float)  # all 8 samples agree
    ids = np.repeat(np.array([f"p{i:02}" for i in range(50)]), 8)
    _, means = prompt_means(ids, solved, np.ones(400, dtype=bool))
    low, high = Bootstrap(2000, 0.95, seed=1).interval(means)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 50**0.5, rel=0.15)  # of 50 prompts, not of 400 samples


def test_the_interval_is_the_same_for_a_seed_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random(30)
    expected = Bootstrap(500, 0.95, seed=5).interval(values)
    monkeypatch.setattr("stages.evaluate.statistics.CHUNK_ELEMENTS", 30 * 7)
    assert Bootstrap(500, 0.95, seed=5).interval(values) == expected
    assert Bootstrap(500, 0.95, seed=6).interval(values) != expected


def test_rows_that_were_not_graded_leave_the_mean_and_a_prompt_without_any_leaves_the_count() -> None:
    ids = np.array(["a", "a", "b", "c"])
    prompts, means = prompt_means(ids, np.array([1.0, 0.0, 0.0, 1.0]), np.array([True, False, False, True]))
    assert prompts.tolist() == ["a", "c"] and means.tolist() == [1.0, 1.0]


def test_a_paired_comparison_counts_won_lost_and_tied_on_the_common_prompts() -> None:
    first = np.array(["a", "b", "c", "d", "x"]), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    second = np.array(["a", "b", "c", "d", "y"]), np.array([1.0, 1.0, 0.0, 1.0, 0.0])
    paired = compare(first, second, Bootstrap(200, 0.95, seed=1))
    assert paired is not None
    assert (paired.count, paired.won, paired.lost, paired.tied) == (4, 0.5, 0.25, 0.25)
    assert paired.difference == 0.25 and paired.low <= 0.25 <= paired.high


def test_pairing_sees_a_small_gain_that_two_separate_intervals_would_hide() -> None:
    before = (np.random.default_rng(2).random(400) < 0.5).astype(float)
    after = before.copy()
    after[np.flatnonzero(before == 0)[:16]] = 1.0  # 4 points better, and worse nowhere
    ids, bootstrap = np.array([f"{i:03}" for i in range(400)]), Bootstrap(1000, 0.95, seed=1)
    paired = compare((ids, before), (ids, after), bootstrap)
    assert paired is not None and paired.low > 0
    assert bootstrap.interval(before)[1] > bootstrap.interval(after)[0]


def test_policies_without_a_common_graded_prompt_are_not_compared() -> None:
    assert compare((np.array(["a"]), np.ones(1)), (np.array(["b"]), np.ones(1)), Bootstrap(10, 0.9, 1)) is None
