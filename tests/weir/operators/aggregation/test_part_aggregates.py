"""Counts of different values and quantile sketches: equal to Polars' over the same rows, or within their error."""

import datetime as dt
import math

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

import weir
from tests.effort import cases
from weir import testing
from weir.author.operator import OperatorContext
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.rows.records import with_times
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.specs.aggregate_functions import aggregate_parts, hyperloglog_precision
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

AGGREGATES = (
    Aggregate("all", "count_distinct", "v"),
    Aggregate("even", "count_distinct", "v", pl.col("n") % 2 == 0),
    Aggregate("about", "approx_distinct", "v", None, (0.01,)),
    Aggregate("floats", "count_distinct", "x"),
)
VALUES = st.none() | st.sampled_from(["", "a", "b", "ab", "\u00fc", "c" * 40])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5, math.inf])
ROWS = st.lists(st.tuples(st.sampled_from(["", "a", "ab"]), VALUES, st.integers(0, 3), FLOATS), max_size=40)


def opened(backend, aggregates=AGGREGATES, cache_bytes=1 << 20):
    names = ("", *(part.name for part in aggregate_parts(aggregates)))
    tables = StateTables(backend, cache_bytes, 8).of("step", {name: n for n, name in enumerate(names)})
    operator = KeyedAggregateOperator(KeyedAggregateSpec(("k",), aggregates))
    operator.open(OperatorContext("job", "step", 1, 0, 1, 8, tables=tables))
    return operator, tables.tables


@given(batches=st.lists(ROWS, min_size=1, max_size=4), cache_bytes=st.sampled_from([4_000, 1 << 20]))
@settings(max_examples=cases(10), deadline=None)
def test_running_counts_of_different_values_equal_those_of_a_set(batches, cache_bytes):
    backend = MemoryBackend()
    seen: dict[tuple[str, str], set] = {}
    for rows in batches:
        operator, tables = opened(backend, cache_bytes=cache_bytes)
        columns = {name: [row[n] for row in rows] for n, name in enumerate("kvnx")}
        types = {"k": pa.string(), "v": pa.string(), "n": pa.int64(), "x": pa.float64()}
        batch = pa.record_batch({name: pa.array(columns[name], dtype) for name, dtype in types.items()})
        told = [row for out in operator.process(with_times(batch, 0, 0)) for row in out.to_pylist()]
        for (key, value, number, x), row in zip(rows, told, strict=True):
            if value is not None:
                seen.setdefault((key, "all"), set()).add(value)
            if value is not None and number % 2 == 0:
                seen.setdefault((key, "even"), set()).add(value)
            if x is not None:
                seen.setdefault((key, "floats"), set()).add("nan" if math.isnan(x) else x)
            counts = [len(seen.get((key, name), ())) for name in ("all", "even", "all", "floats")]
            assert [row[name] for name in ("all", "even", "about", "floats")] == counts
        tables.flush()


@pytest.mark.parametrize("error", [0.02, 0.1])
def test_hyperloglog_keeps_its_standard_error_from_few_to_many_values(error):
    aggregates = (Aggregate("about", "approx_distinct", "v", None, (error,)),)
    random = np.random.default_rng(7)
    wrong = []
    for _ in range(12):
        operator, _ = opened(MemoryBackend(), aggregates)
        values = random.integers(0, 2**62, 60_000)
        batch = pa.record_batch({"k": ["a"] * len(values), "v": values})
        told = list(operator.process(with_times(batch, 0, 0)))
        found = np.concatenate([out.column("about").to_numpy() for out in told])
        for count in (10, 100, 1_000, 3_000, 10_000, 20_000, 60_000):
            wrong.append(found[count - 1] / count - 1)
    assert np.sqrt(np.mean(np.square(wrong))) <= error
    assert np.max(np.abs(wrong)) <= 5 * error
    assert abs(np.mean(wrong)) <= error / 2


def test_more_registers_for_a_smaller_error():
    assert [hyperloglog_precision(error) for error in (0.25, 0.1, 0.02, 0.006)] == [5, 7, 12, 15]


