"""Immutable Parquet shards: the same rows and provenance give the same bytes.

A shard is written once, to a path that the caller commits; nothing is ever appended to it.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.rows import SCHEMA

ROW_GROUP_ROWS = 10_000


def write_shard(path: Path, table: pa.Table, provenance: dict[str, str]) -> None:
    """Write a table, with `provenance` in the schema's metadata, to a new file."""
    described = table.combine_chunks().replace_schema_metadata(provenance)
    # All that can change the bytes is set here and not left to the defaults of a pyarrow release.
    pq.write_table(
        described,
        path,
        row_group_size=ROW_GROUP_ROWS,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        store_schema=True,
    )


def read_provenance(path: Path) -> dict[str, str]:
    """What a shard's metadata says of its making."""
    metadata = pq.read_schema(path).metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}


def read_split(folder: Path, split: str) -> pa.Table:
    """The rows of `folder`/`split`, shards in the order of their names, without metadata.

    Raises ValueError when there is no shard, a shard has other columns, or there is no row.
    """
    paths = sorted((folder / split).glob("*.parquet"))
    if not paths:
        raise ValueError(f"{folder / split}: no shards (*.parquet); run the synth stage again, or name another folder")
    tables = [read_shard(path) for path in paths]
    table = pa.concat_tables(tables)
    if not table.num_rows:
        raise ValueError(f"{folder / split}: its {len(paths)} shards have no rows")
    return table


def read_shard(path: Path) -> pa.Table:
    """The rows of one shard; ValueError when it is not one of ours."""
    try:
        table = pq.ParquetFile(path).read().replace_schema_metadata(None)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file: {error}") from error
    if not table.schema.equals(SCHEMA):
        raise ValueError(f"{path}: its columns are {table.schema.names}, not those of a shard: {SCHEMA.names}")
    return table
