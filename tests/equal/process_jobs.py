"""Processes by key and steps behind them, and functions of rows with steps behind them that look at time."""

import asyncio

import polars as pl

import weir
from tests.equal.equal_rows import BOUND
from tests.equal.job_form import FEW, Job, joined, windowed
from tests.equal.join_jobs import WITHIN
from tests.equal.processes import (
    OUT,
    Batches,
    Chained,
    Counting,
    Expiring,
    Histories,
    Limits,
    Sessions,
    Sides,
    Timed,
)

PROCESSES = {
    "sessions": Sessions,
    "chained": Chained,
    "batches": Batches,
    "counting": Counting,
    "expiring": Expiring,
    "histories": Histories,
}
ROW = {"k": int, "v": int, "t": weir.Nullable(str)}
FIVE, SESSION = weir.tumbling("5s"), weir.session("1500ms")
COUNT = {"n": weir.count()}


def process(s, name, stream, made, **settings):
    return stream.key_by("k").process(name, made, OUT, parallelism=s.parallelism, **settings)


def processed(of, made):
    """A job with this process of a source."""
    return Job(lambda s, name: process(s, name, getattr(s, of), made))


def sides(s, name):
    return process(s, name, s.left, Sides, side_outputs={"odd": {"k": int, "n": int}})


def sides_then_windows(s, name):
    aggregates = {"n": weir.count(), "total": weir.sum("n")}
    side = sides(s, f"{name}_in").side_output("odd")
    return windowed(s, name, side, weir.tumbling("3s"), aggregates=aggregates)


def process_then_windows(s, name):
    aggregates = {"n": weir.count(), "total": weir.sum("n")}
    counted = process(s, f"{name}_in", s.left, Sessions)
    return windowed(s, name, counted, weir.session("1s"), aggregates=aggregates)


def process_of_join(s, name):
    rows = joined(s, f"{name}_in", how="full", **WITHIN)
    known = [pl.col(column).fill_null(-1).alias(column) for column in ("v", "v_right")]
    return process(s, name, rows.select(f"{name}_s", "k", v=known[0], t=pl.col("t"), w=known[1]), Timed)


def broadcast(s, name):
    settings = {"hold_until": lambda rules: len(rules) >= 3, "parallelism": s.parallelism}
    return s.left.key_by("k").connect_broadcast(name, s.rules, Limits, OUT, **settings)


def broadcast_then_windows(s, name):
    return windowed(s, name, broadcast(s, f"{name}_in"), FIVE, aggregates=COUNT)


async def answered(row):
    await asyncio.sleep(0.0001 * (row["v"] % 3))
    return {"k": row["k"], "v": row["v"] * 2, "t": row["t"]}


def asked(s, name, **settings):
    return s.left.map_async(name, answered, ROW, in_flight_max=4, **settings)


def several(row):
    for number in range(row["v"] % 3):
        yield {"k": row["k"] + number, "v": row["v"]}


def sliced(batch):
    return batch.filter(pl.Series(batch["v"].to_numpy() % 5 != 0).to_arrow())


def flat_map(s, name):
    return process(s, name, s.left.flat_map(f"{name}_in", several, {"k": int, "v": int}), Sessions)


def timed_anew(s, name):
    return s.left.assign_event_time(name, "to", watermark=BOUND)


def exploded(s, name):
    rows = s.left.with_columns(f"{name}_w", parts=pl.concat_list("v", "to")).explode(f"{name}_e", "parts")
    return windowed(s, name, rows, FIVE, aggregates={"n": weir.count(), "total": weir.sum("parts")})


#: Rows of a step, and the window over them.
BEFORE_WINDOWS = {
    "map_async_then_windows": (asked, FIVE, FEW),
    "map_async_unordered": (lambda s, name: asked(s, name, ordered=False), weir.session("1s"), FEW),
    "map_batches": (lambda s, name: s.left.map_batches(name, sliced), SESSION, COUNT),
    "union": (lambda s, name: s.left.union(name, s.right), weir.sliding("6s", "2s"), FEW),
    "assigned": (timed_anew, FIVE, FEW),
}


def before_windows(rows, window, aggregates):
    """A job of ``BEFORE_WINDOWS``."""

    def last_step(s, name):
        return windowed(s, name, rows(s, f"{name}_in"), window, aggregates=aggregates)

    return Job(last_step, ("late",))


JOBS = {
    **{f"process_{name}": processed("left", made) for name, made in PROCESSES.items()},
    **{f"odd_{name}": processed("odd", made) for name, made in PROCESSES.items()},
    **{name: before_windows(*form) for name, form in BEFORE_WINDOWS.items()},
    "process_sides": Job(sides, ("odd",)),
    "process_sides_then_windows": Job(sides_then_windows, ("late",)),
    "process_then_windows": Job(process_then_windows, ("late",)),
    "process_of_join": Job(process_of_join),
    "broadcast": Job(broadcast),
    "broadcast_then_windows": Job(broadcast_then_windows, ("late",)),
    "map_async": Job(asked),
    "flat_map": Job(flat_map),
    "assigned_process": Job(lambda s, name: process(s, name, timed_anew(s, f"{name}_t"), Sessions)),
    "exploded": Job(exploded),
}
