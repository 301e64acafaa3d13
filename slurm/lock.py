"""Locks that the kernel lets go of when their holder ends, however it ends."""

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MODE = 0o600
"""In a folder that is open to a group, no other user can take the lock and keep it."""
HELD: dict[Path, int] = {}
"""Locks that this process keeps until it ends."""


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock `path`, waiting for whoever holds it now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, MODE)
    try:
        _flock(descriptor, fcntl.LOCK_EX, path)
        yield
    finally:
        os.close(descriptor)


def hold(path: Path, wait_seconds: float = 0) -> str | None:
    """Take the lock `path` for as long as this process lives; or return who holds it, after `wait_seconds`."""
    if path.resolve() in HELD:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, MODE)
    end = time.monotonic() + wait_seconds
    while not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path):
        if time.monotonic() >= end:
            os.close(descriptor)
            return path.read_text().strip() or "another process"
        time.sleep(0.1)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
    HELD[path.resolve()] = descriptor
    return None


def let_go(path: Path) -> None:
    """Give up a lock that `hold` took."""
    descriptor = HELD.pop(path.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)


def _flock(descriptor: int, operation: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise ValueError(f"{path}: this file system has no locks (Lustre: mount it with -o flock)") from error
    return True
