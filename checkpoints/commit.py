"""Existence means complete: a file is written aside, fsynced and renamed, so no reader ever sees half of one."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ASIDE = ".writing"


@contextmanager
def commit(path: Path) -> Generator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, fsync it and rename it to `path`.

    When the block raises, the temporary file is removed and `path` is as it was. A killed process leaves a
    `*.writing` file, which `remove_torn` deletes at the next start.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ASIDE)
    try:
        yield aside
        sync(aside)
        aside.replace(path)
        sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Fsync a file or a folder (a rename is durable only once its folder is)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_torn(folder: Path) -> list[Path]:
    """Delete what interrupted writers left below `folder`, and return what was deleted. One rank calls it."""
    import shutil

    torn = [path for path in folder.rglob(f"*{ASIDE}") if path.exists()]
    for path in torn:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return torn
