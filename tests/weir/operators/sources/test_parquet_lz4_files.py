"""Parquet files with LZ4: what pyarrow reads in them, from pages that are decompressed by a kernel of our own."""

from __future__ import annotations

import random

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.weir.operators.sources.test_parquet_lz4 import sequence
from tests.weir.operators.sources.varints import varint
from weir.operators.sources.parquet.parquet_groups import direct_batches
from weir.operators.sources.parquet.parquet_headers import DATA_PAGE_V2, DamagedPageError, read_header
from weir.operators.sources.parquet.parquet_pages import UnsupportedPageError
from weir.operators.sources.parquet.parquet_rows import open_parquet, read_group

CODEC = pa.Codec("lz4_raw")
NAMES = ["id", "server", "payload", "level"]


def table_of(draw: random.Random, rows: int, nulls: float) -> pa.Table:
    def column(data_type: pa.DataType, make) -> pa.Array:
        return pa.array([None if draw.random() < nulls else make() for _ in range(rows)], type=data_type)

    return pa.table(
        {
            "id": pa.array(range(rows), type=pa.int64()),
            "server": column(pa.string(), lambda: f"server-{draw.randrange(50)}"),
            "payload": column(pa.string(), lambda: f'{{"name": "n{draw.random()}"}}' * draw.randrange(4)),
            "level": column(pa.float64(), lambda: draw.choice([draw.random(), 1.5])),
        }
    )


def assert_read_directly(path: str, table: pa.Table) -> None:
    """All rows, without a page that is left to pyarrow."""
    file = open_parquet(path, NAMES)
    chunks = [file.metadata.row_group(0).column(place).compression for place in range(len(NAMES))]
    assert chunks == ["LZ4"] * len(NAMES)
    batches = [
        batch
        for group in range(file.num_row_groups)
        for batch in direct_batches(path, file, group, NAMES, 0, 600, 100_000)
    ]
    schema = pa.schema([pa.field(name, batches[0].schema.field(name).type) for name in NAMES])
    for batch in batches:
        batch.validate(full=True)
    found = pa.Table.from_batches(batches).combine_chunks()
    assert found.equals(table.cast(schema).combine_chunks())
    assert found.equals(pq.read_table(path, columns=NAMES).cast(schema).combine_chunks())


@pytest.mark.parametrize("nulls", [0, 0.3, 1.0])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("page_bytes", [100, 1 << 20])
def test_files_of_pyarrow(tmp_path, nulls, version, use_dictionary, page_bytes):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(1), 3000, nulls)
    pq.write_table(
        table,
        path,
        compression="lz4",
        data_page_version=version,
        use_dictionary=use_dictionary,
        data_page_size=page_bytes,
        row_group_size=2000,
    )
    assert_read_directly(path, table)


@pytest.mark.parametrize("nulls", [0, 0.3, 1.0])
@pytest.mark.parametrize("page_bytes", [1000, 1 << 20])
def test_files_of_polars(tmp_path, nulls, page_bytes):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(2), 3000, nulls)
    pl.from_arrow(table).write_parquet(
        path, compression="lz4", data_page_size=page_bytes, row_group_size=2000
    )
    assert_read_directly(path, table)


@pytest.mark.parametrize("nulls", [0, 0.3, 1.0])
@pytest.mark.parametrize("name", ["lz4", "lz4_raw"])
def test_files_of_duckdb(tmp_path, nulls, name):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(3), 3000, nulls)
    with duckdb.connect() as connection:
        connection.register("rows", table)
        connection.sql("SELECT * FROM rows").write_parquet(path, compression=name, row_group_size=2048)
    assert_read_directly(path, table)


def file_with(path, table: pa.Table, replace, *, version: str = "1.0", codec: int = 7) -> None:
    """A column without dictionary and nulls, written with LZ4, whose page has another block: what ``replace`` makes.

    ``codec``: what the file says that it is.
    """
    options = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
    pq.write_table(table, path, **options, data_page_version=version, store_schema=False)
    data = path.read_bytes()
    with pq.ParquetFile(path) as file:
        chunk = file.metadata.row_group(0).column(0)
    found = read_header(data, chunk.data_page_offset)
    assert found is not None
    header, body_at = found
    levels = max(0, header.definition_bytes) if header.kind == DATA_PAGE_V2 else 0
    block_at, end = body_at + levels, body_at + header.compressed_bytes
    other = replace(data[block_at:end], header.uncompressed_bytes - levels)
    grown = len(other) - (end - block_at)

    def sized(number: int) -> bytes:
        return varint(2 * number)

    head = data[:body_at].replace(
        b"\x15" + sized(header.compressed_bytes), b"\x15" + sized(header.compressed_bytes + grown)
    )
    foot_bytes = int.from_bytes(data[-8:-4], "little")
    total = chunk.total_compressed_size
    foot = data[-8 - foot_bytes : -8].replace(b"\x16" + sized(total), b"\x16" + sized(total + grown))
    assert foot.count(b"\x15\x0e") == 1
    foot = foot.replace(b"\x15\x0e", bytes([0x15, 2 * codec]))
    assert len(head) == body_at
    assert len(foot) == foot_bytes
    path.write_bytes(head + data[body_at:block_at] + other + foot + data[-8:])


def framed(block: bytes, size: int) -> bytes:
    """As Hadoop has it."""
    return size.to_bytes(4, "big") + len(block).to_bytes(4, "big") + block


NUMBERS = pa.table({"id": pa.array([n % 97 for n in range(1000)], type=pa.int64())})


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("replace", [framed, lambda block, _: block])
def test_the_older_codec_is_left_to_pyarrow(tmp_path, version, replace):
    """With Hadoop's frames, and without, as older versions of pyarrow wrote it."""
    path = tmp_path / "a.parquet"
    file_with(path, NUMBERS, replace, version=version, codec=5)
    file = open_parquet(str(path), ["id"])
    assert file.metadata.row_group(0).column(0).compression != "LZ4"
    with pytest.raises(UnsupportedPageError, match="another compression"):
        next(direct_batches(str(path), file, 0, ["id"], 0, 500, 1 << 20))
    batches = read_group(file, 0, ["id"], 0, 500, 1 << 20, str(path))
    assert pa.Table.from_batches(batches).combine_chunks() == NUMBERS.combine_chunks()


def _counted(size: int) -> bytes:
    return bytes(n % 251 for n in range(size))


def fewer(_: bytes, size: int) -> bytes:
    """Eight bytes fewer than there should be."""
    return CODEC.compress(_counted(size - 8), asbytes=True)


def more(_: bytes, size: int) -> bytes:
    """A byte more than there should be."""
    return CODEC.compress(_counted(size + 1), asbytes=True)


def half(block: bytes, _: int) -> bytes:
    """What it begins with."""
    return block[: len(block) // 2]


def nothing(_: bytes, size: int) -> bytes:
    """A match of what is not there."""
    return sequence(b"abcdefgh", 40, 9) + sequence(bytes(size - 48), 0, 0)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("replace", [framed, fewer, more, half, nothing])
def test_a_damaged_block_is_no_data(tmp_path, version, replace):
    path = tmp_path / "a.parquet"
    file_with(path, NUMBERS, replace, version=version)
    file = open_parquet(str(path), ["id"])
    with pytest.raises(DamagedPageError, match="cannot be decompressed"):
        next(direct_batches(str(path), file, 0, ["id"], 0, 500, 1 << 20))
    with pytest.raises(OSError, match=r"Corrupt Lz4|didn't decompress to expected size"):
        list(read_group(file, 0, ["id"], 0, 500, 1 << 20, str(path)))
