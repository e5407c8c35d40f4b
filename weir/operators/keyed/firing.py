"""Fires the timers of a keyed operator: in the order of time, in blocks whose states are read and written at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from weir.author.key_context import KeyContext
from weir.author.keyed_process import KeyedHooks
from weir.author.keyed_rows import declared_tables
from weir.author.operator import NEVER_US, OperatorContext, SetAside
from weir.author.timer_hooks import EVENT_TIMERS, PROCESSING_TIMERS, timer_hooks
from weir.author.timer_sides import TimerSide
from weir.author.timers import NoTimers, Timers
from weir.errors import UserFunctionError
from weir.operators.keyed.timer_calls import TimerCalls, UserCalls
from weir.operators.pauses import Pause
from weir.operators.step_flow import FiringParts
from weir.operators.user_operator import OutputChecker
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.rows.side_outputs import SideRows
from weir.specs import KeyedProcessSpec
from weir.state.handles.block import Cursor
from weir.state.tables.timers.timer_group import NEVER_MS
from weir.state.tables.timers.timer_table import Due

log = logging.getLogger(__name__)

#: Timers that are taken at a time: their states are in memory together.
BLOCK_TIMERS_MAX = 8_192
#: Timers that are counted when the job ends, for a message.
_COUNTED_MAX = 100_000
#: Timers that one watermark lets fire, at which the log has a word about timers that register timers for ever.
_MANY_TIMERS = 1_000_000


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
            took_s = self._timers.took_s = self._clock.monotonic_s() - began_s
            self._parts.took(len(due.keys) - len(firing.left), took_s)
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
