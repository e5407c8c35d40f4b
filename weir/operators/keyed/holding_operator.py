"""A keyed process whose rows may have to wait until something else has come."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa
from typing_extensions import override

from weir.author.keyed_rows import declared_tables
from weir.author.operator import HoldsRows, OperatorContext
from weir.operators.keyed.held_rows import HeldRows
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.operators.pauses import Pause
from weir.operators.step_flow import PartRows
from weir.rows import fired_rows, row_watermarks
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, watermarks_of
from weir.rows.side_outputs import SideRows
from weir.specs import KeyedProcessSpec
from weir.specs.broadcast import HELD_STATE

log = logging.getLogger(__name__)

#: Of rows that wait in one subtask: no more is asked for than comes on top of them.
HELD_BYTES_MAX = 64 << 20


class HoldingOperator(KeyedProcessOperator, HoldsRows):
    """Hands rows on, or keeps them in their order and with the watermark as of each."""

    def __init__(self, spec: KeyedProcessSpec) -> None:
        super().__init__(spec)
        self._name = spec.kind
        #: None: rows never wait.
        self._held: HeldRows | None = None
        #: The watermark as of the last row that waits.
        self._held_ms = WATERMARK_MIN_MS
        #: The watermark that it was told of while it had rows that wait.
        self._told_ms = WATERMARK_MIN_MS
        #: How many rows go on before a barrier may pass, with what is left in the state; None: all.
        self._parts: PartRows | None = None

    @property
    @abstractmethod
    def _is_holding(self) -> bool:
        """Return whether rows have to wait now."""

    @abstractmethod
    def _ends_hold(self) -> None:
        """The input has ended: no row has to wait any more."""

    def _open_held(self, context: OperatorContext) -> None:
        """Rows may have to wait; called before :meth:`open`.

        Raises:
            StateError: the stage has no store.
        """
        self._name = context.operator_name
        table = declared_tables(context).held(HELD_STATE, HELD_BYTES_MAX)
        self._held = HeldRows(table, context.max_parallelism)
        self._clock = context.clock
        if context.fires_in_parts:
            self._parts = PartRows(context.batch_size)

    def _hold(self, batch: pa.RecordBatch) -> None:
        """Rows have to wait."""
        assert self._held is not None
        was_full = self.is_full
        column = watermarks_of(batch) if self._minds_rows else None
        as_of_ms = None
        if column is not None:
            _, as_of_ms = row_watermarks.as_of(batch, column, self._held_ms)
            self._held_ms = int(as_of_ms[-1])
        self._held.put(batch, as_of_ms)
        if self.is_full and not was_full:
            log.warning(
                "step %r: %d MiB of rows wait for rules (hold_until); it takes no more until these come",
                self._name,
                HELD_BYTES_MAX >> 20,
            )

    @property
    def holds_time(self) -> bool:
        """Return whether time is held: until there are the rules, and the rows that waited for them have left."""
        return self._held is not None and (self._is_holding or bool(self._held))

    @property
    @override
    def is_full(self) -> bool:
        return self._held is not None and self._held.size_bytes >= HELD_BYTES_MAX

    @property
    @override
    def may_release(self) -> bool:
        return bool(self._held) and not self._is_holding

    def release(self, watermark_ms: int) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """What the user's operator makes of rows that need not wait any more, as if they came now.

        They may be many, and the operator slow.
        """
        assert self._held is not None
        parts = self._parts
        while (batch := self._held.take(None if parts is None else parts.rows)) is not None:
            began_s = self._clock.monotonic_s()
            batch = row_watermarks.standing_still(batch, watermark_ms)
            yield from self._fire_before(batch)
            yield from self._let_go(batch)
            if parts is not None and self._held:
                parts.took(batch.num_rows, self._clock.monotonic_s() - began_s)
                yield Pause()
        told_ms, self._told_ms = self._told_ms, WATERMARK_MIN_MS
        if told_ms != WATERMARK_MIN_MS:
            for made in _without_pauses(super().on_watermark(told_ms)):
                yield fired_rows.fired_out(made, told_ms - 1) if self._minds_rows else made

    def _fire_before(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Yield what timers make that are due before the first row; those between rows of a batch fire in it."""
        column = watermarks_of(batch) if self._minds_rows else None
        if column is None:
            return
        first = batch.slice(0, 1)
        _, as_of_ms = row_watermarks.as_of(first, column[:1], max(self._watermark_ms, self._reached_ms))
        due_ms = int(as_of_ms[0])
        if self.due_ms() <= due_ms:
            yield from _without_pauses(fired_rows.fired_in_order(self._turn(due_ms), due_ms - 1))

    def _let_go(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Yield what comes of rows, as of their time; one by one where rows that make the author's code raise go."""
        if self.set_aside is None:
            for made in _without_pauses(self.process(batch)):
                yield row_watermarks.carried_out(batch, made)
            return
        for index in range(batch.num_rows):
            row = batch.slice(index, 1)
            try:
                made_of_row = _without_pauses(self.process(row))
                left = [row_watermarks.carried_out(row, made) for made in made_of_row]
            except Exception as error:
                if not self.set_aside(row, error):
                    raise
                continue
            yield from left

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch | SideRows]:
        """Take the watermark as the base class does, after the rows that wait."""
        if self._held:
            self._told_ms = max(self._told_ms, time_ms)
        else:
            yield from super().on_watermark(time_ms)

    def finish(self) -> Iterator[pa.RecordBatch | SideRows]:
        """What is made of rows that wait, then as of the base class."""
        self._ends_hold()
        if self.may_release:
            yield from _without_pauses(self.release(WATERMARK_MAX_MS))
        yield from super().finish()


def _without_pauses(
    outputs: Iterable[pa.RecordBatch | SideRows | Pause],
) -> Iterator[pa.RecordBatch | SideRows]:
    """Rows that were taken are in no state any more until all of them have left: no barrier may pass meanwhile."""
    return (made for made in outputs if not isinstance(made, Pause))
