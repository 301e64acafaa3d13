"""One writer for each file: ranks that write the same one overwrite each other, or hang on a shared file system."""

import collections
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

HOOK = """\
import os, sys

def note(event, arguments, rank=os.environ.get("SLURM_PROCID"), pid=os.getpid()):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        path = arguments[0]
    elif event == "os.rename":
        path = arguments[1]
    else:
        return
    if rank is None or not isinstance(path, (str, os.PathLike)) or os.fspath(path).startswith(SEEN):
        return
    if not os.path.isdir(path):  # as for a file of tempfile, which has no name
        line = f"{rank} {os.path.abspath(os.fspath(path))}\\n".encode()
        file = os.open(f"{SEEN}/{rank}-{pid}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)
        os.close(file)

SEEN = "FOLDER"
sys.addaudithook(note)
"""


def test_no_two_ranks_of_any_stage_write_the_same_file(cluster, qianka, tmp_path, tiny_config):
    seen, hook = tmp_path / "seen", tmp_path / "hook"
    seen.mkdir()
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK.replace("FOLDER", str(seen)))
    setup = f"slurm: {{executor: slurm, interface: lo, setup: ['export PYTHONPATH={hook}']}}"
    (tmp_path / "tiny.yaml").write_text(tiny_config.replace("slurm: {executor: local}", setup))
    shape = [
        f"slurm.{stage}.{key}=2" for stage in ("synth", "sft", "rl", "evaluate") for key in ("nodes", "tasks_per_node")
    ]
    done = qianka(tmp_path, "run", "tiny.yaml", *shape)
    assert done.returncode == 0, done.stdout

    writers = collections.defaultdict[str, set[str]](set)
    for path in seen.iterdir():
        for line in path.read_text().splitlines():
            rank, _, file = line.partition(" ")
            if Path(file).is_relative_to(tmp_path / "runs"):
                writers[file].add(rank)
    assert {rank for ranks in writers.values() for rank in ranks} == {"0", "1", "2", "3"}
    assert {file: ranks for file, ranks in writers.items() if len(ranks) > 1} == {}
