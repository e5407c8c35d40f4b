"""Calls the author's code of timers with a block of them, and checks what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from weir.author.key_context import KeyContext
from weir.author.operator import OperatorContext
from weir.author.timer_sides import Firing
from weir.errors import UserFunctionError, WeirError
from weir.keys import hashing as weir_keys
from weir.operators.side_rows import SideDicts
from weir.operators.stateless.functions import FlatMapOperator
from weir.operators.user_operator import OutputChecker
from weir.rows import fired_rows
from weir.rows.records import BATCH_BYTES_MAX, with_times
from weir.rows.row_watermarks import RowWatermarks
from weir.rows.side_outputs import SideRows
from weir.specs import FlatMapSpec, SideOutput
from weir.state.handles.block import Keys
from weir.state.tables.timers.time_first import times_of, user_key_of

#: Column of a timer's time, where a timer is shown as a row.
TIMER_COLUMN = "timer_ms"

#: ``on_timer(key, time_ms, context)`` returns rows, or None.
TimerFunction = Callable[[tuple[Any, ...], int, KeyContext], Iterable[Any] | None]
#: ``on_timers(batch, context)`` returns batches, or None.
TimersFunction = Callable[[pa.RecordBatch, KeyContext], Iterable[pa.RecordBatch] | None]


@dataclass(frozen=True)
class UserCalls:
    """The methods of an author's keyed operator, as the runtime calls them: with a key, rows or a time, and a context.

    One that the author has not defined is never called.
    """

    process: Callable[[tuple[Any, ...], Any, Any], Iterable[Any] | None]
    process_batch: Callable[[pa.RecordBatch, Any], Iterable[Any] | None]
    on_timer: TimerFunction
    on_timers: TimersFunction


class TimerCalls:
    """Calls the author's ``on_timer`` or ``on_timers`` with a block of timers."""

    def __init__(
        self,
        one: TimerFunction | None,
        many: TimersFunction | None,
        schema: pa.Schema,
        key_schema: pa.Schema,
        checker: OutputChecker,
        context: KeyContext,
        sides: Sequence[SideOutput] = (),
    ) -> None:
        """``many`` counts if both are there; ``key_schema`` has the key columns as they come in."""
        self._one, self._many = one, many
        self._rows = _TimerRows(FlatMapSpec(lambda row: (), schema))
        self._sides = SideDicts(sides)
        self._key_schema = key_schema
        self._checker = checker
        self._context = context
        #: Monotonic second after which no more timers of a block fire, but one; None: all do.
        self.ends_s: float | None = None

    @property
    def is_one_by_one(self) -> bool:
        """Return whether the author takes one timer at a time."""
        return self._many is None

    def open(self, context: OperatorContext) -> None:
        """Take the step's name and the size of batches."""
        self._rows.open(context)
        self._sides.open(context)
        self._max_parallelism = context.max_parallelism
        self._clock = context.clock
        self._minds_rows = context.row_watermarks >= RowWatermarks.ALL

    def run(self, firing: Firing) -> Iterator[pa.RecordBatch | SideRows]:
        """What the author's function makes of timers, as it leaves the step. Ends the block.

        Raises:
            UserFunctionError: the function raised, or returned something else than was declared.
        """
        if self._many is not None:
            return self._run_batch(firing, self._many)
        column = weir_keys.KeyColumn.from_list(list(map(user_key_of, firing.keys)))
        return self._run_one_by_one(firing, Keys(weir_keys.hash_keys(column), column, self._max_parallelism))

    def shown(self, firing: Firing) -> pa.RecordBatch:
        """The timers that are due, as rows of their keys and times."""
        column = weir_keys.KeyColumn.from_list([user_key_of(key) for key in firing.keys])
        return self._shown(weir_keys.decode_keys(column, self._key_schema.types), times_of(firing.keys))

    def _run_one_by_one(self, firing: Firing, keys: Keys) -> Iterator[pa.RecordBatch | SideRows]:
        function, context, rows = self._one, self._context, self._rows
        assert function is not None
        tuples = self._tuples(keys.distinct)
        context.begin_block(keys.distinct)
        context.begin_timers(times_of(firing.keys))
        self._sides.forget()
        results: list[dict[str, Any]] = []
        times: list[int] = []
        size_bytes = position = time_ms = 0
        may_be_long = rows.may_be_long
        #: Of a timer that a later one registered, the time of that one.
        behind_ms: int | None = None
        try:
            for time_ms, position in firing.each(keys.inverse.tolist(), self._is_over):
                now_behind_ms = firing.reached_ms if time_ms < firing.reached_ms else None
                if now_behind_ms != behind_ms:
                    yield from self._built(results, times, behind_ms)
                    results, times, size_bytes, behind_ms = [], [], 0, now_behind_ms
                context.begin_timer(position, time_ms, firing.reached_ms)
                made = function(tuples[position], time_ms, context)
                if made is None:
                    continue
                for result in made:
                    if isinstance(result, SideRows):
                        if self._sides.add(result, time_ms):
                            yield from self._built([], [], behind_ms)
                        continue
                    # The function may change its dict, and yield it again.
                    results.append(result.copy() if type(result) is dict else result)
                    times.append(time_ms)
                    if may_be_long:
                        size_bytes += rows.long_bytes(result)
                if len(results) >= rows.batch_size or size_bytes >= BATCH_BYTES_MAX:
                    yield from self._built(results, times, behind_ms)
                    results, times, size_bytes = [], [], 0
        except Exception as error:
            # What our own code says is about the store, not about the timer.
            if isinstance(error, WeirError):
                raise
            raise self._failed(tuples[position], time_ms, error) from error
        # Before states are written: what was returned may be wrong, and then nothing of the timers is to stay.
        built = list(self._built(results, times, behind_ms))
        self._end()
        yield from built

    def _is_over(self) -> bool:
        return self.ends_s is not None and self._clock.monotonic_s() >= self.ends_s

    def _built(
        self, results: list[dict[str, Any]], times_ms: list[int], behind_ms: int | None
    ) -> Iterator[pa.RecordBatch | SideRows]:
        """What timers made, and what they sent to side outputs; ``behind_ms``: a timer of this time registered them."""
        now_us = self._clock.now_us()
        if results:
            yield self._as_of(self._rows.built(results, times_ms, now_us), behind_ms)
        for rows in self._sides.built(
            lambda times: [
                pa.array(times, pa.int64()),
                pa.array(np.full(len(times), now_us, dtype=np.int64)),
            ]
        ):
            yield self._as_of(rows, behind_ms)

    def _as_of(self, made: pa.RecordBatch | SideRows, behind_ms: int | None) -> pa.RecordBatch | SideRows:
        """Rows as of the moment before this time; None: before their own."""
        if behind_ms is None or not self._minds_rows or self._context.timers.is_processing:
            return made
        return fired_rows.behind(made, behind_ms - 1)

    def _failed(self, key: tuple[Any, ...], time_ms: int, error: Exception) -> UserFunctionError:
        failed = self._rows.failed(f"on_timer for key {key!r} at {time_ms}", error)
        failed.rows = self._shown([pa.array([value]) for value in key], np.array([time_ms]))
        return failed

    def _shown(self, key_columns: list[pa.Array], times_ms: np.ndarray) -> pa.RecordBatch:
        """Timers as rows of their keys and times, for messages and dead letters."""
        return pa.record_batch(
            [*key_columns, pa.array(times_ms)], names=[*self._key_schema.names, TIMER_COLUMN]
        )

    def _run_batch(self, firing: Firing, function: TimersFunction) -> Iterator[pa.RecordBatch | SideRows]:
        while waiting := firing.waiting_keys():
            yield from self._run_parts(firing, waiting, function)
        self._end()

    def _run_parts(
        self, firing: Firing, waiting: list[bytes], function: TimersFunction
    ) -> Iterator[pa.RecordBatch | SideRows]:
        """What timers that wait make, in the order of time, up to where they change which ones wait, or it is over."""
        column = weir_keys.KeyColumn.from_list(list(map(user_key_of, waiting)))
        keys = Keys(weir_keys.hash_keys(column), column, self._max_parallelism)
        arrays = weir_keys.decode_keys(column, self._key_schema.types)
        plain = pa.RecordBatch.from_arrays(arrays, schema=self._key_schema)
        times_ms = times_of(waiting)
        batch = with_times(plain, times_ms, self._clock.now_us())
        context, first = self._context, 0
        for stop in self._stops(firing, waiting, keys):
            if firing.stops_before(int(times_ms[first]), self._is_over):
                return
            part, hashes = batch.slice(first, stop - first), keys.hashes[first:stop]
            behind_ms = firing.behind_ms(waiting[first])
            try:
                firing.begin_part(waiting[first:stop])
                context.begin(part, hashes)
                context.begin_timers(
                    times_ms[first:stop] if behind_ms is None else np.array([behind_ms]), hashes
                )
                made = function(part, context)
                for rows in self._checker.each("on_timers", () if made is None else made, part):
                    yield self._as_of(rows, behind_ms)
                context.end_part()
            except Exception as error:
                if isinstance(error, WeirError):
                    raise
                raise self._rows.failed(f"on_timers for {part.num_rows:,} timers", error) from error
            if firing.has_changed:
                return
            first = stop

    @staticmethod
    def _stops(firing: Firing, waiting: list[bytes], keys: Keys) -> Iterator[int]:
        """Ends of parts that fire together: no key is in one twice, because its timer may change the next one.

        A timer that one of a later time registered is a part of its own.
        """
        if len(keys.distinct) < len(waiting) or firing.has_behind:
            seen, is_behind = set[int](), False
            for at, position in enumerate(keys.inverse.tolist()):
                was_behind, is_behind = is_behind, firing.behind_ms(waiting[at]) is not None
                if at and (position in seen or is_behind or was_behind):
                    yield at
                    seen = set()
                seen.add(position)
        yield len(waiting)

    def _end(self) -> None:
        try:
            self._context.end()
        except (TypeError, ValueError) as error:
            raise self._rows.failed("a state that on_timer changed", error) from error

    def _tuples(self, keys: Keys) -> list[tuple[Any, ...]]:
        arrays = weir_keys.decode_keys(keys.column, self._key_schema.types)
        frame = pl.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=self._key_schema))
        assert isinstance(frame, pl.DataFrame)
        return frame.rows()


class _TimerRows(FlatMapOperator):
    """Rows that ``on_timer`` returned: checked, with the time of the timer."""

    @property
    def batch_size(self) -> int:
        """Rows at which a batch is cut."""
        return self._batch_size

    @property
    def may_be_long(self) -> bool:
        """Return whether rows have columns of values of any length; else nobody need measure them."""
        return bool(self._long_names)

    def long_bytes(self, result: Any) -> int:
        """About how many bytes the long values of a result have; what is no dict is refused when it is built."""
        return self._long_bytes(result) if isinstance(result, dict) else 0

    def built(self, results: list[dict[str, Any]], times_ms: list[int], now_us: int) -> pa.RecordBatch:
        """A batch as it leaves the step.

        Raises:
            UserFunctionError: a result is not what was declared.
        """
        names = self._names
        for result in results:
            if not isinstance(result, dict) or result.keys() != names:
                self._check_row(result)
        ingest_us = pa.array(np.full(len(results), now_us, dtype=np.int64))
        return self._build(results, [pa.array(times_ms, pa.int64()), ingest_us])

    def failed(self, call: str, error: Exception) -> UserFunctionError:
        """What to raise when a call of the author's function raised."""
        return self._error(f"{call} raised {type(error).__name__}: {error}")
