"""The user's own rows: JSONL or Parquet, read block by block and checked row by row.

Columns: prompt and answer (text, not empty), trace (text, optional: the completion to learn from, else the answer),
level (whole number, optional: how hard). Other columns are not read.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

REQUIRED = ("prompt", "answer")
COLUMNS = ("prompt", "answer", "trace", "level")
MAX_ERRORS = 10
CHECK_BLOCK_ROWS = 2000


@dataclass(frozen=True)
class UserRow:
    """A checked row, and its line (JSONL) or row number (Parquet), both counted from 1."""

    prompt: str
    answer: str
    trace: str
    level: int
    line: int


@dataclass(frozen=True)
class FileBlock:
    """Consecutive rows of a file that can be read without reading what stands before them."""

    path: Path
    first: int
    """Number of lines (JSONL) or rows (Parquet) before the block."""
    rows: int
    offset: int
    """Number of bytes before the block; 0 for Parquet."""


def check_user_file(path: Path, rows: int | None = None) -> int:
    """Check the first `rows` rows (None: all), and return how many there were.

    Cheap enough for a login node with `rows=1000`. Raises ValueError naming `path:line column: what` for up to ten
    errors, and when the file is missing, empty, or neither .jsonl nor .parquet.
    """
    checked = 0
    errors: list[str] = []
    for block in read_blocks(path, CHECK_BLOCK_ROWS, limit=rows):
        for row in parse_block(block):
            checked += isinstance(row, UserRow)
            if isinstance(row, str):
                errors.append(row)
        if len(errors) >= MAX_ERRORS:
            break
    if errors:
        raise bad_rows(path, errors)
    if not checked:
        raise ValueError(f"{path}: no rows; give at least a few tasks, each with a prompt and an answer")
    return checked


def read_rows(block: FileBlock) -> list[UserRow]:
    """The rows of a block; ValueError naming the bad ones among them."""
    parsed = list(parse_block(block))
    errors = [row for row in parsed if isinstance(row, str)]
    if errors:
        raise bad_rows(block.path, errors)
    return [row for row in parsed if isinstance(row, UserRow)]


def read_blocks(path: Path, rows: int, limit: int | None = None) -> list[FileBlock]:
    """Cut the file, or its first `limit` rows, into blocks of `rows` rows. An empty line of JSONL counts as a row."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; environment.path must name a .jsonl or .parquet file")
    if path.suffix == ".jsonl":
        return jsonl_blocks(path, rows, limit)
    if path.suffix == ".parquet":
        found = open_parquet(path).metadata.num_rows
        total = found if limit is None else min(found, limit)
        return [FileBlock(path, first, min(rows, total - first), 0) for first in range(0, total, rows)]
    raise ValueError(f"{path}: unknown extension {path.suffix!r}; it must be .jsonl or .parquet")


def jsonl_blocks(path: Path, rows: int, limit: int | None) -> list[FileBlock]:
    """The blocks of a JSONL file: one pass that only looks for line ends."""
    blocks: list[FileBlock] = []
    first = count = start = end = 0
    with path.open("rb") as stream:
        for line in islice(stream, limit):
            count, end = count + 1, end + len(line)
            if count == rows:
                blocks.append(FileBlock(path, first, count, start))
                first, count, start = first + count, 0, end
    if count:
        blocks.append(FileBlock(path, first, count, start))
    return blocks


def parse_block(block: FileBlock) -> Iterator[UserRow | str]:
    """Each row, or what is wrong with it."""
    return parse_jsonl(block) if block.path.suffix == ".jsonl" else parse_parquet(block)


