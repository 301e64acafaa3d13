"""Dynamic sampling: rounds of prompts until a step is full of groups from which something can be learned."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.job import Job
from data.metrics import read_metrics
from data.trajectories import Trajectories, read_trajectories
from stages.rl.rollouts import Player
from stages.rl.run import run

Start = Callable[..., list[subprocess.Popen[bytes]]]


def contents(folder: Path) -> dict[str, bytes]:
    paths = [folder / "model" / "model.safetensors", *sorted((folder / "trajectories").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


def rounds_of(folder: Path, step: int) -> list[list[Trajectories]]:
    """By round, what each rank has played."""
    found: dict[int, list[Trajectories]] = {}
    for path in sorted((folder / "trajectories").glob(f"step-{step:06d}-*.h5")):
        trajectories, attributes = read_trajectories(path)
        found.setdefault(int(attributes["round"]), []).append(trajectories)
    return [found[number] for number in sorted(found)]


def has_signal(trajectories: Trajectories, slot: int) -> bool:
    rewards = trajectories.rewards[(trajectories.groups == slot) & trajectories.graded]
    return len(set(rewards.tolist())) > 1


def test_a_step_goes_on_until_it_is_full_of_groups_with_a_signal(world: Any, dapo: Path) -> None:
    several = 0
    for step in range(1, world.config.rl.steps + 1):
        kept = 0
        rounds = [ranks[0] for ranks in rounds_of(dapo, step)]
        for played in rounds:
            slots = sorted(set(played.groups.tolist()))
            assert len(slots) == world.config.rl.prompts_per_step - kept, "each round draws what is missing"
            kept += sum(has_signal(played, slot) for slot in slots)
        assert kept == 4 or len(rounds) == 3
        everything = Trajectories.joined(rounds)
        drawn = len(set(everything.groups.tolist()))
        assert sorted(set(everything.groups.tolist())) == list(range(drawn))
        assert len(set(everything.seeds.tolist())) == len(everything), "no request has the seed of another"
        row = read_metrics(dapo).slice(step - 1, 1).to_pylist()[0]
        assert row["rounds"] == len(rounds) and row["groups_kept"] == kept / drawn
        assert row["reward"] == pytest.approx(float(everything.rewards.mean())), "of all that was played"
        several += len(rounds) > 1
    assert several, "else the world shows nothing"


def test_the_cursor_counts_all_prompts_that_were_drawn(world: Any, dapo: Path) -> None:
    """No prompt comes again before all have been drawn."""
    prompts: list[str] = []
    for step in range(1, world.config.rl.steps + 1):
        for (played,) in rounds_of(dapo, step):
            prompts += played.prompt_ids[:: world.config.rl.samples_per_prompt]
    first = prompts[:24]
    assert len(set(first)) == len(first)


def test_stopped_in_any_round_it_ends_with_the_same_bits_and_plays_nothing_twice(
    world: Any, dapo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, folder = Player.play, world.attempt()
    plays: list[int] = []
    ends_in = iter(range(100))

    def dying(self: Player, step: int, tasks: Any) -> Trajectories:
        """Each start of the run plays one round, and dies in the next."""
        if next(ends_in) % 2:
            raise InterruptedError
        plays.append(step)
        return play(self, step, tasks)

    monkeypatch.setattr(Player, "play", dying)
    starts = 0
    while not (folder / "manifest.json").exists():
        starts += 1
        try:
            run(world.changed(algorithm="dapo"), world.inputs, folder, Job())
        except InterruptedError:
            continue
    files = sorted((dapo / "trajectories").iterdir())
    assert starts == len(files) and len(plays) == len(files), "every round was played, and only once"
    assert contents(folder) == contents(dapo)


@pytest.mark.slow
def test_two_ranks_play_the_rounds_that_one_does(world: Any, dapo: Path, start: Start) -> None:
    folder = world.attempt()
    assert [process.wait() for process in start(world.changed(algorithm="dapo"), folder, 2)] == [0, 0]
    alone, shared = rounds_of(dapo, 1), rounds_of(folder, 1)
    assert [len(ranks) for ranks in shared] == [2] * len(alone)
    for (one,), ranks in zip(alone, shared, strict=True):
        counts = [len(set(rank.groups.tolist())) for rank in ranks]
        assert max(counts) - min(counts) <= 1, "the missing prompts are shared evenly"
        together = {seed: rank.sequence(i)[0] for rank in ranks for i, seed in enumerate(rank.seeds.tolist())}
        for index, seed in enumerate(one.seeds.tolist()):
            np.testing.assert_array_equal(together[seed], one.sequence(index)[0])
    after_one, after_two = rounds_of(dapo, 2)[0], rounds_of(folder, 2)[0]
    prompts = [{prompt for rank in ranks for prompt in rank.prompt_ids} for ranks in (after_one, after_two)]
    assert prompts[0] == prompts[1], "the next step begins at the same prompt"


def test_when_every_answer_is_as_good_as_the_others_the_step_learns_nothing(world: Any) -> None:
    folder = world.attempt()
    config = world.changed(algorithm="dapo", samples_per_prompt=1, steps=1)
    before = (world.sft / "model" / "model.safetensors").read_bytes()
    run(config, world.inputs, folder, Job())
    row = read_metrics(folder).to_pylist()[0]
    assert row["rounds"] == 3 and row["groups_kept"] == 0 and row["samples_skipped"] == 4
    assert (folder / "model" / "model.safetensors").read_bytes() == before
