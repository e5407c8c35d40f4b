"""What is in the files of the file sinks, and which settings are refused."""

from __future__ import annotations

import datetime
import gzip
import json
from decimal import Decimal
from zoneinfo import ZoneInfo

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir import testing
from weir.author.operator import OperatorContext
from weir.errors import GraphError, InputError
from weir.operators.registry import create_operator
from weir.operators.sinks.part_formats import repeating_columns
from weir.rows.records import with_system_columns

ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "s": pa.array(['a,"b"\né', "", None]),
        "x": pa.array([0.1, float("inf"), None]),
        "at": pa.array([datetime.datetime(2026, 11, 22, 1, 2, 3, 4), None, None], pa.timestamp("us")),
    }
)


def written(spec, directory):
    sink = create_operator(spec)
    sink.open(OperatorContext("job", "out", 1, 0, 1))
    for start in range(3):
        sink.process(with_system_columns(ROWS.slice(start, 1), 1, 2))
        sink.flush()
    sink.snapshot(0)
    sink.close()
    sink.commit(0)
    (part,) = directory.iterdir()
    return part


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_parquet(tmp_path, compression):
    part = written(weir.ParquetSink(str(tmp_path), compression=compression), tmp_path)
    assert part.suffix == ".parquet"
    assert pq.read_table(part).equals(pa.Table.from_batches([ROWS]))
    told = pq.ParquetFile(part).metadata.row_group(0).column(0).compression.lower()
    assert told == {"none": "uncompressed"}.get(compression, compression)


def test_parquet_of_all_types(tmp_path):
    """Polars and DuckDB read what the integers' encoding makes of them."""
    whole = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    times = [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("ns")]
    numbers = pa.array([1, None, 100], pa.int64())
    days = pa.array([datetime.date(2026, 1, 1), None, datetime.date(1960, 1, 1)])
    other = [pa.array([{"a": 1}, None, {"a": 3}]), pa.array([[1], [], None]), pa.array([b"\xff", None, b""])]
    columns = [*(numbers.cast(kind) for kind in whole + times), days, *other]
    rows = pa.record_batch(columns, names=[f"c{number}" for number in range(len(columns))])
    sink = create_operator(weir.ParquetSink(str(tmp_path)))
    sink.open(OperatorContext("job", "out", 1, 0, 1))
    sink.process(with_system_columns(rows, 1, 2))
    sink.snapshot(0)
    sink.commit(0)
    (part,) = tmp_path.iterdir()
    assert pq.read_table(part).schema.types == rows.schema.types
    expected = pl.from_arrow(rows)
    assert pl.read_parquet(part).equals(expected)
    names = [f"c{number}" for number in range(len(whole))]
    assert duckdb.sql(f"SELECT {', '.join(names)} FROM '{part}'").fetchall() == expected.select(names).rows()


@pytest.mark.parametrize(("compression", "ending"), [(None, ""), ("gzip", ".gz"), ("zstd", ".zst")])
def test_csv(tmp_path, compression, ending):
    part = written(weir.CsvSink(str(tmp_path), compression=compression, separator=";"), tmp_path)
    assert part.name == f"part-00000-000001-00000001.csv{ending}"
    expected = [(1, 'a,"b"\né', 0.1), (2, "", float("inf")), (None, None, None)]
    assert pl.read_csv(part, separator=";").select("id", "s", "x").rows() == expected
    found = duckdb.sql(f"SELECT id, s, x FROM read_csv('{part}', delim=';', header=true)").fetchall()
    assert len(found) == 3
    assert found[0] == expected[0]


@pytest.mark.parametrize(("compression", "ending"), [(None, ""), ("gzip", ".gz"), ("zstd", ".zst")])
def test_json_lines(tmp_path, compression, ending):
    part = written(weir.JsonLinesSink(str(tmp_path), compression=compression), tmp_path)
    assert part.name == f"part-00000-000001-00000001.jsonl{ending}"
    assert pl.read_ndjson(part)["s"].to_list() == ROWS["s"].to_pylist()
    if compression == "gzip":
        assert gzip.decompress(part.read_bytes()).count(b"\n") == 3


def test_a_csv_of_one_column_keeps_its_nulls(tmp_path):
    sink = create_operator(weir.CsvSink(str(tmp_path)))
    sink.open(OperatorContext("job", "out", 1, 0, 1))
    sink.process(with_system_columns(pa.record_batch({"a": pa.array(["x", None, ""])}), 1, 2))
    sink.snapshot(0)
    sink.commit(0)
    (part,) = tmp_path.iterdir()
    assert pl.read_csv(part).height == 3


def test_only_text_that_repeats_gets_a_dictionary():
    table = pa.table(
        {
            "n": [1] * 100,
            "same": ["x"] * 100,
            "other": [str(n) for n in range(100)],
            "nothing": pa.nulls(100, pa.string()),
        }
    )
    assert repeating_columns(table) == ["same", "nothing"]


