"""Inside the job on the real cluster: ranks that hang or never start, a save that is cut. More is in test_faults.py."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from data.progress import read_progress
from slurm.exclusions import exclude, excluded
from slurm.record import read_record
from slurm.verdict import read_verdict

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

TWO_NODES = ("slurm.executor=slurm", "slurm.interface=lo", "slurm.sft.nodes=2")
ENDLESS = ("sft.steps=100000", "sft.checkpoint.every_steps=10")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {seconds} s"
        time.sleep(0.05)


class Stage:
    """The sft stage on two nodes, a rank on each, and the command that waits for it."""

    def __init__(self, folder: Path, cluster) -> None:
        self.folder, self.cluster, self.stage = folder, cluster, folder / "runs/tiny/sft"
        self.command: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-P", "-m", "workflow.cli", "stage", "sft", "tiny.yaml", *TWO_NODES, *options]
        settings = os.environ | {"COLUMNS": "1000", "OMP_NUM_THREADS": "1"} | (env or {})
        self.terminal = self.folder / f"terminal-{len(list(self.folder.glob('terminal-*')))}"
        with self.terminal.open("w") as out:
            self.command = subprocess.Popen(
                command, cwd=self.folder, env=settings, start_new_session=True, stdout=out, stderr=out
            )

    def said(self) -> str:
        return self.terminal.read_text()

    def sees(self, text: str, seconds: float = 60) -> None:
        wait_for(lambda: re.search(text, self.said()) or self.command.poll() is not None, self.said(), seconds)
        assert re.search(text, self.said()), self.said()

    def line(self, text: str) -> str:
        """The first line with `text` that was said."""
        return next(line for line in self.said().splitlines() if text in line)

    def ends(self, seconds: float = 60) -> str:
        """What the command has said, once it has ended."""
        wait_for(lambda: self.command.poll() is not None, self.said(), seconds)
        return self.said()

    @property
    def attempt(self) -> Path:
        return self.stage / read_record(self.stage).attempt

    def job_id(self) -> str:
        return read_record(self.stage).job_id

    def committed(self) -> list[int]:
        found = (path.name.removeprefix("step-") for path in (self.attempt / "checkpoints").glob("step-*"))
        return sorted(int(name) for name in found if name.isdigit())

    def trains(self) -> None:
        """Wait until a step is committed."""
        wait_for(lambda: self.stage.exists() and read_record(self.stage), "the record")
        wait_for(lambda: self.committed() or self.command.poll() is not None, "a committed step")
        assert self.committed(), self.said()

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank."""
        return self.cluster.rank(self.job_id(), number)

    def is_over(self) -> None:
        """Wait until Slurm has freed the nodes."""
        wait_for(lambda: not self.cluster.run("squeue", "-h", "-j", self.job_id()), "the nodes are free", 40)


@pytest.fixture(scope="module")
def synth(tmp_path_factory, qianka, tiny_config) -> Path:
    """A folder in which the synth stage has run."""
    folder = tmp_path_factory.mktemp("synth")
    (folder / "tiny.yaml").write_text(tiny_config)
    done = qianka(folder, "stage", "synth", "tiny.yaml")
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture
def stage(cluster, synth, tmp_path) -> Generator[Stage]:
    subprocess.run(["cp", "-a", f"{synth}/.", tmp_path], check=True)
    stage = Stage(tmp_path, cluster)
    yield stage
    if stage.command and stage.command.poll() is None:
        os.killpg(stage.command.pid, signal.SIGKILL)
        stage.command.wait()


def test_a_job_by_hand_that_is_put_on_a_node_that_is_avoided_says_so(stage, tmp_path):
    exclude(tmp_path / "runs/tiny", ["mx1"], "ECC errors", 24)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = Path(__file__).parents[2] / "slurm/sbatch/sft.sbatch"
    options = ("--parsable", "--nodes=2", "--nodelist=mx[0-1]", "--output=sft.out")
    submit = ["sbatch", *options, script, "tiny.yaml", *TWO_NODES]
    job = subprocess.check_output(submit, cwd=tmp_path, text=True, env=os.environ | {"PATH": path}).strip()
    stage.cluster.wait(job, "FAILED", seconds=40)
    verdict = read_verdict(stage.attempt)
    assert (verdict.why, verdict.nodes) == ("node", ("mx1",))
    assert "avoids mx1 until 20" in verdict.message and "(ECC errors); submit with --exclude=mx1" in verdict.message


SLOW_DISK = """
import os, time
sync = os.fsync
def fsync(file):
    if "checkpoints" in os.readlink(f"/proc/self/fd/{{file}}"):
        time.sleep({})
    sync(file)
os.fsync = fsync
"""


