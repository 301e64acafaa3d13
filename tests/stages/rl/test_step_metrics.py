"""Numbers of a step that are more than a mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.rl.log import speed, terms_in
from stages.rl.summary import groups_without_signal

samples = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0])), max_size=20)


@given(samples)
def test_groups_without_signal_are_those_whose_samples_all_earned_the_same(played: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in played], np.int32)
    rewards = np.array([reward for _, reward in played], np.float32)
    earned = [{reward for at, reward in played if at == group} for group in set(groups.tolist())]
    assert groups_without_signal(rewards, groups) == (len(earned), sum(len(found) == 1 for found in earned))


def test_each_phase_has_its_seconds_and_its_speed() -> None:
    found = speed({"tokens": 120, "tokens_trained": 40}, False, {"rollout": 2.0, "experience": 1.0, "update": 3.0})
    assert found == {
        **{"seconds_rollout": 2.0, "seconds_experience": 1.0, "seconds_update": 3.0},
        **{"rollout_tokens_per_second": 60.0, "update_tokens_per_second": 10.0, "tokens_per_second": 20.0},
    }


def test_rollouts_that_were_read_back_have_no_speed() -> None:
    found = speed({"tokens": 120, "tokens_trained": 120}, True, {"rollout": 0.001, "experience": 1.0, "update": 3.0})
    assert found["update_tokens_per_second"] == pytest.approx(30)
    assert not {"rollout_tokens_per_second", "tokens_per_second"} & found.keys()


def test_an_update_without_anything_to_learn_has_no_speed() -> None:
    found = speed({"tokens": 120, "tokens_trained": 0}, False, {"rollout": 2.0, "experience": 1.0, "update": 0.0})
    assert "update_tokens_per_second" not in found and found["tokens_per_second"] == 40


def test_the_line_has_the_terms_of_the_reward_where_there_are_several() -> None:
    one = {"reward": 0.5, "reward/verifier_mean": 0.5, "reward/verifier_std": 0.1}
    assert terms_in(one) == []
    assert terms_in(one | {"reward/brevity_mean": -0.25}) == ["verifier 0.5", "brevity -0.25"]
