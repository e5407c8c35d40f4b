"""Columns of Parquet and Arrow IPC that lie within others."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import GraphError, InputError

ROWS = [
    {"id": 1, "meta": {"domain": "a", "at": {"ms": 5, "zone": "z"}}, "commits": [{"n": 1}, {"n": 2, "t": None}]},
    {"id": 2, "meta": None, "commits": []},
    {"id": 3, "meta": {"domain": None, "at": None}, "commits": None},
    {"id": 4, "meta": {"domain": "b", "at": {"ms": None, "zone": "y"}}, "commits": [None, {"n": None, "t": ["y", ""]}]},
]  # fmt: skip
COMMIT = pa.struct([("n", pa.int32()), ("t", pa.large_list(pa.string()))])
META = pa.struct(
    [("domain", pa.large_string()), ("at", pa.struct([("ms", pa.int64()), ("zone", pa.string())]))]
)
FILE_SCHEMA = pa.schema([("commits", pa.list_(COMMIT)), ("meta", META), ("id", pa.int32())])
COLUMNS = {
    "id": int,
    "meta.domain": weir.Nullable(str),
    "ms": weir.Nullable(int),
    "commits[1].t[0]": weir.Nullable(str),
    "first": weir.Nullable(int),
    "meta.at": weir.Nullable(pl.Struct({"ms": pl.Int64, "zone": pl.String})),
}
PATHS = {"ms": "meta.at.ms", "first": ["commits", 0, "n"]}
EXPECTED = [
    (1, "a", 5, None, 1, {"ms": 5, "zone": "z"}),
    (2, None, None, None, None, None),
    (3, None, None, None, None, None),
    (4, "b", None, "y", None, {"ms": None, "zone": "y"}),
]
SOURCES = {"parquet": weir.Parquet, "ipc": weir.ArrowIpc}


def write(path, form, table, **options):
    if form == "parquet":
        pq.write_table(table, path, **options)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=options.get("row_group_size"))


def read(source):
    flow = weir.Dataflow("paths")
    flow.source("rows", source).sink("out", weir.Blackhole())
    return weir.run(flow, collect="rows")


@pytest.mark.parametrize("form", SOURCES)
def test_columns_at_paths(tmp_path, form):
    table = pa.Table.from_pylist(ROWS * 50, schema=FILE_SCHEMA)
    write(tmp_path / "a", form, table, row_group_size=7)
    rows = list(read(SOURCES[form](str(tmp_path), schema=COLUMNS, paths=PATHS))["rows"])
    assert [tuple(row.values()) for row in rows] == EXPECTED * 50


@pytest.mark.parametrize("form", SOURCES)
def test_a_null_on_the_way_makes_a_bad_row(tmp_path, form):
    write(tmp_path / "a", form, pa.Table.from_pylist(ROWS, schema=FILE_SCHEMA))
    result = read(SOURCES[form](str(tmp_path), schema={"id": int, "meta.domain": str}))
    assert [row["id"] for row in result["rows"]] == [1, 4]
    assert [letter.reason.rpartition(": ")[2] for letter in result.dead_letters] == [
        "field meta.domain is null"
    ] * 2


@pytest.mark.parametrize("form", SOURCES)
def test_a_column_of_that_very_name_comes_first(tmp_path, form):
    table = pa.table({"a.b": [1], "a": pa.array([{"b": 2}], pa.struct([("b", pa.int64())])), "..": [3]})
    write(tmp_path / "a", form, table)
    source = SOURCES[form](
        str(tmp_path), schema={"a.b": int, "inner": int, "..": int}, paths={"inner": "a.b"}
    )
    assert [list(row.values()) for row in read(source)["rows"]] == [[1, 2, 3]]


def test_only_what_is_wanted_is_read_of_a_file(tmp_path):
    """All other parts of the column are overwritten."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS * 50, schema=FILE_SCHEMA), path, row_group_size=60)
    raw = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema not in ("id", "meta.at.ms"):
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                raw[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(raw)
    source = weir.Parquet(
        str(path), schema={"id": int, "ms": weir.Nullable(int)}, paths=PATHS | {"first": "id"}
    )
    with pytest.raises(GraphError, match="there is no column 'first' in the schema"):
        source.to_spec()
    source = weir.Parquet(str(path), schema={"id": int, "meta.at.ms": weir.Nullable(int)})
    assert [list(row.values()) for row in read(source)["rows"]] == [
        [1, 5],
        [2, None],
        [3, None],
        [4, None],
    ] * 50


def test_row_groups_are_passed_over_by_what_is_known_of_a_nested_column(tmp_path):
    path = tmp_path / "a.parquet"
    inner = pa.StructArray.from_arrays([pa.array(range(1000)), pa.array(["x"] * 1000)], ["ms", "text"])
    pq.write_table(pa.table({"at": inner, "id": range(1000)}), path, row_group_size=100)
    raw = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    for number in range(5):
        chunk = metadata.row_group(number).column(2)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        raw[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(raw)
    flow = weir.Dataflow("ranges")
    rows = flow.source("rows", weir.Parquet(str(path), schema={"id": int, "ms": int}, paths={"ms": "at.ms"}))
    rows.filter("late", pl.col("ms") >= 700).sink("out", weir.Collect())
    assert [row["id"] for row in weir.run(flow)["out"]] == list(range(700, 1000))


@pytest.mark.parametrize("form", SOURCES)
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("meta.host", "meta.host is not there: meta has domain, at; correct"),
        ("id.x", "id.x is not there: id is int32, not a struct; correct"),
        ("meta[0]", r"meta\[0\] is not there: meta is struct<.*>, not a list; correct"),
        ("mata.domain", r"there is no column mata.domain \(int64\), only commits, meta, id; correct"),
        ("meta.domain", "column meta.domain has type large_string, the source's schema says int64"),
    ],
)
def test_paths_that_a_file_does_not_have(tmp_path, form, column, message):
    write(tmp_path / "a", form, pa.Table.from_pylist(ROWS, schema=FILE_SCHEMA))
    with pytest.raises(InputError, match=message):
        read(SOURCES[form](str(tmp_path), schema={column: int}))
