"""Values that look alike, or nearly so: none is cut, taken for another, or lost among its equals without a word."""

import datetime as dt
import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.errors import UserFunctionError
from weir.sql.program import build_program

BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59)


def us(number):
    return BEFORE_1970 + dt.timedelta(microseconds=number)


def structs(changes, under_null):
    """One row with a null within a struct, under which there are these bytes."""
    valid = pa.py_buffer(np.packbits([0], bitorder="little"))
    inner = pa.Array.from_buffers(pa.int64(), 1, [valid, pa.py_buffer(np.array([under_null]))])
    column = pa.StructArray.from_arrays([inner], names=["x"])
    return pa.table({"k": pa.array([1]), "s": column, "_change": pa.array([changes])})


def test_a_row_is_taken_away_whatever_lies_under_its_nulls():
    def changes(position):
        yield structs("insert", 7), 1
        yield structs("delete", 9), 2

    def others(position):
        yield pa.table({"k": pa.array([1]), "n": pa.array([2])}), 1

    schema = {"k": int, "s": weir.Nullable(pl.Struct({"x": pl.Int64})), "_change": str}
    flow = weir.Dataflow("nulls")
    by_key = flow.source("changes", weir.UserSource(changes, schema=schema)).key_by("k")
    other = flow.source("others", weir.UserSource(others, schema={"k": int, "n": int})).key_by("k")
    by_key.join("join", other).sink("joined", weir.Collect())
    by_key.top("top", by="k", rows=3).sink("first", weir.Collect())
    found = weir.run(flow)
    for sink in ("joined", "first"):
        assert [row["_change"] for row in found[sink].to_dicts()] == ["insert", "delete"]


def test_bounds_before_1970_are_cut_towards_the_past():
    flow = weir.Dataflow("bounds")
    schema = {"k": int, "at": int, "until": pl.Datetime("us")}
    left = flow.source("left", weir.JsonLines("/absent", schema=schema, event_time="at")).key_by("k")
    right = flow.source(
        "right", weir.JsonLines("/absent", schema={"k": int, "t": int}, event_time="t")
    ).key_by("k")
    joined = left.join("joined", right, between=("at", "until"))
    given = [{"k": 1, "at": -2_000, "until": us(-500)}]
    times = [{"k": 1, "t": time_ms} for time_ms in (-1_002, -1_001, -1_000)]
    found = testing.run(joined, {"left": given, "right": times})["joined"].to_dicts()
    assert sorted(row["t"] for row in found) == [-1_002, -1_001]


_SQL = """
CREATE SOURCE a (id BIGINT NOT NULL, at TIMESTAMP, until TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '9' SECOND)
WITH (connector = 'json', path = 'a');
CREATE SOURCE b (id BIGINT NOT NULL, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '9' SECOND)
WITH (connector = 'json', path = 'b');
CREATE SINK o WITH (connector = 'collect') AS SELECT a.id, b.ts FROM a {how} JOIN b ON a.id = b.id AND b.ts {bounds};
"""


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ("BETWEEN a.at AND a.at + INTERVAL '1' SECOND", [500, 1_000_500]),
        ("BETWEEN a.at AND a.until", [500, 700]),
        ("> a.at AND b.ts < a.at + INTERVAL '1' SECOND", [501, 1_000_499]),
    ],
)
def test_bounds_of_sql_have_all_digits_of_times(bounds, wanted):
    lefts = [{"id": 1, "at": us(500), "until": us(700)}]
    rights = [{"id": 1, "ts": us(at)} for at in (499, 500, 501, 699, 700, 701, 1_000_500, 1_000_501)]
    flow = build_program("x.sql", _SQL.format(how="", bounds=bounds), "x")
    found = testing.run(flow, {"a": lefts, "b": rights})["o"].to_dicts()
    among = [
        at for at in (499, 500, 501, 699, 700, 701, 1_000_500, 1_000_501) if wanted[0] <= at <= wanted[-1]
    ]
    assert sorted(row["ts"] for row in found) == [us(at) for at in among]


