from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.rows import SCHEMA, completion_of, row_id
from data.shards import read_provenance, read_split, write_shard

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROW = st.fixed_dictionaries(
    {
        "id": TEXT.map(row_id),
        "prompt": TEXT,
        "answer": TEXT,
        "trace": TEXT,
        "level": st.integers(0, 2**31 - 1),
        "seed": st.integers(-1, 2**63 - 1),
        "source": TEXT,
    }
)


def table_of(*prompts: str) -> pa.Table:
    rows = [
        {"id": row_id(p), "prompt": p, "answer": "1", "trace": "", "level": 2, "seed": -1, "source": "a.jsonl:1"}
        for p in prompts
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(first=st.lists(ROW, min_size=1, max_size=9), second=st.lists(ROW, max_size=9), note=TEXT)
def test_a_split_comes_back_as_it_was_written_in_the_order_of_its_shards(tmp_path, first, second, note):
    for name, rows in (("shard-000001", second), ("shard-000000", first)):
        path = tmp_path / "train" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        write_shard(path, pa.Table.from_pylist(rows, SCHEMA), {"seed": "7", "note": note})
        assert read_provenance(path) == {"seed": "7", "note": note}
    table = read_split(tmp_path, "train")
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == first + second


def test_the_same_rows_have_the_same_bytes_however_they_lie_in_memory(tmp_path):
    whole = table_of(*(f"{n}+1:" for n in range(1000)))
    pieces = pa.concat_tables([whole.slice(0, 13), whole.slice(13, 500), whole.slice(513)])
    write_shard(tmp_path / "a.parquet", whole, {"seed": "1"})
    write_shard(tmp_path / "b.parquet", pieces, {"seed": "1"})
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_shard_that_is_being_written_is_not_read(tmp_path):
    (tmp_path / "train").mkdir()
    write_shard(tmp_path / "train" / "shard-000000.parquet", table_of("1+1:"), {})
    (tmp_path / "train" / "shard-000001.parquet.writing").write_bytes(b"half")
    assert read_split(tmp_path, "train")["prompt"].to_pylist() == ["1+1:"]


def test_missing_empty_and_foreign_shards_are_errors_that_name_them(tmp_path):
    folder = tmp_path / "train"
    with pytest.raises(ValueError, match=r"train: no shards"):
        read_split(tmp_path, "train")
    folder.mkdir()
    write_shard(folder / "shard-000000.parquet", table_of(), {})
    with pytest.raises(ValueError, match=r"train: its 1 shards have no rows"):
        read_split(tmp_path, "train")
    pq.write_table(pa.table({"text": ["a"]}), folder / "shard-000001.parquet")
    with pytest.raises(ValueError, match=r"shard-000001.parquet: its columns are \['text'\]"):
        read_split(tmp_path, "train")
    (folder / "shard-000001.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"shard-000001.parquet: not a Parquet file"):
        read_split(tmp_path, "train")


def test_a_folder_named_like_a_partition_adds_no_column(tmp_path: Path):
    folder = tmp_path / "lr=1" / "a b'c$d"
    (folder / "train").mkdir(parents=True)
    write_shard(folder / "train" / "shard-000000.parquet", table_of("1+1:"), {})
    assert read_split(folder, "train").schema.equals(SCHEMA)


def test_the_completion_to_learn_is_the_trace_or_else_the_answer():
    assert completion_of({"trace": "1+1=2>2", "answer": "2"}) == "1+1=2>2"
    assert completion_of({"trace": "", "answer": "2"}) == "2"
