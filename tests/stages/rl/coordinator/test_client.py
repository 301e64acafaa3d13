"""What an actor has of the coordinator, where there is none at the moment."""

import subprocess
import sys
from itertools import accumulate, islice

from stages.rl.coordinator.client import RETRY_SECONDS, pauses
from stages.rl.coordinator.coordinator import GRACE_SECONDS, LONGEST_SECONDS


def test_hundreds_of_actors_ask_ever_less_often_for_a_coordinator_that_is_away_and_not_at_the_same_instant() -> None:
    tries = [list(accumulate(islice(pauses(), 20))) for _ in range(512)]
    for number in range(4, 20):  # any second: how many of all call in it
        calls = sum(number <= when < number + 1 for one in tries for when in one)
        assert calls < 1.5 * 512
        assert (
            max(sum(number + s / 10 <= w < number + (s + 1) / 10 for one in tries for w in one) for s in range(10))
            < 256
        )
    assert max(RETRY_SECONDS) < GRACE_SECONDS and LONGEST_SECONDS < GRACE_SECONDS  # all are heard before it gives out


def test_an_actor_imports_no_more_of_the_coordinator_than_what_it_says_to_it() -> None:
    code = "import sys, stages.rl.coordinator.client as c; print([m for m in sys.modules if m.startswith('stages.rl')])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not [name for name in ("leases", "routes", "server", "table", "election", "store") if f".{name}" in found]
