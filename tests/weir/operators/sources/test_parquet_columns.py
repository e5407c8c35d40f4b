from __future__ import annotations

import gzip
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import cases
from weir.operators.sources.parquet.parquet_groups import direct_batches
from weir.operators.sources.parquet.parquet_headers import PLAIN, RLE, DamagedPageError, read_header
from weir.operators.sources.parquet.parquet_pages import UnsupportedPageError
from weir.operators.sources.parquet.parquet_rows import open_parquet, read_group

#: Of levels; old writers use it.
BIT_PACKED = 4
NAMES = ["id", "name", "payload", "level", "day", "raw"]


def table_of(draw, rows, nulls):
    def column(data_type, make):
        values = [None if nulls and draw.random() < nulls else make() for _ in range(rows)]
        return pa.array(values, type=data_type)

    long = draw.choice([5, 300, 5000])
    return pa.table(
        {
            "id": pa.array(range(rows), type=pa.int64()),
            "name": column(pa.string(), lambda: f"server-{draw.randrange(50)}"),
            "payload": column(
                pa.large_string(), lambda: draw.choice(["", "ü", "日本"]) + "x" * draw.randrange(long)
            ),
            "level": column(pa.float64(), lambda: draw.choice([draw.random(), 1.5])),
            "day": column(pa.date32(), lambda: draw.randrange(20_000)),
            "raw": column(pa.binary(), lambda: draw.randbytes(draw.randrange(40))),
        }
    )


def write(path, table, draw):
    pq.write_table(
        table,
        path,
        compression=draw.choice(["none", "snappy", "zstd", "gzip", "lz4"]),
        use_dictionary=draw.choice([True, False, ["name", "level"]]),
        data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=draw.choice([100, 4096, 1 << 20]),
        dictionary_pagesize_limit=draw.choice([200, 1 << 20]),
        write_statistics=draw.random() < 0.7,
        row_group_size=draw.choice([7, 500, 10_000]),
    )


def rows_of(table, names):
    """Rows with 32-bit offsets, as they are read."""
    small = {pa.large_string(): pa.string()}
    fields = [
        pa.field(name, small.get(table.schema.field(name).type, table.schema.field(name).type))
        for name in names
    ]
    return table.select(names).cast(pa.schema(fields)).combine_chunks()


@pytest.mark.parametrize("seed", range(cases(12)))
def test_rows_are_those_that_pyarrow_reads(tmp_path, seed):
    draw = random.Random(seed)
    path = str(tmp_path / "a.parquet")
    table = table_of(draw, draw.choice([1, 40, 3000]), draw.choice([0, 0.01, 0.6, 1.0]))
    write(path, table, draw)
    names = draw.sample(NAMES, draw.randint(1, len(NAMES)))
    file = open_parquet(path, names)
    bytes_max = draw.choice([1, 10_000, 1 << 20])
    first_row = draw.choice([0, 3])
    for index in range(file.num_row_groups):
        whole = file.read_row_group(index, columns=names)
        if first_row >= whole.num_rows:
            continue
        batches = list(direct_batches(path, file, index, names, first_row, 600, bytes_max))
        for batch in batches:
            batch.validate(full=True)
            assert batch.num_rows == 1 or batch.nbytes <= 2 * bytes_max
        assert pa.Table.from_batches(batches).combine_chunks() == rows_of(whole.slice(first_row), names)


@pytest.mark.parametrize("seed", range(cases(20)))
def test_damaged_pages_are_left_to_pyarrow(tmp_path, seed):
    """Whatever the bytes say, nothing beyond the page is read; pyarrow finds the same values, or says what is wrong."""
    draw = random.Random(seed)
    path = tmp_path / "a.parquet"
    table = table_of(draw, 800, draw.choice([0, 0.3]))
    pq.write_table(
        table,
        path,
        compression=draw.choice(["none", "snappy", "lz4"]),
        data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=2000,
    )
    data = bytearray(path.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(draw.choice([1, 5, 50])):
        data[draw.randrange(4, end)] = draw.randrange(256)
    path.write_bytes(data)
    file = open_parquet(str(path), NAMES)
    try:
        for batch in direct_batches(str(path), file, 0, NAMES, 0, 500, 100_000):
            batch.validate()
            assert batch.num_rows
    except (UnsupportedPageError, DamagedPageError, OSError):
        pass


def test_pyarrow_goes_on_where_a_page_has_another_form(tmp_path):
    path = str(tmp_path / "a.parquet")
    table = pa.table({"id": range(5000), "name": [f"n{n}" for n in range(5000)]})
    pq.write_table(
        table, path, use_dictionary=False, column_encoding={"id": "DELTA_BINARY_PACKED", "name": "PLAIN"}
    )
    file = open_parquet(path, ["id", "name"])
    with pytest.raises(UnsupportedPageError):
        next(direct_batches(path, file, 0, ["id", "name"], 0, 500, 1 << 20))
    batches = read_group(file, 0, ["id", "name"], 0, 500, 1 << 20, path)
    assert pa.Table.from_batches(batches).combine_chunks() == table.combine_chunks()


def test_a_long_text_after_short_ones_ends_a_batch(tmp_path):
    path = str(tmp_path / "a.parquet")
    texts = ["x"] * 50 + ["y" * 5000] + ["z"] * 50
    pq.write_table(pa.table({"name": texts}), path)
    file = open_parquet(path, ["name"])
    batches = list(direct_batches(path, file, 0, ["name"], 0, 1000, 1000))
    assert [len(batch.column(0)) for batch in batches] == [50, 1, 50]
    assert [text for batch in batches for text in batch.column(0).to_pylist()] == texts


@pytest.mark.parametrize("seed", range(20))
def test_a_header_of_any_bytes_is_none_or_damaged(seed):
    data = random.Random(seed).randbytes(200)
    try:
        found = read_header(data, 0)
    except DamagedPageError:
        return
    assert found is None or found[0].compressed_bytes >= 0


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_deleted_or_replaced_while_it_is_read_is_read_on(tmp_path, is_replaced):
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(1000), "name": [f"n{n}" for n in range(1000)]})
    pq.write_table(table, path, row_group_size=500)
    file = open_parquet(str(path), ["id", "name"])
    path.unlink()
    if is_replaced:
        pq.write_table(pa.table({"id": range(1000), "name": ["other"] * 1000, "more": [1] * 1000}), path)
    batches = [b for g in range(2) for b in read_group(file, g, ["id", "name"], 0, 500, 1 << 20, str(path))]
    assert pa.Table.from_batches(batches).combine_chunks() == table.combine_chunks()


