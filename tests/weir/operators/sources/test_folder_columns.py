"""Columns that are in the names of folders, as the sinks and other programs write partitions."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import GraphError, InputError

ROWS = [
    {
        "id": number,
        "day": dt.date(2026, 11, 20 + number % 3),
        "country": ("be", "é/x=1", None)[number % 3],
        "price": 1.5,
    }
    for number in range(30)
]
SCHEMA = {
    "id": int,
    "country": weir.Nullable(str),
    "day": pl.Date,
    "price": float,
}


def read(source, step=lambda rows: rows):
    flow = weir.Dataflow("folders")
    step(flow.source("rows", source)).sink("out", weir.Collect())
    return weir.run(flow)["out"].to_dicts()


def test_what_a_partitioned_sink_wrote_is_read_back(tmp_path):
    (tmp_path / "in").mkdir()
    pl.DataFrame(ROWS).write_parquet(tmp_path / "in/a.parquet")
    flow = weir.Dataflow("partitions")
    rows = flow.source("rows", weir.Parquet(str(tmp_path / "in"), schema=SCHEMA))
    rows.sink("out", weir.ParquetSink(str(tmp_path / "out"), partition_by=["day", "country"]))
    weir.run(flow)
    found = read(weir.Parquet(f"{tmp_path}/out/**/*.parquet", schema=SCHEMA))
    assert sorted(found, key=lambda row: row["id"]) == [{name: row[name] for name in SCHEMA} for row in ROWS]
    # Columns of folders alone.
    source = weir.Parquet(f"{tmp_path}/out/**/*.parquet", schema={"day": str})
    assert sorted(row["day"] for row in read(source)) == sorted(str(row["day"]) for row in ROWS)


def test_arrow_files_have_them_too_and_their_own_columns_come_first(tmp_path):
    for number in range(2):
        folder = tmp_path / f"n={number}" / "id=7"
        folder.mkdir(parents=True)
        pl.DataFrame({"id": [1, 2]}).write_ipc(folder / "a.arrow")
    found = read(weir.ArrowIpc(f"{tmp_path}/*/*/*", schema={"n": int, "id": int}))
    assert [tuple(row.values()) for row in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row["n"] for row in read(weir.ArrowIpc(f"{tmp_path}/*/*/*", schema={"n": int}))] == [0, 0, 1, 1]


def test_files_are_passed_over_by_their_folders(tmp_path):
    """The values of all other files are overwritten."""
    for number in range(4):
        path = tmp_path / f"n={number}" / "a.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"id": [number] * 100}), path)
        chunk = pq.read_metadata(path).row_group(0).column(0)
        raw = bytearray(path.read_bytes())
        if number != 2:
            raw[4 : 4 + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
        path.write_bytes(raw)
    source = weir.Parquet(f"{tmp_path}/*/*", schema={"n": int, "id": int})
    found = read(source, lambda rows: rows.filter("one", pl.col("n") == 2))
    assert [tuple(row.values()) for row in found] == [(2, 2)] * 100


def test_a_folder_with_another_type_and_one_without_a_value(tmp_path):
    for text in ("x", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / text / f"n={text}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(InputError, match="column n is 'x' by its folder, which is not of type int64"):
        read(weir.Parquet(f"{tmp_path}/x/*/*", schema={"n": int}))
    flow = weir.Dataflow("null")
    source = weir.Parquet(f"{tmp_path}/__HIVE_DEFAULT_PARTITION__/*/*", schema={"n": int, "id": int})
    flow.source("rows", source).sink("out", weir.Collect())
    with pytest.raises(InputError, match="field n is null"):
        weir.run(flow)


def write_lines(tmp_path, kind, days=("2026-11-20", "2026-11-21"), rows=3):
    """As Spark's partitionBy writes them: the column is in the folders alone."""
    for number, day in enumerate(days):
        folder = tmp_path / f"day={day}" / f"country={('be', 'a%2Fb')[number % 2]}"
        folder.mkdir(parents=True)
        frame = pl.DataFrame({"id": range(10 * number, 10 * number + rows), "price": [1.5] * rows})
        if kind == "json":
            frame.write_ndjson(folder / "part-0.json")
        else:
            frame.write_csv(folder / "part-0.csv", include_header=kind == "csv")
    pattern = f"{tmp_path}/**/part-*"
    schema = {"country": str, "id": int, "day": pl.Date, "price": float}
    if kind == "json":
        return lambda **more: weir.JsonLines(pattern, **{"schema": schema, **more})
    form = {} if kind == "csv" else {"header": False, "columns": ["id", "price"]}
    return lambda **more: weir.Csv(pattern, **{"schema": schema, **form, **more})


LINES = pytest.mark.parametrize("kind", ["json", "csv", "csv without header"])


