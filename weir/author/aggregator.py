"""What authors write to make something of the rows of windows: aggregates of their own, and functions of all rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import polars as pl

from weir.errors import GraphError
from weir.state.types import value_type


class WindowBounds(NamedTuple):
    """Bounds of a window; ms since 1970, the end is the first after it."""

    start_ms: int
    end_ms: int


class Aggregator(ABC):
    """An aggregate of your own: an accumulator for each key and pane, of which a result is made when a window leaves.

    It must not matter in which parts rows come, or accumulators are merged. Used with
    :meth:`weir.WindowedStream.aggregate_with`; one object serves all keys of a subtask::

        class Range(weir.Aggregator):
            accumulator = list[int]

            def create(self):
                return []

            def add(self, accumulator, rows):
                return self.merge(accumulator, rows["price"].to_list())

            def merge(self, left, right):
                values = [*left, *right]
                return [min(values), max(values)] if values else []

            def result(self, accumulator):
                return {"range": accumulator[1] - accumulator[0]}
    """

    #: Type of accumulators, as that of a :class:`weir.AggregatingState`.
    accumulator: ClassVar[object] = None

    @abstractmethod
    def create(self) -> Any:
        """The accumulator of no row."""

    @abstractmethod
    def add(self, accumulator: Any, rows: pl.DataFrame) -> Any:
        """An accumulator that also has these rows, which are of one key and in the order in which they came."""

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """The accumulator of the rows of two; those of ``left`` are the earlier ones by event time."""

    @abstractmethod
    def result(self, accumulator: Any) -> Mapping[str, Any]:
        """The columns of the result."""


#: ``function(key, window, rows)``: key columns by name, bounds, and all rows in the order of their event times. It
#: returns the rows of the result, or None.
RowsFunction: TypeAlias = Callable[[dict[str, Any], WindowBounds, pl.DataFrame], pl.DataFrame | None]

#: ``function(window, rows)``: the same of windows without a key.
AllRowsFunction: TypeAlias = Callable[[WindowBounds, pl.DataFrame], pl.DataFrame | None]


def check_aggregator(step: str | None, factory: Callable[[], Any]) -> None:
    """Refuse what makes no :class:`Aggregator` whose accumulators can be kept.

    Raises:
        GraphError: it does not; the message names the step.
    """
    made = factory()
    if not isinstance(made, Aggregator):
        raise GraphError(
            f"step {step!r}: aggregate_with takes a weir.Aggregator class, got {type(made).__name__}"
        )
    try:
        value_type(made.accumulator)
    except GraphError as error:
        raise GraphError(f"step {step!r}: accumulator of {type(made).__name__}: {error}") from error
