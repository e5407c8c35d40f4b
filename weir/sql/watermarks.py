"""WATERMARK FOR: which column is the event time of a source, and how far event time has come."""

from __future__ import annotations

import polars as pl
from sqlglot import exp

from weir.author.watermarks import WatermarkStrategy, bounded_out_of_orderness, watermark_alignment
from weir.errors import GraphError
from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced, at
from weir.sql.intervals import interval_ms
from weir.sql.statements import Option, Watermark
from weir.sql.types import type_words


def event_time_of(
    watermark: Watermark, types: dict[str, pl.DataType], max_drift: Option | None = None
) -> tuple[str, pl.Expr | str, WatermarkStrategy]:
    """The column, what is its event time in ms, and the watermark.

    Args:
        watermark: of CREATE SOURCE.
        types: of the columns of the source.
        max_drift: how far ahead of other sources that have one it reads; None: as far as it comes.

    Raises:
        Unplaced: the column is no time, the watermark is not the column minus an interval, or the drift no duration.
    """
    names = {each.lower(): each for each in types}
    name = names.get(watermark.column.lower())
    if name is None:
        raise Unplaced(
            f"WATERMARK FOR {watermark.column}: there is no such column{did_you_mean(watermark.column, types)}",
            watermark.start,
        )
    dtype = types[name]
    if isinstance(dtype, pl.Datetime):
        time: pl.Expr | str = pl.col(name).dt.epoch("ms")
    elif isinstance(dtype, pl.Int64):
        time = name
    else:
        raise Unplaced(
            f"WATERMARK FOR {name}: the column is {type_words(dtype)}; it is a TIMESTAMP, or a BIGINT of ms since 1970",
            watermark.start,
        )
    node = watermark.expression
    delay_ms = 0
    column = node
    if isinstance(node, exp.Sub):
        column = node.this
        delay_ms = interval_ms(node.expression, node, "what is taken from the time in WATERMARK")
    if not isinstance(column, exp.Column) or column.name.lower() != name.lower() or delay_ms < 0:
        raise Unplaced(f"a watermark is {name}, or {name} - INTERVAL '2' SECOND", watermark.start)
    alignment = None
    if max_drift is not None:
        try:
            alignment = watermark_alignment(max_drift.value)
        except GraphError:
            raise Unplaced(
                f"max_drift is {max_drift.value!r}; write a duration such as '90s', '10m' or '7d'",
                max_drift.start,
            ) from None
    with at(watermark.start):
        delay = f"{delay_ms}ms" if delay_ms else "0s"
        return name, time, bounded_out_of_orderness(delay, alignment=alignment)
