import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.user_rows import UserRow, check_user_file, read_blocks, read_rows

GOOD = {"prompt": "1+1", "answer": "2"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ROW = st.fixed_dictionaries(
    {"prompt": TEXT.map("p".__add__), "answer": TEXT.map("a".__add__)},
    optional={"trace": TEXT | st.none(), "level": st.integers(0, 99) | st.none(), "other": st.booleans()},
)


def write(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(text + b"\n" for text in texts))
    return path


def expected(rows: list[dict]) -> list[UserRow]:
    return [
        UserRow(row["prompt"], row["answer"], row.get("trace") or "", row.get("level") or 0, number)
        for number, row in enumerate(rows, start=1)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(rows=st.lists(ROW, min_size=1, max_size=12), size=st.integers(1, 5))
def test_blocks_of_jsonl_give_every_row_once_with_its_line(tmp_path, rows, size):
    path = write(tmp_path / "tasks.jsonl", *rows)
    assert [row for block in read_blocks(path, size) for row in read_rows(block)] == expected(rows)
    assert check_user_file(path) == len(rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(rows=st.lists(ROW, min_size=1, max_size=12), size=st.integers(1, 5), group=st.integers(1, 5))
def test_blocks_of_parquet_give_every_row_once_with_its_number(tmp_path_factory, rows, size, group):
    path = tmp_path_factory.mktemp("rows") / "tasks.parquet"
    columns = {name: [row.get(name) for row in rows] for name in ("prompt", "answer", "trace", "level")}
    pq.write_table(pa.table(columns), path, row_group_size=group)
    assert [row for block in read_blocks(path, size) for row in read_rows(block)] == expected(rows)
    assert check_user_file(path) == len(rows)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"answer": "2"}, ":2 prompt: missing; the row has answer"),
        ({"prompt": "1+1"}, ":2 answer: missing; the row has prompt"),
        ({**GOOD, "answer": 2}, ":2 answer: must be text, not 2"),
        ({**GOOD, "prompt": None}, ":2 prompt: must be text, not null"),
        ({**GOOD, "prompt": " "}, ":2 prompt: empty"),
        ({**GOOD, "answer": ""}, ":2 answer: empty"),
        ({**GOOD, "trace": ["a"]}, ':2 trace: must be text, not ["a"]'),
        ({**GOOD, "level": "hard"}, ':2 level: must be a whole number from 0 to 2147483647, not "hard"'),
        ({**GOOD, "level": ""}, ":2 level: must be a whole number"),
        ({**GOOD, "level": False}, ":2 level: must be a whole number"),
        ({**GOOD, "level": True}, ":2 level: must be a whole number"),
        ({**GOOD, "level": 2**31}, ":2 level: must be a whole number"),
        ([1, 2], ":2: not a JSON object"),
        (b"null", ":2: not a JSON object"),
        (b'{"prompt": "a", ', ":2: not JSON ("),
        (b'{"prompt": "\xff", "answer": "2"}', ":2: not UTF-8 (byte 12 of the line)"),
        (b'{"prompt": "\\ud800", "answer": "2"}', ":2 prompt: has half of a surrogate pair"),
    ],
)
def test_a_broken_line_is_named_with_its_column(tmp_path, line, what):
    path = write(tmp_path / "tasks.jsonl", GOOD, line, GOOD)
    with pytest.raises(ValueError) as error:
        check_user_file(path)
    assert f"{path}{what}" in str(error.value)
    with pytest.raises(ValueError) as error:
        read_rows(read_blocks(path, 100)[0])
    assert f"{path}{what}" in str(error.value)


def test_the_first_ten_errors_are_listed_with_their_lines_and_no_more(tmp_path):
    path = write(tmp_path / "tasks.jsonl", *([GOOD] * 3000), *([{"prompt": "a"}] * 30))
    with pytest.raises(ValueError) as error:
        check_user_file(path)
    assert [line.split()[0] for line in str(error.value).splitlines()[1:]] == [
        f"{path}:{number}" for number in range(3001, 3011)
    ]


def test_the_cheap_check_reads_the_first_rows_only(tmp_path):
    path = write(tmp_path / "tasks.jsonl", *([GOOD] * 5), {"prompt": "a"})
    assert check_user_file(path, rows=5) == 5
    with pytest.raises(ValueError, match=r":6 answer: missing"):
        check_user_file(path, rows=6)


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path):
    path = write(tmp_path / "tasks.jsonl", b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), b"", b"  ", GOOD)
    assert [row.line for row in read_rows(read_blocks(path, 100)[0])] == [1, 4]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"prompt": ["a"]}, " column answer: missing; the file has prompt"),
        ({"prompt": ["a"], "answer": [2]}, " column answer: int64, but it must be text"),
        ({"prompt": ["a"], "answer": ["b"], "level": ["c"]}, " column level: string, but it must be a whole number"),
        ({"prompt": ["a", None], "answer": ["b", "c"]}, ":2 prompt: must be text, not null"),
        ({"prompt": ["a", "b"], "answer": ["b", ""]}, ":2 answer: empty"),
        ({"prompt": ["a"], "answer": ["b"], "level": [-1]}, ":1 level: must be a whole number"),
    ],
)
def test_a_broken_parquet_file_is_named_with_row_and_column(tmp_path, columns, what):
    path = tmp_path / "tasks.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ValueError) as error:
        check_user_file(path)
    assert f"{path}{what}" in str(error.value)


def test_text_of_parquet_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "tasks.parquet"
    prompts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    pq.write_table(pa.table({"prompt": prompts, "answer": ["1", "2", "3"]}), path)
    with pytest.raises(ValueError, match=r"tasks.parquet:2: has text that is not UTF-8"):
        check_user_file(path)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("tasks.csv", b"prompt,answer\n", r"tasks.csv: unknown extension '.csv'; it must be .jsonl or .parquet"),
        ("tasks.jsonl", b"", "tasks.jsonl: no rows"),
        ("tasks.jsonl", b"\n\n", "tasks.jsonl: no rows"),
        ("tasks.parquet", b"PAR1", "tasks.parquet: not a Parquet file"),
        ("tasks.parquet", b"", "tasks.parquet: not a Parquet file"),
        ("other", None, "tasks.jsonl: no such file"),
    ],
)
def test_a_file_that_cannot_hold_rows_is_an_error_that_says_why(tmp_path, name, content, what):
    if content is None:
        name = "tasks.jsonl"
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=what):
        check_user_file(tmp_path / name)


def test_an_empty_parquet_file_is_an_error(tmp_path):
    nothing = pa.array([], pa.string())
    pq.write_table(pa.table({"prompt": nothing, "answer": nothing}), tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"empty.parquet: no rows"):
        check_user_file(tmp_path / "empty.parquet")
