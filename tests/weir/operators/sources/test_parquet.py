from __future__ import annotations

import contextlib
import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.sources.parquet.parquet_source import ParquetReader
from weir.rows.records import BATCH_BYTES_MAX, EVENT_TIME_COLUMN, system_schema
from weir.rows.schemas import to_schema
from weir.specs import ParquetSpec

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def read(spec, parallelism=1, dead_letters=None):
    batches = []
    for subtask in range(parallelism):
        reader = ParquetReader(spec)
        context = OperatorContext("job", "source", 0, subtask, parallelism, dead_letters=dead_letters)
        with contextlib.closing(reader):
            reader.open(context)
            while not (poll := reader.poll(500)).finished:
                assert 0 < poll.batch.num_rows <= 500
                assert poll.batch.schema == system_schema(spec.schema)
                batches.append(poll.batch)
    return batches


def ids(batches):
    return [value for batch in batches for value in batch.column("id").to_pylist()]


def write(path, values, **columns):
    table = pa.table({"other": [0] * len(values), "name": [f"n{v}" for v in values], "id": values} | columns)
    pq.write_table(table, path, row_group_size=300)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_row_groups_of_all_parts_are_read_once(tmp_path, parallelism):
    write(tmp_path / "part-0.parquet", list(range(1000)))
    write(tmp_path / "part-1.parquet", list(range(1000, 1700)))
    (tmp_path / "_SUCCESS").touch()
    batches = read(ParquetSpec(schema=SCHEMA, path=str(tmp_path)), parallelism)
    assert sorted(ids(batches)) == list(range(1700))
    assert batches[0].column("name")[0].as_py() == f"n{ids(batches)[0]}"


@pytest.mark.parametrize("distinct", [400, 4], ids=["plain", "dictionary"])
def test_a_row_group_is_read_in_batches_of_bounded_bytes(tmp_path, distinct):
    """One group of 80 MB, in the file or, where texts are repeated, only once it is decoded."""
    texts = [f"{n:03d}" + "x" * 200_000 for n in range(distinct)]
    table = pa.table({"id": range(400), "name": [texts[n % distinct] for n in range(400)]})
    pq.write_table(
        table, tmp_path / "a.parquet", row_group_size=400, data_page_size=1 << 20, write_batch_size=8
    )
    batches = read(ParquetSpec(schema=SCHEMA, path=str(tmp_path)))
    assert pa.concat_tables(
        [pa.Table.from_batches([b.select(["id", "name"])]) for b in batches]
    ).to_pydict() == (table.to_pydict())
    assert max(batch.nbytes for batch in batches) <= 2 * BATCH_BYTES_MAX
    assert len(batches) < 40


def test_lists_and_structs_of_texts_as_polars_writes_them(tmp_path):
    """Polars has 64-bit offsets everywhere."""
    rows = {"tags": [["a", "b"], []], "who": [{"name": "x", "at": [1]}, {"name": None, "at": [2, 3]}]}
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    who = pl.Struct({"name": pl.String, "at": pl.List(pl.Int64)})
    schema = to_schema({"tags": pl.List(pl.String), "who": who})
    (batch,) = read(ParquetSpec(schema=schema, path=str(tmp_path)))
    assert batch.select(["tags", "who"]).to_pydict() == rows


def test_limit_and_event_time(tmp_path):
    write(tmp_path / "a.parquet", list(range(1000)))
    spec = ParquetSpec(schema=SCHEMA, path=str(tmp_path), events_max=999, event_time_column="id")
    batches = read(spec, 3)
    assert len(ids(batches)) == 999
    assert all(batch.column(EVENT_TIME_COLUMN).equals(batch.column("id")) for batch in batches)


def test_wrong_type_names_file_column_and_types(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1.5], "name": ["a"]}), path)
    with pytest.raises(
        InputError, match=f"{path}: column id has type double, the source's schema says int64"
    ):
        read(ParquetSpec(schema=SCHEMA, path=str(path)))
    pq.write_table(pa.table({"name": ["a"]}), path)
    with pytest.raises(InputError, match="there is no column id"):
        read(ParquetSpec(schema=SCHEMA, path=str(path)))


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a").write_text("no parquet")
    with pytest.raises(InputError, match="check that it is a Parquet file"):
        read(ParquetSpec(schema=SCHEMA, path=str(tmp_path)))


