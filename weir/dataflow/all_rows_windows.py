"""Windows over all rows, without a key: ``stream.window_all(weir.tumbling("60s")).aggregate("n", n=weir.count())``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import polars as pl
import pyarrow as pa

from weir.author.aggregator import Aggregator, AllRowsFunction, WindowBounds, check_aggregator
from weir.dataflow.aggregates import AggregateCall
from weir.dataflow.frame import (
    Columns,
    InWindows,
    KeyedFrame,
    StreamFrame,
    StreamT,
    checked_arguments,
    checked_callable,
)
from weir.dataflow.windowed_streams import (
    check_given_once,
    checked_columns,
    read_by_aggregates,
)
from weir.operators.windows.rows.row_aggregates import RowAggregates
from weir.plan.step_names import renamed_step
from weir.rows.changes import refuse_changes
from weir.specs.aggregate_functions import compares_texts
from weir.specs.window_kinds import Window
from weir.specs.window_parts import ALL_ROWS_KEY, WindowPartSpec
from weir.specs.window_process import ProcessForm, WindowProcessSpec
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WindowAggregate, WindowAggregateSpec, window_schema


class AllRowsWindowedStream(InWindows, Generic[StreamT]):
    """A stream whose rows belong to windows, without a key; made by :meth:`weir.Stream.window_all`."""

    def __init__(self, stream: StreamFrame[StreamT], window: Window, updates: WindowUpdates) -> None:
        self._stream, self._window, self._updates = stream, window, updates

    def aggregate(
        self, name: str | None, *, renamed_from: str | None = None, **aggregates: AggregateCall
    ) -> StreamT:
        """Aggregates of all rows in each window: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``.

        In two levels: each subtask adds up the rows of a batch (in a step ``name.part``), and one subtask adds up what
        all of them have. The result has ``window_start``, ``window_end`` and one column for each aggregate, as that of
        :meth:`WindowedStream.aggregate`. Floats are added up in no certain order.

        All rows go to the one subtask as they are, if the side output ``late`` is read, if windows are told early by
        their number of rows, and for counts of different values, quantiles, and minima and the like of texts.

        Args:
            name: the step's name; its state belongs to it.
            aggregates: output column -> function, with ``.where(...)`` over some of the rows.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: there is no aggregate, or one cannot be computed.
        """
        name = renamed_step(name, renamed_from)
        stream, window, updates = self._stream, self._window, self._updates
        refuse_changes(str(name), "window_all", (stream.schema,))
        early = updates.early
        others = () if early is None or early.where is None else (early.where,)
        listed, read_schema = read_by_aggregates(name, stream, (), aggregates, others)
        if any(compares_texts(each.function, each.column, stream.schema) for each in listed):
            return self._of_texts(name, listed, read_schema)
        window_schema(str(name), (), listed, stream.schema)
        part = WindowPartSpec((), window, listed, read_schema, updates=updates)
        keyed = _to_one_subtask(stream, name, part)
        spec = WindowAggregateSpec(
            (ALL_ROWS_KEY,),
            window,
            listed,
            read_schema.append(keyed.schema.field(ALL_ROWS_KEY)),
            updates,
            takes_parts=True,
            is_keyless=True,
            late_schema=stream.schema,
        )
        return keyed.added_step(name, spec, parallelism=1)

    def process(
        self, name: str | None, function: AllRowsFunction, schema: Columns, *, renamed_from: str | None = None
    ) -> StreamT:
        """Call a function with all rows of each window, when it leaves: ``function(window, rows)``.

        All rows go to one subtask and are kept in the state until then, or for the allowed lateness longer: a late row
        lets the function be called again. Those of a window must fit the memory. The
        result has ``window_start`` and ``window_end``, and the columns that the function returns.

        Args:
            name: the step's name; its state belongs to it.
            function: gets :class:`weir.WindowBounds`, and a ``pl.DataFrame`` of all columns in the order of event
                times; returns a ``pl.DataFrame``, or None for no row.
            schema: columns that the function returns.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the function, the schema or the kind of window cannot be used.
        """
        name = renamed_step(name, renamed_from)
        return self._processed(name, checked_arguments(name, function, "window, rows"), schema, "rows")

    def aggregate_with(
        self,
        name: str | None,
        factory: Callable[[], Aggregator],
        schema: Columns,
        *,
        renamed_from: str | None = None,
    ) -> StreamT:
        """Aggregate all rows of each window with a :class:`weir.Aggregator` of your own.

        All rows go to one subtask, which keeps an accumulator for each pane, and no rows. The result has
        ``window_start`` and ``window_end``, and the columns of the aggregator's ``result``.

        Args:
            name: the step's name; its state belongs to it.
            factory: makes one aggregator for each subtask; called once when the job is built, too.
            schema: columns of its results.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the aggregator, the schema or the kind of window cannot be used.
        """
        name = renamed_step(name, renamed_from)
        check_aggregator(name, checked_callable(name, factory))
        return self._processed(name, factory, schema, "aggregator")

    def _of_texts(
        self, name: str | None, aggregates: tuple[WindowAggregate, ...], read_schema: pa.Schema
    ) -> StreamT:
        """Aggregates some of whose values have any length: the rows are kept until the window leaves."""
        check_given_once(name, self._window, self._updates, of_texts=True)
        schema = window_schema(str(name), (), aggregates, self._stream.schema, takes_texts=True)
        columns = pa.schema([schema.field(each.output) for each in aggregates])
        code = _AllRowsAggregates(aggregates, columns)
        return self._processed(name, code, columns, "rows", read_schema)

    def _processed(
        self,
        name: str | None,
        code: Callable[..., Any],
        schema: Columns,
        form: ProcessForm,
        read_schema: pa.Schema | None = None,
    ) -> StreamT:
        """``read_schema``: what of the rows is sent, kept, and in the side output ``late``; None: all columns."""
        check_given_once(name, self._window, self._updates)
        stream, window = self._stream, self._window
        refuse_changes(str(name), "window_all", (stream.schema,))
        given = stream.schema if read_schema is None else read_schema
        rows = (WindowAggregate("rows", "count"),)
        part = WindowPartSpec((), window, rows, given, passes_rows=True)
        keyed = _to_one_subtask(stream, name, part)
        spec = WindowProcessSpec(
            (ALL_ROWS_KEY,),
            window,
            rows,
            keyed.schema,
            self._updates,
            is_keyless=True,
            late_schema=given,
            factory=code,
            schema=checked_columns(name, schema),
            form=form,
        )
        return keyed.added_step(name, spec, parallelism=1)


class _AllRowsAggregates:
    """Aggregates of windows that have no key."""

    def __init__(self, aggregates: tuple[WindowAggregate, ...], schema: pa.Schema) -> None:
        """Make the aggregates of all rows; the arguments are those of :class:`RowAggregates`."""
        self._of_rows = RowAggregates(aggregates, schema)

    def __call__(self, window: WindowBounds, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the aggregates of a window's rows, as ``weir.author.aggregator.AllRowsFunction`` asks."""
        return self._of_rows({}, window, rows)


def _to_one_subtask(
    stream: StreamFrame[StreamT], name: str | None, part: WindowPartSpec
) -> KeyedFrame[StreamT, Any]:
    added: Any = stream.added_step(name and f"{name}.part", part)
    keyed: KeyedFrame[StreamT, Any] = added.key_by(ALL_ROWS_KEY)
    return keyed