@LINES
def test_lines_have_columns_of_their_folders(tmp_path, kind):
    source = write_lines(tmp_path, kind)
    first = {"country": "be", "id": 0, "day": dt.date(2026, 11, 20), "price": 1.5}
    other = {"country": "a/b", "id": 10, "day": dt.date(2026, 11, 21), "price": 1.5}
    expected = [row | {"id": row["id"] + number} for row in (first, other) for number in range(3)]
    assert read(source()) == expected
    # Not all of them are read: those of the file alone, those of the folders alone.
    assert read(source(), lambda rows: rows.select("id", "id")) == [{"id": row["id"]} for row in expected]
    days = read(source(), lambda rows: rows.select("day", "day"))
    assert days == [{"day": row["day"]} for row in expected]
    assert read(source(schema={"day": str})) == [{"day": str(row["day"])} for row in expected]
    assert len(read(source(events=4))) == 4


@LINES
def test_a_folder_of_lines_with_another_type_and_one_without_a_value(tmp_path, kind):
    source = write_lines(tmp_path, kind, days=("2026-11-20", "yesterday"))
    with pytest.raises(InputError, match="column day is 'yesterday' by its folder") as caught:
        read(source())
    assert "day=yesterday/country=a%2Fb/part-0." in str(caught.value)
    assert "correct the source's schema or the folder's name" in str(caught.value)
    (tmp_path / "day=yesterday").rename(tmp_path / "day=__HIVE_DEFAULT_PARTITION__")
    flow = weir.Dataflow("null")
    flow.source("rows", source()).sink("out", weir.Collect())
    result = weir.run(flow)
    assert [row["id"] for row in result["out"].to_dicts()] == [0, 1, 2]
    reason = "field day is missing or null" if kind == "json" else "field day is null"
    assert [letter.reason for letter in result.dead_letters] == [reason] * 3
    assert "10" in result.dead_letters[0].raw
    assert len({letter.position for letter in result.dead_letters}) == 3
    schema = {"id": int, "day": weir.Nullable(pl.Date)}
    assert [row["day"] for row in read(source(schema=schema))][2:] == [
        dt.date(2026, 11, 20),
        None,
        None,
        None,
    ]


def test_what_a_file_of_lines_has_itself_comes_first(tmp_path):
    folder = tmp_path / "n=7" / "id=x"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("n,m\n1,2\n,3\n")
    schema = {"n": weir.Nullable(int)}
    assert [row["n"] for row in read(weir.Csv(f"{tmp_path}/**/*.csv", schema=schema))] == [1, None]
    # Of lines nobody knows what they have before they are read.
    (folder / "a.json").write_text(
        '{"n": 1, "id": 5}\n{"id": 6}\n{"n": null, "id": 7}\n{"n": "x", "id": 8}\n'
    )
    pattern = f"{tmp_path}/**/*.json"
    flow = weir.Dataflow("lines")
    flow.source("rows", weir.JsonLines(pattern, schema={"n": int})).sink("out", weir.Collect())
    result = weir.run(flow)
    assert [row["n"] for row in result["out"].to_dicts()] == [1, 7, 7]
    assert [letter.reason for letter in result.dead_letters] == ["field n must be int64, not a string"]
    with pytest.raises(InputError, match=r"""the lines have it: paths=\{"id": \["id"\]\}"""):
        read(weir.JsonLines(pattern, schema={"id": int}))
    own = weir.JsonLines(pattern, schema={"id": int}, paths={"id": ["id"]})
    assert [row["id"] for row in read(own)] == [5, 6, 7, 8]


def test_fields_of_files_without_header_are_still_checked(tmp_path):
    schema = {"id": int, "day": str}
    with pytest.raises(GraphError, match="'day' of the schema is not among id"):
        weir.Csv("in.csv", schema=schema, header=False, columns=["id"]).to_spec()
    (tmp_path / "a.csv").write_text("1\n")
    with pytest.raises(InputError, match="there is no column day, only id"):
        read(weir.Csv(f"{tmp_path}/*.csv", schema=schema, header=False, columns=["id"]))


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_event_time_may_be_that_of_a_folder(tmp_path, kind):
    folder = tmp_path / "at=1700000000000"
    folder.mkdir()
    (folder / f"a.{kind}").write_text('{"id": 1}\n' if kind == "json" else "id\n1\n")
    form = weir.JsonLines if kind == "json" else weir.Csv
    source = form(f"{tmp_path}/*/a.*", schema={"id": int, "at": int}, event_time="at")
    assert read(source) == [{"id": 1, "at": 1_700_000_000_000}]


@pytest.mark.parametrize("name", ["a.jsonl.xz", "a.zip", "a.tar.gz"])
def test_what_is_packed_in_another_way_is_not_read_as_lines(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"id": 1}\n')
    with pytest.raises(InputError, match="packed in this way are not read; unpack it"):
        read(weir.JsonLines(str(tmp_path), schema={"id": int}))
    assert len(read(weir.JsonLines(str(tmp_path), schema={"id": int}, compression=None))) == 1