def parse_jsonl(block: FileBlock) -> Iterator[UserRow | str]:
    """The rows of a block of lines; blank lines are passed over."""
    with block.path.open("rb") as stream:
        stream.seek(block.offset)
        for number, line in enumerate(islice(stream, block.rows), start=block.first + 1):
            where = f"{block.path}:{number}"
            # Editors on Windows put a byte-order mark before the first line.
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            try:
                text = line.decode(encoding)
                value = json.loads(text) if text.strip() else None
            except UnicodeDecodeError as error:
                yield f"{where}: not UTF-8 (byte {error.start} of the line)"
            except json.JSONDecodeError as error:
                yield f"{where}: not JSON ({error.msg} at character {error.pos})"
            else:
                if isinstance(value, dict):
                    yield check_row(value, where, number)
                elif text.strip():
                    yield f"{where}: not a JSON object with the keys prompt and answer"


def parse_parquet(block: FileBlock) -> Iterator[UserRow | str]:
    """The rows of a range of a Parquet file."""
    opened = open_parquet(block.path)
    before = 0
    for group in range(opened.metadata.num_row_groups):
        rows = opened.metadata.row_group(group).num_rows
        start, stop = max(block.first - before, 0), min(block.first + block.rows - before, rows)
        if start < stop:
            table = read_row_group(block.path, group).slice(start, stop - start)
            for number, value in enumerate(decode_rows(table), start=before + start + 1):
                where = f"{block.path}:{number}"
                yield f"{where}: has text that is not UTF-8" if value is None else check_row(value, where, number)
        before += rows


def decode_rows(table: pa.Table) -> list[dict[str, Any] | None]:
    """The rows of a table; None where a text is not UTF-8, which Parquet does not check."""
    try:
        return table.to_pylist()
    except UnicodeDecodeError:
        if len(table) == 1:
            return [None]
        middle = len(table) // 2
        return decode_rows(table.slice(0, middle)) + decode_rows(table.slice(middle))


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file, and check the names and types of its columns."""
    try:
        opened = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file: {error}") from error
    schema = opened.schema_arrow
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise ValueError(f"{path} column {', '.join(missing)}: missing; the file has {', '.join(schema.names)}")
    for name in COLUMNS:
        if name in schema.names and not right_type(name, schema.field(name).type):
            wanted = "a whole number" if name == "level" else "text"
            raise ValueError(f"{path} column {name}: {schema.field(name).type}, but it must be {wanted}")
    return opened


def right_type(name: str, found: pa.DataType) -> bool:
    """Whether a Parquet column has a type that we read; an all-null column is as good as none."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if name == "level":
        return pa.types.is_integer(found) or pa.types.is_null(found)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(is_type(found) for is_type in texts)


@lru_cache(maxsize=1)
def read_row_group(path: Path, group: int) -> pa.Table:
    """A row group, kept until the next one: a process reads many blocks of one group after another."""
    opened = pq.ParquetFile(path)
    return opened.read_row_group(group, columns=[name for name in COLUMNS if name in opened.schema_arrow.names])


def check_row(value: dict[str, Any], where: str, number: int) -> UserRow | str:
    """The row, or its first error as `path:line column: what`."""
    for name in REQUIRED:
        if name not in value:
            return f"{where} {name}: missing; the row has {', '.join(value) or 'nothing'}"
    for name in ("prompt", "answer", "trace"):
        text = value.get(name)
        if name == "trace" and text is None:
            continue
        if not isinstance(text, str):
            return f"{where} {name}: must be text, not {json.dumps(text)}"
        if name != "trace" and not text.strip():
            return f"{where} {name}: empty"
        if not is_unicode(text):
            return f"{where} {name}: has half of a surrogate pair (\\ud800 to \\udfff), which is not text"
    level = 0 if value.get("level") is None else value["level"]
    if type(level) is not int or not 0 <= level < 2**31:
        return f"{where} level: must be a whole number from 0 to {2**31 - 1}, not {json.dumps(level)}"
    return UserRow(value["prompt"], value["answer"], value.get("trace") or "", level, number)


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8; JSON can smuggle in half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def bad_rows(path: Path, errors: Iterable[str]) -> ValueError:
    """One error that lists the first bad rows."""
    listed = list(islice(errors, MAX_ERRORS))
    return ValueError(f"{path}: bad rows, mend or remove them:\n  " + "\n  ".join(listed))