def test_a_column_with_fewer_rows_than_its_row_group_is_refused(tmp_path):
    """The only page of a column says that it is of a kind that readers pass over; pyarrow returns no rows then."""
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(100), "name": ["a"] * 100})
    pq.write_table(table, path, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    kind_at = pq.read_metadata(path).row_group(0).column(0).data_page_offset + 1
    assert data[kind_at - 1 : kind_at + 1] == b"\x15\x00"
    # An index page, as a zigzag number.
    data[kind_at] = 2
    path.write_bytes(data)
    spec = ParquetSpec(schema=SCHEMA, path=str(tmp_path))
    with pytest.raises(InputError, match=r"a\.parquet: a column has 0 rows, and its row group 100"):
        read(spec)


def test_nulls_go_to_the_dead_letters_with_the_row_number(tmp_path):
    values = [None if number % 100 == 7 else number for number in range(1000)]
    write(tmp_path / "a.parquet", values, name=pa.array([None] * 1000, pa.string()))
    letters = DeadLetterFile(tmp_path / "dead", "job", "source", 0)
    batches = read(ParquetSpec(schema=SCHEMA, path=str(tmp_path / "a.parquet")), 2, letters)
    letters.close()
    assert sorted(ids(batches)) == [value for value in values if value is not None]
    entries = [json.loads(line) for line in letters.path.read_bytes().splitlines()]
    assert sorted(entry["position"] for entry in entries) == list(range(7, 1000, 100))
    assert entries[0]["reason"] == "field id is null"
    spec = ParquetSpec(schema=SCHEMA, path=str(tmp_path / "a.parquet"), on_bad_record="fail")
    with pytest.raises(InputError, match="row 7: field id is null"):
        read(spec)


NARROW_AND_WIDE = {
    **dict.fromkeys([pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()], int),
    **dict.fromkeys([pa.float16(), pa.float32()], float),
    pa.large_string(): str,
    pa.large_binary(): bytes,
}


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [*NARROW_AND_WIDE.items(), (pa.int32(), float), (pa.int8(), pa.int16()), (pa.uint8(), pa.int16())],
)
def test_narrower_columns_are_widened(tmp_path, narrow, wide):
    values = ["7", "9"] if wide is str else [b"7", b"9"] if wide is bytes else [7, 100]
    numbers = np.array(values, dtype=np.float16) if narrow == pa.float16() else values
    pq.write_table(pa.table({"id": pa.array(numbers, narrow)}), tmp_path / "a.parquet")
    schema = to_schema({"id": wide})
    (batch,) = read(ParquetSpec(schema=schema, path=str(tmp_path / "a.parquet")))
    assert batch.column("id").type == schema.field("id").type
    assert batch.column("id").to_pylist() == values


@pytest.mark.parametrize(("unit", "ticks"), [("ms", 86_399_001), ("us", 86_399_001_000)])
def test_times_of_day_are_read_as_those_of_polars(tmp_path, unit, ticks):
    """DuckDB and pandas write microseconds; ``pl.Time`` has nanoseconds."""
    narrow = pa.time32(unit) if unit == "ms" else pa.time64(unit)
    pq.write_table(pa.table({"id": pa.array([0, ticks], narrow)}), tmp_path / "a.parquet")
    (batch,) = read(ParquetSpec(schema=to_schema({"id": pl.Time}), path=str(tmp_path / "a.parquet")))
    assert batch.column("id").cast(pa.int64()).to_pylist() == [0, 86_399_001_000_000]
    with pytest.raises(InputError, match="does not hold every such value"):
        read(ParquetSpec(schema=to_schema({"id": pa.time32("s")}), path=str(tmp_path / "a.parquet")))


LOSSY = [
    *((actual, int) for actual in (pa.uint64(), pa.float32(), pa.bool_())),
    *((actual, pa.int32()) for actual in (pa.int64(), pa.uint32())),
    *((actual, pa.float32()) for actual in (pa.int32(), pa.float64())),
    *((pa.int64(), wanted) for wanted in (float, str)),
    (pa.int32(), pa.uint64()),
]


@pytest.mark.parametrize(("actual", "wanted"), LOSSY)
def test_columns_that_would_lose_something_are_refused(tmp_path, actual, wanted):
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()).cast(actual)}), tmp_path / "a.parquet")
    schema = to_schema({"id": wanted})
    text = f"column id has type {actual}, the source's schema says {schema.field('id').type}, and that does not hold"
    with pytest.raises(InputError, match=text):
        read(ParquetSpec(schema=schema, path=str(tmp_path / "a.parquet")))


def test_long_rows_come_in_batches_of_about_the_same_size(tmp_path):
    values = [f"{number:0300}" for number in range(40_000)]
    pq.write_table(
        pa.table({"id": range(40_000), "name": values}), tmp_path / "a.parquet", use_dictionary=False
    )
    reader = ParquetReader(ParquetSpec(path=str(tmp_path), schema=SCHEMA))
    reader.open(OperatorContext("job", "source", 0, 0, 1))
    batches = []
    with contextlib.closing(reader):
        while not (poll := reader.poll(32_768)).finished:
            batches.append(poll.batch)
    assert ids(batches) == list(range(40_000))
    assert len(batches) == 2
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES_MAX


def test_a_file_that_is_replaced_by_one_with_metadata_of_the_same_size_is_read_on(tmp_path):
    """Rows of the new one are none of those that were begun."""
    path, other = tmp_path / "a.parquet", tmp_path / "b"
    for place, first in ((path, 1000), (other, 2000)):
        table = pa.table({"id": range(first, first + 1000), "name": ["n"] * 1000})
        pq.write_table(table, place, row_group_size=300, compression="none", use_dictionary=False)
    reader = ParquetReader(ParquetSpec(schema=SCHEMA, path=str(path)))
    with contextlib.closing(reader):
        reader.open(OperatorContext("job", "source", 0, 0, 1))
        batches = [reader.poll(300).batch]
        sizes = [pq.read_metadata(file).serialized_size for file in (path, other)]
        assert sizes[0] == sizes[1]
        other.replace(path)
        while not (poll := reader.poll(300)).finished:
            batches.append(poll.batch)
    assert ids(batches) == list(range(1000, 2000))


@pytest.mark.parametrize("rows", [700, 1000, 1300])
def test_a_file_that_is_replaced_before_it_is_read_is_refused(tmp_path, rows):
    path, other = tmp_path / "a.parquet", tmp_path / "b"
    write(path, list(range(1000)))
    pq.write_table(pa.table({"id": range(rows), "name": ["n"] * rows}), other, row_group_size=1000)
    reader = ParquetReader(ParquetSpec(schema=SCHEMA, path=str(path)))
    with contextlib.closing(reader):
        reader.open(OperatorContext("job", "source", 0, 0, 1))
        other.replace(path)
        with pytest.raises(InputError, match=r"a\.parquet: it was replaced after it was found"):
            reader.poll(300)
