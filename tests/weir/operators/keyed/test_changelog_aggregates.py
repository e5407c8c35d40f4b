"""Aggregates over a changelog, against Polars' group_by over the rows that are there."""

import math
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests.effort import cases
from weir import testing
from weir.author.operator import OperatorContext
from weir.errors import GraphError
from weir.operators.registry import create_operator
from weir.rows.changes import folded
from weir.rows.records import with_times
from weir.specs import Aggregate
from weir.specs.changelog_aggregates import ChangelogAggregateSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = {"k": int, "n": weir.Nullable(int), "x": weir.Nullable(float), "_change": str}
ROWS = st.tuples(
    st.integers(0, 2), st.one_of(st.none(), st.integers(-3, 3)), st.sampled_from([None, -1.5, 0.25, 2.0])
)
STEPS = st.lists(
    st.one_of(
        st.just("savepoint"),
        st.lists(
            st.one_of(
                st.tuples(st.just("insert"), ROWS),
                st.tuples(st.just("delete"), st.integers(0, 9)),
                st.tuples(st.just("update"), st.integers(0, 9), ROWS),
            ),
            max_size=8,
        ),
    ),
    max_size=8,
)
QUICK = settings(max_examples=cases(7), deadline=None, suppress_health_check=list(HealthCheck))


def flow_of():
    flow = weir.Dataflow("aggregates", max_parallelism=4)
    rows = flow.source("rows", weir.JsonLines("/absent", schema=SCHEMA))
    totals = rows.key_by("k").aggregate(
        "totals",
        parallelism=2,
        rows=weir.count(),
        total=weir.sum("n"),
        mean=weir.mean("n"),
        low=weir.min("n"),
        high=weir.max("x"),
        float_total=weir.sum("x"),
        positive=weir.count().where(pl.col("n") > 0),
        known=weir.count("n"),
        cont=weir.percentile("n", 0.3),
        disc=weir.percentile("x", 0.6, interpolated=False),
        about=weir.quantile("x", 0.5),
    )
    totals.sink("out", weir.Collect())
    return flow


def expected(rows):
    frame = pl.DataFrame(rows, schema={"k": pl.Int64, "n": pl.Int64, "x": pl.Float64}, orient="row")
    n, x = pl.col("n"), pl.col("x")
    found = frame.group_by("k").agg(
        rows=pl.len().cast(pl.Int64),
        total=pl.when(n.count() > 0).then(n.sum()),
        mean=n.mean(),
        low=n.min(),
        high=x.max(),
        float_total=pl.when(x.count() > 0).then(x.sum()),
        positive=(n > 0).sum().cast(pl.Int64),
        known=n.count().cast(pl.Int64),
        cont=n.quantile(0.3, "linear").round(9),
        disc=x.drop_nulls().sort(),
        about=x.quantile(0.5, "lower"),
    )
    return Counter((*row[:-2], discrete(row[-2], 0.6), row[-1]) for row in found.rows())


def discrete(values, share):
    return values[max(math.ceil(share * len(values)) - 1, 0)] if values else None


def rounded(rows):
    """The percentile without what rounding leaves; a quantile is at most 1 % from a value that rows have."""
    return Counter(
        (*row[:-3], None if row[-3] is None else round(row[-3], 9), row[-2], near(row[-1])) for row in rows
    )


def near(found):
    return next(
        (each for each in (-1.5, 0.25, 2.0) if found and abs(found - each) <= 0.01 * abs(each)), found
    )


def changes_of(batch, table):
    found = []
    for step in batch:
        match step:
            case "insert", row:
                table.append(row)
                found.append((*row, "insert"))
            case "delete", position if table:
                found.append((*table.pop(position % len(table)), "delete"))
            case "update", position, row if table:
                found.append((*table.pop(position % len(table)), "update_before"))
                table.append(row)
                found.append((*row, "update_after"))
    return [dict(zip(SCHEMA, row, strict=True)) for row in found]


@QUICK
@given(steps=STEPS)
def test_the_result_is_that_of_the_rows_that_are_there(steps):
    table, told = [], []
    job = testing.start(flow_of())
    try:
        for step in steps:
            if step == "savepoint":
                savepoint = job.savepoint()
                told += job.rows("totals").to_dicts()
                job.stop()
                job = testing.start(flow_of(), from_savepoint=savepoint)
                continue
            job.push("rows", changes_of(step, table))
            now = told + job.rows("totals").to_dicts()
            found = folded(pl.DataFrame(now, infer_schema_length=None)).rows() if now else []
            assert rounded(found) == expected(table)
    finally:
        job.stop()


