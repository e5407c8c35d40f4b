"""Runs a user's :class:`weir.BroadcastProcess` in a subtask."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa

from weir.author.all_keys import AllKeys, find_keys
from weir.author.broadcast_context import BroadcastContext
from weir.author.broadcast_process import BroadcastProcess, broadcast_form
from weir.author.keyed_process import takes
from weir.author.keyed_rows import declared_tables
from weir.author.operator import Json, OperatorContext
from weir.errors import GraphError, UserFunctionError, WeirError
from weir.operators.keyed.holding_operator import HoldingOperator
from weir.operators.keyed.row_times import RowTimes
from weir.operators.keyed.rule_rows import RuleRows
from weir.operators.keyed.state_codec import kept_snapshots
from weir.operators.keyed.timer_calls import UserCalls
from weir.operators.pauses import Pause
from weir.rows import row_watermarks
from weir.rows.records import WATERMARK_MAX_MS, as_authors_see, watermarks_of
from weir.rows.side_outputs import SideRows
from weir.specs.broadcast import BroadcastProcessSpec
from weir.state.tables.broadcast import BroadcastTable
from weir.state.tables.opened import OperatorTables

log = logging.getLogger(__name__)

#: Dates and dataclasses, which would be texts and objects after a restart, are refused.
_PLAIN_ONLY = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_RULES = 1


class BroadcastOperator(HoldingOperator):
    """The first input has the rows, the second one the rules."""

    tells_inputs_apart = True

    def __init__(self, spec: BroadcastProcessSpec) -> None:
        super().__init__(spec)
        self._hold_until = spec.hold_until
        self._step = spec.kind
        self._table: BroadcastTable | None = None
        self._tables: OperatorTables | None = None
        self._rule_rows = RuleRows(spec.schema, spec.side_outputs)
        #: No rule comes any more.
        self._rules_ended = False

    @staticmethod
    def _form_of(made: object) -> str:
        if not isinstance(made, BroadcastProcess):
            raise GraphError(
                f"the factory of a broadcast step returned {type(made).__name__}, not a weir.BroadcastProcess"
            )
        return broadcast_form(type(made))

    @property
    def table(self) -> BroadcastTable:
        """The dict."""
        assert self._table is not None
        return self._table

    # --- the author's object ---

    def _calls(self) -> UserCalls:
        user = self._user
        assert isinstance(user, BroadcastProcess)
        process = _with_context(user.process)
        process_batch, on_timers = _with_context(user.process_batch), user.on_timers

        def with_row(key: tuple[Any, ...], row: Any, context: BroadcastContext) -> Any:
            context.current_key = key
            return process(row, context.rules, context)

        def with_batch(batch: pa.RecordBatch, context: BroadcastContext) -> Any:
            context.current_key = None
            return process_batch(batch, context.rules, context)

        def with_timer(key: tuple[Any, ...], time_ms: int, context: Any) -> Any:
            context.current_key = key
            return user.on_timer(key, time_ms, context)

        def with_timers(batch: pa.RecordBatch, context: Any) -> Any:
            context.current_key = None
            return on_timers(batch, context)

        return UserCalls(with_row, with_batch, with_timer, with_timers)

    def _make_context(self, *given: Any) -> BroadcastContext:
        context = BroadcastContext(*given)
        context.rules = MappingProxyType(self.table.items)
        return context

    # --- beginning, and checkpoints ---

    def _is_by_key(self, codec: Mapping[str, Any]) -> bool:
        return bool(codec.get("states")) or "timers" in codec or "held" in codec

    def _codec(self) -> dict[str, Json]:
        return super()._codec() | ({} if self._hold_until is None else {"held": 1})

    def open(self, context: OperatorContext) -> None:
        """Begin with the dict of a checkpoint, open the states, then the user's operator.

        Raises:
            StateError: the stage has no store, or the checkpoint holds state that it cannot read.
        """
        self._step = context.operator_name
        self.check_restored(context)
        tables = self._tables = declared_tables(context)
        self._table = tables.broadcast("broadcast")
        for value in kept_snapshots(context, self._spec.kind).values():
            if "items" in value:
                self._table.restore(value["items"], lets_rows_go=value.get("lets_rows_go", False))
        if self._hold_until is not None:
            self._open_held(context)
        self._rule_rows.open(context)
        super().open(context)
        self._look_at_rules()

    def snapshot(self, checkpoint_id: int) -> Json:
        """Return the snapshot of the base class; one subtask of all adds the dict."""
        kept = super().snapshot(checkpoint_id)
        if self.table.is_keeper:
            # What is told must not change any more.
            kept["items"] = orjson.loads(orjson.dumps(self.table.items))
            if self._hold_until is not None:
                kept["lets_rows_go"] = self.table.lets_rows_go
        elif not self._is_by_key(kept["codec"]):
            return None
        return kept

    # --- rows and rules ---

    def process_input(
        self, input_index: int, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """Rows go through, with the dict as it is, or wait; rules change it."""
        if input_index == _RULES:
            yield from self._take_rules(batch)
            return
        if self._held is not None:
            self._look_at_rules()
            if self._is_holding or self._held:
                self._hold(batch)
                return
        yield from self.process(batch)

    def _take_rules(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """Let each rule change the dict and states as of the watermark of both inputs, and fire timers between them."""
        column = watermarks_of(batch) if self._minds_rows else None
        # While rows wait time stands still.
        if column is None or self._is_holding or self._held:
            yield from self._change(batch, None)
            return
        known_ms = max(self._watermark_ms, self._reached_ms)
        # By their own times, such as that of reading, rules may be far from the rows.
        times = RowTimes(batch, column, known_ms, self._row_firer, self._state_times, of_all=True)
        first = 0
        while first < len(times):
            times.begin(first)
            piece = batch.slice(first)
            try:
                changed = self._change(piece, times)
            except UserFunctionError as error:
                # A part of what the step was given.
                error.rows = piece
                raise
            for made in changed:
                yield row_watermarks.carried_out(piece, made)
            first += self._rule_rows.taken
            yield from self._fire_after(times, first - 1, first)

    def _change(self, batch: pa.RecordBatch, times: RowTimes | None) -> list[pa.RecordBatch | SideRows]:
        """Let rules change the dict: all of them do, or nothing is changed. Returns what they yield.

        ``times``: of these rules, of which no more are taken than come before a timer that they register.
        """
        context, items = self._context, self.table.items
        assert isinstance(context, BroadcastContext)
        assert isinstance(self._user, BroadcastProcess)
        on_broadcast = _with_context(self._user.on_broadcast)
        before = orjson.dumps(items)
        shown = as_authors_see(batch)
        context.begin(shown, None)
        context.begin_rules(self._all_keys)

        def change(index: int, row: dict[str, Any]) -> Any:
            context.row_index = index
            if times is not None:
                times.move(index)
            return on_broadcast(row, items, context)

        try:
            made = self._rule_rows.run(shown, change, None if times is None else times.is_due_after)
            last = self._rule_rows.taken - 1
            self._check_plain(last)
            self._look_at_rules(last)
            self._call("a state that on_broadcast changed", context.end, last)
        except BaseException:
            items.clear()
            items.update(orjson.loads(before))
            raise
        finally:
            context.abandon()
        self.table.changed(orjson.loads(before))
        return made

    def _all_keys(self) -> AllKeys:
        assert self._tables is not None
        key_schema = self._spec.key_schema
        groups = self.table.groups if key_schema is not None else ()
        return find_keys(self._tables, self._states, groups, key_schema or pa.schema([]))

    def _check_plain(self, index: int) -> None:
        """Refuse rules that would be others after a restart."""
        items = self.table.items
        try:
            restored = orjson.loads(orjson.dumps(items, option=_PLAIN_ONLY))
        except TypeError as error:
            told = f"step {self._step!r}: broadcast state is not text -> JSON after on_broadcast: {error}"
            raise self._of_row(told, index) from error
        if restored != items:
            name = next(name for name, value in items.items() if restored[name] != value)
            raise self._of_row(
                f"step {self._step!r}: broadcast state is not text -> JSON after on_broadcast: item {name!r} is "
                f"{items[name]!r}, and would be {restored[name]!r} after a restart; write it so",
                index,
            )

    def _call(self, name: str, function: Callable[..., Any], index: int | None, *given: Any) -> Any:
        try:
            return function(*given)
        except Exception as error:
            # What our own code says is not about the row.
            if isinstance(error, WeirError):
                raise
            told = f"step {self._step!r}: {name} raised {type(error).__name__}: {error}"
            raise self._of_row(told, index) from error

    @staticmethod
    def _of_row(message: str, index: int | None) -> UserFunctionError:
        error = UserFunctionError(message)
        error.row_index = index
        return error

    # --- rows that wait for rules ---

    @property
    def _is_holding(self) -> bool:
        return self._held is not None and not (self.table.lets_rows_go or self._rules_ended)

    def _look_at_rules(self, index: int | None = None) -> None:
        """Look whether rows may go on now; ``index``: of the rule that may have changed that."""
        if not self._is_holding:
            return
        if self._hold_until == "first":
            self.table.lets_rows_go = bool(self.table.items)
        elif callable(self._hold_until):
            rules = MappingProxyType(self.table.items)
            self.table.lets_rows_go = bool(self._call("hold_until", self._hold_until, index, rules))

    def _ends_hold(self) -> None:
        self._rules_ended = True

    def on_input_watermark(self, input_index: int, time_ms: int) -> None:
        """Rules that have ended hold nothing back."""
        if input_index != _RULES:
            return
        was_holding = self._is_holding
        self._rules_ended = time_ms == WATERMARK_MAX_MS
        if was_holding and self._rules_ended and self._held:
            log.warning(
                "step %r: the rules have ended, and rows wait for others (hold_until): they go on with what there is",
                self._step,
            )


def _with_context(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes two arguments or three, as one that takes three."""
    # Of a bound method.
    if takes(method, 2):
        return method
    return lambda row, rules, context: method(row, rules)
