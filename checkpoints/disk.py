"""A disk that takes no more files, in the words of the one whose disk it is."""

import errno
import shutil
from pathlib import Path

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota of this disk is used up",
    errno.EROFS: "the disk is mounted read-only",
}
FULL_BYTES = 65536
"""With less than this left, a failed write has found the disk full, even if the error does not say so."""


def trouble(error: BaseException, folder: Path) -> str | None:
    """Why the disk of `folder` takes no more files, if that is what lies behind `error`; None if it is not.

    The chain of causes is searched for the system's number. Writers in C++ and Rust raise errors without it (torch,
    safetensors), so after those the disk itself is asked.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in REASONS:
            return REASONS[cause.errno]
        cause = cause.__cause__ or cause.__context__
    return REASONS[errno.ENOSPC] if shutil.disk_usage(folder).free < FULL_BYTES else None
