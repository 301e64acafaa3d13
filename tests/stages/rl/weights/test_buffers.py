"""Where versions are kept, and what is left of them."""

import os
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from stages.rl.weights.buffers import Room, drop, keep, reading
from stages.rl.weights.pieces import outline
from tests.stages.rl.weights.conftest import until

KEEPS = """
import sys, time
from pathlib import Path
from stages.rl.weights.buffers import Room
print(Room(2**26, Path(sys.argv[1])).make("one", 2**26), flush=True)
time.sleep(1000)
"""


def test_a_version_that_nobody_reads_is_not_kept_and_neither_is_one_without_room(tmp_path: Path) -> None:
    room = Room(1000, tmp_path / "room")
    names = [f"v{number}" for number in range(10)]
    for name in names:
        room.make(name, 10)
    assert room.surplus(names, 10) == names[:-1]
    with ExitStack() as held:
        for name in names[1:]:
            reading(held.enter_context((room.folder / name).open("rb")).fileno())
        assert room.surplus(names, 10) == ["v0", "v7", "v8"]
        assert room.surplus(names, 2**60) == names[:-1]
    assert room.surplus(names, 10) == names[:-1]
    room.close()


def test_weights_without_room_in_memory_go_through_the_disk_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Room(2**60, tmp_path / "room")
    assert "no room in memory" in capsys.readouterr().out
    path = room.make("one", 1000)
    assert path.stat().st_size == 1000 and not path.is_symlink()
    room.close()
    assert not room.folder.exists()


def test_no_memory_and_no_name_in_it_is_left_by_a_process_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KEEPS, str(tmp_path / "room")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        theirs = Path(process.stdout.readline().strip())
        assert theirs.stat().st_size == 2**26, "another process of this user reads it"
        opened = [file.readlink() for file in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert not [path for path in opened if path.is_relative_to("/dev/shm")]
        process.kill()
    until(lambda: not theirs.exists())
    room = Room(1000, tmp_path / "room")
    assert not list(room.folder.iterdir())
    room.close()


def test_what_is_dropped_or_published_again_gives_its_memory_back_and_who_reads_the_same_bytes_reads_on(
    tmp_path: Path,
) -> None:
    room, before = Room(1000, tmp_path / "room"), psutil.Process().num_fds()
    data = bytes(range(250)) * 4
    found = outline(memoryview(data), 1)
    first = room.make("first", 1000)
    first.write_bytes(data)
    keep(first, found)
    with (room.folder / found.digest).open("rb") as reader:
        again = room.make("again", 1000)
        again.write_bytes(data)
        keep(again, found)
        assert reader.read() == data
    assert psutil.Process().num_fds() == before + 1
    drop(room.folder / found.digest)
    assert psutil.Process().num_fds() == before
    room.close()


def test_only_its_owner_enters_the_folder_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        room = Room(1000, tmp_path / "room")
    finally:
        os.umask(old)
    assert stat.S_IMODE(room.folder.stat().st_mode) == 0o700
    room.close()