def windows_over(rows, window, **aggregates):
    """Results, and the rows of each window."""
    flow = weir.Dataflow("parts")
    schema = {"k": str, "at": int, "x": weir.Nullable(float), "v": weir.Nullable(int)}
    source = flow.source("rows", weir.JsonLines("rows.jsonl", schema=schema, event_time="at"))
    source.key_by("k").window(window).aggregate("w", **aggregates).sink("out", weir.Collect())
    with testing.start(flow, {"rows": rows}) as job:
        return job.finish()["out"]


NUMBERS = st.floats(-1e12, 1e12, allow_nan=False) | st.integers(-50, 50).map(float)
WINDOW_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from("ab"),
            "at": st.integers(0, 99),
            "x": st.none() | NUMBERS,
            "v": st.none() | st.integers(-3, 3),
        }
    ),
    min_size=1,
    max_size=60,
)
QUANTILES = (0.0, 0.25, 0.5, 0.99, 1.0)


@given(rows=WINDOW_ROWS, window=st.sampled_from([weir.tumbling(20), weir.sliding(30, 10), weir.session(5)]))
@settings(max_examples=cases(8), deadline=None)
def test_windows_equal_polars_within_the_stated_error(rows, window):
    quantiles = {f"q{number}": weir.quantile("x", q, error=0.01) for number, q in enumerate(QUANTILES)}
    told = windows_over(
        rows,
        window,
        **quantiles,
        values=weir.count_distinct("v"),
        about=weir.approx_distinct("v"),
        spread=weir.stddev("x"),
        best=weir.largest("x", 3),
    )
    frame = pl.DataFrame(rows, schema={"k": pl.String, "at": pl.Int64, "x": pl.Float64, "v": pl.Int64})
    for row in told:
        # Sessions of a key do not touch, and their end is a gap after the last row.
        end = row["window_end"] - 4 if window.kind == "session" else row["window_end"]
        inside = frame.filter(
            (pl.col("k") == row["k"]) & pl.col("at").is_between(row["window_start"], end, closed="left")
        )
        x, v = inside["x"].drop_nulls(), inside["v"].drop_nulls()
        assert row["values"] == row["about"] == v.n_unique()
        assert row["best"] == x.top_k(3).sort(descending=True).to_list()
        spread = x.std()
        assert row["spread"] == (None if spread is None else pytest.approx(spread, rel=1e-6, abs=1e-3))
        for number, q in enumerate(QUANTILES):
            exact = x.quantile(q, "lower")
            assert row[f"q{number}"] == (None if exact is None else pytest.approx(exact, rel=0.0101))


ENDLESS = {
    "a": [math.inf, -math.inf, 1.0, math.inf, math.nan, 1.7976931348623157e308, None],
    "b": [-math.inf],
    "c": [math.nan],
    "d": [-1.7976931348623157e308, 5e-324, 0.0],
}


def test_infinite_values_count_in_quantiles():
    quantiles = {f"q{number}": weir.quantile("x", q) for number, q in enumerate(QUANTILES)}
    given = [{"k": k, "at": 1, "x": x, "v": None} for k, values in ENDLESS.items() for x in values]
    flow = weir.Dataflow("counts")
    source = flow.source("rows", weir.JsonLines("-", schema={"k": str, "x": weir.Nullable(float)}))
    plain = [{"k": row["k"], "x": row["x"]} for row in given]
    for k, values in ENDLESS.items():
        counted = source.filter(f"only_{k}", pl.col("k") == k).key_by("k").count_window(len(values))
        counted.aggregate(f"of_{k}", **quantiles).sink(f"{k}_out", weir.Collect())
    by_rows = testing.run(flow, {"rows": plain})
    told = {row["k"]: row for row in windows_over(given, weir.tumbling(10), **quantiles)}
    for k, values in ENDLESS.items():
        x = pl.Series(values, dtype=pl.Float64).drop_nulls().drop_nans()
        (of_rows,) = by_rows[f"{k}_out"]
        for number, q in enumerate(QUANTILES):
            exact = x.quantile(q, "lower")
            expected = None if exact is None else pytest.approx(exact, rel=0.0101)
            assert (k, q, told[k][f"q{number}"], of_rows[f"q{number}"]) == (k, q, expected, expected)


