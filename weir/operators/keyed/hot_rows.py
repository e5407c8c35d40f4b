"""Rows of hot keys, added up before the exchange of running aggregates: what does it, and what the step reads of it.

A running aggregate that tells each key once per batch says the same, with the last row of the key, whether the other
rows of a batch come one by one or added up. So the last row of a hot key stands for the others of its batch: it has in
``_key_part`` the accumulators of all of them (``weir.operators.aggregation.packed_cells``), and the others are not
sent. The number beside the accumulators tells which aggregates these are of. What rows are made of is on its way
between two subtasks. A checkpoint may have it among rows that were under way, and only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import CheckpointError, WeirError
from weir.keys import hashing as weir_keys
from weir.keys.hot_keys import HotKeySample
from weir.operators.aggregation import fold_kernels as kernels
from weir.operators.aggregation.columns import NO_TIMES, Cells, FoldRows
from weir.operators.aggregation.fold import Conditions, Fold
from weir.operators.aggregation.fold_classes import made_folds
from weir.operators.aggregation.packed_cells import packed, packed_bytes, unpacked
from weir.plan.restored_rows import FROM_A_SAVEPOINT
from weir.rows.records import EVENT_TIME_COLUMN, KEY_PART_COLUMN, Block
from weir.specs import KeyedAggregateSpec
from weir.specs.aggregate_functions import aggregated_columns, stored_function

#: Batches with fewer rows are sent as they came: to look at their keys costs more than to send them.
ROWS_MIN = 1024
_PART_FIELD = pa.field(KEY_PART_COLUMN, pa.binary())


class HotRows:
    """Adds up rows of hot keys; one for each sending subtask. See :class:`weir.keys.division.HotRowCombiner`."""

    def __init__(self, spec: KeyedAggregateSpec) -> None:
        self._spec = spec
        self._conditions = Conditions(spec.aggregates)
        self._sample = HotKeySample()
        self._schema: pa.Schema | None = None
        self._folds: list[Fold] = []
        self._columns: list[str] = []
        self._mark = 0

    def is_due(self, rows: int) -> bool:
        """Return whether the next batch, of so many rows, is to be looked at."""
        return rows >= ROWS_MIN and self._sample.is_due()

    def combined(self, batch: pa.RecordBatch, hashes: np.ndarray) -> Block | None:
        """Add up the rows of each hot key, where that saves many of them."""
        rows = self._sample.rows_of_hot_keys(hashes)
        if not len(rows):
            return None
        if self._schema is None or not self._schema.equals(batch.schema):
            self._prepare(batch.schema)
        keys = weir_keys.select_keys(weir_keys.key_bytes(batch, self._spec.key_columns), rows)
        # Keys of one hash are still told apart.
        _, lasts, inverse = weir_keys.distinct_keys(hashes[rows], keys)
        try:
            cells = self._added_up(batch.select(self._columns).take(pa.array(rows)), inverse, len(lasts))
        except WeirError:
            # A sum passes 64 bits: whether it does so with rows from elsewhere, the step finds out.
            return None
        parts = packed(np.full(len(lasts), self._mark), cells)
        standing = rows[lasts]
        is_left = np.ones(batch.num_rows, dtype=np.bool_)
        is_left[rows] = False
        is_left[standing] = True
        column = _spread(parts, standing, batch.num_rows)
        return Block(batch.append_column(_PART_FIELD, column), np.flatnonzero(is_left))

    def _prepare(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._folds = made_folds(self._spec.aggregates, schema)
        read = aggregated_columns(self._spec.aggregates, schema)
        if not read or any(aggregate.condition is not None for aggregate in self._spec.aggregates):
            # A batch without a column has no rows, and conditions without one are of this one's.
            read |= {EVENT_TIME_COLUMN, self._spec.key_columns[0]}
        self._columns = [name for name in schema.names if name in read]
        self._mark = layout_mark(self._folds, schema)

    def _added_up(self, piece: pa.RecordBatch, inverse: np.ndarray, count: int) -> Cells:
        """Accumulators of so many keys, of all rows of a batch; ``inverse``: the key of each row."""
        width = sum(fold.width for fold in self._folds)
        cells = Cells(
            np.zeros((count, width), dtype=np.int64), np.zeros((count, -(-width // 8)), dtype=np.uint8)
        )
        slots = inverse.astype(np.int32)
        for fold, mask in zip(self._folds, self._conditions.masks(piece), strict=True):
            name = fold.aggregate.column
            column = None if name is None else piece.column(name)
            fold.take(slots, cells, FoldRows(column, mask, NO_TIMES))
        return cells


class HotParts(NamedTuple):
    """Rows of a batch that stand for several."""

    #: Their numbers, ascending; int64.
    rows: np.ndarray
    cells: Cells

    def masks(self, masks: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
        """Masks of aggregates (uint8, or of length 0: all rows count) without these rows; ``rows``: of the batch."""
        is_plain = np.ones(rows, dtype=np.uint8)
        is_plain[self.rows] = 0
        return [mask & is_plain if len(mask) else is_plain for mask in masks]

    def merge(self, folds: Sequence[Fold], start: int, stop: int, slots: np.ndarray, into: Cells) -> None:
        """Combine those of the rows ``start <= row < stop`` with the accumulators at their slots (int32).

        Raises:
            WeirError: a sum passes 64 bits, or one of decimals 38 digits.
        """
        first, end = np.searchsorted(self.rows, [start, stop])
        if first == end:
            return
        index = slots[self.rows[first:end] - start].astype(np.int64)
        cells = Cells(self.cells.integers[first:end], self.cells.presence[first:end])
        for fold in folds:
            fold.merge(index, cells, into)
        kernels.merge_presence(index, cells.presence, into.presence)


def split_hot_parts(
    step: str, batch: pa.RecordBatch, place: int, folds: Sequence[Fold]
) -> tuple[pa.RecordBatch, HotParts]:
    """A batch without the column of what rows stand for, and those rows.

    Args:
        step: its name, for messages.
        batch: with that column.
        place: of the column.
        folds: of the step's aggregates.

    Raises:
        CheckpointError: they were added up for other aggregates, before the job was changed.
    """
    parts = batch.column(place)
    batch = batch.remove_column(place)
    rows = np.flatnonzero(parts.is_valid().to_numpy(zero_copy_only=False))
    parts = parts.drop_null()
    width = sum(fold.width for fold in folds)
    sizes = pc.unique(pc.binary_length(parts)).to_pylist()
    if sizes in ([], [packed_bytes(width)]):
        marks, cells = unpacked(parts, width)
        if (marks == layout_mark(folds, batch.schema)).all():
            return batch, HotParts(rows, cells)
    raise CheckpointError(told_apart(step))


def told_apart(step: str) -> str:
    """Say of a step that it cannot take rows that were added up, and what to do."""
    return (
        f"step {step!r}: the checkpoint has rows under way that were added up for other aggregates than the step has "
        f"now; {FROM_A_SAVEPOINT}"
    )


def layout_mark(folds: Sequence[Fold], schema: pa.Schema) -> int:
    """A number by which accumulators of these aggregates, over columns of this schema, are told from others."""
    told = [
        (
            stored_function(fold.aggregate),
            fold.aggregate.column,
            str(schema.field(fold.aggregate.column).type) if fold.aggregate.column in schema.names else "",
        )
        for fold in folds
    ]
    return crc32(repr(told).encode())


def _spread(parts: pa.Array, places: np.ndarray, rows: int) -> pa.Array:
    """A column of so many rows with these values, all of one length, at these places in any order; else null."""
    data = parts.take(pa.array(np.argsort(places))).buffers()[2]
    is_valid = np.zeros(rows, dtype=np.bool_)
    is_valid[places] = True
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(is_valid, out=offsets[1:])
    offsets *= len(data) // len(parts)
    bits = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), rows, [bits, pa.py_buffer(offsets), data])
