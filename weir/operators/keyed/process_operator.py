"""Runs a user's :class:`weir.KeyedProcess` in a subtask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.key_context import KeyContext
from weir.author.keyed_process import KeyedHooks, KeyedProcess, process_form
from weir.author.keyed_rows import declared_tables
from weir.author.operator import NEVER_US, InTimeOperator, Json, OperatorContext, TimedOperator
from weir.author.states import bind_handles, declared_states, outlasting
from weir.author.timer_hooks import TIMERS_FORM
from weir.errors import GraphError, UserFunctionError
from weir.operators.delegate import UserStep
from weir.operators.keyed.firing import TimerFirer, open_timers
from weir.operators.keyed.keyed_records import Batches, Records, known_hashes
from weir.operators.keyed.opening import open_handle
from weir.operators.keyed.operator_times import OperatorTimes
from weir.operators.keyed.row_times import RowTimes
from weir.operators.keyed.state_codec import (
    check_declared,
    check_form,
    check_key_columns,
    check_timers,
    kept_snapshots,
    key_forms,
    keyed_snapshot,
)
from weir.operators.keyed.timer_calls import UserCalls
from weir.operators.pauses import Pause
from weir.operators.user_operator import OutputChecker
from weir.rows import fired_rows, row_watermarks
from weir.rows.records import (
    KEY_HASH_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    as_authors_see,
    watermarks_of,
)
from weir.rows.row_watermarks import RowWatermarks, TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs import KeyedProcessSpec
from weir.state.handles.block import Cursor, Handle
from weir.state.tables.state_times import StateTimes


class KeyedProcessOperator(UserStep, InTimeOperator, TimedOperator):
    """Opens the declared states, calls the user's process, and checks what it yields as that of ``apply`` is."""

    def __init__(self, spec: KeyedProcessSpec) -> None:
        made = spec.factory()
        self._form = self._form_of(made)
        self._user = made
        self._spec = spec
        self._states = tuple(outlasting(state, spec.horizons) for state in declared_states(type(made)))
        self._times = OperatorTimes(self._states, spec.horizons)
        key_columns = spec.key_columns if spec.keeps_keys else ()
        self._checker = OutputChecker(spec.schema, key_columns, spec.side_outputs)
        self._context: KeyContext | None = None
        self._runner: Records | Batches | None = None
        self._firer: TimerFirer | None = None
        #: The same, if its timers may be due between two rows.
        self._row_firer: TimerFirer | None = None
        self._is_open = False
        self._watermark_ms = WATERMARK_MIN_MS
        #: As of the last row.
        self._reached_ms = WATERMARK_MIN_MS
        #: Something may happen between any two rows.
        self._minds_rows = False
        self._state_times: StateTimes | None = None
        self._key_forms: list[str | None] = []

    @staticmethod
    def _form_of(made: object) -> str:
        """What the author's object is given, "records" or "batches"."""
        if not isinstance(made, KeyedProcess):
            raise GraphError(
                f"the factory of a process step returned {type(made).__name__}, not a weir.KeyedProcess"
            )
        return process_form(type(made))

    def _calls(self) -> UserCalls:
        """What is called with rows and timers."""
        user = self._user
        assert isinstance(user, KeyedProcess)
        return UserCalls(user.process, user.process_batch, user.on_timer, user.on_timers)

    def _make_context(self, *given: Any) -> KeyContext:
        return KeyContext(*given)

    def _is_by_key(self, codec: Mapping[str, Any]) -> bool:
        """Whether anything in a checkpoint is by the key columns."""
        return True

    @property
    def user(self) -> KeyedHooks:
        """The user's object."""
        return self._user

    def check_restored(self, context: OperatorContext) -> None:
        """See :class:`Operator`."""
        needed = self._codec() | {"key_forms": key_forms(_with_keys(context), self._spec.key_columns)}
        for value in kept_snapshots(context, self._spec.kind).values():
            if self._is_by_key(value["codec"]):
                check_key_columns(context.operator_name, value["codec"], needed)
            check_declared(context.operator_name, value["codec"].get("states", {}), needed["states"])
            check_timers(context.operator_name, value["codec"].get("timers"))
            forms = value["codec"].get("form"), self._user.state_form, self._user.unsaid_form
            check_form(context.operator_name, *forms)
            self._times.check(context, value)

    def open(self, context: OperatorContext) -> None:
        """Open the states, then the user's operator.

        Raises:
            StateError: it cannot read the checkpoint's state, or the stage has no store.
        """
        self.check_restored(context)
        kept = kept_snapshots(context, self._spec.kind)
        self._key_forms = key_forms(_with_keys(context), self._spec.key_columns)
        self._times.restore(context, kept.values())
        cursor = Cursor()
        handles: dict[str, Handle] = {}
        if self._states:
            tables = declared_tables(context)
            handles = {state.name: open_handle(state, tables, cursor) for state in self._states}
        bind_handles(self._user, handles)
        self._context = self._make_context(
            cursor, tuple(handles.values()), self._spec.key_columns, context.max_parallelism
        )
        self._checker.open(context)
        calls, given = self._calls(), (context, self._context, cursor, self._checker)
        self._firer = open_timers(type(self._user), calls, self._spec, *given)
        if self._firer is not None and self._firer.goes_by_event_time:
            self._row_firer = self._firer
        self._runner = self._make_runner(calls, *given)
        if context.row_watermarks >= RowWatermarks.ALL:
            self._state_times = self._times.of_rows
            self._context.state_times = self._state_times
            self._minds_rows = self._row_firer is not None or self._state_times is not None
        self._is_open = True
        self._user.open(replace(context, tables=None, restored={}))

    def _make_runner(
        self,
        calls: UserCalls,
        context: OperatorContext,
        key_context: KeyContext,
        cursor: Cursor,
        checker: OutputChecker,
    ) -> Records | Batches:
        if self._form == "batches":
            return Batches(calls.process_batch, checker, key_context)
        spec = self._spec
        records = Records(
            calls.process, spec.schema, spec.key_columns, cursor, key_context, spec.side_outputs
        )
        records.open(context)
        return records

    def _codec(self) -> dict[str, Json]:
        codec = {
            "keys": list(self._spec.key_columns),
            **({"key_forms": self._key_forms} if any(self._key_forms) else {}),
            "states": self._times.forms(),
            **({"form": self._user.state_form} if self._user.state_form is not None else {}),
        }
        return codec | {"timers": TIMERS_FORM} if self._spec.has_timers else codec

    @property
    def time_cuts(self) -> TimeCuts:
        """See the base class: timers that are there when a batch comes fire between its rows."""
        return TimeCuts.NONE if self._row_firer is None else TimeCuts.DUE

    @override
    def due_ms(self) -> int:
        return WATERMARK_MAX_MS if self._row_firer is None else self._row_firer.next_ms

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """What the user's operator makes of a batch."""
        column = watermarks_of(batch) if self._minds_rows else None
        if column is None:
            yield from self._run(batch, None)
            return
        known_ms = max(self._watermark_ms, self._reached_ms)
        times = RowTimes(batch, column, known_ms, self._row_firer, self._state_times)
        assert self._runner is not None
        assert self._context is not None
        first = 0
        while True:
            start = first
            times.begin(start)
            piece = batch.slice(start)
            for made in self._run(piece, times):
                yield row_watermarks.carried_out(piece, made)
            first += self._runner.taken
            # Of rows that are taken together nobody knows which one registered a timer.
            yield from self._fire_after(times, start if self._form == "batches" else first - 1, first)
            if first == len(times):
                return

    def _fire_after(
        self, times: RowTimes, registered: int, stop: int
    ) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """What timers make that are due after the rows before ``stop``, as of ``registered`` at the earliest."""
        assert self._context is not None
        self._reached_ms = times.as_of_ms(stop - 1)
        self._context.reached_ms = times.as_of_ms(registered)
        # What was registered late is due as of the row before.
        for row in (stop - 1, min(stop, len(times) - 1)):
            due_ms = times.as_of_ms(row)
            if self.due_ms() <= due_ms:
                for made in fired_rows.fired_in_order(self._turn(due_ms, late=row < stop), due_ms - 1):
                    if not isinstance(made, Pause):
                        yield made
                    elif row == stop and self.set_aside is None:
                        yield Pause(stop)

    def _run(self, batch: pa.RecordBatch, times: RowTimes | None) -> Iterator[pa.RecordBatch | SideRows]:
        """What the user's operator makes of the rows up to the first before which something is due."""
        context, runner = self._context, self._runner
        assert context is not None
        assert runner is not None
        shown = as_authors_see(batch)
        hashes: np.ndarray | None = known_hashes(batch, KEY_HASH_COLUMN)
        context.begin(shown, hashes)
        try:
            yield from runner.run(shown, times)
        except BaseException as error:
            context.abandon()
            if isinstance(error, UserFunctionError) and error.rows is None:
                # A part of what the step was given.
                error.rows = batch
            raise

    def due_us(self) -> int:
        """When a timer is due."""
        return NEVER_US if self._firer is None else self._firer.due_us()

    def on_time(self) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """What the user's operator makes of timers by the clock, and of late ones."""
        if self._firer is not None:
            yield from self._firer.on_time(self.set_aside)

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """What the user's operator makes of timers that are due, then of the watermark."""
        return self._turn(time_ms)

    def _turn(self, time_ms: int, *, late: bool = False) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """As :meth:`on_watermark`; ``late``: only timers are due that were registered late."""
        if time_ms < self._watermark_ms:
            return
        self._watermark_ms = time_ms
        self._times.announce(time_ms)
        context = self._context
        if self._firer is not None and context is not None:
            yield from self._rung(self._firer.on_watermark(time_ms, self.set_aside), late=late)
        if context is not None and time_ms < WATERMARK_MAX_MS:
            context.reached_ms = max(context.reached_ms, time_ms)
        # Values expire after that: timers that were due before find them.
        self._times.advance(time_ms)
        yield from self._checked("on_watermark", self._user.on_watermark(time_ms))

    def _rung(
        self, outputs: Iterator[pa.RecordBatch | SideRows | Pause], *, late: bool = False
    ) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        if not self._minds_rows:
            yield from outputs
            return
        assert self._context is not None
        before_ms = self._context.reached_ms
        for made in outputs:
            if isinstance(made, Pause):
                yield made
                continue
            rung = fired_rows.rung(made, before_ms, late=late)
            # What is made of many timers at once comes in any order.
            yield fired_rows.in_order(rung) if self._form == "batches" else rung

    def finish(self) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """What the user's operator makes of all timers by event time, then of the end."""
        if self._firer is not None and self._context is not None:
            yield from self._rung(self._firer.finish(self.set_aside))
        yield from self._checked("finish", self._user.finish())

    def _checked(self, method: str, made: object) -> Iterator[pa.RecordBatch]:
        return self._checker.each(method, () if made is None else made, None)

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes of the states mean, and what time it is for their TTLs."""
        return keyed_snapshot(self._spec.kind, self._codec(), **self._times.to_json())

    def close(self) -> None:
        """Close the user's operator, if it was opened."""
        if self._is_open:
            self._user.close()


def _with_keys(context: OperatorContext) -> pa.Schema | None:
    """A schema with the key columns: what authors' code returns need not have them."""
    return context.schema if context.input_schema is None else context.input_schema
