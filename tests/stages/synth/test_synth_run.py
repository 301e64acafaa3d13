import threading
import time

import pyarrow.parquet as pq
import pytest

from checkpoints.manifest import Result
from data.job import Job, Stopped
from data.progress import read_progress
from data.rows import SCHEMA, id_keys, row_id
from data.shards import read_provenance, read_split
from data.split import SPLITS, assign_splits
from stages.environments.arithmetic import Arithmetic
from stages.environments.config import ArithmeticConfig
from stages.environments.hash import environment_hash
from stages.environments.registry import make
from stages.synth import assemble
from stages.synth import run as synth_run
from stages.synth.run import run


def test_the_result_is_splits_of_shards_that_a_manifest_describes(config, synth, shards):
    folder = synth(config())
    result = Result(folder / "manifest.json")
    metrics = result.manifest.metrics
    tables = {split: read_split(folder, split) for split in (*SPLITS, "harder")}
    assert {file.path for file in result.manifest.files} == set(shards(folder))
    assert all(table.schema.equals(SCHEMA) for table in tables.values())
    assert {f"rows_{split}": len(table) for split, table in tables.items()}.items() <= metrics.items()
    kept = sum(len(tables[split]) for split in SPLITS)
    assert metrics["tasks"] == 900 == kept + metrics["exact_duplicates"] + metrics["near_duplicates"]
    assert metrics["harder_tasks"] == 50 == len(tables["harder"]) + metrics["harder_duplicates"]
    assert 0.4 < metrics["accepted_share"] < 0.7 and metrics["grader_errors"] == 0
    full = len(tables["train"]) // 250
    assert [pq.read_metadata(path).num_rows for path in result.paths("train/")][:full] == [250] * full
    assert result.manifest.environment_hash == environment_hash(ArithmeticConfig())
    assert not (folder / "blocks").exists()
    progress = read_progress(folder)
    assert progress is not None and progress["unit"] == "tasks" and progress["done"] == progress["total"] == 950


def test_every_row_says_where_it_came_from_and_can_be_drawn_again(config, synth):
    folder = synth(config(num_tasks=200))
    environment = make(ArithmeticConfig())
    provenance = read_provenance(folder / "train" / "shard-000000.parquet")
    assert provenance["environment_hash"] == environment_hash(ArithmeticConfig())
    assert (provenance["seed"], provenance["environment"], len(provenance["config_digest"])) == ("1", "arithmetic", 64)
    for split, harder in (("train", False), ("harder", True)):
        for row in read_split(folder, split).to_pylist():
            _, info = environment.reset(seed=row["seed"], harder=harder)
            assert info == {key: row[key] for key in info}
            assert row["source"] == "arithmetic" and row["id"] == row_id(environment.canonical(row["prompt"]))


def test_no_prompt_is_in_two_splits_and_the_split_follows_from_the_prompt(config, synth):
    environment = make(ArithmeticConfig())
    seen = {}
    for seed in (1, 2):
        folder = synth(config(seed=seed, environment={"name": "arithmetic", "operators": [2, 3], "space_rate": 0.5}))
        prompts = {split: read_split(folder, split)["prompt"].to_pylist() for split in (*SPLITS, "harder")}
        plain = [environment.canonical(prompt) for found in prompts.values() for prompt in found]
        assert len(plain) == len(set(plain))
        for split in SPLITS:
            table = read_split(folder, split)
            assert {SPLITS[n] for n in assign_splits(id_keys(table["id"]), 0.02, 0.05)} == {split}
            for prompt in prompts[split]:
                assert seen.setdefault(environment.canonical(prompt), split) == split
        assert {row["level"] for row in read_split(folder, "harder").to_pylist()} == {5, 6}
        assert {row["level"] for row in read_split(folder, "train").to_pylist()} == {2, 3}


def test_one_seed_gives_the_same_bytes_for_any_number_of_workers_and_ranks_and_any_block_size(config, synth, shards):
    expected = shards(synth(config()))
    assert len(expected) >= 6
    assert shards(synth(config(workers=2))) == expected
    assert shards(synth(config(), ranks=2)) == expected
    assert shards(synth(config(), ranks=3)) == expected
    assert shards(synth(config(block_tasks=333))) == expected
    assert shards(synth(config(seed=2))) != expected


def test_running_a_finished_stage_again_changes_nothing(config, synth):
    folder = synth(config())
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    synth(config(), folder=folder, ranks=2)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_stop_keeps_the_finished_blocks_and_the_next_start_goes_on_from_them(
    config, synth, shards, attempt, monkeypatch
):
    expected = shards(synth(config()))
    stop, made = threading.Event(), []
    original = synth_run.make_block

    def make_and_stop_at_the_third(config, block):
        made.append(block.index)
        if len(made) == 3:
            stop.set()
        return original(config, block)

    monkeypatch.setattr(synth_run, "make_block", make_and_stop_at_the_third)
    folder = attempt("synth", {})
    with pytest.raises(Stopped):
        synth(config(), folder=folder, stop=stop)
    assert [path.name for path in sorted((folder / "blocks").iterdir())] == [
        f"block-00000{n}.parquet" for n in range(3)
    ]
    stop.clear()
    synth(config(), folder=folder, stop=stop)
    assert made == list(range(10)) and shards(folder) == expected


def test_a_stop_reaches_worker_processes_and_ranks_that_wait(config, synth, attempt):
    for ranks, workers in ((1, 2), (2, 1)):
        stop = threading.Event()
        stop.set()
        with pytest.raises(Stopped):
            synth(config(workers=workers), folder=attempt("synth", {}), ranks=ranks, stop=stop)