def test_what_is_not_a_number_is_an_extreme_only_where_nothing_else_is():
    flow = weir.Dataflow("extremes")
    rows = flow.source("rows", weir.JsonLines("/absent", schema=SCHEMA))
    extremes = rows.key_by("k").aggregate("extremes", low=weir.min("x"), high=weir.max("x"))
    extremes.sink("out", weir.Collect())
    names = list(SCHEMA)
    with testing.start(flow) as job:
        for x, change in ((math.nan, "insert"), (2.0, "insert"), (3.0, "insert"), (3.0, "delete")):
            job.push("rows", [dict(zip(names, (1, 1, x, change), strict=True))])
        told = job.rows("extremes").to_polars().filter(pl.col("_change") != "update_before")
    assert repr(told.select("low", "high").rows()) == "[(nan, nan), (2.0, 2.0), (2.0, 3.0), (2.0, 2.0)]"


NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf, 0.25, 2.0, None])


@QUICK
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("insert"), st.tuples(st.integers(0, 1), st.just(1), NOT_FINITE)),
            st.tuples(st.just("delete"), st.integers(0, 9)),
        ),
        max_size=16,
    )
)
def test_sums_and_means_are_rid_of_what_is_not_finite_when_it_is_taken_away(steps):
    flow = weir.Dataflow("not_finite", max_parallelism=4)
    rows = flow.source("rows", weir.JsonLines("/absent", schema=SCHEMA))
    totals = rows.key_by("k").aggregate(
        "totals", total=weir.sum("x"), mean=weir.mean("x"), n=weir.count("x"), low=weir.min("x")
    )
    totals.sink("out", weir.Collect())
    table, told = [], []
    with testing.start(flow) as job:
        for number, step in enumerate(steps):
            job.push("rows", changes_of([step], table))
            if number == len(steps) // 2:
                told += job.rows("totals").to_dicts()
                job.checkpoint()
                job.restart()
        told += job.rows("totals").to_dicts()[len(told) :]
    last = {row["k"]: row for row in told if row["_change"] != "update_before"}
    found = {
        key: (row["total"], row["mean"], row["n"]) for key, row in last.items() if row["_change"] != "delete"
    }
    wanted = {}
    for key in {key for key, _, _ in table}:
        values = [x for its_key, _, x in table if its_key == key and x is not None]
        total = sum(values) if values else None
        wanted[key] = (total, total / len(values) if values else None, len(values))
    assert repr(sorted(found.items())) == repr(sorted(wanted.items()))


def test_each_key_is_told_once_for_a_batch_and_not_if_nothing_changes():
    names = list(SCHEMA)
    with testing.start(flow_of()) as job:
        rows = [(1, 1, 0.5, "insert"), (1, 2, 0.5, "insert"), (2, 1, None, "insert")]
        job.push("rows", [dict(zip(names, row, strict=True)) for row in rows])
        job.push(
            "rows", [dict(zip(names, (1, 2, 0.5, change), strict=True)) for change in ("delete", "insert")]
        )
        job.push("rows", [dict(zip(names, (1, 2, 0.5, "delete"), strict=True))])
        job.push("rows", [dict(zip(names, (1, 1, 0.5, "delete"), strict=True))])
        found = job.finish()["totals"].to_polars()
    of_key = found.filter(pl.col("k") == 1)
    assert of_key.select("rows", "total", "_change").rows() == [
        (2, 3, "insert"),
        (2, 3, "update_before"),
        (1, 1, "update_after"),
        (1, 1, "delete"),
    ]


def test_what_cannot_be_taken_back_is_refused():
    flow = weir.Dataflow("aggregates")
    rows = flow.source("rows", weir.JsonLines("/absent", schema=SCHEMA)).key_by("k")
    with pytest.raises(
        GraphError, match="step 'a': v: variance cannot take rows back, and the input is a changelog"
    ):
        rows.aggregate("a", v=weir.variance("x"))
    with pytest.raises(GraphError, match="step 'a': sum over 'y': there is no such column"):
        rows.aggregate("a", v=weir.sum("y"))
    with pytest.raises(GraphError, match="step 'a': output column 'k' exists already"):
        rows.aggregate("a", k=weir.sum("n"))
    assert rows.aggregate("a", n=weir.sum("n")).schema.names == ["k", "n", "_change"]


