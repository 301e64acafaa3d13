"""Where people work: folders of any name, another file system, a strict umask, users without rights, by hand."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from slurm.record import read_record

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STAGES = ("synth", "sft", "rl", "evaluate")
SHORT = ("sft.steps=10", "rl.steps=2", "slurm.executor=slurm", "slurm.interface=lo")
SOMEBODY = 54321
"""A user id that nobody has."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Generator[Path]:
    """A folder with a difficult name, in which runs/ is a link to another file system: that of /dev/shm."""
    folder = tmp_path / "a b'c\"d$e"
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="other disk ") as disk:
        assert Path(disk).stat().st_dev != folder.stat().st_dev
        (folder / "runs").symlink_to(disk)
        yield folder


def test_a_folder_of_any_name_on_two_file_systems_with_a_strict_umask(cluster, elsewhere, qianka, tiny_config):
    (elsewhere / "tiny.yaml").write_text(tiny_config)
    strict = ("bash", "-c", 'umask 077; exec "$@"', "bash")
    done = qianka(elsewhere, "run", "tiny.yaml", *SHORT, prefix=strict)
    assert done.returncode == 0, done.stdout
    for stage in STAGES:
        record = read_record(elsewhere / "runs/tiny" / stage)
        assert record.executor == "slurm"
    logs = qianka(elsewhere, "logs", "-f", "tiny", "sft")
    assert f"job {read_record(elsewhere / 'runs/tiny/sft').job_id}" in logs.stdout
    for path in (elsewhere / "runs/tiny").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


def test_scripts_by_hand_write_the_record_and_nothing_is_left_to_do(cluster, tiny):
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    last = None
    for stage in STAGES:
        after = [f"--dependency=afterok:{last}"] if last else []
        words = ["sbatch", "--parsable", "--output=out", *after, ROOT / f"slurm/sbatch/{stage}.sbatch", tiny.name]
        last = subprocess.check_output([*words, *SHORT], cwd=tiny.parent, text=True, env=environment).strip()
    cluster.wait(last, "COMPLETED", "FAILED", seconds=240)
    assert cluster.state(last) == "COMPLETED", (tiny.parent / "out").read_text()
    assert read_record(tiny.parent / "runs/tiny/evaluate").job_id == last

    config = str(tiny.parent / "runs/tiny/config.json")
    command = ["snakemake", "-n", "--snakefile", ROOT / "Snakefile", "--configfile", config]
    planned = subprocess.run(command, cwd=tiny.parent, capture_output=True, text=True, env=environment)
    assert "Nothing to be done" in planned.stdout + planned.stderr, planned.stdout + planned.stderr


def test_a_user_who_is_not_root(cluster, qianka, tmp_path, tiny_config):
    """A user of their own, who reads the program and owns nothing but the folder that is worked in."""
    home = Path("/tmp") / f"qianka-{SOMEBODY}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    try:
        (home / "tiny.yaml").write_text(tiny_config)
        os.chown(home, SOMEBODY, SOMEBODY)
        become = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups")
        done = qianka(home, "stage", "synth", "tiny.yaml", *SHORT, prefix=become, env={"HOME": str(home)})
        assert done.returncode == 0, done.stdout
        job = read_record(home / "runs/tiny/synth").job_id
        assert cluster.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "UID,State") == f"{SOMEBODY}|COMPLETED"
        owners = {path.stat().st_uid for path in (home / "runs").rglob("*")}
        assert owners == {SOMEBODY}
    finally:
        shutil.rmtree(home)
