"""Where a process keeps versions of the weights: in memory where that has room, else in a folder on disk.

What is in memory has no name that other users know, and ends with the process that keeps it, however that one ends:
the folder has a link for each, which leads other processes of the same user to it.
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from stages.rl.weights.pieces import Outline

SPARE = 1.25
"""So much more has to be free than the buffers take: others use the memory too."""
WRITING = "writing"
"""What is not whole yet."""
KEPT = 2
"""Versions that can be fetched; but for the time in which a new one is written in place of the older."""
READ = 6
"""Older ones that are kept while somebody reads them, where there is room: who needs longer for a fetch than the
learner for a step would else never come to the end of one."""


class Room:
    """A folder for the buffers of this process."""

    def __init__(self, num_bytes: int, folder: Path) -> None:
        """For `num_bytes` in all; `folder` is of this process alone, what an earlier one has left there is removed."""
        self.in_memory, self.folder = SPARE * num_bytes < psutil.virtual_memory().available, folder
        if not self.in_memory:
            print(f"weights: {num_bytes:,} bytes have no room in memory, so versions go through {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    def make(self, name: str, num_bytes: int) -> Path:
        """A file of so many bytes, which are all there. OSError when they are not."""
        path = self.folder / name
        if self.in_memory:
            path.symlink_to(f"/proc/{os.getpid()}/fd/{os.memfd_create('weights')}")
        with path.open("r+b" if self.in_memory else "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        return path

    def surplus(self, names: Sequence[str], num_bytes: int) -> list[str]:
        """Which of the buffers, the newest last, have to go before another one of so many bytes is made."""
        old = names[: 1 - KEPT]
        free = psutil.virtual_memory().available if self.in_memory else shutil.disk_usage(self.folder).free
        room = SPARE * num_bytes < free
        read = [name for name in old if is_read(self.folder / name)][: READ if room else 0]
        return [name for name in old if name not in read]

    def close(self) -> None:
        """Remove all of it."""
        for path in self.folder.iterdir():
            drop(path)  # somebody may read it
        shutil.rmtree(self.folder)


def drop(path: Path) -> None:
    """Remove a buffer of this process and free its memory at once, also where somebody reads it.

    Whoever does then finds less than expected.
    """
    if path.exists():
        os.truncate(path, 0)
        held = _held(path)
        path.unlink()
        _let_go(held)


def _held(path: Path) -> int | None:
    """What keeps a buffer in memory; None for a file on disk."""
    return int(path.readlink().name) if path.is_symlink() else None


def _let_go(held: int | None) -> None:
    if held is not None:
        os.close(held)


def reading(descriptor: int) -> None:
    """Whoever reads a buffer says so, as long as it has it open."""
    with suppress(OSError):  # some file systems know no locks; there, nobody is waited for
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_read(path: Path) -> bool:
    """Whether somebody reads a buffer, in whichever process."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # see `reading`
            return False
    return False


def keep(path: Path, found: Outline) -> None:
    """Give a buffer that is whole its name, the digest, and put its outline beside it: from now on it can be read."""
    held = _held(path.with_name(found.digest))  # of the same bytes, published before: whoever reads them reads on
    path.replace(path.with_name(found.digest))
    _let_go(held)
    aside = path.with_name(f"{found.digest}.{WRITING}")
    aside.write_text(found.model_dump_json())
    aside.replace(path.with_name(f"{found.digest}.json"))
