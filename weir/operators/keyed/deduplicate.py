"""Passes on the first row of each key, and drops those that follow it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import InTimeOperator, Json, OperatorContext
from weir.author.states import ValueState, outlasting
from weir.keys import hashing as weir_keys
from weir.keys.division import row_hashes
from weir.operators.keyed import row_kernels as kernels
from weir.operators.keyed.operator_times import OperatorTimes
from weir.operators.keyed.state_codec import (
    check_declared,
    check_key_columns,
    kept_snapshots,
    key_forms,
    keyed_snapshot,
)
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS, int64_column
from weir.rows.row_watermarks import TimeCuts
from weir.specs import DeduplicateSpec
from weir.state.handles.block import Cursor, Keys
from weir.state.handles.cell_values import CellHandle
from weir.state.handles.expiring_cells import ExpiringCellHandle
from weir.state.ttl import Ttl


class _DatedByValue(ExpiringCellHandle):
    """A cell whose value is its time: it expires when the watermark is so far above the value.

    Each row compares itself with what is there: only what no row looks at any more is passed over.
    """

    def _cut_ms(self) -> int:
        return self._expiry.passed_cut_ms

    def _write(self, keys: Keys, rows: np.ndarray, cells: np.ndarray, present: np.ndarray) -> None:
        self._expiry.begin(keys.hashes)
        times = cells.view(np.int64)
        stamps = np.maximum(times, self._expiry.first_ms)
        presence = present.astype(np.uint8).reshape(-1, 1) * np.uint8(3)
        column = keys.column
        self._table.write(
            keys.hashes, column.data, column.offsets, rows, np.stack([times, stamps], axis=1), presence
        )


def deduplicated_state(spec: DeduplicateSpec) -> ValueState:
    """What is kept of a key: the event time of the row that was passed on last."""
    within_ms = spec.within_ms
    ttl = None if within_ms is None else Ttl(dt.timedelta(milliseconds=within_ms))
    state = ValueState(pl.Int64, ttl=ttl)
    state.__set_name__(DeduplicateOperator, "seen")
    return outlasting(state, spec.horizons)


class DeduplicateOperator(InTimeOperator):
    """The state of a key is one number: the event time of the row that was passed on last."""

    def __init__(self, spec: DeduplicateSpec) -> None:
        self._spec = spec
        self._state = deduplicated_state(spec)
        self._times = OperatorTimes([self._state], spec.horizons)
        self._handle: CellHandle | None = None
        self._max_parallelism = 0
        self._key_forms: list[str | None] = []

    def check_restored(self, context: OperatorContext) -> None:
        """Check that the restored state has today's key columns, as :class:`Operator` asks."""
        needed = self._codec() | {"key_forms": key_forms(context.schema, self._spec.key_columns)}
        for value in kept_snapshots(context, self._spec.kind).values():
            check_key_columns(context.operator_name, value["codec"], needed)
            check_declared(context.operator_name, value["codec"]["states"], needed["states"])
            self._times.check(context, value)

    def open(self, context: OperatorContext) -> None:
        """Open the state.

        Raises:
            StateError: there is no store, or a checkpoint's state cannot be read with this spec.
        """
        self.check_restored(context)
        kept = kept_snapshots(context, self._spec.kind)
        self._key_forms = key_forms(context.schema, self._spec.key_columns)
        self._times.restore(context, kept.values())
        handle = CellHandle if self._state.ttl is None else _DatedByValue
        self._handle = handle(self._state, declared_tables(context), Cursor())
        self._max_parallelism = context.max_parallelism

    @property
    def time_cuts(self) -> TimeCuts:
        """Return how rows are cut by time: a late row does not find what others find."""
        return TimeCuts.NONE if self._spec.within_ms is None else TimeCuts.LATE | TimeCuts.EACH_LATE

    @override
    def late_keys(self, batch: pa.RecordBatch) -> np.ndarray:
        return row_hashes(batch, weir_keys.key_bytes(batch, self._spec.key_columns))

    def due_ms(self) -> int:
        """Return when keys are due: any watermark may let some expire."""
        return WATERMARK_MIN_MS

    def _codec(self) -> dict[str, Json]:
        return {
            "keys": list(self._spec.key_columns),
            **({"key_forms": self._key_forms} if any(self._key_forms) else {}),
            "states": self._times.forms(),
        }

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that are the first of their key, in their order.

        Raises:
            StateError: the store cannot be read or written.
        """
        handle = self._handle
        assert handle is not None
        keys = keys_of(batch, self._spec.key_columns, self._max_parallelism)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        try:
            seen_ms = handle.get(keys.distinct)
            if self._spec.within_ms is None:
                rows = keys.first_rows[seen_ms.is_null().to_numpy()]
            else:
                late_ms = row_watermarks.late_ms(batch, times_ms)
                rows = self._within(keys, times_ms, late_ms, seen_ms, self._spec.within_ms)
            if len(rows):
                handle.put(keys.take(rows), times_ms[rows], last=True)
        finally:
            handle.discard()
        if len(rows) == batch.num_rows:
            yield batch
        elif len(rows):
            yield batch.take(pa.array(rows))

    def _within(
        self,
        keys: Keys,
        times_ms: np.ndarray,
        late_ms: np.ndarray | None,
        seen_ms: pl.Series,
        within_ms: int,
    ) -> np.ndarray:
        present = seen_ms.is_not_null().to_numpy().astype(np.uint8)
        last_ms = seen_ms.fill_null(0).to_numpy().astype(np.int64)
        if late_ms is not None:
            # A late row, which is the first of its key, does not find what its split has passed, wherever others are.
            present &= late_ms[keys.first_rows] < last_ms + within_ms
        rows = np.empty(len(keys), dtype=np.int64)
        count = kernels.first_within(keys.inverse, times_ms, within_ms, last_ms, present, rows)
        return rows[:count]

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """Keys expire."""
        self._times.announce(time_ms)
        self._times.advance(time_ms)
        return iter(())

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes of the state mean, and what time it is."""
        return keyed_snapshot(self._spec.kind, self._codec(), **self._times.to_json())
