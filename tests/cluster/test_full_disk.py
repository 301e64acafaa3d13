"""A disk that fills up in the middle of a run. It takes the rights of the cluster's machine to mount one."""

import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def used_kib(disk: Path) -> int:
    return shutil.disk_usage(disk).used // 1024


@pytest.fixture
def disk(tmp_path) -> Generator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def resize(disk: Path, kib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kib}k", disk], check=True)


def test_a_disk_that_fills_up_is_named_and_the_stage_goes_on_when_there_is_room(disk, qianka, tiny_config):
    (disk / "tiny.yaml").write_text(tiny_config)
    assert qianka(disk, "stage", "synth", "tiny.yaml").returncode == 0
    resize(disk, used_kib(disk) + 500)
    done = qianka(disk, "stage", "sft", "tiny.yaml")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout, done.stdout
    assert f"error: {disk}/runs/tiny/sft/" in done.stdout, done.stdout
    assert "the disk is full; make room" in done.stdout, done.stdout

    resize(disk, 20 * 1024)
    done = qianka(disk, "stage", "sft", "tiny.yaml")
    assert done.returncode == 0, done.stdout
    assert "sft: resumed" in done.stdout
    assert not list(disk.rglob("*.writing"))


def test_a_disk_that_is_full_when_the_command_starts_is_named(disk, qianka, tiny_config):
    (disk / "tiny.yaml").write_text(tiny_config)
    for room in (0, 8, 16):  # no run folder, no record, no submit
        resize(disk, used_kib(disk) + room)
        done = qianka(disk, "stage", "synth", "tiny.yaml")
        assert done.returncode != 0
        assert "Traceback" not in done.stdout, done.stdout
        assert "disk is full" in done.stdout or "No space left on device" in done.stdout, done.stdout
