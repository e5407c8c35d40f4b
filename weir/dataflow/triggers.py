"""When a window tells its result before it is complete: ``window(weir.tumbling("1h"), early=weir.every("10s"))``."""

from __future__ import annotations

import datetime as dt

import polars as pl

from weir.errors import GraphError
from weir.specs.window_kinds import WindowTime
from weir.specs.window_updates import Trigger
from weir.state.ttl import duration_ms


def every(
    interval: str | dt.timedelta | None = None,
    *,
    rows: int | None = None,
    where: pl.Expr | None = None,
    time: WindowTime = "processing",
) -> Trigger:
    """Tell a window's result every so often, if it has changed. Give one of the first three.

    Args:
        interval: whenever so much time has passed, such as "10s"; times are multiples of it.
        rows: after so many further rows of a key in the window, exactly.
        where: after each batch in which the window has got a row for which this boolean expression is true.
        time: of ``interval``: "processing", the machine's clock, or "event", the watermark.

    Raises:
        GraphError: the arguments cannot be used.
    """
    if (interval is None) + (rows is None) + (where is None) != 2:
        raise GraphError("weir.every: give an interval, rows or where, and only one of them")
    if time not in ("processing", "event") or (time == "event" and interval is None):
        raise GraphError(f"weir.every: time is {time!r}; it is 'processing', or with an interval 'event'")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        raise GraphError(f"weir.every: rows is {rows!r}; it must be a whole number from 1 on")
    if where is not None and not isinstance(where, pl.Expr):
        raise GraphError(f"weir.every: where takes a Polars expression, got {type(where).__name__}")
    try:
        interval_ms = None if interval is None else duration_ms(interval)
    except GraphError as error:
        raise GraphError(f"weir.every: interval: {error}") from error
    return Trigger(interval_ms, time, rows, where)