def test_first_and_last_keep_dates_times_and_booleans():
    flow = weir.Dataflow("kinds")
    day, moment = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5)
    rows = [
        {"k": "a", "at": 5, "day": None, "moment": moment, "flag": True},
        {"k": "a", "at": 3, "day": day, "moment": None, "flag": False},
    ]
    schema = {
        "k": str,
        "at": int,
        "day": weir.Nullable(pa.date32()),
        "moment": weir.Nullable(pa.timestamp("us")),
        "flag": bool,
    }
    source = flow.source("rows", weir.Parquet("rows.parquet", schema=schema, event_time="at"))
    names = ("day", "moment", "flag")
    firsts = {f"first_{name}": weir.first(name) for name in names}
    lasts = {f"last_{name}": weir.last(name) for name in names}
    keyed = source.key_by("k")
    keyed.window(weir.tumbling(10)).aggregate("w", **firsts, **lasts).sink("out", weir.Collect())
    with testing.start(flow, {"rows": rows}) as job:
        (row,) = job.finish()["out"]
    assert [row[f"first_{name}"] for name in names] == [day, moment, False]
    assert [row[f"last_{name}"] for name in names] == [day, moment, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weir.quantile("x", 1.5), "q is 1.5; it must be a number from 0 to 1"),
        (lambda: weir.approx_distinct("x", error=0.001), "error is 0.001"),
        (lambda: weir.largest("x", 0), "n is 0"),
        (lambda: weir.variance("x", ddof=2), "ddof is 2"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(weir.GraphError, match=message):
        make()


def test_a_running_quantile_and_a_text_as_first_are_refused():
    flow = weir.Dataflow("refused")
    schema = {"k": str, "x": int}
    keyed = flow.source("rows", weir.JsonLines("rows.jsonl", schema=schema)).key_by("k")
    with pytest.raises(weir.GraphError, match="a quantile goes only with windows"):
        keyed.aggregate("q", q=weir.quantile("x", 0.5))
    with pytest.raises(weir.GraphError, match=r"first over 'k': the column is .*string"):
        keyed.aggregate("f", f=weir.first("k"))


EDGES = [-(2**63), -(2**63) + 1, -65, -64, -1, 0, 1, 15, 16, 63, 64, 2**62, 2**63 - 1]


@pytest.mark.parametrize("members", [1, 2, 3, 9, 63])
def test_integers_that_share_entries_are_counted_like_others(members):
    conditions = [pl.col("v") % (member + 1) == 0 for member in range(members)]
    aggregates = tuple(
        Aggregate(f"a{member}", "count_distinct", "v", condition)
        for member, condition in enumerate(conditions)
    )
    random = np.random.default_rng(members)
    values = np.concatenate([EDGES, random.integers(-100, 100, 300), EDGES])
    operator, _ = opened(MemoryBackend(), aggregates)
    batch = pa.record_batch({"k": ["a"] * len(values), "v": pa.array(values, pa.int64())})
    told = [row for out in operator.process(with_times(batch, 0, 0)) for row in out.to_pylist()]
    frame = pl.DataFrame({"v": values})
    for member, condition in enumerate(conditions):
        assert told[-1][f"a{member}"] == frame.filter(condition)["v"].n_unique()


def test_entries_of_integers_are_those_of_the_golden_form():
    aggregates = tuple(Aggregate(f"a{n}", "count_distinct", "v", pl.col("v") > n) for n in range(3))
    backend = MemoryBackend()
    operator, tables = opened(backend, aggregates)
    batch = pa.record_batch({"k": ["ab"] * 3, "v": pa.array([1, 3, -20], pa.int64())})
    list(operator.process(with_times(batch, 0, 0)))
    tables.flush()
    entries = [(key[2:].hex(), value.hex()) for key, value in backend.scan() if key[2:4] == b"\x00\x01"]
    # 16 values of 4 bits: 1 counts for the first aggregate, 3 for all of them, -20 for none.
    assert entries == [("000100" + "6162" + "8000000000000000" + "00000002", "0100" + "1070000000000000")]
