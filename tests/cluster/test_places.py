"""Where people work: folders of any name, another file system, a strict umask, users without rights, by hand."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from slurm.record import read_record

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STAGES = ("synth", "sft", "rl", "evaluate")
SHORT = ("sft.steps=10", "rl.steps=2", "slurm.executor=slurm", "slurm.interface=lo")
NOBODY = 65534
"""Slurm starts jobs of users alone whom it finds in the passwd file."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Generator[Path]:
    """A folder with a difficult name, in which runs/ is a link to another file system: that of /dev/shm."""
    folder = tmp_path / "a b'c\"d$e"
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="other disk ") as disk:
        assert Path(disk).stat().st_dev != folder.stat().st_dev
        (folder / "runs").symlink_to(disk)
        yield folder


def test_a_folder_of_any_name_on_two_file_systems_with_a_strict_umask(cluster, elsewhere, qianka, tiny_config, faults):
    (elsewhere / "tiny.yaml").write_text(tiny_config)
    strict = ("bash", "-c", 'umask 077; exec "$@"', "bash")
    began = time.monotonic()
    done = qianka(elsewhere, "run", "tiny.yaml", *SHORT, prefix=strict)
    assert done.returncode == 0, done.stdout
    took = time.monotonic() - began
    faults.note("a folder named `a b'c\"d$e`, runs/ on a second file system, umask 077", "", took)
    for stage in STAGES:
        record = read_record(elsewhere / "runs/tiny" / stage)
        assert record.executor == "slurm"
    logs = qianka(elsewhere, "logs", "-f", "tiny", "sft")
    assert f"job {read_record(elsewhere / 'runs/tiny/sft').job_id}" in logs.stdout
    for path in (elsewhere / "runs/tiny").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


def test_scripts_by_hand_write_the_record_and_nothing_is_left_to_do(cluster, tiny, faults):
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    last = None
    for stage in STAGES:
        after = [f"--dependency=afterok:{last}"] if last else []
        shape = ["--nodes=2", "--ntasks-per-node=2"] if stage == "rl" else []
        script = ROOT / f"slurm/sbatch/{stage}.sbatch"
        words = ["sbatch", "--parsable", "--output=out", *shape, *after, script, tiny.name]
        last = subprocess.check_output([*words, *SHORT], cwd=tiny.parent, text=True, env=environment).strip()
    cluster.wait(last, "COMPLETED", "FAILED", seconds=240)
    assert cluster.state(last) == "COMPLETED", (tiny.parent / "out").read_text()
    assert read_record(tiny.parent / "runs/tiny/evaluate").job_id == last

    config = str(tiny.parent / "runs/tiny/config.json")
    command = ["snakemake", "-n", "--snakefile", ROOT / "Snakefile", "--configfile", config]
    began = time.monotonic()
    planned = subprocess.run(command, cwd=tiny.parent, capture_output=True, text=True, env=environment)
    said = planned.stdout + planned.stderr
    assert "Nothing to be done" in said, said
    line = next(line for line in said.splitlines() if "Nothing to be done" in line)
    faults.note("`sbatch` by hand, then snakemake", line, time.monotonic() - began)


@pytest.fixture
def nobodys() -> Generator[Path]:
    """A folder of the user nobody with a copy of the program, since the repository may be out of their reach."""
    home = Path("/tmp") / f"qianka-{NOBODY}"  # pytest's own folders are closed to other users
    shutil.rmtree(home, ignore_errors=True)
    for package in ("workflow", "slurm", "stages", "data", "checkpoints"):
        shutil.copytree(ROOT / package, home / "program" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield home
    shutil.rmtree(home)


def test_a_user_who_is_not_root(cluster, nobodys, tiny_config):
    (nobodys / "tiny.yaml").write_text(tiny_config)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]
    path = f"{nobodys / 'program'}:{sysconfig.get_path('purelib')}"
    env = {**os.environ, "HOME": str(nobodys), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    pythons = [sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]
    python = next(p for p in pythons if subprocess.run([*become, p, "-V"], capture_output=True).returncode == 0)
    command = [*become, python, "-P", "-m", "workflow.cli", "stage", "synth", "tiny.yaml", *SHORT]
    done = subprocess.run(command, cwd=nobodys, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    job = read_record(nobodys / "runs/tiny/synth").job_id
    cluster.wait(job, "COMPLETED")  # the stage is done as soon as its manifest is there
    queued = cluster.run("squeue", "-h", "--states=all", "-j", job, "-o", "%U|%T")  # sacct may know the user later
    assert queued == f"{NOBODY}|COMPLETED"
    assert {path.stat().st_uid for path in (nobodys / "runs").rglob("*")} == {NOBODY}
