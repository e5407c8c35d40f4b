"""Windows of so many rows: ``stream.key_by("user").count_window(100, 10).aggregate("n", n=weir.count())``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from weir.dataflow.aggregates import AggregateCall
from weir.dataflow.frame import InWindows
from weir.dataflow.keyed_steps import KeyedSteps
from weir.dataflow.windowed_streams import read_by_aggregates
from weir.errors import GraphError
from weir.operators.windows.rows.count_window_process import CountWindowProcess
from weir.operators.windows.rows.kept_rows import KeptRows
from weir.operators.windows.rows.window_trigger import check_trigger, made_trigger
from weir.specs.windows import window_schema

_StreamT = TypeVar("_StreamT", bound=KeyedSteps[Any, Any])
#: Rows of a window; they are all kept.
ROWS_MAX = 100_000


class CountWindowedStream(InWindows, Generic[_StreamT]):
    """A keyed stream whose rows belong to windows of so many rows; made by :meth:`weir.KeyedStream.count_window`."""

    def __init__(self, stream: _StreamT, rows: object, slide: object) -> None:
        self._stream, name = stream, stream.node.name
        self._rows = _checked(name, "rows", rows)
        self._slide = self._rows if slide is None else _checked(name, "slide", slide)
        if self._slide > self._rows:
            raise GraphError(
                f"step {name!r}: slide {slide!r} is larger than rows {rows!r}; rows between two windows "
                "would belong to none"
            )

    def aggregate(
        self, name: str | None, *, parallelism: int | None = None, **aggregates: AggregateCall
    ) -> _StreamT:
        """Aggregates of the last rows of each key, whenever ``slide`` further ones have come.

        The result has the key columns, ``window_start`` (the lowest event time), ``window_end`` (the ms after the
        highest one, which is the event time of the result) and one column for each aggregate. Rows go in the order in
        which they come; none is late. Texts and bytes go with min, max, first, last and largest, too. What is left when
        the input ends has no result.

        Args:
            name: the step's name; its state belongs to it.
            parallelism: subtasks; None: as many as the producer has.
            aggregates: output column -> function, with ``.where(...)`` over some of the rows.

        Raises:
            GraphError: there is no aggregate, or one cannot be computed.
        """
        stream = self._stream
        keys = stream.key_columns
        listed, kept = read_by_aggregates(name, stream, keys, aggregates)
        schema = window_schema(str(name), keys, listed, stream.schema, takes_texts=True)
        made = partial(CountWindowProcess, self._rows, self._slide, KeptRows(keys, listed, kept, schema))
        return stream.process(name, made, schema, parallelism=parallelism)


class TriggeredStream(InWindows, Generic[_StreamT]):
    """A keyed stream with a window that code tells; made by :meth:`weir.KeyedStream.triggered_window`."""

    def __init__(self, stream: _StreamT, trigger: Callable[[], Any]) -> None:
        check_trigger(stream.node.name, trigger)
        self._stream, self._trigger = stream, trigger

    def aggregate(
        self, name: str | None, *, parallelism: int | None = None, **aggregates: AggregateCall
    ) -> _StreamT:
        """Aggregates of the rows of each key since its window was emptied, whenever the trigger says so.

        Columns, bounds and aggregates are those of :meth:`CountWindowedStream.aggregate`. The event time of a result
        that a timer by event time tells is not before the timer's.

        Args:
            name: the step's name; its state belongs to it.
            parallelism: subtasks; None: as many as the producer has.
            aggregates: output column -> function, with ``.where(...)`` over some of the rows.

        Raises:
            GraphError: there is no aggregate, or one cannot be computed.
        """
        stream = self._stream
        keys = stream.key_columns
        # The trigger may look at any column, but the rows are kept as the aggregates read them.
        listed, kept = read_by_aggregates(name, stream, keys, aggregates)
        schema = window_schema(str(name), keys, listed, stream.schema, takes_texts=True)
        made = partial(made_trigger, self._trigger, KeptRows(keys, listed, kept, schema))
        return stream.process(name, made, schema, parallelism=parallelism)


def _checked(step: str | None, what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= ROWS_MAX:
        raise GraphError(
            f"step {step!r}: {what} is {value!r}; it must be a whole number from 1 to {ROWS_MAX:,}"
        )
    return value