@pytest.mark.parametrize(
    ("sink", "error"),
    [
        (weir.CsvSink("out"), "column 'l' is list<item: int64>, which CSV cannot hold"),
        (weir.CsvSink("out", separator=",,"), "separator is ',,'; it is one byte"),
        (weir.CsvSink(""), "path is ''; give a directory or a URI"),
        (
            weir.JsonLinesSink("out", compression="zip"),
            "compression is 'zip'; it is one of None, 'gzip', 'zstd'",
        ),
        (weir.ParquetSink("out", compression="zip"), "compression is 'zip'; it is one of 'none', 'snappy'"),
        (
            weir.ParquetSink("out", compression_level=99),
            "compression_level is 99; of zstd it is -?[0-9]+ to 22",
        ),
        (weir.ParquetSink("out", row_group_rows=0), "row_group_rows is 0; it must be at least 1"),
        (weir.ParquetSink("out", partition_by="day"), r"partition_by is 'day'; give a list: \['day'\]"),
        (weir.ParquetSink("out", partition_by=["day"]), "partition_by has 'day'; there is id, l"),
        (weir.ParquetSink("out", partition_by=["l"]), "partition_by has 'l' of type list<item: int64>"),
        (weir.ParquetSink("out", partition_by=["id", "l"]), "partition_by has 'l' of type"),
        (
            weir.ParquetSink("out", roll_ms=-1),
            "roll_ms is -1; it must be a number of milliseconds, at least 0",
        ),
        (weir.ParquetSink("out", roll_bytes=0), "roll_bytes is 0; it must be a number of bytes, at least 1"),
    ],
)
def test_settings_that_make_no_sense(sink, error):
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines("in", schema={"id": int, "l": pl.List(pl.Int64)}))
    with pytest.raises(GraphError, match=f"step 'out': {error}"):
        rows.sink("out", sink)


def test_a_uri_of_an_unknown_kind_is_told_of_without_its_credentials():
    with pytest.raises(InputError) as raised:
        create_operator(weir.ParquetSink("ftp://user:s3cret@host/out"))
    assert "sink: ftp://host/out is no place to write to" in str(raised.value)
    assert "s3cret" not in str(raised.value)


BYTES = pl.DataFrame(
    {
        "id": [1, 2],
        "raw": [b"\xff\x00", None],
        "inner": [{"raw": b"a", "all": [b"b", None]}, None],
        "lists": [[{"raw": b"c"}, None], None],
        "pair": [[b"d", b"e"], None],
    },
    schema={
        "id": pl.Int64,
        "raw": pl.Binary,
        "inner": pl.Struct({"raw": pl.Binary, "all": pl.List(pl.Binary)}),
        "lists": pl.List(pl.Struct({"raw": pl.Binary})),
        "pair": pl.Array(pl.Binary, 2),
    },
)


def test_bytes_are_base64_in_json_wherever_they_are(tmp_path, capsys):
    flow = weir.Dataflow("job")
    schema = {name: dtype if name == "id" else weir.Nullable(dtype) for name, dtype in BYTES.schema.items()}
    rows = flow.source("rows", weir.ArrowIpc("none", schema=schema))
    rows.sink("files", weir.JsonLinesSink(str(tmp_path / "lines")))
    rows.sink("shown", weir.Print())
    rows.sink("put_aside", weir.DeadLetters("late"))
    result = testing.run(flow, {"rows": BYTES})
    (part,) = (tmp_path / "lines").iterdir()
    first, second = map(json.loads, part.read_text().splitlines())
    assert (first["raw"], first["inner"], first["lists"], first["pair"]) == (
        "/wA=",
        {"raw": "YQ==", "all": ["Yg==", None]},
        [{"raw": "Yw=="}, None],
        ["ZA==", "ZQ=="],
    )
    assert second == {"id": 2, "raw": None, "inner": None, "lists": None, "pair": None}
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [first, second]
    assert [json.loads(letter.raw) for letter in result.dead_letters] == [first, second]


def test_json_lines_are_read_as_they_were_written(tmp_path):
    schema = {
        "day": weir.Nullable(pl.Date),
        "at": weir.Nullable(pl.Datetime("us", "Europe/Brussels")),
        "price": weir.Nullable(pl.Decimal(10, 2)),
        "inner": weir.Nullable(pl.Struct({"days": pl.List(pl.Date)})),
    }
    day = datetime.date(1960, 2, 29)
    at = datetime.datetime(2026, 11, 23, 1, 2, 3, 456789, tzinfo=ZoneInfo("Europe/Brussels"))
    rows = [
        {"day": day, "at": at, "price": Decimal("1.25"), "inner": {"days": [day, None]}},
        dict.fromkeys(schema),
    ]
    flow = weir.Dataflow("job")
    written = flow.source("rows", weir.ArrowIpc("none", schema=schema))
    written.sink("files", weir.JsonLinesSink(str(tmp_path)))
    testing.run(flow, {"rows": rows})
    flow = weir.Dataflow("job")
    flow.source("rows", weir.JsonLines(str(tmp_path), schema=schema)).sink("out", weir.Collect())
    assert weir.run(flow)["out"].to_dicts() == rows


@pytest.mark.parametrize(
    ("sink", "source"), [(weir.JsonLinesSink, weir.JsonLines), (weir.CsvSink, weir.Csv)], ids=["json", "csv"]
)
def test_times_of_zones_that_were_not_whole_minutes_from_utc_are_read_as_they_were_written(
    tmp_path, sink, source
):
    schema = {"at": pl.Datetime("us", "America/New_York"), "id": int}
    rows = [
        {"at": dt.astimezone(ZoneInfo("America/New_York")), "id": dt.year}
        for dt in (datetime.datetime(year, 7, 1, 12, tzinfo=datetime.UTC) for year in (1870, 1900, 2026))
    ]
    flow = weir.Dataflow("job")
    flow.source("rows", weir.ArrowIpc("none", schema=schema)).sink("files", sink(str(tmp_path)))
    testing.run(flow, {"rows": rows})
    flow = weir.Dataflow("job")
    flow.source("rows", source(str(tmp_path), schema=schema)).sink("out", weir.Collect())
    assert [row["at"].timestamp() for row in weir.run(flow)["out"].to_dicts()] == [
        row["at"].timestamp() for row in rows
    ]


def test_durations_have_no_form_in_csv():
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.ArrowIpc("none", schema={"took": pl.Duration("ms")}))
    with pytest.raises(
        GraphError, match=r"step 'out': column 'took' is duration\[ms\], which CSV cannot hold"
    ):
        rows.sink("out", weir.CsvSink("out"))
