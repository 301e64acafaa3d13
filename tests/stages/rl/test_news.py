"""What the learners say of the actors, by what the coordinator has last said."""

import pytest

from stages.rl.coordinator.members import Scored
from stages.rl.coordinator.status import Status
from stages.rl.news import left_over, metrics_of
from stages.rl.servers import candidates


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(start="a", ready=3, leased=2, partial=1), "3 groups that waited, 3 that were being played"),
        (Status(start="a", ready=0, leased=2), "0 groups that waited, 2 that were being played"),
        (Status(start="a", taken=4), ""),
    ],
)
def test_what_waits_or_is_half_played_at_the_end_is_told_as_left_over(status: Status, said: str) -> None:
    assert left_over(status) == said


def test_the_newest_version_that_the_evaluator_has_scored_counts() -> None:
    scores = [
        Scored(version=version, prompts=8, success=success, seconds=1.0, when=0.0)
        for version, success in ((4, 0.5), (2, 0.9))
    ]
    metrics = metrics_of(Status(start="a", actors=2, scores=tuple(scores)))
    assert (metrics["actors"], metrics["evaluator_version"], metrics["evaluator_success"]) == (2, 4, 0.5)
    assert "evaluator_version" not in metrics_of(Status(start="a"))


def test_three_nodes_have_a_candidate_each_and_fewer_have_one_in_all() -> None:
    assert candidates(["a", "a", "b", "c", "d"]) == ["a", "b", "c"]
    assert candidates(["a", "b", "b"]) == candidates(["a", "a"]) == ["a"]
