"""Windows over all rows, and sessions that late rows join, each with an output of its own."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
SIZE_MS, GAP_MS, LATENESS_MS = 200, 20, 300
#: Event times of sessions: every seventh row is in order, the others are up to 78 ms late.
MOVED = pl.col("id") - pl.col("id") % 7 * 13


def whole(window, rows):
    """Number, sum and largest of a window's rows."""
    return pl.DataFrame({"n": [rows.height], "total": [rows["id"].sum()], "last": [rows["id"].max()]})


def whole_of_key(key, window, rows):
    """Number, sum and largest of the rows of a key's session."""
    return whole(window, rows)


def build(input: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("all_rows")
    events = flow.source(
        "events", held(weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate), release)
    )
    every = events.pass_through("spread").window_all(weir.tumbling(SIZE_MS))
    columns = {"n": int, "total": int, "last": int}
    found = {
        "all": every.aggregate("all", n=weir.count(), total=weir.sum("id"), last=weir.max("id")),
        "rows": every.process("rows", whole, columns),
    }
    moved = events.assign_event_time("moved", MOVED, watermark=weir.bounded_out_of_orderness("0ms"))
    sessions = moved.key_by("server").window(
        weir.session(GAP_MS), allowed_lateness=LATENESS_MS, results="changelog"
    )
    found["late"] = sessions.aggregate("late", n=weir.count(), total=weir.sum("id"), last=weir.max("id"))
    again = moved.key_by("server").window(weir.session(GAP_MS), allowed_lateness=LATENESS_MS)
    found["again"] = again.process("again", whole_of_key, columns)
    for name, results in found.items():
        results.rebalance().sink(f"out_{name}", weir.JsonLinesSink(f"{output}-{name}"))
    return flow
