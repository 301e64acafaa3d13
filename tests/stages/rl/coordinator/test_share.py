"""How many prompts each actor may have."""

from hypothesis import given
from hypothesis import strategies as st

from stages.rl.coordinator.share import Load, quotas

LOADS = st.builds(
    Load,
    capacity=st.integers(1, 64),
    speed=st.none() | st.floats(0.01, 1e5),
    utilisation=st.floats(0, 1),
    device=st.none() | st.floats(0, 1),
    delay=st.floats(0, 60),
)


def test_with_room_for_all_each_has_what_it_has_room_for() -> None:
    assert quotas({"fast": Load(8, 100.0), "slow": Load(8, 50.0)}, 100) == {"fast": 8, "slow": 8}


def test_with_less_room_a_slow_actor_is_given_less() -> None:
    shares = quotas({"fast": Load(8, 100.0), "slow": Load(8, 50.0)}, 9)
    assert shares == {"fast": 6, "slow": 3}


def test_a_hot_card_and_a_long_way_weigh_like_slowness() -> None:
    shares = quotas({"one": Load(8, 9.0, 0.5, 0.5), "hot": Load(8, 9.0, 0.3, 0.9), "far": Load(8, 9.0, delay=1.0)}, 10)
    assert shares["hot"] < shares["one"] and shares["far"] < shares["one"]


def test_an_actor_that_was_not_measured_yet_counts_as_a_usual_one() -> None:
    assert quotas({"new": Load(4, None), "other": Load(4, 10.0)}, 4) == {"new": 2, "other": 2}


@given(st.dictionaries(st.text(max_size=3), LOADS, max_size=20), st.integers(0, 500))
def test_nobody_starves_none_has_more_than_it_has_room_for_and_all_is_given(
    loads: dict[str, Load], prompts: int
) -> None:
    shares = quotas(loads, prompts)
    assert all(1 <= shares[name] <= load.capacity for name, load in loads.items())
    assert sum(shares.values()) >= min(prompts, sum(load.capacity for load in loads.values())) - len(loads)
