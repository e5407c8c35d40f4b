"""Types that other programs write to Parquet and Arrow IPC files, and that a schema has no name for."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import InputError

UUID = b"0123456789abcdef"
ENTRIES = pl.List(pl.Struct({"key": pl.String, "value": pl.Int64}))
TREE = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.float32())])))])
CASES = {
    "map": (pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int32())), ENTRIES),
    "nested": (
        pa.array([{"a": 1, "b": [{"c": 1.5}, None]}, None, {"a": None, "b": None}], TREE),
        pl.Struct({"a": pl.Int64, "b": pl.List(pl.Struct({"c": pl.Float64}))}),
    ),
    "pairs": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)), pl.List(pl.Int64)),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "[1]"])), str),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID, None, UUID], pa.binary(16))), bytes),
    "decimal": (pa.array([Decimal("1.25"), None, Decimal("-3")], pa.decimal128(5, 2)), pl.Decimal(20, 3)),
    "nulls": (pa.nulls(3), pl.List(pl.String)),
}
SOURCES = {"parquet": weir.Parquet, "ipc": weir.ArrowIpc}


def read(path, form, array, dtype):
    table = pa.table({"x": array})
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    flow = weir.Dataflow("types")
    source = SOURCES[form](str(path), schema={"x": weir.Nullable(dtype)})
    flow.source("rows", source).sink("out", weir.Blackhole())
    return [row["x"] for row in weir.run(flow, collect="rows")["rows"]]


@pytest.mark.parametrize("form", SOURCES)
@pytest.mark.parametrize("name", CASES)
def test_columns_of_other_programs(tmp_path, form, name):
    array, dtype = CASES[name]
    expected = array.to_pylist()
    if name == "map":
        expected = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in expected]
    elif name == "uuid":
        expected = [UUID, None, UUID]
    assert read(tmp_path / "a", form, array, dtype) == expected


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (CASES["map"][0], pl.List(pl.Struct({"key": pl.String, "value": pl.Int16}))),
        (CASES["nested"][0], pl.Struct({"a": pl.Int64, "c": pl.Int64})),
        (CASES["pairs"][0], pl.List(pl.Int8)),
        (CASES["decimal"][0], pl.Decimal(5, 3)),
        (CASES["uuid"][0], str),
    ],
)
def test_what_would_lose_something_is_refused(tmp_path, array, dtype):
    with pytest.raises(InputError, match="does not hold every such value"):
        read(tmp_path / "a", "parquet", array, dtype)
