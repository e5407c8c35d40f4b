"""Aggregates of a job that changes, and what they are from scratch, in plain Python."""

import random

import polars as pl

import weir

SCHEMA = {"k": str, "at": int, "num": weir.Nullable(int), "x": float, "code": int, "word": str}
CONDITIONS = {
    "": (None, lambda row: True),
    "bad": (pl.col("code") >= 3, lambda row: row["code"] >= 3),
    "in": (pl.col("code").is_in([0, 1, 4]), lambda row: row["code"] in (0, 1, 4)),
    "abc": (pl.col("word") == "b", lambda row: row["word"] == "b"),
}


def call(function, column="", condition=""):
    """An aggregate as authors write it."""
    made = getattr(weir, function)(*([column] if column else []))
    where = CONDITIONS[condition][0]
    return made if where is None else made.where(where)


def value(rows, function, column="", condition=""):
    """Its value over rows, from scratch."""
    taken = [row for row in rows if CONDITIONS[condition][1](row)]
    if not column:
        return len(taken)
    values = [row[column] for row in taken if row[column] is not None]
    if function == "count":
        return len(values)
    if function == "count_distinct":
        return len(set(values))
    if not values:
        return None
    if function == "mean":
        return sum(values) / len(values)
    return {"sum": sum, "min": min, "max": max, "first": lambda v: v[0], "last": lambda v: v[-1]}[function](
        values
    )


def rows_of(seed, count, *, first_ms=0, keys=5):
    """Rows in order of time, one each millisecond."""
    chosen = random.Random(seed)
    return [
        {
            "k": f"k{chosen.randrange(keys)}",
            "at": first_ms + number,
            "num": chosen.choice([None, 1, 2, 3, 40, -7]),
            "x": float(chosen.randrange(100)) / 4,
            "code": chosen.randrange(5),
            "word": chosen.choice("abc"),
        }
        for number in range(count)
    ]


def events(flow, name="events"):
    return flow.source(name, weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))


def running(aggregates, *, step="totals", key="k", parallelism=1, emit="per_event"):
    """A job of running aggregates: {output: (function, column, condition)}."""
    flow = weir.Dataflow("running")
    made = {name: call(*each) for name, each in aggregates.items()}
    events(flow).key_by(key).aggregate(step, emit=emit, parallelism=parallelism, **made).sink(
        "out", weir.Collect()
    )
    return flow


def windowed(aggregates, window, *, step="windows", key="k", parallelism=1):
    """A job of aggregates in windows."""
    flow = weir.Dataflow("windowed")
    made = {name: call(*each) for name, each in aggregates.items()}
    windows = events(flow).window_all(window) if key is None else events(flow).key_by(key).window(window)
    more = {} if key is None else {"parallelism": parallelism}
    windows.aggregate(step, **more, **made).sink("out", weir.Collect())
    return flow
