"""Rows that Python code returns: numbers with a fraction never become integers, finite ones never infinite."""

import asyncio
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.operators.sources.user.source_rows import checked_rows
from weir.rows.python_rows import rows_batch

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("lists", pa.list_(pa.struct([("n", pa.int8()), ("x", pa.float64())]))),
        ("pair", pa.list_(pa.int64(), 2)),
    ]
)


def test_whole_numbers_and_nulls_pass():
    rows = [{"n": 2.0, "lists": [{"n": np.float64(3), "x": 0.5}, None], "pair": [1, 2]}, {}]
    assert rows_batch(rows, SCHEMA).to_pylist() == [
        {"n": 2, "lists": [{"n": 3, "x": 0.5}, None], "pair": [1, 2]},
        {"n": None, "lists": None, "pair": None},
    ]
    assert rows_batch([], SCHEMA).num_rows == 0


@pytest.mark.parametrize(
    "row",
    [
        {"n": 1.5},
        {"n": np.float64(1.5)},
        {"n": np.float32(1.5)},
        {"n": Decimal("1.5")},
        {"lists": [None, {"n": 1.5}]},
        {"pair": [1, 1.5]},
    ],
)
def test_fractions_do_not(row):
    with pytest.raises(pa.ArrowInvalid, match=r"1.5'?\)? is no integer, and column '(n|lists|pair)' is "):
        rows_batch([{}, row], SCHEMA)


def test_a_value_of_another_type_is_told_with_its_column():
    with pytest.raises(pa.ArrowInvalid, match=r"^column 'n' \(int64\): Could not convert 'one'"):
        rows_batch([{"n": 1}, {"n": "one"}], SCHEMA)
    with pytest.raises(pa.ArrowInvalid, match=r"^column 'n' \(int64\): .* too large|^column 'n' \(int64\)"):
        rows_batch([{"n": 1 << 70}], SCHEMA)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), 7),
        (pa.large_string(), 7),
        (pa.list_(pa.string()), ["a", None, 7]),
        (pa.struct([("n", pa.int64()), ("s", pa.string())]), {"n": 1, "s": 7}),
    ],
)
def test_what_is_no_text_is_told_and_not_that_bytes_were_expected(kind, value):
    with pytest.raises(pa.ArrowInvalid, match=r"^column 't' \(.*\): expected text, got int 7$"):
        rows_batch([{}, {"t": value}], pa.schema([("t", kind)]))
    checked = checked_rows([{}, {"t": value}], pa.schema([("t", kind)]), [])
    assert [reason for _, reason, _ in checked.bad] == ["field t: expected text, got int 7"]


SINGLES = pa.schema([("x", pa.float32()), ("pair", pa.struct([("y", pa.list_(pa.float16()))]))])


@pytest.mark.parametrize("row", [{"x": 1e39}, {"x": np.float64(-1e39)}, {"pair": {"y": [1.0, 1e6]}}])
def test_finite_numbers_never_become_infinite(row):
    with pytest.raises(pa.ArrowInvalid, match=r"is out of range for column '(x|pair)', which is "):
        rows_batch([{}, row], SINGLES)
    infinite = [{"x": float("inf"), "pair": {"y": [None, float("-inf")]}}, {"x": float("nan"), "pair": None}]
    assert rows_batch(infinite, SINGLES)["x"].to_pylist()[0] == float("inf")


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table, lambda columns: pa.table(columns).to_pylist()])
def test_a_table_of_a_source_has_no_number_that_becomes_infinite(make):
    rows = make({"x": [1.5, 1e39, float("inf"), None]})
    checked = checked_rows(rows, pa.schema([("x", pa.float32())]), [])
    assert checked.batch["x"].to_pylist() == [1.5, float("inf"), None]
    assert [(number, "out of range" in reason) for number, reason, _ in checked.bad] == [(1, True)]


class Halves(weir.KeyedProcess):
    def process(self, key, row, context):
        yield {"id": key[0], "half": row["id"] / 2}


async def half(row):
    await asyncio.sleep(0)
    return {"id": row["id"], "half": row["id"] / 2}


async def half_of(number):
    await asyncio.sleep(0)
    return {"half": number / 2}


STEPS = {
    "map": lambda rows, schema: rows.map(
        "halves", lambda row: {"id": row["id"], "half": row["id"] / 2}, schema
    ),
    "map_async": lambda rows, schema: rows.map_async("halves", half, schema),
    "process": lambda rows, schema: rows.key_by("id").process("halves", Halves, schema),
    "lookup": lambda rows, schema: rows.lookup("halves", half_of, "id", {"half": int}),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_returns_a_fraction_where_it_declared_an_integer_fails(step):
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines("none", schema={"id": int}))
    STEPS[step](rows, {"id": int, "half": int}).sink("out", weir.Collect())
    assert [row["half"] for row in testing.run(flow, {"rows": [{"id": 4}]})["out"]] == [2]
    with pytest.raises(
        weir.WeirError, match=r"step 'halves': .*another type than declared: 1.5 is no integer"
    ):
        testing.run(flow, {"rows": [{"id": 3}]})


def test_rows_of_a_source_that_do_not_fit_are_put_aside_whatever_they_hold():
    def read(position):
        yield [{"n": 1}, {"n": 1.5}, {"n": 1 << 70}, {"n": 2, "other": 1 << 70}, {"n": "\ud800"}], 1
        # More good ones than bad ones.
        yield [{"n": 3}, {"n": 4}], 2

    flow = weir.Dataflow("job")
    flow.source("rows", weir.UserSource(read, schema={"n": pl.Int64})).sink("out", weir.Collect())
    result = weir.run(flow)
    assert result["out"].to_dicts() == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]
    assert [(letter.position, letter.raw) for letter in result.dead_letters] == [
        (1, '{"n":1.5}'),
        (2, "{'n': 1180591620717411303424}"),
        (4, "{'n': '\\ud800'}"),
    ]


@pytest.mark.parametrize("value", [1.5, Decimal("1.5")])
@pytest.mark.parametrize(
    "dtype", [pa.timestamp("ms"), pa.duration("us"), pa.list_(pa.timestamp("ms", "UTC"))]
)
def test_times_are_not_made_of_numbers_with_fractions(value, dtype):
    given = [value] if pa.types.is_list(dtype) else value
    with pytest.raises(pa.ArrowInvalid, match=r"1.5.* is no integer, and column|Decimal"):
        rows_batch([{"t": given}], pa.schema([("t", dtype)]))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("abc", pa.list_(pa.string())),
        (b"ab", pa.list_(pa.int64())),
        ([["a"], "bc"], pa.list_(pa.list_(pa.string()))),
        ({"l": "abc"}, pa.struct([("n", pa.int64()), ("l", pa.list_(pa.string()))])),
    ],
)
def test_a_text_is_no_list_of_its_letters(value, dtype):
    with pytest.raises(pa.ArrowInvalid, match=r"^b?'\w+' is no list, and column 'c' is (list|struct)"):
        rows_batch([{"c": None}, {"c": value}], pa.schema([("c", dtype)]))
