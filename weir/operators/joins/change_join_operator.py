"""The operator of joins without bounds whose result is updated: outer and anti joins, and joins of changelogs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.joins import change_kernels as kernels
from weir.operators.joins.combinations import GroupedRows, chosen, grouped_by_key, pieces, totals
from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import ALL_SIDES
from weir.operators.joins.new_rows import NewRows
from weir.rows import row_watermarks
from weir.rows.change_codes import CHANGE_VALUES, change_codes
from weir.rows.changes import CHANGE_COLUMN
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, int64_column
from weir.specs.joins import ChangeJoinSpec

#: Of each change the one that does the same alone.
_WITHOUT_UPDATES = np.array([kernels.INSERT, kernels.DELETE, kernels.INSERT, kernels.DELETE], dtype=np.uint8)
#: What is told by each kind because of rows of the first side, and because of rows of any other.
_TELLS = {
    "inner": (kernels.PAIRS, kernels.PAIRS),
    "left": (kernels.PAIRS, kernels.PAIRS | kernels.OTHER_ALONE),
    "right": (kernels.PAIRS | kernels.OTHER_ALONE, kernels.PAIRS),
    "full": (kernels.PAIRS | kernels.OWN_ALONE | kernels.OTHER_ALONE,) * 2,
    "semi": (kernels.OWN_PAIRED, kernels.OTHER_PAIRED),
    "anti": (kernels.OWN_ALONE, kernels.OTHER_ALONE),
}


@dataclass(frozen=True)
class _Decided:
    """What the rows of a batch do; arrays of shape (rows,), see ``change_kernels``."""

    fate: np.ndarray
    deed: np.ndarray
    turns: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class _Others:
    """The rows of all sides but that of a batch, by key, and how many combinations of them each key has."""

    sides: Mapping[int, GroupedRows]
    totals: np.ndarray


class ChangeJoinOperator(JoinOperator):
    """Keeps all rows of all sides, and tells what each row changes in the table that is the join of them.

    Input: rows of any side, plain ones or changes. Output: the columns of ``ChangeJoinSpec.output_schema`` with
    ``_change``, then both time columns. What a row changes has the latest event time of the rows it is made of. A row
    that is taken away before it came (rows of one key that come over several channels) waits for it.
    """

    def __init__(self, spec: ChangeJoinSpec) -> None:
        super().__init__(spec)
        self._every_version = spec.every_version
        further = range(1, spec.inputs_count)
        #: Sides whose columns are null where a key has no row of them: a combination has a row of every other one.
        self._may_lack = {"left": further, "right": range(1)}.get(spec.how, range(0))

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        is_changed = CHANGE_COLUMN in batch.schema.names
        # Rows of its own side are only looked at if some are taken away.
        block = self._kept.load(keys.distinct, ALL_SIDES if is_changed else ALL_SIDES & ~(1 << side))
        changes = change_codes(batch)
        if self._every_version:
            # Whether both halves of an update come one after the other hangs on the cut.
            changes = _WITHOUT_UPDATES[changes]
        others = self._others(block, side)
        decided = self._decide(side, batch, keys.inverse, changes, block, others)
        yield from self._told_of(side, batch, keys.inverse, changes, block, others, decided)
        kept = np.flatnonzero(decided.fate != kernels.DROPPED)
        if len(kept) or block.changed.any():
            forever = np.full(len(kept), NEVER_MS)
            rows = NewRows(side, keys.inverse[kept], times_ms[kept], forever, forever)
            taken = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
            self._write(taken, rows, block, decided.fate[kept] == kernels.KEPT_AS_OWED)

    def _tells(self, side: int) -> int:
        return _TELLS[self._spec.how][min(side, 1)]

    def _others(self, block: Block, side: int) -> _Others:
        sides = {}
        for other in range(self._spec.inputs_count):
            if other != side:
                starts, stops, _ = self._present(block, other)
                rows = grouped_by_key(starts, stops)
                sides[other] = rows.or_none() if other in self._may_lack else rows
        return _Others(sides, totals(sides))

    def _decide(
        self,
        side: int,
        batch: pa.RecordBatch,
        keys: np.ndarray,
        changes: np.ndarray,
        block: Block,
        others: _Others,
    ) -> _Decided:
        own, own_offsets = self._joined.encode(side, batch)
        _, own_stops, owed = self._present(block, side)
        present = np.diff(own_stops, prepend=0) + block.chunks.rows_not_loaded(side, len(block.keys))
        rows = batch.num_rows
        fate, deed, turns = (np.empty(rows, dtype=np.uint8) for _ in range(3))
        counts = np.empty(rows, dtype=np.int64)
        kernels.decide(
            *(keys, changes, own, own_offsets),
            *(block.data, block.bounds, side, self._kept.columns_at(side), self._tells(side)),
            *(others.totals, present, owed),
            *(np.full(len(block.keys), -1), np.empty(rows, dtype=np.int64)),
            *(fate, deed, turns, block.changed, counts),
        )
        return _Decided(fate, deed, turns, counts)

    def _present(self, block: Block, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the rows of a side begin, where those of each key end among them, and how many each key is owed."""
        starts = np.empty(block.rows_max, dtype=np.int64)
        stops, owed = (np.empty(len(block.keys), dtype=np.int64) for _ in range(2))
        count = kernels.present_rows(block.data, block.bounds, side, starts, stops, owed)
        return starts[:count].copy(), stops, owed

    def _told_of(
        self,
        side: int,
        batch: pa.RecordBatch,
        keys: np.ndarray,
        changes: np.ndarray,
        block: Block,
        others: _Others,
        decided: _Decided,
    ) -> Iterator[pa.RecordBatch]:
        for rows, numbers in pieces(decided.counts, self._context.batch_size):
            size = len(rows)
            change, is_own = np.empty(size, dtype=np.uint8), np.empty(size, dtype=np.uint8)
            number = np.empty(size, dtype=np.int64)
            kernels.tell(
                *(rows, numbers, keys, changes, self._tells(side), others.totals),
                *(decided.deed, decided.turns, change, is_own, number),
            )
            has_others = number >= 0
            found = chosen(others.sides, keys[rows[has_others]], number[has_others])
            partners = {other: np.full(size, -1) for other in found}
            for other, starts in found.items():
                partners[other][has_others] = starts
            yield self._batch(side, batch, block, rows, change, is_own, partners)

    def _batch(
        self,
        side: int,
        batch: pa.RecordBatch,
        block: Block,
        rows: np.ndarray,
        change: np.ndarray,
        is_own: np.ndarray,
        partners: Mapping[int, np.ndarray],
    ) -> pa.RecordBatch:
        """What is told because of new rows, which ``rows`` says; ``partners``: by side where the others begin."""
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)[rows]
        own_rows = pa.array(rows, mask=is_own == 0)
        found = {
            name: batch.column(own).take(pa.array(rows))
            for name, own in zip(self._spec.key_columns, self._spec.keys_of_input(side), strict=True)
        }
        found |= {output: batch.column(name).take(own_rows) for name, output in self._joined.columns[side]}
        for other, starts in partners.items():
            kept = self._partners(block, other)
            times_ms = np.maximum(times_ms, kept.times(starts))
            columns = zip(self._joined.columns[other], kept.columns(starts), strict=True)
            found |= {output: array for (_, output), array in columns}
        found[CHANGE_COLUMN] = CHANGE_VALUES.take(pa.array(change))
        made = self._joined.batch(found, times_ms, batch.column(INGEST_TIME_COLUMN).take(pa.array(rows)))
        return row_watermarks.made_of(batch, rows, made)

    def _alone(self, side: int, batch: pa.RecordBatch, times_ms: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Rows without a key, which are told alone."""
        if batch.num_rows:
            # The other half of an update may have a key.
            codes = _WITHOUT_UPDATES[change_codes(batch)]
            change = {CHANGE_COLUMN: CHANGE_VALUES.take(pa.array(codes))}
            yield self._joined.alone(side, batch, times_ms, change)
