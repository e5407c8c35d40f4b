"""``context.timers``: what authors of keyed operators register and delete timers with."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from weir.author.timer_sides import TimerSide
from weir.clock import Clock
from weir.errors import GraphError, StateError
from weir.rows.records import WATERMARK_MIN_MS
from weir.state.handles.block import Cursor, Keys

#: Times of timers are between the years 1 and 9999: what is outside is in another unit.
TIME_MS_MIN = -62_135_596_800_000
TIME_MS_MAX = 253_402_300_799_999


class Timers:
    """Timers of a subtask's keys, each a pair of a key and a time; one that is registered twice fires once.

    A time is a number of ms since the epoch. Per record it is for the current key; with ``keys`` it is an array (or a
    Polars series, or a list) with one time for each of them.
    """

    def __init__(
        self, event: TimerSide | None, processing: TimerSide, cursor: Cursor, clock: Clock, owner: str = ""
    ) -> None:
        """``event`` is None for an ``owner`` (step and class, for messages) whose timers all go by the clock."""
        self._event = event
        self._processing = processing
        self._cursor = cursor
        self._clock = clock
        self._owner = owner
        #: The event time up to which timers have fired, the one of now included; ``weir.rows.records.WATERMARK_MIN_MS``
        #: before the first watermark.
        self.watermark_ms = WATERMARK_MIN_MS
        #: Whether the input has ended: every timer that is registered by event time fires at once.
        self.at_end = False
        #: Whether the timer that fires was registered by the clock.
        self.is_processing = False
        #: How long the timers that fired last took by the clock, with what they wrote: rows waited. 0: none has.
        self.took_s = 0.0

    @property
    def now_ms(self) -> int:
        """The clock, ms since the epoch: what timers by the clock are compared with."""
        return self._clock.now_us() // 1000

    def register(self, time_ms: Any, keys: Keys | None = None) -> None:
        """Fire when the watermark reaches a time: no row before it comes any more, unless it is late.

        Raises:
            GraphError: the class says that its timers go by the clock.
            TypeError, ValueError: it is no time.
            StateError: there is no current key.
        """
        self._change(self._by_event("register"), "register", time_ms, keys, is_live=True)

    def register_ends(self, ends_ms: np.ndarray, keys: Keys) -> None:
        """Register ends of windows: int64, one for each key. They may be any time that rows have."""
        self._by_event("register_ends").change_many(keys, ends_ms, is_live=True)

    def delete(self, time_ms: Any, keys: Keys | None = None) -> None:
        """Take back what :meth:`register` was given; a timer that is not there is no error.

        Raises:
            GraphError: the class says that its timers go by the clock.
            TypeError, ValueError: it is no time.
            StateError: there is no current key.
        """
        self._change(self._by_event("delete"), "delete", time_ms, keys, is_live=False)

    def register_processing(self, time_ms: Any, keys: Keys | None = None) -> None:
        """Fire when the clock (:attr:`now_ms`) reaches a time.

        Raises:
            TypeError, ValueError: it is no time.
            StateError: there is no current key.
        """
        self._change(self._processing, "register_processing", time_ms, keys, is_live=True)

    def delete_processing(self, time_ms: Any, keys: Keys | None = None) -> None:
        """Take back what :meth:`register_processing` was given; a timer that is not there is no error.

        Raises:
            TypeError, ValueError: it is no time.
            StateError: there is no current key.
        """
        self._change(self._processing, "delete_processing", time_ms, keys, is_live=False)

    def _by_event(self, method: str) -> TimerSide:
        if self._event is None:
            raise GraphError(
                f'{self._owner} calls timers.{method}, but declares timer_time = "processing": its timers go by the '
                f"clock; call {method}_processing, or leave timer_time out"
            )
        return self._event

    def _change(
        self, side: TimerSide, method: str, time_ms: Any, keys: Keys | None, *, is_live: bool
    ) -> None:
        if keys is not None:
            side.change_many(keys, _times(method, time_ms, len(keys)), is_live=is_live)
            return
        block, position = self._cursor.block, self._cursor.index
        if block is None or position is None:
            raise StateError(
                f"timers.{method} has no current key here: use it in process or on_timer, below `for index in "
                "context.visit(keys)`, or give it the keys: timers.register(times_ms, keys)"
            )
        side.change(block, position, _time(method, time_ms), is_live=is_live)


class NoTimers:
    """``context.timers`` of a class that has nothing to be called with when one fires."""

    def __init__(self, step: str, name: str) -> None:
        self._told = (
            f"step {step!r}: {name} uses context.timers, but has no on_timer(self, key, time_ms, context) for when one "
            "fires; define it"
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse.

        Raises:
            GraphError: always.
        """
        raise GraphError(self._told)


def _time(method: str, time_ms: Any) -> int:
    try:
        # To Python it is an integer.
        if isinstance(time_ms, bool):
            raise TypeError
        value = operator.index(time_ms)
    except TypeError:
        raise TypeError(
            f"timers.{method} was given {time_ms!r}; it takes a time in ms since the epoch, an integer"
        ) from None
    if not TIME_MS_MIN <= value <= TIME_MS_MAX:
        raise ValueError(
            f"timers.{method} was given {value}, which is not between the years 1 and 9999 in ms since the epoch; "
            "is it in another unit?"
        )
    return value


def _times(method: str, times_ms: Any, count: int) -> np.ndarray:
    if isinstance(times_ms, pa.Array | pa.ChunkedArray):
        times_ms = pl.Series(times_ms)
    if not isinstance(times_ms, pl.Series | np.ndarray):
        times_ms = pl.Series(times_ms)
    if isinstance(times_ms, pl.Series):
        if times_ms.null_count():
            raise TypeError(f"timers.{method} was given a null; a timer needs a time in ms since the epoch")
        times_ms = times_ms.to_numpy()
    if len(times_ms) != count:
        raise ValueError(
            f"timers.{method} was given {len(times_ms):,} times for {count:,} keys; give one each"
        )
    if not np.issubdtype(times_ms.dtype, np.integer):
        if count == 0:
            return np.empty(0, np.int64)
        raise TypeError(
            f"timers.{method} was given times as {times_ms.dtype}; it takes ms since the epoch, integers"
        )
    if count:
        for time_ms in (times_ms.min(), times_ms.max()):
            _time(method, time_ms)
    checked: np.ndarray = times_ms.astype(np.int64, copy=False)
    return checked
