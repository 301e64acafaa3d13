"""Ten thousand units of work: nothing lists them on a command line, and the same command finds them done."""

import pytest

from checkpoints.manifest import Result
from data.shards import read_split

MANY = (
    "environment.modulus=10",
    "environment.operators=[3, 4]",
    "synth.num_tasks=12000",
    "synth.block_tasks=1",
    "synth.shard_rows=1",
    "synth.near_duplicate_similarity=1",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_result_of_ten_thousand_blocks_and_shards_is_made_and_used(tiny, qianka):
    for stage, *shorter in (("synth",), ("sft", "sft.steps=2")):
        done = qianka(tiny.parent, "stage", stage, tiny.name, *MANY, *shorter)
        assert done.returncode == 0, done.stdout
    result = Result(tiny.parent / "runs" / "tiny" / "synth" / "manifest.json")
    assert len(result.manifest.files) > 10_000
    assert len(read_split(result.folder, "train")) > 9_000
    done = qianka(tiny.parent, "plan", tiny.name, *MANY, "sft.steps=2")
    assert done.returncode == 0, done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[:2]] == [["synth", "keep"], ["sft", "keep"]]
