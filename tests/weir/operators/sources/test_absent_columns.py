"""Columns that may be null and that a file does not have: old files are read with those that got a column later."""

from __future__ import annotations

import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import InputError

SCHEMA = {"id": int, "note": weir.Nullable(str)}


def write_parquet(path, frame):
    frame.write_parquet(path, row_group_size=2)


def write_ipc(path, frame):
    frame.write_ipc(path)


def write_csv(path, frame):
    frame.write_csv(path)


def write_json(path, frame):
    frame.write_ndjson(path)


FORMATS = {
    "parquet": (weir.Parquet, write_parquet),
    "ipc": (weir.ArrowIpc, write_ipc),
    "csv": (weir.Csv, write_csv),
    "json": (weir.JsonLines, write_json),
}
TYPED = [form for form in FORMATS if form != "json"]


def read(source, predicate=None, columns=("id", "note")):
    flow = weir.Dataflow("absent")
    rows = flow.source("rows", source)
    if predicate is not None:
        rows = rows.filter("keep", predicate)
    rows.select("out", *columns)
    result = weir.run(flow)
    assert result.dead_letters == []
    return sorted((tuple(row[name] for name in columns) for row in result["out"]), key=str)


@pytest.fixture(params=FORMATS)
def files(request, tmp_path):
    """A directory with a file of before ``note`` was added, and one of after; and its source."""
    source, write = FORMATS[request.param]
    write(tmp_path / "1", pl.DataFrame({"id": [1, 2, 3], "old": ["x", "y", "z"]}))
    write(tmp_path / "2", pl.DataFrame({"note": ["a", None], "id": [4, 5]}))
    return source(str(tmp_path), schema=SCHEMA)


def test_they_are_null_in_files_that_lack_them(files):
    assert read(files) == [(1, None), (2, None), (3, None), (4, "a"), (5, None)]


@pytest.mark.parametrize(
    ("predicate", "ids"),
    [
        (pl.col("note") == "a", [4]),
        (pl.col("note").is_null(), [1, 2, 3, 5]),
        (pl.col("note").is_null() & (pl.col("id") > 2), [3, 5]),
        (pl.col("note").is_not_null() | (pl.col("id") == 1), [1, 4]),
    ],
)
def test_filters_see_null(files, predicate, ids):
    assert [number for number, _ in read(files, predicate)] == ids


def test_they_may_be_all_that_is_read(files):
    flow = weir.Dataflow("absent")
    flow.source("rows", files).select("out", "note")
    found = [row["note"] for row in weir.run(flow)["out"]]
    assert sorted(found, key=str) == [None, None, None, None, "a"]


@pytest.mark.parametrize("form", ["parquet", "ipc"])
def test_a_field_of_a_struct_that_came_later(tmp_path, form):
    source, write = FORMATS[form]
    write(tmp_path / "1", pl.DataFrame({"meta": [{"a": 1}, None]}))
    write(tmp_path / "2", pl.DataFrame({"meta": [{"host": "h", "a": 2}]}))
    schema = {"meta.a": weir.Nullable(int), "meta.host": weir.Nullable(str)}
    found = read(source(str(tmp_path), schema=schema), columns=("meta.a", "meta.host"))
    assert found == [(1, None), (2, "h"), (None, None)]


@pytest.mark.parametrize("form", TYPED)
def test_a_file_of_something_else_is_refused(tmp_path, form):
    source, write = FORMATS[form]
    write(tmp_path / "1", pl.DataFrame({"a;note": ["1;x"]}))
    schema = {"a": weir.Nullable(int), "note": weir.Nullable(str)}
    with pytest.raises(InputError, match=r"there is no column a.*only a;note"):
        read(source(str(tmp_path), schema=schema), columns=("a", "note"))


@pytest.mark.parametrize("form", TYPED)
@pytest.mark.parametrize("name", ["Note", " note", "note "])
def test_a_column_whose_name_is_another_but_for_case_or_spaces_is_not_absent(tmp_path, form, name):
    source, write = FORMATS[form]
    write(tmp_path / "1", pl.DataFrame({"id": [1], name: ["x"]}))
    with pytest.raises(
        InputError, match=f"1: there is no column note, but '{name}'; correct the source's schema"
    ):
        read(source(str(tmp_path), schema=SCHEMA))
    both = {"id": int, name: str, "note": weir.Nullable(str)}
    assert read(source(str(tmp_path), schema=both), columns=list(both)) == [(1, "x", None)]


def test_lines_of_csv_that_end_with_carriage_returns_alone_are_no_header(tmp_path):
    (tmp_path / "1").write_bytes(b"id,note\r1,a\r2,b\r")
    with pytest.raises(
        InputError, match=r"1: the header cannot be read: its lines end with carriage returns alone"
    ):
        read(weir.Csv(str(tmp_path), schema=SCHEMA))
    (tmp_path / "1").write_bytes(b'id,note,"a\r\nb"\r\n1,a,c\r\n')
    assert read(weir.Csv(str(tmp_path), schema=SCHEMA)) == [(1, "a")]


@pytest.mark.parametrize("form", TYPED)
def test_event_times_are_not_made_of_nulls(tmp_path, form):
    source, write = FORMATS[form]
    write(tmp_path / "1", pl.DataFrame({"id": [1]}))
    schema = {"id": int, "at": weir.Nullable(int)}
    with pytest.raises(InputError, match="there is no column at"):
        read(source(str(tmp_path), schema=schema, event_time="at"), columns=("id", "at"))


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], ["id", "note", "note"])
    pq.write_table(twice, tmp_path / "1")
    with pytest.raises(InputError, match="column note is there twice"):
        read(weir.Parquet(str(tmp_path), schema=SCHEMA))


def test_folders_come_before_null(tmp_path):
    for folder, row in (("note=f", {"id": 1}), ("plain", {"id": 2})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.json").write_text(json.dumps(row) + "\n")
        pl.DataFrame([row]).write_csv(tmp_path / folder / "a.csv")
        pl.DataFrame([row]).write_parquet(tmp_path / folder / "a.parquet")
    for source, suffix in ((weir.JsonLines, "json"), (weir.Csv, "csv"), (weir.Parquet, "parquet")):
        assert read(source(f"{tmp_path}/*/*.{suffix}", schema=SCHEMA)) == [(1, "f"), (2, None)]
