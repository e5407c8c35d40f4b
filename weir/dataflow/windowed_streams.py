"""Streams of rows in windows: ``stream.key_by("user").window(weir.tumbling("60s")).aggregate("n", n=weir.count())``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import polars as pl
import pyarrow as pa

from weir.author.aggregator import Aggregator, RowsFunction, check_aggregator
from weir.dataflow.aggregates import AggregateCall, listed_aggregates
from weir.dataflow.frame import (
    Columns,
    InWindows,
    KeyedFrame,
    KeyedT,
    StreamFrame,
    checked_arguments,
    checked_callable,
    type_name,
)
from weir.dataflow.windows import Duration, lateness_ms
from weir.errors import GraphError
from weir.operators.windows.rows.row_aggregates import ChangelogRowAggregates, RowAggregates
from weir.plan.graph import Exchange
from weir.plan.step_names import renamed_step
from weir.rows.changes import CHANGE_COLUMN, is_changelog
from weir.rows.schemas import to_schema
from weir.specs.aggregate_functions import compares_texts, has_coded_texts
from weir.specs.expression_checks import expression_columns
from weir.specs.window_kinds import Window
from weir.specs.window_parts import WindowPartSpec, part_conflict
from weir.specs.window_process import (
    ChangelogWindowSpec,
    ProcessForm,
    WindowProcessSpec,
    check_takes_back,
)
from weir.specs.window_updates import ResultMode, Trigger, WindowUpdates, check_updates
from weir.specs.windows import (
    WindowAggregate,
    WindowAggregateSpec,
    checked_window,
    window_schema,
)

#: The stream of the results of windows: ``weir.dataflow.streams.WindowResults``.
ResultsT = TypeVar("ResultsT")


class WindowedStream(InWindows, Generic[KeyedT, ResultsT]):
    """A keyed stream whose rows belong to windows; made by :meth:`weir.KeyedStream.window`."""

    def __init__(
        self,
        stream: KeyedFrame[Any, KeyedT],
        window: Window,
        updates: WindowUpdates,
        results: Callable[[KeyedT], ResultsT],
    ) -> None:
        self._stream, self._window, self._updates, self._results = stream, window, updates, results

    def aggregate(
        self,
        name: str | None,
        *,
        parallelism: int | None = None,
        pre_aggregate: bool | None = None,
        renamed_from: str | None = None,
        **aggregates: AggregateCall,
    ) -> ResultsT:
        """Aggregates of each key in each window: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``.

        The result has the key columns, ``window_start`` and ``window_end`` (int64, ms since 1970; the end is the first
        ms after the window) and one column for each aggregate. A result leaves when the watermark has reached the end
        of its window, and besides as :meth:`weir.KeyedStream.window` was told; its event time is the last ms of the
        window. Nulls are skipped; a window without a row has none. Of a changelog the rows count that were not taken
        away until then (count, sum, mean, min, max; docs/changelogs.md says which times its rows must have).

        Args:
            name: the step's name; its state belongs to it.
            parallelism: subtasks; None: as many as the producer has.
            pre_aggregate: add up the rows of each batch before they are sent, in a step ``name.part``, where keys
                repeat within a batch. Late rows are then counted, but there is no side output of them. None: of counts
                and of sums, minima and maxima of integers, if nobody reads ``late``; False: never.
            aggregates: output column -> function, with ``.where(...)`` over some of the rows.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: there is no aggregate, or one cannot be computed; or adding up before could change a result.
        """
        name = renamed_step(name, renamed_from)
        stream = self._stream
        early = self._updates.early
        others = () if early is None or early.where is None else (early.where,)
        listed, read_schema = read_by_aggregates(name, stream, stream.key_columns, aggregates, others)
        is_changed = is_changelog(stream.schema)
        texts = [each for each in listed if compares_texts(each.function, each.column, stream.schema)]
        if is_changed or not all(has_coded_texts((each,), stream.schema) for each in texts):
            return self._of_all_rows(name, listed, read_schema, pre_aggregate, parallelism)
        if texts:
            check_given_once(
                name, self._window, self._updates, of_texts=True, pre_aggregate=bool(pre_aggregate)
            )
        spec = WindowAggregateSpec(
            stream.key_columns,
            self._window,
            listed,
            read_schema,
            self._updates,
            adds_up=pre_aggregate is not False,
            of_rows=RowAggregates if texts else None,
        )
        if pre_aggregate and stream.input.exchange is Exchange.HASH:
            stream = added_up_before(name, stream, spec)
            spec = replace(spec, takes_parts=True)
        return self._results(stream.keyed_step(name, spec, parallelism))

    def _of_all_rows(
        self,
        name: str | None,
        aggregates: tuple[WindowAggregate, ...],
        read_schema: pa.Schema,
        pre_aggregate: bool | None,
        parallelism: int | None,
    ) -> ResultsT:
        """Aggregates of rows that are kept until the window leaves: of values of any length, or of a changelog."""
        stream, window, updates, early = self._stream, self._window, self._updates, bool(pre_aggregate)
        schema = window_schema(str(name), stream.key_columns, aggregates, stream.schema, takes_texts=True)
        read, kind = read_schema.names, WindowProcessSpec
        code: Callable[..., Callable[..., Any]] = RowAggregates
        if is_changelog(stream.schema):
            check_takes_back(str(name), window, updates, aggregates, pre_aggregate=early)
            code, kind = ChangelogRowAggregates, ChangelogWindowSpec
            read = [field for field in stream.schema.names if field in {*read, CHANGE_COLUMN}]
        else:
            check_given_once(name, window, updates, of_texts=True, pre_aggregate=early)
        columns = pa.schema([schema.field(each.output) for each in aggregates])
        if len(read) < len(stream.schema) and stream.input.exchange is Exchange.HASH:
            # Whole rows are sent and kept: those columns that are read.
            chosen = stream.flow.stream_of(stream.node).select(name and f"{name}.columns", *read)
            stream = chosen.key_by(*stream.key_columns)
        made = WindowedStream(stream, window, updates, self._results)
        told = made._processed(name, code(aggregates, columns), columns, "rows", parallelism, kind)
        return self._results(told)

    def process(
        self,
        name: str | None,
        function: RowsFunction,
        schema: Columns,
        *,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> KeyedT:
        """Call a function with all rows of each key in each window, when it leaves: ``function(key, window, rows)``.

        The rows are kept in the state until then, or for the allowed lateness longer: a late row lets the function be
        called again, with all rows. Those of one key and window must fit the memory. The result has the
        key columns, ``window_start`` and ``window_end``, and the columns that the function gives.

        Args:
            name: the step's name; its state belongs to it.
            function: gets the key columns as a dict, :class:`weir.WindowBounds`, and a ``pl.DataFrame`` of all columns
                in the order of event times; returns a ``pl.DataFrame``, or None for no row.
            schema: columns that the function gives.
            parallelism: subtasks; None: as many as the producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the function, the schema or the kind of window cannot be used.
        """
        name = renamed_step(name, renamed_from)
        return self._processed(
            name, checked_arguments(name, function, "key, window, rows"), schema, "rows", parallelism
        )

    def aggregate_with(
        self,
        name: str | None,
        factory: Callable[[], Aggregator],
        schema: Columns,
        *,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> KeyedT:
        """Aggregate each key in each window with a :class:`weir.Aggregator` of your own.

        Its accumulators are kept, one for each key and pane, and no rows. The result has the key columns,
        ``window_start`` and ``window_end``, and the columns that its ``result`` gives.

        Args:
            name: the step's name; its state belongs to it.
            factory: makes one aggregator for each subtask; called once when the job is built, too.
            schema: columns of its results.
            parallelism: subtasks; None: as many as the producer has.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: the aggregator, the schema or the kind of window cannot be used.
        """
        name = renamed_step(name, renamed_from)
        check_aggregator(name, checked_callable(name, factory))
        return self._processed(name, factory, schema, "aggregator", parallelism)

    def _processed(
        self,
        name: str | None,
        code: Callable[..., Any],
        schema: Columns,
        form: ProcessForm,
        parallelism: int | None,
        kind: type[WindowProcessSpec] = WindowProcessSpec,
    ) -> KeyedT:
        stream = self._stream
        check_given_once(name, self._window, self._updates)
        columns = checked_columns(name, schema)
        rows = (WindowAggregate("rows", "count"),)
        spec = kind(
            stream.key_columns,
            self._window,
            rows,
            stream.schema,
            self._updates,
            factory=code,
            schema=columns,
            form=form,
        )
        return stream.keyed_step(name, spec, parallelism)


def checked_updates(
    name: str,
    window: object,
    allowed_lateness: Duration,
    early: object,
    results: ResultMode,
) -> tuple[Window, WindowUpdates]:
    """What ``window`` and ``window_all`` of the stream of step ``name`` were given.

    Raises:
        GraphError: it is no window, or cannot be told so.
    """
    found = checked_window(name, window)
    if early is not None and not isinstance(early, Trigger):
        raise GraphError(f"step {name!r}: early takes weir.every(...), got {type_name(early)}")
    updates = WindowUpdates(lateness_ms(name, allowed_lateness), early, results)
    check_updates(name, found, updates)
    return found, updates


def check_given_once(
    name: str | None,
    window: Window,
    updates: WindowUpdates,
    *,
    of_texts: bool = False,
    pre_aggregate: bool = False,
) -> None:
    """Check that the rows of a window are needed when it is complete, and with late rows again, but not before.

    Raises:
        GraphError: they are.
    """
    is_usual = updates.early is None and updates.results == "accumulating"
    if not pre_aggregate and window.kind != "global" and is_usual:
        return
    if of_texts:
        raise GraphError(
            f"step {name!r}: aggregates of texts and bytes are made of all rows of a window when it is complete; leave "
            f"out early, results, pre_aggregate and global windows"
        )
    raise GraphError(
        f"step {name!r}: code of your own gets each window when it is complete; leave out early, results and global "
        "windows, or use a weir.KeyedProcess with timers"
    )


def checked_columns(name: str | None, schema: Columns) -> pa.Schema:
    """Columns that an author has declared for step ``name``.

    Raises:
        GraphError: they are none.
    """
    try:
        return to_schema(schema)
    except GraphError as error:
        raise GraphError(f"step {name!r}: {error}") from error


def read_by_aggregates(
    name: str | None,
    stream: StreamFrame[Any],
    keys: tuple[str, ...],
    aggregates: Mapping[str, AggregateCall],
    others: tuple[pl.Expr, ...] = (),
) -> tuple[tuple[WindowAggregate, ...], pa.Schema]:
    """The aggregates of a step, and the columns of its input that these, ``keys`` and ``others`` read."""
    listed = listed_aggregates(name, WindowAggregate, aggregates)
    read = {*keys, *(each.column for each in listed)}
    conditions = [each.condition for each in listed if isinstance(each.condition, pl.Expr)] + [*others]
    read |= expression_columns(conditions, stream.schema)
    return listed, pa.schema([field for field in stream.schema if field.name in read])


def added_up_before(
    name: str | None, stream: KeyedFrame[Any, KeyedT], spec: WindowAggregateSpec
) -> KeyedFrame[Any, KeyedT]:
    """The stream with a step before its exchange that adds up rows.

    Raises:
        GraphError: that could change results.
    """
    # What is wrong with the aggregates themselves is told first.
    window_schema(str(name), spec.key_columns, spec.aggregates, stream.schema)
    conflict = part_conflict(spec.aggregates, stream.schema)
    if spec.updates != WindowUpdates():
        conflict = "early results and late rows are told row by row"
    if spec.window.kind == "session" and spec.window.time == "processing":
        conflict = "sessions by the clock need the time of each row"
    if conflict is not None:
        raise GraphError(f"step {name!r}: pre_aggregate could change results: {conflict}; leave it out")
    part = WindowPartSpec(spec.key_columns, spec.window, spec.aggregates, spec.input_schema)
    added = stream.flow.stream_of(stream.node).added_step(name and f"{name}.part", part)
    keyed: KeyedFrame[Any, KeyedT] = added.key_by(*spec.key_columns)
    return keyed
