import errno
import os
import shutil

import pytest

from checkpoints.disk import trouble


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only")],
)
def test_a_full_disk_is_found_behind_the_error_of_a_library(tmp_path, number, words):
    library = RuntimeError("unexpected position")
    library.__cause__ = OSError(number, os.strerror(number))
    assert words in trouble(library, tmp_path)


def test_the_disk_is_asked_where_an_error_does_not_say_it(tmp_path, monkeypatch):
    error = RuntimeError("write failed")
    assert trouble(error, tmp_path) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 100, 0))
    assert trouble(error, tmp_path) == "the disk is full"


def test_other_errors_are_no_trouble_of_the_disk(tmp_path):
    assert trouble(FileNotFoundError(errno.ENOENT, "no such file"), tmp_path) is None
