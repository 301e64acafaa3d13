"""Where a process keeps versions of the weights: in shared memory where that has room, else in a folder on disk."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from stages.rl.weights.pieces import Outline

MEMORY = Path("/dev/shm")
PREFIX = f"qianka-weights-{os.getuid()}-"
SPARE = 1.25
"""So much more has to be free than the buffers take: others use the memory too."""
LOCK = "lock"
WRITING = "writing"
"""What is not whole yet."""
KEPT = 2
"""Versions that can be fetched; but for the time in which a new one is written in place of the older."""
READ = 6
"""Older ones that are kept while somebody reads them, where there is room: who needs longer for a fetch than the
learner for a step would else never come to the end of one."""


class Room:
    """A folder for the buffers of this process; one in memory is locked for as long as the process lives."""

    def __init__(self, num_bytes: int, otherwise: Path, memory: Path = MEMORY) -> None:
        """For `num_bytes` in all; `otherwise` is a folder of this process alone, for what has no room in `memory`."""
        self._lock: int | None = None
        with _alone(memory):
            sweep(memory)
            self.in_memory = SPARE * num_bytes < _free(memory)
            if self.in_memory:
                self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory))
                self._lock = _locked(self.folder)
        if not self.in_memory:
            print(f"weights: {num_bytes:,} bytes have no room in {memory}, so versions go through {otherwise}")
            shutil.rmtree(otherwise, ignore_errors=True)  # of an earlier start
            otherwise.mkdir(mode=0o700, parents=True)
            self.folder = otherwise

    def make(self, name: str, num_bytes: int) -> Path:
        """A file of so many bytes, which are all there. OSError when they are not."""
        path = self.folder / name
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        return path

    def surplus(self, names: Sequence[str], num_bytes: int) -> list[str]:
        """Which of the buffers, the newest last, have to go before another one of so many bytes is made."""
        old = names[: 1 - KEPT]
        room = SPARE * num_bytes < (_free(self.folder) if self.in_memory else shutil.disk_usage(self.folder).free)
        read = [name for name in old if is_read(self.folder / name)][: READ if room else 0]
        return [name for name in old if name not in read]

    def close(self) -> None:
        """Remove all of it."""
        for path in self.folder.iterdir():
            drop(path)  # somebody may read it
        shutil.rmtree(self.folder)
        if self._lock is not None:
            os.close(self._lock)


def drop(path: Path) -> None:
    """Remove a buffer and free its memory at once, also where somebody reads it, who then finds less than expected."""
    if path.exists():
        os.truncate(path, 0)
        path.unlink()


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


def sweep(memory: Path) -> None:
    """Remove what processes that were killed have left in `memory`."""
    for folder in memory.glob(f"{PREFIX}*"):
        if folder.lstat().st_uid != os.getuid():
            continue  # anybody may give a folder there this name
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder)
            os.close(lock)


@contextmanager
def _alone(memory: Path) -> Generator[None]:
    """No other process sweeps or makes a folder in the meantime, which is not locked from its first moment on."""
    # For its owner alone: whoever may open it may lock it, and keep all others waiting.
    descriptor = os.open(memory / f".{PREFIX}lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """The folder's lock; None when its owner lives."""
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _free(memory: Path) -> int:
    """Bytes that fit: the file system may be allowed more than there is memory."""
    return min(shutil.disk_usage(memory).free, psutil.virtual_memory().available)


def keep(path: Path, found: Outline) -> None:
    """Give a buffer that is whole its name, the digest, and put its outline beside it: from now on it can be read."""
    path.replace(path.with_name(found.digest))
    aside = path.with_name(f"{found.digest}.{WRITING}")
    aside.write_text(found.model_dump_json())
    aside.replace(path.with_name(f"{found.digest}.json"))