@pytest.mark.parametrize(
    ("how", "bounds", "wanted"),
    [
        ("LEFT", "BETWEEN a.at AND a.at + INTERVAL '1' SECOND", [(1, 2), (1, 1_002), (2, None)]),
        (
            "FULL",
            "> a.at AND b.ts < a.at + INTERVAL '1' SECOND",
            [(1, None), (2, None), (None, 2), (None, 1_002)],
        ),
        ("LEFT", "BETWEEN a.at AND a.until", [(1, 2), (2, None)]),
        ("RIGHT", "BETWEEN a.at AND a.until", [(1, 2), (None, 1_002)]),
    ],
)
def test_outer_joins_of_sql_take_times_that_may_have_more_digits_than_ms(how, bounds, wanted):
    """Rows that have them are put aside: in whole ms they would be told with others, or alone."""
    lefts = [{"id": n, "at": us(2_000), "until": us(5_000)} for n in (1, 2)]
    rights = [{"id": 1, "ts": us(at)} for at in (2_000, 1_002_000)]
    text = _SQL.format(how=how, bounds=bounds)
    found = testing.run(build_program("x.sql", text, "x"), {"a": lefts, "b": rights})["o"].to_dicts()
    told = {(row["id"], row["ts"] and (row["ts"] - us(0)) // dt.timedelta(milliseconds=1)) for row in found}
    assert (told, len(found)) == (set(wanted), len(wanted))
    finer = [{"id": 1, "at": us(2_000), "until": us(5_400)}] if "until" in bounds else lefts
    given = {"a": finer, "b": rights if finer is not lefts else [{"id": 1, "ts": us(5_400)}]}
    with pytest.raises(UserFunctionError, match=r"has more digits than ms, .*59\.005400"):
        testing.run(build_program("x.sql", text, "x"), given)


@pytest.mark.parametrize(("word", "wanted"), [("", [1]), ("NOT ", [2])])
def test_exists_takes_bounds_of_times_that_may_have_more_digits_than_ms(word, wanted):
    text = _SQL.split("CREATE SINK")[0] + (
        f"CREATE SINK o WITH (connector = 'collect') AS SELECT id FROM a WHERE {word}EXISTS (SELECT 1 FROM b WHERE "
        "b.id = a.id AND b.ts BETWEEN a.at AND a.at + INTERVAL '1' SECOND)"
    )
    given = {
        "a": [{"id": n, "at": us(0), "until": None} for n in (1, 2)],
        "b": [{"id": 1, "ts": us(1_000_000)}],
    }
    found = testing.run(build_program("x.sql", text, "x"), given)["o"].to_dicts()
    assert [row["id"] for row in found] == wanted


@pytest.mark.parametrize("rows", [1, 2])
def test_nan_is_not_among_the_largest_results_of_windows(rows):
    flow = weir.Dataflow("largest")
    schema = {"k": int, "at": int, "x": float}
    given = [{"k": k, "at": 0, "x": x} for k, x in enumerate([1.0, math.nan, 3.0, 2.0])]
    source = flow.source("given", weir.JsonLines("/absent", schema=schema, event_time="at"))
    totals = source.key_by("k").window(weir.tumbling("1s")).aggregate("totals", x=weir.sum("x"))
    best = totals.window_top("best", by="x", rows=rows)
    found = testing.run(best, {"given": given})["best"].to_dicts()
    assert sorted((row["x"] for row in found), reverse=True) == [3.0, 2.0][:rows]


@pytest.mark.parametrize("places", [1, 2])
def test_sql_has_nan_as_the_greatest_in_windows(places):
    text = f"""
    CREATE SOURCE t (k BIGINT NOT NULL, at BIGINT NOT NULL, x DOUBLE, WATERMARK FOR at AS at) WITH
    (connector = 'json', path = 'a');
    CREATE SINK o WITH (connector = 'collect') AS SELECT k, r FROM (SELECT k, ROW_NUMBER() OVER
    (PARTITION BY window_start, window_end ORDER BY x DESC) AS r FROM TUMBLE(t, at, INTERVAL '1' SECOND))
    WHERE r <= {places};
    """
    given = [{"k": k, "at": 0, "x": x} for k, x in enumerate([1.0, math.nan, 3.0, 2.0])]
    found = testing.run(build_program("x.sql", text, "x"), {"t": given})["o"].to_dicts()
    assert sorted((row["r"], row["k"]) for row in found) == [(1, 1), (2, 2)][:places]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pl.Decimal(10, 2), pl.Series("x", [0.125])),
        (pl.List(pl.Decimal(10, 2)), pl.Series("x", [[0.125]])),
        (pl.Struct({"y": pl.Decimal(10, 2)}), pl.Series("x", [{"y": 0.125}])),
        (pl.Array(pl.Decimal(10, 2), 1), pl.Series("x", [[0.125]], dtype=pl.Array(pl.Float64, 1))),
    ],
)
def test_floats_of_a_table_are_not_rounded_to_decimals(kind, given):
    def read(position):
        yield pl.DataFrame([given]), 1

    flow = weir.Dataflow("decimals")
    read_rows = flow.source("rows", weir.UserSource(read, schema={"x": kind}))
    with pytest.raises(weir.WeirError, match=r"column 'x' of the rows is .*floats would be rounded"):
        weir.run(read_rows)
