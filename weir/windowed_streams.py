"""Streams of rows in windows: ``stream.key_by("user").window(weir.tumbling("60s")).aggregate("n", n=weir.count())``."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from weir.aggregates import AggregateCall
from weir.errors import GraphError
from weir.keyed_streams import KeyedStream
from weir.specs.expression_checks import expression_columns
from weir.specs.window_updates import ResultMode, Trigger, WindowUpdates, check_updates
from weir.specs.windows import (
    WINDOW_BOUNDS,
    Window,
    WindowAggregate,
    WindowAggregateSpec,
    WindowTopPartSpec,
    WindowTopSpec,
    checked_window,
)
from weir.spelling import did_you_mean
from weir.streams import type_name
from weir.windows import Duration, lateness_ms


class WindowedStream:
    """A keyed stream whose rows belong to windows; made by :meth:`weir.KeyedStream.window`."""

    def __init__(
        self,
        stream: KeyedStream,
        window: Window,
        allowed_lateness: Duration = 0,
        early: Trigger | None = None,
        results: ResultMode = "accumulating",
    ) -> None:
        self._stream = stream
        name = stream.node.name
        self._window = checked_window(name, window)
        if early is not None and not isinstance(early, Trigger):
            raise GraphError(f"step {name!r}: early takes weir.every(...), got {type_name(early)}")
        self._updates = WindowUpdates(lateness_ms(name, allowed_lateness), early, results)
        check_updates(name, window, self._updates)

    def aggregate(
        self, name: str | None, *, parallelism: int | None = None, **aggregates: AggregateCall
    ) -> WindowResults:
        """Aggregates of each key in each window: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``.

        The result has the key columns, ``window_start`` and ``window_end`` (int64, ms since 1970; the end is the first
        ms after the window) and one column for each aggregate. A result leaves when the watermark has reached the end
        of its window, and besides as :meth:`weir.KeyedStream.window` was told; its event time is the last ms of the
        window. Nulls are skipped; a window without a row has none.

        Args:
            name: the step's name; its state belongs to it.
            parallelism: subtasks; None: as many as the producer has.
            aggregates: output column -> function, with ``.where(...)`` over some of the rows.

        Raises:
            GraphError: there is no aggregate, or one cannot be computed.
        """
        stream = self._stream
        for output, call in aggregates.items():
            if not isinstance(call, AggregateCall):
                raise GraphError(
                    f"step {name!r}: {output} needs an aggregate such as weir.sum('x'), got {type_name(call)}"
                )
        listed = tuple(
            WindowAggregate(output, call.function, call.column, call.condition, call.parameters)
            for output, call in aggregates.items()
        )
        read = {*stream.key_columns, *(each.column for each in listed)}
        conditions = [each.condition for each in listed if isinstance(each.condition, pl.Expr)]
        if self._updates.early is not None and self._updates.early.where is not None:
            conditions.append(self._updates.early.where)
        read |= expression_columns(conditions, stream.schema)
        read_schema = pa.schema([field for field in stream.schema if field.name in read])
        spec = WindowAggregateSpec(stream.key_columns, self._window, listed, read_schema, self._updates)
        made = stream.keyed_step(name, spec, parallelism)
        return WindowResults(made.flow, made.node, None, made.key_columns)


class WindowResults(KeyedStream):
    """Results of windows: one row for each key and window."""

    def window_top(
        self, name: str, *, by: str, rows: int = 1, ties: bool = False, parallelism: int | None = None
    ) -> KeyedStream:
        """The rows with the largest values of each window, over all keys, when the window is complete.

        Every subtask chooses from what it has first, so few rows go over the network.

        Args:
            name: the step's name; the step that chooses first is called ``name.part``.
            by: the column whose largest values count; never null ones.
            rows: how many of each window.
            ties: also all rows whose value is that of the last one. Else equal ones go by the other columns.
            parallelism: subtasks that choose from all; None: as many as the producer has.

        Raises:
            GraphError: there is no such column, or ``rows`` is no number above 0.
        """
        if by not in self.schema.names:
            raise GraphError(f"step {name!r}: there is no column {by!r}{did_you_mean(by, self.schema.names)}")
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise GraphError(f"step {name!r}: rows is {rows!r}; it must be a whole number from 1 on")
        told = self.node.spec
        if isinstance(told, WindowAggregateSpec) and told.updates != WindowUpdates():
            raise GraphError(
                f"step {name!r}: window_top needs windows with one result; leave early and allowed_lateness out"
            )
        for column in WINDOW_BOUNDS:
            if column not in self.schema.names:
                raise GraphError(f"step {name!r}: column {column!r} of the window is gone; keep it")
        part = self._same_kind(f"{name}.part", WindowTopPartSpec(by, rows, ties), None)
        keyed = part.key_by(*WINDOW_BOUNDS)
        return keyed.keyed_step(name, WindowTopSpec(WINDOW_BOUNDS, by, rows, ties, keyed.schema), parallelism)
