"""Sums, extremes and means of decimals, exact and of SQL's types, against Python's."""

import decimal
import random
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir import testing
from weir.errors import WeirError

COLUMNS = {"user": str, "at": int, "price": weir.Nullable(pl.Decimal(20, 3)), "word": str}
EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
AGGREGATES = {
    "total": weir.sum("price"),
    "least": weir.min("price"),
    "most": weir.max("price"),
    "mean": weir.mean("price"),
    "gains": weir.sum("price").where(pl.col("price") > 0),
}
#: How aggregates are made, and whether one row is left for each key.
WAYS = {
    "running": lambda keyed: keyed.aggregate("told", **AGGREGATES),
    "tumbling": lambda keyed: keyed.window(weir.tumbling("1h")).aggregate("told", **AGGREGATES),
    "added up": lambda keyed: keyed.window(weir.tumbling("1h")).aggregate(
        "told", pre_aggregate=True, **AGGREGATES
    ),
    "sliding": lambda keyed: keyed.window(weir.sliding("1h", "10m")).aggregate("told", **AGGREGATES),
    "session": lambda keyed: keyed.window(weir.session("1h")).aggregate("told", **AGGREGATES),
    "early": lambda keyed: keyed.window(
        weir.tumbling("1h"), early=weir.every(rows=50), results="changelog"
    ).aggregate("told", **AGGREGATES),
    "rows": lambda keyed: keyed.count_window(400, 1).aggregate("told", **AGGREGATES),
    "texts": lambda keyed: keyed.window(weir.tumbling("1h")).aggregate(
        "told", word=weir.min("word"), **AGGREGATES
    ),
}


def orders(seed=1, count=400):
    made = random.Random(seed)
    return [
        {
            "user": made.choice("ab"),
            "at": made.randrange(60_000),
            "price": made.choice(
                [None, Decimal(made.randrange(-(10**20) + 1, 10**20)).scaleb(-3), Decimal(at)]
            ),
            "word": f"w{at}",
        }
        for at in range(count)
    ]


def expected(rows):
    prices = [row["price"] for row in rows if row["price"] is not None]
    total = sum(prices, Decimal(0))
    return {
        "total": total,
        "least": min(prices),
        "most": max(prices),
        "mean": EXACT.divide(total, Decimal(len(prices))).quantize(Decimal("1e-6"), context=EXACT),
        "gains": sum((price for price in prices if price > 0), Decimal(0)),
    }


