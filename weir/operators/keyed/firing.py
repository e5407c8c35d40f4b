"""Fires the timers of a keyed operator: in the order of time, in blocks whose states are read and written at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from weir.author.key_context import KeyContext
from weir.author.keyed_process import KeyedHooks
from weir.author.keyed_rows import declared_tables
from weir.author.operator import NEVER_US, OperatorContext, SetAside
from weir.author.timer_hooks import EVENT_TIMERS, PROCESSING_TIMERS, timer_hooks
from weir.author.timer_sides import Firing, TimerSide
from weir.author.timers import NoTimers, Timers
from weir.errors import UserFunctionError, WeirError
from weir.keys import hashing as weir_keys
from weir.operators.pauses import Pause
from weir.operators.side_rows import SideDicts
from weir.operators.stateless.functions import FlatMapOperator
from weir.operators.step_flow import FiringParts
from weir.operators.user_operator import OutputChecker
from weir.rows import fired_rows
from weir.rows.records import BATCH_BYTES_MAX, WATERMARK_MAX_MS, WATERMARK_MIN_MS, with_times
from weir.rows.row_watermarks import RowWatermarks
from weir.rows.side_outputs import SideRows
from weir.specs import FlatMapSpec, KeyedProcessSpec, SideOutput
from weir.state.handles.block import Cursor, Keys
from weir.state.tables.timers.time_first import times_of, user_key_of
from weir.state.tables.timers.timer_group import NEVER_MS
from weir.state.tables.timers.timer_table import Due

log = logging.getLogger(__name__)

#: Timers that are taken at a time: their states are in memory together.
BLOCK_TIMERS_MAX = 8_192
#: Timers that are counted when the job ends, for a message.
_COUNTED_MAX = 100_000
#: Timers that one watermark lets fire, at which the log has a word about timers that register timers for ever.
_MANY_TIMERS = 1_000_000
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
        column = weir_keys.KeyColumn.from_list([user_key_of(key) for key in firing.keys])
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
        column = weir_keys.KeyColumn.from_list([user_key_of(key) for key in waiting])
        keys = Keys(weir_keys.hash_keys(column), column, self._max_parallelism)
        arrays = weir_keys.decode_keys(column, self._key_schema.types)
        plain = pa.RecordBatch.from_arrays(arrays, schema=self._key_schema)
        times_ms = times_of(waiting)
        batch = with_times(plain, times_ms, self._clock.now_us())
        context, first = self._context, 0
        for stop in self._stops(firing, waiting, keys):
            if firing.stops_before(waiting[first], self._is_over):
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


class TimerFirer:
    """Knows what is due, and fires it. One for each keyed operator that has timers, in a subtask."""

    def __init__(
        self,
        calls: TimerCalls,
        timers: Timers,
        event: TimerSide | None,
        processing: TimerSide,
        context: KeyContext,
    ) -> None:
        """``event`` is None for a class whose timers all go by the clock."""
        self._calls = calls
        self._timers = timers
        self._event = event
        self._processing = processing
        self._context = context
        self._step = ""
        self._watermark_ms = WATERMARK_MIN_MS
        #: Whether the subtask looks around between parts.
        self._pauses = False
        #: Whether rows came before timers that are due by the clock.
        self._is_behind = False
        self._parts = FiringParts(BLOCK_TIMERS_MAX, is_timed=False)

    def open(self, context: OperatorContext) -> None:
        """Take the step's name."""
        self._step, self._clock = context.operator_name, context.clock
        self._pauses = context.fires_in_parts
        self._parts = FiringParts(BLOCK_TIMERS_MAX, is_timed=self._pauses)
        self._calls.open(context)

    @property
    def goes_by_event_time(self) -> bool:
        """Return whether any of its timers may: else none is due between two rows."""
        return self._event is not None

    @property
    def next_ms(self) -> int:
        """The lowest watermark at which a timer is due, as of the end of the last batch."""
        return NEVER_MS if self._event is None else self._event.table.next_ms()

    @property
    def lowest_new_ms(self) -> int:
        """The lowest time by event time that was registered in this batch."""
        return NEVER_MS if self._event is None else self._event.lowest_ms

    def due_us(self) -> int:
        """Wall clock (epoch µs) at which a timer is due, 0: now; ``NEVER_US``."""
        watermark_ms = self._watermark_ms
        if watermark_ms != WATERMARK_MIN_MS and self.next_ms <= watermark_ms:
            return 0
        next_ms = self._processing.table.next_ms()
        return NEVER_US if next_ms == NEVER_MS else next_ms * 1000

    def reach(self, time_ms: int) -> None:
        """The watermark as of the rows that come next: what was due by then has fired."""
        self._watermark_ms = self._timers.watermark_ms = max(time_ms, self._watermark_ms)

    def on_watermark(
        self, time_ms: int, set_aside: SetAside | None
    ) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """Fire what is due by event time; ``set_aside`` takes timers that make the author's code raise."""
        self.reach(time_ms)
        self._timers.at_end = self._watermark_ms == WATERMARK_MAX_MS
        if self._event is not None:
            yield from self._fire(self._event, time_ms, set_aside)
        self.reach(time_ms)

    def on_time(self, set_aside: SetAside | None) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """Fire what is due by the clock, and by event time what was registered late.

        Of much that is due by the clock a part: rows that wait come before the next one, which :meth:`due_us` tells.
        After an outage they would wait for all timers that were due meanwhile.
        """
        if self._event is not None and self._watermark_ms != WATERMARK_MIN_MS:
            yield from self._fire(self._event, self._watermark_ms, set_aside)
            self.reach(self._watermark_ms)
        longest_s = self._parts.longest_s if self._pauses else None
        yield from self._fire_by_clock(set_aside, longest_s)

    def _fire_by_clock(
        self, set_aside: SetAside | None, longest_s: float | None
    ) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """Fire what is due by the clock; no part of it begins after so many seconds."""
        now_ms = self._timers.now_ms
        self._timers.is_processing = True
        try:
            yield from self._fire(self._processing, now_ms, set_aside, longest_s)
            self._is_behind = self._processing.table.next_ms() <= now_ms
        finally:
            self._timers.is_processing = False

    def finish(self, set_aside: SetAside | None) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """The input has ended: fire everything by event time, and tell of what is left."""
        if self._is_behind:
            # They were due before its last rows.
            yield from self._fire_by_clock(set_aside, None)
        yield from self.on_watermark(WATERMARK_MAX_MS, set_aside)
        left = sum(1 for _ in islice(self._processing.table.pending(), _COUNTED_MAX))
        if left:
            log.warning(
                "step %r: the input has ended; %s%d timers by the clock do not fire any more",
                self._step,
                "at least " if left == _COUNTED_MAX else "",
                left,
            )

    def _fire(
        self, side: TimerSide, until_ms: int, set_aside: SetAside | None, longest_s: float | None = None
    ) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        until_ms = min(until_ms, NEVER_MS - 1)
        fired, first_s = 0, self._clock.monotonic_s()
        while True:
            began_s = self._clock.monotonic_s()
            if longest_s is not None and began_s - first_s >= longest_s:
                return
            due = self._take(side, until_ms, one=set_aside is not None)
            if not due.keys:
                return
            firing = side.begin(due, one_by_one=self._calls.is_one_by_one)
            self._calls.ends_s = began_s + self._parts.longest_s if self._pauses else None
            try:
                made = self._calls.run(firing)
                # Of a timer that is put aside nothing may have left.
                yield from made if set_aside is None else list(made)
            except BaseException as error:
                self._context.abandon()
                if isinstance(error, UserFunctionError) and error.rows is None:
                    error.rows = self._calls.shown(firing)
                if set_aside is None or not set_aside(self._calls.shown(firing), error):
                    raise
                side.table.change(dict.fromkeys(due.keys, False))
            self._parts.took(len(due.keys) - len(firing.left), self._clock.monotonic_s() - began_s)
            before, fired = fired, fired + firing.fired
            if before < _MANY_TIMERS <= fired:
                self._tell_many(fired, firing.reached_ms)
            if self._pauses and side.table.next_ms() <= until_ms:
                yield Pause()

    def _tell_many(self, fired: int, time_ms: int) -> None:
        log.warning(
            "step %r: %d timers have fired at one watermark, the last one at %d; if on_timer registers the next timer "
            "again and again, that never ends: let it ask context.timers.at_end",
            self._step,
            fired,
            time_ms,
        )

    def _take(self, side: TimerSide, until_ms: int, *, one: bool) -> Due:
        """Timers of the next part: all that are due up to a time, or some of those of one time; none: none is due."""
        table, parts = side.table, self._parts
        count = 1 if one else parts.count
        while (first_ms := table.next_ms()) <= until_ms:
            stop_ms = parts.until_ms(first_ms, until_ms)
            due = table.take(stop_ms, count)
            while len(due.keys) == count and stop_ms > first_ms:
                # Groups that were not looked at may have earlier ones.
                table.give_back(due)
                stop_ms = parts.narrowed_ms(first_ms, stop_ms)
                due = table.take(stop_ms, count)
            if due.keys:
                return due
        return Due([], [])