#: Version 1; two rows; of each aggregate the number of values and their sum: count, mean of n, max of x (two values);
#: the values, ascending, then how often each is there.
GOLDEN = (
    "01" + "0200000000000000"
    + "0200000000000000" + "00" * 8
    + "0200000000000000" + "0300000000000000"
    + "0200000000000000" + "00" * 8
    + "02000000" + "000000000000e03f" + "000000000000f03f" + "0100000000000000" * 2
)  # fmt: skip


#: Version 2; of the sum the number of its values, the finite part, and how many are NaN, infinity, minus infinity.
GOLDEN_NOT_FINITE = (
    "02" + "0400000000000000"
    + "0400000000000000" + "000000000000e03f"
    + "0400000000000000" + "00" * 8
    + "0200000000000000" + "0100000000000000" + "0000000000000000"
    + "03000000" + "000000000000e03f" + "000000000000f07f" + "000000000000f87f"
    + "0100000000000000" * 2 + "0200000000000000"
)  # fmt: skip

SOURCE = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("x", pa.float64()), ("_change", pa.string())])


def opened(store, aggregates):
    spec = ChangelogAggregateSpec(("k",), aggregates)
    tables = StateTables(store, 1 << 16, 4)
    operator = create_operator(spec)
    schema = spec.output_schema("a", (SOURCE,))
    context = OperatorContext(
        *("job", "a", 0, 0, 1), max_parallelism=4, tables=tables.of("a", {"totals": 0}), schema=schema
    )
    operator.open(context)
    return operator, tables


def batch_of(*rows):
    plain = pa.RecordBatch.from_pylist(
        [dict(zip(SOURCE.names, row, strict=True)) for row in rows], schema=SOURCE
    )
    return with_times(plain, np.zeros(len(rows), dtype=np.int64), 7)


def test_golden_bytes_with_values_that_are_not_finite():
    aggregates = (Aggregate("total", "sum", "x"), Aggregate("high", "max", "x"))
    store = MemoryBackend()
    operator, tables = opened(store, aggregates)
    values = (0.5, math.nan, math.inf, math.nan)
    list(operator.process(batch_of(*((1, 1, x, "insert") for x in values))))
    tables.flush()
    ((_, value),) = store.scan()
    assert value.hex() == GOLDEN_NOT_FINITE
    operator, tables = opened(store, aggregates)
    gone = operator.process(batch_of(*((1, 1, x, "delete") for x in values[1:])))
    assert [batch.column("total").to_pylist()[-1] for batch in gone] == [0.5]
    tables.flush()
    ((_, value),) = store.scan()
    # Programs of before read it again.
    assert value[0] == 1


@pytest.mark.parametrize("first", [2**62, -(2**62) - 9])
def test_a_sum_that_passes_64_bits_is_refused_and_one_that_comes_near_is_exact(first):
    aggregates = (Aggregate("total", "sum", "n"), Aggregate("mean", "mean", "n"))
    operator, _ = opened(MemoryBackend(), aggregates)
    (told,) = operator.process(batch_of((1, first, 0.5, "insert"), (1, 5, 0.5, "insert")))
    assert told.column("total").to_pylist() == [first + 5]
    # More comes and goes within a batch.
    rows = [(1, first, 0.5, change) for change in ("insert", "delete", "delete", "insert", "insert")]
    with pytest.raises(weir.WeirError, match=r"aggregate 'total' .*: a key's sum passes 64 bits"):
        list(operator.process(batch_of(*rows)))
    (told,) = operator.process(batch_of(*rows[:3]))
    assert told.column("total").to_pylist() == [first + 5, 5]


def test_golden_bytes():
    aggregates = (Aggregate("rows", "count"), Aggregate("mean", "mean", "n"), Aggregate("high", "max", "x"))
    store = MemoryBackend()
    operator, tables = opened(store, aggregates)
    list(operator.process(batch_of((1, 1, 0.5, "insert"), (1, 2, 1.0, "insert"))))
    tables.flush()
    ((_, value),) = store.scan()
    assert value.hex() == GOLDEN
    operator, _ = opened(store, aggregates)
    (told,) = operator.process(batch_of((1, 2, 1.0, "delete")))
    assert told.column("high").to_pylist() == [1.0, 0.5]
    assert told.column("mean").to_pylist() == [1.5, 1.0]