def write(path, rows, digits=20):
    price = pa.decimal128(digits, 3)
    schema = pa.schema([("user", pa.string()), ("at", pa.int64()), ("price", price), ("word", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return str(path)


@pytest.mark.parametrize("way", list(WAYS))
def test_decimals_are_aggregated_exactly(tmp_path, way):
    rows = orders()
    flow = weir.Dataflow("sales")
    source = weir.Parquet(write(tmp_path / "a.parquet", rows), schema=COLUMNS, event_time="at")
    told = WAYS[way](
        flow.source("orders", source, watermark=weir.bounded_out_of_orderness("2m")).key_by("user")
    )
    types = {name: told.schema.field(name).type for name in AGGREGATES}
    three, six = pa.decimal128(38, 3), pa.decimal128(38, 6)
    column = pa.decimal128(20, 3)
    assert types == {"total": three, "least": column, "most": column, "mean": six, "gains": three}
    result = weir.run(flow)["told"].to_arrow()
    assert {name: result.schema.field(name).type for name in AGGREGATES} == types
    for user in "ab":
        wanted = expected([row for row in rows if row["user"] == user])
        found = [row for row in result.to_pylist() if row["user"] == user]
        if way in ("sliding", "rows"):
            # One of the windows has all rows of the key.
            assert wanted in [{name: row[name] for name in wanted} for row in found]
        else:
            assert {name: found[-1][name] for name in wanted} == wanted


def test_windows_over_all_keys_that_slide_have_what_python_has(tmp_path):
    rows = orders(seed=3)
    flow = weir.Dataflow("sales")
    source = weir.Parquet(write(tmp_path / "a.parquet", rows), schema=COLUMNS, event_time="at")
    stream = flow.source("orders", source, watermark=weir.bounded_out_of_orderness("2m"), parallelism=2)
    stream.window_all(weir.sliding("9s", "3s")).aggregate("told", **AGGREGATES)
    told = weir.run(flow)["told"].to_dicts()
    assert len(told) == 22
    for row in told:
        inside = [each for each in rows if row["window_start"] <= each["at"] < row["window_end"]]
        assert expected(inside).items() <= row.items()


DISTINCT = {
    "different": weir.count_distinct("price"),
    "gains": weir.count_distinct("price").where(pl.col("price") > 0),
    "nearly": weir.approx_distinct("price"),
}


@pytest.mark.parametrize("way", ["running", "tumbling", "sliding", "session"])
def test_different_decimals_are_counted(tmp_path, way):
    rows = orders(seed=5)
    rows += [{**row, "at": row["at"] + 1} for row in rows[:100]]
    flow = weir.Dataflow("sales")
    source = weir.Parquet(write(tmp_path / "a.parquet", rows), schema=COLUMNS, event_time="at")
    keyed = flow.source("orders", source, watermark=weir.bounded_out_of_orderness("2m")).key_by("user")
    windows = {
        "tumbling": weir.tumbling("1h"),
        "sliding": weir.sliding("2h", "1h"),
        "session": weir.session("1h"),
    }
    (keyed if way == "running" else keyed.window(windows[way])).aggregate("told", **DISTINCT)
    result = weir.run(flow)["told"].to_dicts()
    for user in "ab":
        prices = {row["price"] for row in rows if row["user"] == user} - {None}
        found = [row for row in result if row["user"] == user][-1]
        assert found["different"] == len(prices)
        assert found["gains"] == sum(price > 0 for price in prices)
        assert abs(found["nearly"] - len(prices)) <= 0.1 * len(prices)


def test_a_sum_that_passes_38_digits_is_told(tmp_path):
    columns = {**COLUMNS, "price": pl.Decimal(38, 3)}
    rows = [{"user": "a", "at": 1, "price": Decimal("9" * 35 + ".999"), "word": ""}] * 2
    path = write(tmp_path / "a.parquet", rows, digits=38)
    for way in ("running", "tumbling", "rows"):
        flow = weir.Dataflow("sales")
        keyed = flow.source("orders", weir.Parquet(path, schema=columns, event_time="at")).key_by("user")
        if way == "rows":
            keyed.count_window(2).aggregate("told", total=weir.sum("price"))
        else:
            made = keyed if way == "running" else keyed.window(weir.tumbling("1h"))
            made.aggregate("told", total=weir.sum("price"))
        with pytest.raises(WeirError, match="passes the 38 digits of a decimal; cast the column to float64"):
            weir.run(flow)


def test_decimals_go_on_after_a_restart():
    flow = weir.Dataflow("sales")
    source = weir.JsonLines("none", schema=COLUMNS, event_time="at")
    flow.source("orders", source).key_by("user").aggregate("told", **AGGREGATES)
    rows = orders()
    with testing.start(flow) as job:
        job.push("orders", rows[:200])
        job.checkpoint()
        job.restart()
        job.push("orders", rows[200:])
        out = job.finish()["told"]
    for user in "ab":
        wanted = expected([row for row in rows if row["user"] == user])
        assert wanted.items() <= [row for row in out if row["user"] == user][-1].items()


def test_decimals_of_a_changelog_are_refused_with_the_mend():
    flow = weir.Dataflow("sales")
    rows = flow.source("orders", weir.JsonLines("none", schema=COLUMNS, event_time="at"))
    changes = rows.key_by("user").top("top", by="at", rows=3)
    with pytest.raises(weir.GraphError, match=r"sum over 'price'.*a changelog; cast it in a step before"):
        changes.key_by("user").aggregate("told", total=weir.sum("price"))