def test_a_stop_between_blocks_of_the_assembly_is_made_good_by_the_next_start(
    config, synth, shards, attempt, monkeypatch
):
    expected = shards(synth(config()))
    stop, folder = threading.Event(), attempt("synth", {})
    write = assemble.SplitWriter.write

    def write_and_stop(self, table):
        write(self, table)
        stop.set()

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(assemble.SplitWriter, "write", write_and_stop)
        synth(config(), folder=folder, stop=stop)
    assert 0 < len(shards(folder)) < len(expected) and not (folder / "manifest.json").exists()
    stop.clear()
    (folder / "train" / "shard-000777.parquet.writing").write_bytes(b"half")
    synth(config(), folder=folder, stop=stop)
    assert shards(folder) == expected


def test_a_torn_block_and_one_of_other_code_are_made_again(config, synth, shards, attempt):
    expected = shards(synth(config()))
    folder = attempt("synth", {})
    (folder / "blocks").mkdir()
    (folder / "blocks" / "block-000002.parquet.writing").write_bytes(b"half")
    other = config(environment={"name": "arithmetic", "modulus": 7})
    with_other_code = synth_run.describe(other)
    block = synth_run.plan_blocks(other)[4]
    synth_run.write_shard(block.path(folder), synth_run.make_block(other, block), with_other_code)
    synth(config(), folder=folder)
    assert shards(folder) == expected


def test_with_time_for_one_block_a_start_the_shards_are_the_same(config, synth, shards, attempt):
    expected, folder = shards(synth(config())), attempt("synth", {})
    for blocks in (1, 2):
        with pytest.raises(Stopped, match="s are left, .* stopped between two blocks"):
            run(config(), {}, folder, Job(ends_at=time.time() + 14))
        assert len(list((folder / "blocks").iterdir())) == blocks
    synth(config(), folder=folder)
    assert shards(folder) == expected


def test_a_rank_that_waits_in_vain_says_for_what_and_where(config, attempt, monkeypatch):
    monkeypatch.setattr(synth_run, "PATIENCE_SECONDS", 0.5)
    folder = attempt("synth", {})
    with pytest.raises(TimeoutError, match=r"rank 1 on localhost has waited .* for rank 0 to write the shards"):
        run(config(), {}, folder, Job(rank=1, world_size=2))


def test_too_few_tasks_for_a_split_is_an_error_with_the_counts_and_what_to_change(config, synth):
    with pytest.raises(
        ValueError, match=r"no rows for validation, evaluation: 2 tasks, .*synth.num_tasks.*evaluation_share"
    ):
        synth(config(num_tasks=2, harder_tasks=0))
    with pytest.raises(ValueError, match=r"no rows for train: 5 tasks"):
        synth(config(num_tasks=5, validation_share=0, evaluation_share=0.999, harder_tasks=0))


def test_a_split_that_is_not_wanted_is_not_written(config, synth):
    folder = synth(config(validation_share=0, harder_tasks=0))
    assert not (folder / "validation").exists() and not (folder / "harder").exists()
    assert Result(folder / "manifest.json").manifest.metrics["rows_validation"] == 0


def test_near_duplicates_are_removed_and_counted(config, synth):
    # Every prompt is 0, 1 or 2 with the same symbols, so many have the same shingles.
    environment = {"name": "arithmetic", "modulus": 2, "operators": [14], "harder_operators": [15]}
    near = Result(synth(config(environment, near_duplicate_similarity=0.5)) / "manifest.json").manifest.metrics
    exact = Result(synth(config(environment, near_duplicate_similarity=1)) / "manifest.json").manifest.metrics
    assert exact["near_duplicates"] == 0 and exact["exact_duplicates"] == 0
    assert 0 < near["near_duplicates"] < 900
    assert near["rows_train"] + near["rows_validation"] + near["rows_evaluation"] == 900 - near["near_duplicates"]


def test_harder_tasks_that_are_also_trained_on_are_dropped(config, synth):
    environment = {"name": "arithmetic", "modulus": 3, "operators": [1, 2], "harder_operators": [2], "space_rate": 0}
    folder = synth(config(environment, harder_tasks=200))
    metrics = Result(folder / "manifest.json").manifest.metrics
    main = {prompt for split in SPLITS for prompt in read_split(folder, split)["prompt"].to_pylist()}
    assert metrics["harder_duplicates"] > 0
    assert not main & set(read_split(folder, "harder")["prompt"].to_pylist())


def test_a_grader_that_fails_on_a_demonstration_is_counted_and_the_row_kept(config, synth, rows_file):
    rows = [{"prompt": f"What is {n}?", "answer": str(n)} for n in range(100)]
    rows.append({"prompt": "Why?", "answer": "?!"})
    environment = {"name": "rows", "path": rows_file(rows), "grader": "math"}
    metrics = Result(synth(config(environment)) / "manifest.json").manifest.metrics
    assert (metrics["tasks"], metrics["grader_errors"], metrics["accepted_share"]) == (101, 1, 1.0)


def test_a_broken_grader_is_found_before_any_block_is_made(config, attempt, monkeypatch):
    monkeypatch.setattr(Arithmetic, "grade", lambda self, task, completion: (1.0, True))
    folder = attempt("synth", {})
    with pytest.raises(ValueError, match=r"self-test of the environment arithmetic"):
        run(config(), {}, folder, Job())
    assert not (folder / "blocks").exists()