def test_a_page_of_gzip_that_has_fewer_bytes_than_it_says_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    values = random.Random(1).sample(range(1 << 62), 1000)
    pq.write_table(pa.table({"id": values}), path, compression="gzip", use_dictionary=False)
    with pq.ParquetFile(path) as file:
        at = file.metadata.row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    found = read_header(bytes(data), at)
    assert found is not None
    header, body_at = found
    # Half of it, made as long by a name of a file in it.
    whole = gzip.decompress(data[body_at : body_at + header.compressed_bytes])
    half = bytearray(gzip.compress(whole[: len(whole) // 2], mtime=0))
    half[3] |= 8
    half[10:10] = b"n" * (header.compressed_bytes - len(half) - 1) + b"\0"
    data[body_at : body_at + header.compressed_bytes] = half
    path.write_bytes(data)
    file = open_parquet(str(path), ["id"])
    with pytest.raises(DamagedPageError, match="cannot be decompressed"):
        next(direct_batches(str(path), file, 0, ["id"], 0, 500, 1 << 20))


def test_late_texts_with_levels_of_the_old_form_are_left_to_pyarrow_once(tmp_path):
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    options |= {"data_page_size": 20_000, "write_batch_size": 100}
    pq.write_table(pa.table({"id": range(1000), "name": ["x" * 200] * 1000}), path, **options)
    with pq.ParquetFile(path) as file:
        at = file.metadata.row_group(0).column(1).data_page_offset
    data = bytearray(path.read_bytes())
    found = read_header(bytes(data), at)
    assert found is not None
    # How levels are encoded: the third field of the struct for data pages.
    place = data.index(bytes([0x15, 2 * PLAIN, 0x15, 2 * RLE]), at, found[1]) + 3
    data[place] = 2 * BIT_PACKED
    path.write_bytes(data)
    file = open_parquet(str(path), ["id", "name"])
    with pytest.raises(UnsupportedPageError, match="levels with encoding 4"):
        next(direct_batches(str(path), file, 0, ["id", "name"], 0, 500, 1 << 20, ["id"]))


def with_other_levels(path, levels, other, **options):
    """A file of one column of 100 numbers and its levels, one of which is changed: the bytes after a page's header."""
    values = [None, *range(99)] if options.pop("has_null") else list(range(100))
    table = pa.table({"id": pa.array(values, pa.int64())})
    pq.write_table(table, path, compression="none", use_dictionary=False, **options)
    data = bytearray(path.read_bytes())
    found = read_header(bytes(data), pq.read_metadata(path).row_group(0).column(0).data_page_offset)
    assert found is not None
    at = found[1] + (0 if options.get("data_page_version") == "2.0" else 4)
    assert data[at : at + len(levels)] == levels, data[at : at + 8]
    data[at : at + len(levels)] = other
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("levels", "other", "options"),
    [
        # A run of 100 values of one bit, which has another one.
        (b"\xc8\x01\x01", b"\xc8\x01\x03", {"has_null": False}),
        # They end before their bytes do.
        (b"\x03\xfe\xb8\x01\x01", b"\xc8\x01\x00\x01\x01", {"has_null": True}),
        # All are null: the header of the page, or the metadata, says that none is.
        (
            b"\xc8\x01\x01",
            b"\xc8\x01\x00",
            {"has_null": False, "data_page_version": "2.0", "write_statistics": False},
        ),
        (b"\xc8\x01\x01", b"\xc8\x01\x00", {"has_null": False}),
    ],
    ids=["value", "end", "header", "metadata"],
)
def test_levels_that_contradict_themselves_or_the_file_are_left_to_pyarrow(tmp_path, levels, other, options):
    """Otherwise values would silently be null, or belong to other rows."""
    path = tmp_path / "a.parquet"
    with_other_levels(path, levels, other, **options)
    file = open_parquet(str(path), ["id"])
    with pytest.raises(DamagedPageError):
        list(direct_batches(str(path), file, 0, ["id"], 0, 500, 1 << 20))


def test_a_file_that_is_open_is_not_opened_again(tmp_path):
    path = str(tmp_path / "a")
    table = pa.table({"id": range(10), "at": pa.array(range(10), pa.timestamp("us"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    source = pa.OSFile(path, "rb")
    file = open_parquet(source, ["id", "at"], lambda _: "us")
    assert file.read().column("at").type == pa.timestamp("us")
    file.close(force=True)
    assert source.closed
