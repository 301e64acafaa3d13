"""The stage as processes of its own: killed at any instant, and shared by two ranks."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from checkpoints.manifest import NAME
from data.job import Job, Stopped
from data.trajectories import Trajectories, read_trajectories
from stages.rl.run import run

Start = Callable[..., list[subprocess.Popen[bytes]]]


def contents(folder: Path) -> dict[str, bytes]:
    paths = [folder / "model" / "model.safetensors", *sorted((folder / "trajectories").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dr_grpo", "dapo"])
def test_killed_at_any_instant_it_ends_with_the_same_bits(
    algorithm: str, world: Any, undisturbed: Path, dapo: Path, start: Start
) -> None:
    """Field report R1. Each kill comes a seeded moment after the stage has begun a file that was not there before."""
    folder, source, kills = world.attempt(), random.Random(8), 0
    config, wanted = world.changed(algorithm=algorithm), dapo if algorithm == "dapo" else undisturbed
    while True:
        before = len(list(folder.rglob("*.h5"))) + len(list(folder.glob("checkpoints/*")))
        (process,) = start(config, folder)
        while process.poll() is None and kills < 3:
            if len(list(folder.rglob("*.h5*"))) + len(list(folder.glob("checkpoints/*"))) > before:
                time.sleep(source.uniform(0, 0.15))
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
    assert kills >= 2
    assert contents(folder) == contents(wanted)


def steps_of(folder: Path, step: int) -> list[Trajectories]:
    return [read_trajectories(path)[0] for path in sorted(folder.glob(f"trajectories/step-{step:06d}-*.h5"))]


@pytest.mark.slow
def test_two_ranks_play_and_learn_what_one_does(world: Any, undisturbed: Path, start: Start) -> None:
    folder = world.attempt()
    assert [process.wait() for process in start(world.config, folder, 2)] == [0, 0]
    (alone,) = steps_of(undisturbed, 1)
    ranks = steps_of(folder, 1)
    assert [sorted(set(rank.groups.tolist())) for rank in ranks] == [[0, 2], [1, 3]]
    together = {seed: rank.sequence(i)[0] for rank in ranks for i, seed in enumerate(rank.seeds.tolist())}
    for index, seed in enumerate(alone.seeds.tolist()):
        np.testing.assert_array_equal(together[seed], alone.sequence(index)[0])
    one, two = (AutoModelForCausalLM.from_pretrained(path / "model") for path in (undisturbed, folder))
    for left, right in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks_at_the_same_prompt(
    world: Any, undisturbed: Path, start: Start
) -> None:
    folder, job = world.attempt(), Job()
    job.stop.set()
    with pytest.raises(Stopped):
        run(world.config, world.inputs, folder, job)
    # Played by one rank beyond the checkpoint, so not by those who go on.
    stale = folder / "trajectories" / "step-000002-rank-0000.h5"
    stale.write_bytes((undisturbed / "trajectories" / stale.name).read_bytes())
    assert [process.wait() for process in start(world.config, folder, 2)] == [0, 0]
    for step in (2, 3, 4):
        prompts = {prompt for rank in steps_of(folder, step) for prompt in rank.prompt_ids}
        assert prompts == set(steps_of(undisturbed, step)[0].prompt_ids)
    assert len(list((folder / "trajectories").iterdir())) == 1 + 3 * 2
    manifest = json.loads((folder / NAME).read_text())
    assert manifest["metrics"]["steps"] == 4


@pytest.mark.slow
def test_a_rank_without_prompts_takes_part(world: Any, start: Start) -> None:
    folder = world.attempt()
    config = world.changed(algorithm="ppo", prompts_per_step=1, steps=2)
    assert [process.wait() for process in start(config, folder, 2)] == [0, 0]
    assert [len(rank) for rank in steps_of(folder, 2)] == [4, 0]
