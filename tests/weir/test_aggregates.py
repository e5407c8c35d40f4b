"""Calls of aggregates as jobs write them."""

import polars as pl
import pytest

import weir
from weir import testing

ROWS = [
    {"k": n % 2, "at": n, "note": None if n % 3 else "é", "tags": [n] if n < 4 else None} for n in range(8)
]


@pytest.mark.parametrize("form", ["running", "window", "pre_aggregated", "session", "count_window", "all"])
def test_count_of_a_column_is_of_its_values(form):
    flow = weir.Dataflow("counts")
    schema = {"k": int, "at": int, "note": weir.Nullable(str), "tags": weir.Nullable(pl.List(pl.Int64))}
    rows = flow.source("rows", weir.JsonLines("none", schema=schema, event_time="at"))
    counts = {"rows": weir.count(), "notes": weir.count("note"), "tags_seen": weir.count("tags")}
    keyed = rows.key_by("k")
    counted = {
        "running": lambda: keyed.aggregate("counts", **counts),
        "window": lambda: keyed.window(weir.tumbling("1s")).aggregate(
            "counts", **counts, pre_aggregate=False
        ),
        "pre_aggregated": lambda: keyed.window(weir.tumbling("1s")).aggregate(
            "counts", **counts, pre_aggregate=True
        ),
        "session": lambda: keyed.window(weir.session("1s")).aggregate("counts", **counts),
        "count_window": lambda: keyed.count_window(4).aggregate("counts", **counts),
        "all": lambda: rows.window_all(weir.tumbling("1s")).aggregate("counts", **counts),
    }[form]()
    counted.sink("out", weir.Collect())
    told = {
        row.get("k"): tuple(row[name] for name in counts) for row in testing.run(flow, {"rows": ROWS})["out"]
    }
    assert told == ({None: (8, 3, 4)} if form == "all" else {0: (4, 2, 2), 1: (4, 1, 2)})


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (weir.max("text"), r"max over 'text'.*not a number; of texts and bytes it goes with windows: key_by"),
        (
            weir.first("text"),
            r"first over 'text'.*dates and times; of texts and bytes it goes with windows",
        ),
        (weir.sum("text"), r"sum over 'text': the column is string, not a number$"),
        (weir.variance("price"), r"variance over 'price'.*cast it in a step before, pl.col\('price'\).cast"),
    ],
)
def test_types_that_an_aggregate_does_not_take_are_told_with_the_mend(aggregate, message):
    flow = weir.Dataflow("types")
    schema = {"text": str, "price": pl.Decimal(10, 2)}
    rows = flow.source("rows", weir.JsonLines("none", schema=schema))
    if "windows" not in message:
        with pytest.raises(weir.GraphError, match=message):
            rows.window_all(weir.tumbling("1s")).aggregate("all", x=aggregate)
    with pytest.raises(weir.GraphError, match=message):
        rows.key_by("text").aggregate("running", x=aggregate)
