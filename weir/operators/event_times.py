"""Event times of batches: computed, and checked, so that a bad one neither fails the job nor moves the watermark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.watermarks import DEFAULT_STRATEGY, EVENT_TIME_MS_MAX, WatermarkGenerator, WatermarkStrategy
from weir.clock import Clock, wall_ms
from weir.errors import UserFunctionError
from weir.operators.stateless.expressions import ExpressionInput
from weir.rows.records import WATERMARK_MIN_MS


@dataclass(frozen=True)
class TimesOfRows:
    """Event times of a batch.

    Attributes:
        times_ms: int64, shape (rows,); of bad rows anything.
        bad: bool, shape (rows,), rows whose time is bad; None: no row's is.
        nulls: bool, shape (rows,), rows that have none; None: there is no such row.
    """

    times_ms: np.ndarray
    bad: np.ndarray | None = None
    nulls: np.ndarray | None = None

    def running_max(self) -> np.ndarray:
        """The largest good event time up to each row; int64, shape (rows,)."""
        times = self.times_ms if self.bad is None else np.where(self.bad, WATERMARK_MIN_MS, self.times_ms)
        latest: np.ndarray = np.maximum.accumulate(times)
        return latest

    def kept(self, rows: np.ndarray) -> TimesOfRows:
        """Return the times of some of the rows; bool, shape (rows,)."""
        bad = None if self.bad is None else self.bad[rows]
        return TimesOfRows(self.times_ms[rows], bad, None if self.nulls is None else self.nulls[rows])

    def what_is_wrong(self, row: int) -> str:
        """Why the time of a bad row is bad, for its dead letter."""
        if self.nulls is not None and self.nulls[row]:
            return "the event time is null"
        time_ms = int(self.times_ms[row])
        if abs(time_ms) > EVENT_TIME_MS_MAX:
            return f"the event time {time_ms} is no time in ms since 1970"
        return (
            f"the event time {time_ms} is too far ahead of the clock; is it in ms since 1970? "
            "If such times are right, give the source watermark=weir.bounded_out_of_orderness(..., future_max=None)"
        )


class EventTimes:
    """Takes the event times of rows from a column, or from an expression."""

    def __init__(
        self, column: str | None, expression: pl.Expr | None, strategy: WatermarkStrategy | None, clock: Clock
    ) -> None:
        """Make the reader of times; one of ``column`` and ``expression`` is given."""
        self._column = column
        self._expression = expression
        self._input = None if expression is None else ExpressionInput([expression])
        #: One value for all rows, whatever columns they have: a source may have read none.
        self._is_constant = expression is not None and not (
            expression.meta.root_names() or expression.meta.has_multiple_outputs()
        )
        self._future_ms_max = (strategy or DEFAULT_STRATEGY).future_ms_max
        self._clock = clock

    def of(self, batch: pa.RecordBatch) -> TimesOfRows:
        """The event times of these rows.

        Raises:
            UserFunctionError: the expression fails.
        """
        times_ms, nulls = _as_numpy(self._values(batch))
        latest_ms = self.latest_ms
        if len(times_ms) and (times_ms.max() > latest_ms or times_ms.min() < -EVENT_TIME_MS_MAX):
            bad = (times_ms > latest_ms) | (times_ms < -EVENT_TIME_MS_MAX)
            # The value of a null is anything.
            bad = bad if nulls is None else bad | nulls
            return TimesOfRows(times_ms, bad, nulls)
        return TimesOfRows(times_ms, nulls, nulls)

    def are_good(self, first_ms: int, last_ms: int) -> bool:
        """Return whether all times between these two are good now."""
        return first_ms >= -EVENT_TIME_MS_MAX and last_ms <= self.latest_ms

    @property
    def latest_ms(self) -> int:
        """The latest time that is good now, ms since the epoch."""
        if self._future_ms_max is None:
            return EVENT_TIME_MS_MAX
        return min(EVENT_TIME_MS_MAX, wall_ms(self._clock) + self._future_ms_max)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._expression is None:
            return batch.column(self._column)
        assert self._input is not None
        try:
            frame = pl.DataFrame() if self._is_constant else self._input.frame(batch)
            found = frame.select(self._expression).to_series()
        except pl.exceptions.PolarsError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserFunctionError(f"event time {self._expression} failed: {reason}") from error
        if len(found) != batch.num_rows:  # a literal gives one value for all rows
            found = pl.repeat(found[0], batch.num_rows, dtype=found.dtype, eager=True)
        values = found.rechunk().to_arrow()
        return values


def _as_numpy(values: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """Times as int64, shape (rows,), and which are null; None: none is."""
    if pa.types.is_uint64(values.type):
        values = pc.min_element_wise(values, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False)
    values = values.cast(pa.int64())
    if not values.null_count:
        return values.to_numpy(zero_copy_only=True), None
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    return values.fill_null(0).to_numpy(zero_copy_only=False), nulls


def generated(generator: WatermarkGenerator, batch: pa.RecordBatch, watermark_ms: int | None) -> int | None:
    """The watermark after rows that a generator is told of; it never goes back.

    Raises:
        TypeError: the generator returned something else than an integer or None.
    """
    made = generator.on_batch(batch)
    if made is None:
        return watermark_ms
    if isinstance(made, bool) or not isinstance(made, int | np.integer):
        raise TypeError(f"on_batch returns a watermark in ms or None, not {type(made).__name__}")
    made = max(-EVENT_TIME_MS_MAX, min(int(made), EVENT_TIME_MS_MAX))
    return made if watermark_ms is None else max(made, watermark_ms)
