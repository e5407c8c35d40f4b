"""Long texts that are read when it is known where they go: the same rows, whatever the pages are like."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.kernels.bytes import PADDING_BYTES
from weir.keys.division import PartLimits, divided, split_by_owner
from weir.operators.sources.parquet.parquet_groups import direct_batches
from weir.operators.sources.parquet.parquet_headers import DamagedPageError, PageHeader
from weir.operators.sources.parquet.parquet_late import LateRows, LateTexts
from weir.operators.sources.parquet.parquet_pages import LaterPage, Page, PageReader, UnsupportedPageError
from weir.operators.sources.parquet.parquet_rows import open_parquet
from weir.operators.sources.parquet.parquet_source import ParquetReader
from weir.rows.records import Block, system_schema, user_columns
from weir.specs import ParquetSpec

NAMES = ["id", "name", "payload"]
GROUPS = np.arange(128, dtype=np.int32) % 3


def table_of(draw: random.Random, rows: int, nulls: float = 0.0) -> pa.Table:
    lengths = draw.choice([(80, 120), (0, 900), (0, 20_000)])
    texts = [
        None if draw.random() < nulls else f"{row}ü" + "x" * draw.randrange(*lengths) for row in range(rows)
    ]
    names = [f"server-{draw.randrange(50)}" for _ in range(rows)]
    return pa.table({"id": pa.array(range(rows), type=pa.int64()), "name": names, "payload": texts})


def write(path: str, table: pa.Table, draw: random.Random) -> None:
    pq.write_table(
        table,
        path,
        compression=draw.choice(["none", "snappy", "zstd", "lz4"]),
        use_dictionary=draw.choice([["name"], ["name", "payload"]]),
        data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=draw.choice([4096, 50_000]),
        dictionary_pagesize_limit=30_000,
        write_batch_size=16,
        row_group_size=draw.choice([500, 10_000]),
    )


def parts_of(rows: pa.RecordBatch | LateRows) -> list[list[dict]]:
    """The rows of each of three consumers."""
    batch, late = (rows.batch, rows.late) if isinstance(rows, LateRows) else (rows, None)
    parts: list[list[dict]] = [[], [], []]
    for index, part, *_ in divided(Block(batch, late=late), ["name"], GROUPS, range(3)):
        part.validate(full=True)
        parts[index] = part.select(NAMES).to_pylist()
    return parts


@pytest.mark.parametrize("seed", range(cases(12)))
def test_each_consumer_has_the_rows_that_it_has_otherwise(tmp_path, seed):
    draw = random.Random(seed)
    path = str(tmp_path / "a.parquet")
    write(path, table_of(draw, 2000, draw.choice([0, 0, 0.1])), draw)
    file = open_parquet(path, NAMES)
    bytes_max, first_row, late_rows = draw.choice([100_000, 1 << 20]), draw.choice([0, 3]), 0
    for index in range(file.num_row_groups):
        parts: list[list[dict]] = [[], [], []]
        for rows in direct_batches(path, file, index, NAMES, first_row, 600, bytes_max, ["name"]):
            late_rows += rows.late.rows if isinstance(rows, LateRows) else 0
            assert rows.late.rows <= 2400 if isinstance(rows, LateRows) else rows.num_rows <= 600
            for part, more in zip(parts, parts_of(rows), strict=True):
                part.extend(more)
        whole = file.read_row_group(index, columns=NAMES).slice(first_row).combine_chunks()
        assert parts == parts_of(whole.to_batches()[0])
    assert late_rows > 0


@pytest.mark.parametrize("seed", range(6))
def test_each_consumer_has_the_rows_that_filters_keep(tmp_path, seed):
    draw = random.Random(seed)
    path = str(tmp_path / "a.parquet")
    table = table_of(draw, 2000, draw.choice([0, 0, 0.1]))
    write(path, table, draw)
    file = open_parquet(path, NAMES)
    ids, late_rows = [], 0
    parts: list[list[dict]] = [[], [], []]
    for index in range(file.num_row_groups):
        for rows in direct_batches(path, file, index, NAMES, 0, 600, 1 << 20, ["name"]):
            batch, late = (rows.batch, rows.late) if isinstance(rows, LateRows) else (rows, None)
            late_rows += 0 if late is None else late.rows
            # Of some nothing is left, and the texts are not read.
            share = draw.choice([0, 0.1, 0.7, 0.9])
            selection = np.flatnonzero([draw.random() < share for _ in range(batch.num_rows)])
            ids += batch.column("id").take(pa.array(selection)).to_pylist()
            for part in divided(Block(batch, selection, late), ["name"], GROUPS, range(3)):
                part.rows.validate(full=True)
                parts[part.consumer] += part.rows.select(NAMES).to_pylist()
    whole = table.combine_chunks().to_batches()[0].take(pa.array(ids, pa.int64()))
    assert parts == parts_of(whole)
    assert late_rows > 0


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("seed", range(6))
def test_batches_of_late_texts_are_full_wherever_pages_end(tmp_path, compression, seed):
    """Some are read as they are divided, and some before, so that the next one begins anywhere in a page."""
    draw = random.Random(seed)
    path = str(tmp_path / "a.parquet")
    table = table_of(draw, 3000)
    pages = {"use_dictionary": ["name"], "data_page_size": draw.choice([40_000, 8 << 20])}
    pq.write_table(table, path, compression=compression, write_batch_size=16, **pages)
    parts: list[list[dict]] = [[], [], []]
    counts = []
    for rows in direct_batches(path, open_parquet(path, NAMES), 0, NAMES, 0, 700, 80 << 20, ["name"]):
        assert isinstance(rows, LateRows)
        counts.append(rows.late.rows)
        whole = rows.late.joined(rows.batch).select(NAMES) if draw.random() < 0.3 else None
        for part, more in zip(parts, parts_of(rows if whole is None else whole), strict=True):
            part.extend(more)
    assert counts == [2800, 200]
    assert parts == parts_of(table.combine_chunks().to_batches()[0])


def test_pages_between_batches_are_read_once_where_they_are_not_divided(tmp_path, monkeypatch):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(8), 3000)
    pq.write_table(table, path, use_dictionary=["name"], data_page_size=40_000, write_batch_size=16)
    read, places = PageReader._page_at, []

    def noted(self: PageReader, body_at: int, header: PageHeader) -> Page:
        places.append(body_at)
        return read(self, body_at, header)

    monkeypatch.setattr(PageReader, "_page_at", noted)
    texts = []
    for rows in direct_batches(path, open_parquet(path, NAMES), 0, NAMES, 0, 700, 80 << 20, ["name"]):
        assert isinstance(rows, LateRows)
        texts += rows.late.array().to_pylist()
    assert texts == table.column("payload").to_pylist()
    assert len(places) > 5
    assert len(set(places)) == len(places)


def test_late_texts_have_no_more_bytes_than_four_batches_wherever_pages_end(tmp_path):
    path = str(tmp_path / "a.parquet")
    texts = ["x" * 996] * 1000 + ["y" * 9_996] * 300
    table = pa.table({"id": pa.array(range(1300), pa.int64()), "name": ["a"] * 1300, "payload": texts})
    pq.write_table(table, path, use_dictionary=["name"], data_page_size=250_000, write_batch_size=25)
    bytes_max, rows = 400_000, 0
    for batch in direct_batches(path, open_parquet(path, NAMES), 0, NAMES, 0, 5000, bytes_max, ["name"]):
        assert isinstance(batch, LateRows)
        # A page may have short texts and long ones.
        assert batch.late.array().nbytes <= 4 * bytes_max + 10_000 * 25
        rows += batch.late.rows
        assert batch.late.array().to_pylist() == texts[rows - batch.late.rows : rows]
    assert rows == 1300


@pytest.mark.parametrize("limits", [PartLimits(130, 1 << 30), PartLimits(1 << 30, 20_000), PartLimits(1, 1)])
def test_parts_of_late_rows_are_within_their_limits(tmp_path, limits):
    path = str(tmp_path / "a.parquet")
    draw = random.Random(7)
    texts = [f"{row}" + "x" * draw.randrange(100, 300) for row in range(900)]
    names = [f"server-{draw.randrange(50)}" for _ in texts]
    table = pa.table({"id": pa.array(range(900), pa.int64()), "name": names, "payload": texts})
    pq.write_table(table, path, use_dictionary=["name"], data_page_size=20_000, write_batch_size=16)
    batches = direct_batches(path, open_parquet(path, NAMES), 0, NAMES, 0, 900, 8 << 20, ["name"])
    rows = next(batches)
    assert isinstance(rows, LateRows)
    block = Block(rows.batch, late=rows.late)
    parts: list[list[dict]] = [[], [], []]
    counts = [0, 0, 0]
    for index, part, size_bytes, _ in divided(block, ["name"], GROUPS, range(3), limits=limits):
        part.validate(full=True)
        assert size_bytes is not None
        # Not all texts have the same length.
        assert part.num_rows == 1 or size_bytes <= 1.2 * limits.bytes_max
        assert part.num_rows <= limits.rows_max
        counts[index] += 1
        parts[index].extend(part.select(NAMES).to_pylist())
    assert min(counts) > 1
    assert parts == parts_of(table.combine_chunks().to_batches()[0])


def test_texts_of_which_one_consumer_has_all_long_ones(tmp_path):
    """They have no room where they would go, and are read first."""
    path = str(tmp_path / "a.parquet")
    names = [f"server-{row % 50}" for row in range(600)]
    long = {
        name for name in names if parts_of(pa.record_batch({"id": [1], "name": [name], "payload": [""]}))[0]
    }
    texts = ["x" * (2000 if name in long else 10) for name in names]
    table = pa.table({"id": pa.array(range(600), pa.int64()), "name": names, "payload": texts})
    pq.write_table(table, path, use_dictionary=False, data_page_size=1 << 20)
    batches = direct_batches(path, open_parquet(path, NAMES), 0, NAMES, 0, 600, 8 << 20, [])
    rows = next(batches)
    assert isinstance(rows, LateRows)
    assert parts_of(rows) == parts_of(table.combine_chunks().to_batches()[0])
    assert rows.late.array() == table.column("payload").combine_chunks()


def test_texts_of_which_the_first_are_in_a_dictionary_come_late_too(tmp_path):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(6), 3000)
    dictionary = {"use_dictionary": True, "dictionary_pagesize_limit": 20_000}
    pq.write_table(table, path, data_page_size=20_000, write_batch_size=16, **dictionary)
    parts: list[list[dict]] = [[], [], []]
    for rows in direct_batches(path, open_parquet(path, NAMES), 0, NAMES, 0, 600, 8 << 20, ["name"]):
        assert isinstance(rows, LateRows)
        for part, more in zip(parts, parts_of(rows), strict=True):
            part.extend(more)
    assert parts == parts_of(table.combine_chunks().to_batches()[0])


@pytest.mark.parametrize("seed", range(cases(10)))
def test_damaged_pages_end_no_process(tmp_path, seed):
    draw = random.Random(seed)
    path = tmp_path / "a.parquet"
    pq.write_table(table_of(draw, 800), path, compression="none", use_dictionary=False, data_page_size=20_000)
    data = bytearray(path.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    file = open_parquet(str(path), NAMES)
    for _ in range(50):
        data[draw.randrange(end // 2, end)] = draw.randrange(256)
    path.write_bytes(data)
    with contextlib.suppress(UnsupportedPageError, DamagedPageError, OSError, pa.ArrowException):
        for rows in direct_batches(str(path), file, 0, NAMES, 0, 500, 1 << 20, []):
            if isinstance(rows, LateRows):
                rows.late.divided(np.arange(rows.late.rows, dtype=np.uint32), [0, 5, rows.late.rows])
                rows.late.array()


def test_pages_that_are_not_as_they_say_are_read_otherwise():
    def refuse() -> None:
        raise UnsupportedPageError("levels of another form")

    texts = pa.array(["a", "b"])
    late = LateTexts(pa.field("t", pa.string()), 0, 2, 10, [LaterPage(0, 2, 10, refuse)], lambda: texts)
    assert late.divided(np.arange(2, dtype=np.uint32), [0, 1, 2]) is None
    assert late.joined(pa.record_batch({"n": [1, 2]})).to_pydict() == {"t": ["a", "b"], "n": [1, 2]}


def test_columns_with_one_value_are_not_put_in_order():
    page = Page(3, None, None, np.frombuffer(bytearray(b"\1\0\0\0a\1\0\0\0b\1\0\0\0c"), dtype=np.uint8), 0)
    late = LateTexts(
        pa.field("t", pa.string()), 2, 3, 15, [LaterPage(0, 3, 15, lambda: page)], list, constants=["time"]
    )
    hashes = np.array([1 << 63, 0, 0], dtype=np.uint64)
    batch = pa.record_batch({"time": [7, 7, 7], "n": [0, 1, 2]})
    parts = split_by_owner(Block(batch, late=late), hashes, np.array([0, 1], dtype=np.int32), range(2))
    assert [(index, part.to_pydict()) for index, part, *_ in parts] == [
        (0, {"time": [7, 7], "n": [1, 2], "t": ["b", "c"]}),
        (1, {"time": [7], "n": [0], "t": ["a"]}),
    ]
    times = {part.column("time").buffers()[1].address for _, part, *_ in parts}
    assert times == {batch.column("time").buffers()[1].address}


@pytest.mark.parametrize("short", [0, 1, 15, 31, 32, 64])
def test_a_consumer_whose_texts_fill_its_room_leaves_those_of_the_next_alone(short):
    """Texts are copied 32 bytes at a time, also their last ones."""
    size_bytes = 192_000
    room_bytes = int(size_bytes / 5 * 2 * 1.25) + (32 << 10)
    room_bytes += -room_bytes % 64
    texts = [b"a", b"b" * 40, b"a" * (room_bytes - short - 1), b"c" * 40, b"d" * 40]
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    page = Page(5, None, None, np.frombuffer(bytearray(data), dtype=np.uint8), 0)
    late = LateTexts(
        pa.field("t", pa.binary()), 0, 5, size_bytes, [LaterPage(0, 5, size_bytes, lambda: page)], list
    )
    parts = late.divided(np.array([0, 2, 1, 3, 4], dtype=np.uint32), [0, 2, 5])
    expected = [pa.array([texts[row] for row in rows]) for rows in ([0, 2], [1, 3, 4])]
    assert parts == expected if short >= PADDING_BYTES else parts in (None, expected)


def test_an_error_of_reading_names_the_file():
    def fail() -> None:
        raise OSError("the disk is gone")

    late = LateTexts(
        *(pa.field("t", pa.string()), 0, 2, 10, [LaterPage(0, 2, 10, fail)], list),
        unreadable=lambda error: InputError(f"a.parquet: {error}"),
    )
    assert late.divided(np.arange(2, dtype=np.uint32), [0, 1, 2]) is None
    with pytest.raises(InputError, match=r"a\.parquet: the disk is gone"):
        late.array()


SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("payload", pa.string())]
)


#: Rows without a payload are bad ones.
STRICT_SCHEMA = SCHEMA.set(2, SCHEMA.field(2).with_nullable(False))


def polled(
    reader: ParquetReader, rows_max: int, polls: int = 1 << 30, schema: pa.Schema = SCHEMA
) -> tuple[list[dict], int]:
    """Rows of so many polls, and how many of them came late."""
    rows, late_rows = [], 0
    while polls > 0 and not (poll := reader.poll(rows_max)).finished:
        polls -= 1
        batch = poll.batch
        if poll.due is not None:
            late_rows += poll.due.stop
            batch = poll.due.block.rows()
        assert batch.schema == system_schema(schema)
        rows += batch.select(user_columns(batch.schema)).to_pylist()
    return rows, late_rows


@contextlib.contextmanager
def opened(path: str, restored=None, schema: pa.Schema = SCHEMA, **options):
    reader = ParquetReader(ParquetSpec(schema=schema, path=path, **options))
    reader.give_late(["name"])
    context = OperatorContext("job", "source", 0, 0, 1, batch_size=600, restored=restored or {})
    with contextlib.closing(reader):
        reader.open(context)
        yield reader


@pytest.mark.parametrize("rows_max", [600, 100])
def test_a_reader_gives_whole_batches_late_and_goes_on_after_them(tmp_path, rows_max):
    path = str(tmp_path / "a.parquet")
    draw = random.Random(1)
    table = table_of(draw, 3000)
    table = table.set_column(
        0, "id", pa.array([None if row == 2700 else row for row in range(3000)], pa.int64())
    )
    pq.write_table(table, path, use_dictionary=False, data_page_size=20_000, write_batch_size=16)
    expected = [row for row in table.to_pylist() if row["id"] is not None]
    with opened(path) as reader:
        rows, late_rows = polled(reader, rows_max, 1)
        position = reader.snapshot()
    # An exchange makes batches of them.
    assert late_rows == (2400 if rows_max == 600 else 0)
    with opened(path, {0: position}) as reader:
        rest, _ = polled(reader, rows_max)
        assert reader.rejected == 1
    assert rows + rest == expected


def test_a_source_with_a_limit_gives_no_column_late(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table_of(random.Random(2), 1000), path, use_dictionary=False, data_page_size=20_000)
    with opened(path, events_max=700) as reader:
        rows, late_rows = polled(reader, 600)
    assert (len(rows), late_rows) == (700, 0)


@pytest.mark.parametrize("statistics", [True, False])
def test_texts_that_must_be_there_come_late_from_row_groups_that_say_that_they_have_all(tmp_path, statistics):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(3), 2000)
    payload = table.column("payload").to_pylist()
    payload[700] = None
    table = table.set_column(2, "payload", pa.array(payload))
    options = {"use_dictionary": False, "data_page_size": 20_000, "write_batch_size": 16}
    pq.write_table(table, path, row_group_size=1000, write_statistics=statistics, **options)
    with opened(path, schema=STRICT_SCHEMA) as reader:
        rows, late_rows = polled(reader, 600, schema=STRICT_SCHEMA)
        assert reader.rejected == 1
    assert rows == [row for row in table.to_pylist() if row["payload"] is not None]
    assert (0 < late_rows <= 1000) == statistics


def test_a_column_that_cannot_be_null_in_the_file_needs_no_statistics_to_come_late(tmp_path):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(3), 500).cast(STRICT_SCHEMA)
    pq.write_table(table, path, use_dictionary=False, data_page_size=20_000, write_statistics=False)
    with opened(path, schema=STRICT_SCHEMA) as reader:
        rows, late_rows = polled(reader, 600, schema=STRICT_SCHEMA)
    assert rows == table.to_pylist()
    assert late_rows > 0


def test_a_file_whose_statistics_lie_about_nulls_is_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "a.parquet")
    table = table_of(random.Random(4), 500, nulls=0.1)
    pq.write_table(table, path, use_dictionary=False, data_page_size=20_000)
    monkeypatch.setattr("weir.operators.sources.parquet.parquet_source.columns_with_nulls", lambda *_: set())
    with (
        opened(path, schema=STRICT_SCHEMA) as reader,
        pytest.raises(
            InputError, match=r"column payload has no nulls, but there are; write it again, or let"
        ),
    ):
        polled(reader, 600, schema=STRICT_SCHEMA)
