import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpoints.manifest import Result
from data.job import Job
from data.rows import completion_of
from data.shards import read_split
from data.split import SPLITS
from stages.synth.run import run

ROWS = [{"prompt": f"What is {n} and {n}?", "answer": str(2 * n), "id": n} for n in range(300)]


def rows_of(folder) -> list[dict]:
    return [row for split in SPLITS for row in read_split(folder, split).to_pylist()]


def test_the_users_rows_go_through_with_their_file_and_line(config, synth, rows_file):
    path = rows_file([{**ROWS[0], "trace": "0+0=0", "level": 3}, *ROWS[1:]])
    folder = synth(config({"name": "rows", "path": path}))
    rows = {row["source"]: row for row in rows_of(folder)}
    assert set(rows) == {f"tasks.jsonl:{line}" for line in range(1, 301)}
    first, second = rows["tasks.jsonl:1"], rows["tasks.jsonl:2"]
    assert (first["trace"], first["level"], completion_of(first)) == ("0+0=0", 3, "0+0=0")
    assert (second["trace"], second["level"], completion_of(second)) == ("", 0, "2")
    assert {row["seed"] for row in rows.values()} == {-1}
    # The exact grader does not take a trace for an answer, and the manifest shows it.
    assert Result(folder / "manifest.json").manifest.metrics["accepted_share"] == pytest.approx(299 / 300)


def test_parquet_and_jsonl_give_the_same_rows(config, synth, rows_file, tmp_path):
    environment = {"name": "rows", "path": str(tmp_path / "tasks.parquet")}
    columns = {name: [row[name] for row in ROWS] for name in ("prompt", "answer")}
    pq.write_table(pa.table(columns), tmp_path / "tasks.parquet", row_group_size=70)
    parquet = rows_of(synth(config(environment, workers=2)))
    jsonl = rows_of(synth(config({"name": "rows", "path": rows_file(ROWS)})))
    without_source = [[{**row, "source": ""} for row in rows] for rows in (parquet, jsonl)]
    assert without_source[0] == without_source[1]


def test_the_same_rows_in_another_place_give_the_same_bytes(config, synth, shards, rows_file, tmp_path):
    (tmp_path / "moved").mkdir()
    one = synth(config({"name": "rows", "path": rows_file(ROWS)}))
    other = synth(config({"name": "rows", "path": rows_file(ROWS, "moved/tasks.jsonl")}), ranks=2)
    assert shards(one) == shards(other)


def test_repeated_and_nearly_repeated_rows_are_dropped_and_the_first_stays(config, synth, rows_file):
    long = [f"Tell me, in your own words, {n} things about the number {n} and why {n} is {n}." for n in range(100, 300)]
    repeated = [prompt.replace(" ", "  ") for prompt in long]
    nearly = [f"{prompt.rstrip('.')}!" for prompt in long]
    rows = [{"prompt": prompt, "answer": "x"} for prompt in (*long, *repeated, *nearly)]
    environment = {"name": "rows", "path": rows_file(rows)}
    folder = synth(config(environment, near_duplicate_similarity=0.96))
    metrics = Result(folder / "manifest.json").manifest.metrics
    assert (metrics["tasks"], metrics["exact_duplicates"], metrics["near_duplicates"]) == (600, 200, 200)
    assert sorted(row["prompt"] for row in rows_of(folder)) == sorted(long)


def test_harder_rows_come_from_their_own_file_without_those_of_the_first(config, synth, rows_file):
    harder = [{"prompt": f"What is {n} times {n}?", "answer": str(n * n), "level": 9} for n in range(90)]
    environment = {
        "name": "rows",
        "path": rows_file(ROWS),
        "harder_path": rows_file([ROWS[0], *harder], "harder.jsonl"),
    }
    folder = synth(config(environment, harder_tasks=61))
    table = read_split(folder, "harder")
    assert table["prompt"].to_pylist() == [row["prompt"] for row in harder[:60]]
    assert set(table["level"].to_pylist()) == {9}


def test_a_broken_row_stops_the_stage_before_any_block_and_is_named(config, attempt, rows_file):
    path = rows_file([*ROWS[:40], {"prompt": "What?"}, *ROWS[41:]])
    folder = attempt("synth", {})
    for rank in (0, 1):  # on every rank, so that none waits for another
        with pytest.raises(ValueError, match=r"tasks.jsonl:41 answer: missing"):
            run(config({"name": "rows", "path": path}), {}, folder, Job(rank=rank, world_size=2))
    assert not (folder / "blocks").exists()


def test_an_empty_file_is_an_error(config, attempt, rows_file):
    with pytest.raises(ValueError, match=r"tasks.jsonl: no rows"):
        run(config({"name": "rows", "path": rows_file([])}), {}, attempt("synth", {}), Job())
