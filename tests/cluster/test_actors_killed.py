"""Real asynchronous runs on the real cluster, whose parts are killed: nothing is trained twice, nothing is lost."""

import contextlib
import json
import os
import random
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.progress import read_progress
from slurm.actors.arrays import read_arrays
from slurm.actors.tasks import Task, living
from stages.rl.batch_log import read_batches
from stages.rl.positions import positions as positions_of
from stages.rl.replay import rebuild
from tests.cluster.conftest import ROOT, Command, Life, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

PROMPTS, SEED = 16, 3
FASTER = ("rl.prompts_per_step=16", "rl.samples_per_prompt=8", "rl.checkpoint.every_steps=3")


class Played:
    """The rl stage in asynchronous mode, of a run whose first two stages are done; each start is another attempt."""

    def __init__(self, life: Life) -> None:
        self.life, self.cluster = life, life.cluster
        self.number = 0

    def start(self, steps: int, *words: str, actors: str = "count: 2") -> Command:
        """Another attempt, once its first step is done."""
        self.number += 1
        apart = ("rl: {additional: {nodelist: mx0}}", f"actors: {{{actors}, additional: {{exclude: mx0}}}}")
        self.life.settings(*apart)
        # The number is in the config, and so in the fingerprint.
        other = f"rl.optimizer.warmup_steps={self.number}"
        words = ("stage", "rl", "tiny.yaml", "rl.mode=asynchronous", f"rl.steps={steps}", other, *FASTER, *words)
        self.before = {path.name for path in self.life.stage("rl").glob("*-*/")}
        self.words = words
        self.command = self.life.qianka(*words)
        wait_for(lambda: self.done() >= 1 or self.command.process.poll() is not None, "the first step", 120)
        assert self.done(), self.command.said()
        return self.command

    def again(self) -> None:
        """The same command: its job was lost for good."""
        assert self.command.ends(60) == 1, self.command.said()
        self.command = self.life.qianka(*self.words)

    @property
    def attempt(self) -> Path:
        return self.life.stage("rl") / self.life.record("rl").attempt

    def done(self) -> int:
        """Steps of the present start."""
        new = [path for path in self.life.stage("rl").glob("*-*/") if path.name not in self.before]
        return int((read_progress(new[0]) or {"done": 0})["done"]) if new else 0

    def goes_on(self, steps: int = 2, seconds: float = 120) -> None:
        """So many more steps are done."""
        wanted = self.done() + steps
        wait_for(lambda: self.done() >= wanted or self.command.process.poll() is not None, "more steps", seconds)

    def tasks(self) -> list[Task]:
        """Of all arrays, those that run."""
        found = [task for array in read_arrays(self.attempt) for task in living(self.attempt, array)]
        return [task for task in found if task.is_running]

    def actors(self) -> list[psutil.Process]:
        """The processes that play."""
        return [process for task in self.tasks() for process in in_job(task.job, "submitit.core._submit")]

    def part(self, module: str = "submitit.core._submit") -> psutil.Process:
        """A learner rank, or a child of it."""
        return in_job(self.life.job("rl"), module)[0]

    def members(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Those that play, and those that are gone."""
        table = json.loads((self.attempt / "actors.json").read_text())
        return table["members"], table["gone"]

    def by_hand(self, *options: str) -> str:
        """Id of an array of actors that a person submits."""
        return self.cluster.run("sbatch", "--parsable", *options, self.script(), "runs/tiny")

    def script(self) -> Path:
        """The script that a person submits."""
        if not (self.life.folder / ".venv").exists():
            (self.life.folder / ".venv").symlink_to(ROOT / ".venv")
        return ROOT / "slurm/sbatch/actors.sbatch"

    def ends_well(self, steps: int, seconds: float = 200) -> None:
        """The command publishes the result, and what the run has left behind is whole."""
        assert self.command.ends(seconds) == 0, self.command.said()
        batches, state = read_batches(self.attempt), last_state(self.attempt)
        assert batches["step"].to_pylist() == [step for step in range(1, steps + 1) for _ in range(PROMPTS)]
        positions = batches["position"].to_pylist()
        assert len(set(positions)) == len(positions) == steps * PROMPTS, "each is trained on once"
        done = {*range(state["cursor"]), *positions_of(state["ahead"])}
        assert done >= set(positions) and len(done - set(positions)) == state["positions_set_aside"] == 0
        assert state["policy_version"] == steps
        groups = [group for step in range(1, steps + 1) for group in rebuild(self.attempt, step, SEED)]
        assert [group.wrong for group in groups if group.wrong] == [], "all that was trained on can be rebuilt"
        wait_for(lambda: not self.cluster.mine(), "no job is left")
        wait_for(lambda: not left(self.attempt), "no process is left")


def words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []


def in_job(job: str, module: str) -> list[psutil.Process]:
    """Python processes that run `module` in a job of this cluster, or in a task of an array, such as 123_4."""
    array, _, task = job.partition("_")
    named = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task} if task else {"SLURM_JOB_ID": array}
    mine = {"SLURM_CONF": os.environ["SLURM_CONF"], **named}
    found = list[psutil.Process]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            line = process.cmdline()
            if module in line and "python" in line[0] and mine.items() <= process.environ().items():
                found.append(process)
    return found


def left(attempt: Path) -> list[list[str]]:
    """Command lines that name the attempt."""
    named = [words(process) for process in psutil.process_iter()]
    return [line for line in named if any(str(attempt) in word for word in line)]


def last_state(attempt: Path) -> dict[str, Any]:
    newest = max((attempt / "checkpoints").glob("step-*"))
    return json.loads((newest / "state.json").read_text())["state"]["caller"]


@pytest.fixture(scope="module")
def played(lasting: Life) -> Generator[Played]:
    for stage in ("synth", "sft"):
        command = lasting.qianka("stage", stage, "tiny.yaml")
        assert command.ends() == 0, command.said()
    yield Played(lasting)


@pytest.mark.timeout(600)
def test_killed_part_by_part_each_position_is_trained_once_no_step_is_missing_and_nothing_stays_behind(played: Played):
    """Nine kills of seven kinds at random moments; the node and the array tasks come back, or others come for them."""
    source = random.Random(os.environ.get("KILLS", "1"))
    played.start(120, actors="count: 3")
    kinds = ["actor", "task", "node", "coordinator", "store", "weights", "learner", "store", "coordinator"]
    source.shuffle(kinds)
    print(kinds)
    killed, node = 0, ""
    for kind in kinds:
        time.sleep(source.uniform(0, 0.5))
        if kind == "actor":
            played.actors()[0].kill()
        elif kind == "task":
            played.cluster.run("scancel", source.choice(played.tasks()).job)
        elif kind == "node":
            (node,) = played.cluster.job_nodes(source.choice(played.tasks()).job)
            played.cluster.script("kill-node", node)
        elif kind == "learner":
            played.part().kill()
            played.again()
        else:
            played.part(f"stages.rl.{kind}").kill()
        killed += 1
        print(f"{time.strftime('%X')} step {played.done()}: killed {kind}")
        if kind in ("actor", "task"):
            more = played.life.qianka("actors", "add", "1")
            assert more.ends() == 0, more.said()
        if node:
            state = ("sinfo", "-h", "-n", node, "-o", "%t")
            wait_for(lambda state=state: "down" in played.cluster.run(*state), "Slurm notices")
            played.cluster.script("start-node", node)
            node = ""
        played.goes_on()
        assert played.command.process.poll() is None, played.command.said()
    played.ends_well(120, 300)
    assert killed == len(kinds) == 9
    shown = played.life.qianka("actors")
    assert shown.ends() == 0 and "gone since" in shown.said() and "ended with the run" in shown.said(), shown.said()


def restarts(played: Played, task: str) -> int:
    found = re.search(r"Restarts=(\d+)", played.cluster.run("scontrol", "show", "job", "-o", task))
    assert found
    return int(found[1])


def test_told_that_its_time_is_over_or_preempted_a_task_leaves_politely_and_comes_back_alone_under_another_name(
    played: Played,
):
    """USR2 to one task, then a job of higher priority that takes the node of both, then a requeue of the rl job."""
    played.start(2000)
    (array,) = read_arrays(played.attempt)
    first, second = (f"{array.job_id}_{task}" for task in (0, 1))
    wait_for(lambda: len(played.members()[0]) == 2, "both have joined")

    def gone(name: str) -> str:
        return next((str(member["why"]) for member in played.members()[1] if member["name"] == name), "")

    def back(name: str) -> bool:
        return any(member["name"] == name for member in played.members()[0])

    played.cluster.run("scancel", "--signal=USR2", first)
    wait_for(lambda: gone(f"{first}.0") == "told to stop", "it leaves")
    wait_for(lambda: back(f"{first}.0+1"), "it comes back")
    assert (restarts(played, first), restarts(played, second)) == (1, 0)

    (node,) = played.cluster.job_nodes(second)
    played.cluster.submit("sleep 3", "--partition=urgent", f"--nodelist={node}", "--exclusive")
    wait_for(lambda: gone(f"{second}.0") == "told to stop", "it makes room")
    played.goes_on()
    wait_for(lambda: back(f"{second}.0+1"), "it comes back")
    shared = gone(f"{first}.0+1") != ""  # it was on the same node
    wait_for(lambda: not shared or back(f"{first}.0+2"), "so does the other one")

    before = {task.job: process.pid for task in played.tasks() for process in in_job(task.job, "submitit.core._submit")}
    job = played.life.job("rl")
    played.cluster.run("scontrol", "requeue", job)
    played.command.sees(", start 2")
    wait_for(lambda: "go on" in played.command.said() or played.done() > 5, "they go on")
    played.goes_on(5)
    after = {task.job: process.pid for task in played.tasks() for process in in_job(task.job, "submitit.core._submit")}
    assert after == before and len(read_arrays(played.attempt)) == 1

    # Task 2 has other work.
    other = f"[ $SLURM_ARRAY_TASK_ID = 2 ] && exec sleep 600; exec bash {played.script()} runs/tiny"
    hand = played.cluster.submit(other, "--array=0-2")
    wait_for(lambda: all(back(f"{hand}_{task}.0") for task in (0, 1)), "those by hand have joined")
    cancelled = played.life.qianka("cancel")
    assert cancelled.ends() == 0 and f"{hand}_0, {hand}_1" in cancelled.said(), cancelled.said()
    assert played.cluster.state(f"{hand}_2") == "RUNNING"
    played.cluster.run("scancel", f"{hand}_2")
    wait_for(lambda: not played.cluster.mine(), "no job is left")
    wait_for(lambda: not left(played.attempt), "no process is left")
    positions = read_batches(played.attempt)["position"].to_pylist()
    assert len(set(positions)) == len(positions)


def test_actors_that_nobody_ends_end_by_themselves(played: Played):
    """Nobody waits. When the rl job is cancelled they find no learner; when it has done its work, it tells them."""
    played.start(2000, "rl.asynchronous.patience_minutes=0.4")
    played.command.kill()
    played.cluster.run("scancel", played.life.job("rl"))
    wait_for(lambda: not played.cluster.mine(), "no job is left")
    logs = [path.read_text() for path in (played.attempt / "actors/log").glob("*_log.out")]
    assert len(logs) == 2 and all("leaves: no coordinator for 0.4 minutes" in log for log in logs), logs

    played.start(20)
    played.command.kill()
    wait_for(lambda: not played.cluster.mine(), "no job is left")
    assert (played.attempt / "manifest.json").exists()
    wait_for(lambda: not left(played.attempt), "no process is left")


def test_learners_and_actors_that_are_submitted_by_hand_at_once_train_to_the_end(played: Played, tmp_path: Path):
    played.number += 1
    other = f"rl.optimizer.warmup_steps={played.number}"
    settings = ("tiny.yaml", "rl.mode=asynchronous", "rl.steps=6", other, *FASTER)
    played.life.settings()
    stage = played.life.stage("rl")
    if stage.exists():
        stage.rename(stage.with_name("rl-before"))  # so that the actors wait for the start of the stage
    actors = played.by_hand("--array=0-1")
    job = played.cluster.run("sbatch", "--parsable", ROOT / "slurm/sbatch/rl.sbatch", *settings)
    played.cluster.wait(job, "COMPLETED", seconds=120)
    for task in (0, 1):
        played.cluster.wait(f"{actors}_{task}", "COMPLETED", seconds=60)
    assert len(read_batches(played.attempt)) == 6 * PROMPTS
    assert (played.life.stage("rl") / "manifest.json").exists()


def test_actors_that_all_fail_of_an_error_end_the_run_with_what_they_said(played: Played, tmp_path: Path):
    code = "import os, sys, types\nif 'SLURM_ARRAY_JOB_ID' in os.environ:\n    module = types.ModuleType('run')\n"
    code += "    def run(*_):\n        raise ValueError('the engine is not there')\n"
    code += "    module.run = run\n    sys.modules['stages.rl.actor.run'] = module\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    played.life.settings("actors: {count: 2}", f"setup: ['export PYTHONPATH={tmp_path}:$PYTHONPATH']")
    command = played.life.qianka("stage", "rl", "tiny.yaml", "rl.mode=asynchronous", "rl.steps=7")
    assert command.ends(120) == 1
    command.sees("has no actor left, for all 2 have failed; ")
    assert "_1.0: the engine is not there. It is cancelled, and the same command submits it again" in command.said()
    wait_for(lambda: not played.cluster.mine(), "no job is left")
