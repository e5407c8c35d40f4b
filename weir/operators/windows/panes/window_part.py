"""The operator that adds up rows before the exchange of windows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from weir.author.operator import Operator
from weir.errors import WeirError
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.aggregation.packed_cells import packed
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.pane_times import panes_of
from weir.operators.windows.panes.told import ToldCells
from weir.operators.windows.sessions.session_aggregates import session_folds
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    SYSTEM_COLUMNS,
    as_authors_see,
    int64_column,
    system_schema,
    taken,
    watermarks_of,
)
from weir.specs.window_parts import ALL_ROWS_KEY, WindowPartSpec
from weir.specs.window_updates import WindowUpdates

#: Of a batch with more different keys and panes than this share of its rows only those of hot keys are added up.
_GROUPS_SHARE = 0.5
#: A key and pane is hot with at least this share of the rows, if all hot ones together have at least the other one.
_HOT_SHARE, _ALL_HOT_SHARE = 1 / 16, 0.25
#: After such a batch so many pass without a look.
_PASSED = 15


class WindowPartOperator(Operator):
    """Adds up the rows of a batch that go to one pane of one key. Keeps nothing from one batch to the next.

    Where most keys come once in a batch, only rows of hot keys are added up, and without any all rows pass as they are:
    looking at keys then costs more than it saves.
    """

    def __init__(self, spec: WindowPartSpec) -> None:
        self._spec = spec
        self._can_combine = spec.can_combine
        self._folds = part_folds(spec)
        self._schema = system_schema(spec.output_schema(spec.kind, (spec.input_schema,)))
        self._names = self._schema.names
        panes = panes_of(spec.window)
        # Whether a row is late for sessions depends on its very time.
        is_session = spec.window.kind == "session"
        self._pane_ms, self._offset_ms = (1, 0) if is_session else (panes.pane_ms, panes.offset_ms)
        # By the clock rows belong to the pane in which they arrive.
        self._is_one_pane = spec.window.time == "processing" or spec.window.kind == "global"
        self._passed = 0

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return one batch, with as many rows or fewer."""
        if not batch.num_rows:
            return ()
        # Rows of one pane are not late together.
        tells_late = watermarks_of(batch) is not None
        batch = as_authors_see(batch)
        if not self._spec.key_columns:
            keys = pa.array(np.zeros(batch.num_rows, dtype=np.int8))
            batch = batch.append_column(pa.field(ALL_ROWS_KEY, pa.int8(), nullable=False), keys)
        if tells_late or not self._can_combine or batch.num_rows < self._spec.rows_min:
            return (self._as_they_came(batch),)
        if self._passed > 0:
            self._passed -= 1
            return (self._as_they_came(batch),)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        panes = pa.array(times_ms * 0 if self._is_one_pane else (times_ms - self._offset_ms) // self._pane_ms)
        columns = [*(batch.column(name) for name in self._spec.result_keys), panes]
        names = [*self._spec.result_keys, "pane"]
        groups = weir_keys.key_bytes(pa.RecordBatch.from_arrays(columns, names), names)
        firsts, _, inverse = weir_keys.distinct_keys(weir_keys.hash_keys(groups), groups)
        try:
            if len(firsts) <= max(1, _GROUPS_SHARE * batch.num_rows):
                return (self._added_up(batch, firsts, inverse),)
            return (self._hot_added_up(batch, firsts, inverse),)
        except WeirError:
            # A sum passes 64 bits: whether it does so with rows from elsewhere, the windows find out.
            return (self._as_they_came(batch),)

    def _hot_added_up(self, batch: pa.RecordBatch, firsts: np.ndarray, inverse: np.ndarray) -> pa.RecordBatch:
        """Rows of hot keys added up, the others as they came; ``firsts``, ``inverse``: of ``distinct_keys``."""
        counts = np.bincount(inverse, minlength=len(firsts))
        hot = np.flatnonzero(counts >= max(2.0, _HOT_SHARE * batch.num_rows))
        if counts[hot].sum() < _ALL_HOT_SHARE * batch.num_rows:
            self._passed = _PASSED
            return self._as_they_came(batch)
        numbers = np.full(len(firsts), -1, dtype=np.int64)
        numbers[hot] = np.arange(len(hot))
        of_rows = numbers[inverse]
        rows = np.flatnonzero(of_rows >= 0)
        added = self._added_up(taken(batch, rows), np.searchsorted(rows, firsts[hot]), of_rows[rows])
        others = taken(batch, np.flatnonzero(of_rows < 0))
        return pa.concat_batches([self._as_they_came(others), added])

    def _as_they_came(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        nothing = pa.nulls(batch.num_rows, pa.binary())
        return pa.RecordBatch.from_arrays(
            [columns.get(name, nothing) for name in self._names], schema=self._schema
        )

    def _added_up(self, batch: pa.RecordBatch, firsts: np.ndarray, inverse: np.ndarray) -> pa.RecordBatch:
        count, folds = len(firsts), self._folds
        cells = Cells(
            np.zeros((count, folds.cell_count), dtype=np.int64),
            np.zeros((count, -(-folds.cell_count // 8)), dtype=np.uint8),
        )
        folds.take(inverse.astype(np.int32), cells, batch, folds.masks(batch))
        parts = packed(np.bincount(inverse, minlength=count), cells)
        leading = pa.array(firsts)
        kept = {*self._spec.result_keys, *SYSTEM_COLUMNS}
        columns = []
        for field in self._schema:
            if field.name in kept:
                columns.append(batch.column(field.name).take(leading))
            elif field.name in batch.schema.names:
                columns.append(pa.nulls(count, field.type))
            else:
                columns.append(parts)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def part_folds(spec: WindowPartSpec) -> Folds:
    """The accumulators of a step."""
    if spec.updates != WindowUpdates():
        return ToldCells(spec).folds
    if spec.window.kind == "session":
        return session_folds(spec.aggregates, spec.input_schema, spec.own_cells_at)
    return Folds(spec.aggregates, spec.input_schema)