def hook(folder: Path, code: str) -> dict[str, str]:
    """What has every Python of the job run `code` when it starts."""
    path = folder / "hook"
    path.mkdir()
    (path / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])}


SOON = """
import faulthandler
later = faulthandler.dump_traceback_later
faulthandler.dump_traceback_later = lambda seconds, **options: later(seconds - 60 + 3, **options)
"""
"""faulthandler's timer rings three seconds after a limit, and not a minute."""


def test_a_rank_that_stands_still_is_named_and_the_nodes_are_free_but_not_when_the_job_is_suspended(
    stage, tmp_path, faults
):
    # Seldom saved: the rank is stopped just after a save, and not within the next one.
    lasting = ("sft.steps=100000", "sft.checkpoint.every_steps=300")
    limits = ("slurm.watch.stall_minutes=0.15", "slurm.watch.slow_minutes=0.5")
    stage.start(*lasting, *limits, env=hook(tmp_path, SOON))
    stage.trains()
    stage.cluster.run("scontrol", "suspend", stage.job_id())
    time.sleep(15)
    stage.cluster.run("scontrol", "resume", stage.job_id())
    last = stage.committed()[-1]
    wait_for(lambda: stage.committed()[-1] > last, "the job goes on after it was suspended")
    node = stage.cluster.job_nodes(stage.job_id())[1]
    stage.rank(1).suspend()
    began = time.monotonic()
    stage.is_over()
    done = read_progress(stage.attempt)["done"]
    said, took = stage.ends(), time.monotonic() - began
    assert took < 40
    faults.note("a rank stands still", stage.line("failed on rank 1"), took, done - stage.committed()[-1])
    assert re.search(
        rf"failed on rank 1 \({node}, .*: rank 1 on {node} hangs: its last event was '.*', \d+ s ago", said
    )
    assert "slurm.watch.stall_minutes" in said
    (stacks,) = (stage.attempt / "log").glob("*_0_stacks.txt")
    assert "stages/sft/run.py" in stacks.read_text()


def test_a_node_on_which_ranks_do_not_start_is_named_and_avoided(stage, tmp_path, faults):
    """As when its shared file system hangs: the step is launched, and no Python comes up."""
    wakes_up = "import os, time\nif os.environ.get('SLURMD_NODENAME') == 'mx1': time.sleep(600)\n"
    stage.start("slurm.watch.start_minutes=0.15", env=hook(tmp_path, wakes_up))
    wait_for(lambda: stage.stage.exists() and read_record(stage.stage) and stage.job_id(), "the job")
    began, first = time.monotonic(), stage.job_id()
    stage.sees(r"rank 1 on node mx1 did not start within 0\.15 minutes \(slurm\.watch\.start_minutes\)")
    wait_for(lambda: excluded(tmp_path / "runs/tiny"), "mx1 is avoided")
    assert list(excluded(tmp_path / "runs/tiny")) == ["mx1"]
    wait_for(lambda: stage.job_id() != first and read_progress(stage.attempt), "a step of another job")
    faults.note("ranks do not start on a node", stage.line("did not start within"), time.monotonic() - began)
    assert stage.ends(90) and stage.command.returncode == 0, stage.said()
    assert stage.job_id() != first


@pytest.mark.parametrize(("fsync_seconds", "survives"), [(0.3, True), (1.5, False)])
def test_a_save_that_is_under_way_at_scancel_is_finished_or_never_was(stage, tmp_path, fsync_seconds, survives):
    stage.start(*ENDLESS, env=hook(tmp_path, SLOW_DISK.format(fsync_seconds)))
    stage.trains()
    before, folder = stage.committed()[-1], stage.attempt / "checkpoints"
    wait_for(lambda: list(folder.glob("*.writing")), "the next save", 120)
    (torn,) = (int(path.name.split("-")[1].split(".")[0]) for path in folder.glob("*.writing"))
    assert torn > before
    stage.cluster.run("scancel", stage.job_id())
    stage.is_over()
    assert stage.ends()
    assert stage.committed()[-1] == (torn if survives else before)
    assert bool(list(folder.glob("*.writing"))) != survives
    if not survives:
        (writing,) = folder.glob(f"step-{torn:06d}.writing")
        made = writing.stat().st_ctime_ns
        stage.start(*ENDLESS)
        wait_for(lambda: read_progress(stage.attempt)["first"] == before, "the resume")
        with contextlib.suppress(FileNotFoundError):  # that of the new start's own save may be there
            assert writing.stat().st_ctime_ns > made