def open_timers(
    kind: type[KeyedHooks],
    user: UserCalls,
    spec: KeyedProcessSpec,
    context: OperatorContext,
    key_context: KeyContext,
    cursor: Cursor,
    checker: OutputChecker,
) -> TimerFirer | None:
    """Open the timers of a user's operator; None if its class (``kind``) has nothing to be called when one fires.

    Raises:
        StateError: the stage has no store.
    """
    if not spec.has_timers or spec.key_schema is None:
        key_context.use_timers(NoTimers(context.operator_name, kind.__name__))
        return None
    tables = declared_tables(context)
    event = TimerSide(tables.timers(EVENT_TIMERS)) if kind.timer_time == "any" else None
    processing = TimerSide(tables.timers(PROCESSING_TIMERS))
    owner = f"step {context.operator_name!r}: {kind.__name__}"
    timers = Timers(event, processing, cursor, context.clock, owner)
    key_context.use_timers(timers, (processing,) if event is None else (event, processing))
    hooks = timer_hooks(kind)
    calls = TimerCalls(
        user.on_timer if "on_timer" in hooks else None,
        user.on_timers if "on_timers" in hooks else None,
        spec.schema,
        spec.key_schema,
        checker,
        key_context,
        spec.side_outputs,
    )
    firer = TimerFirer(calls, timers, event, processing, key_context)
    firer.open(context)
    return firer
