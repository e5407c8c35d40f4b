"""The operator of joins without bounds whose result is updated: outer and anti joins, and joins of changelogs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.changes import CHANGE_COLUMN
from weir.operators.change_codes import CHANGE_VALUES, change_codes
from weir.operators.joins import change_kernels as kernels
from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.new_rows import NewRows
from weir.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, int64_column

#: Of each change the one that does the same alone.
_WITHOUT_UPDATES = np.array([kernels.INSERT, kernels.DELETE, kernels.INSERT, kernels.DELETE], dtype=np.uint8)
#: What is told by each kind because of left rows, and because of right rows.
_TELLS = {
    "inner": (kernels.PAIRS, kernels.PAIRS),
    "left": (kernels.PAIRS | kernels.OWN_ALONE, kernels.PAIRS | kernels.OTHER_ALONE),
    "right": (kernels.PAIRS | kernels.OTHER_ALONE, kernels.PAIRS | kernels.OWN_ALONE),
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
    #: Rows of the other side.
    starts: np.ndarray
    stops: np.ndarray


class ChangeJoinOperator(JoinOperator):
    """Keeps all rows of both sides, and tells what each row changes in the table that is the join of both.

    Input: rows of either side, plain ones or changes. Output: the columns of ``ChangeJoinSpec.output_schema`` with
    ``_change``, then both time columns. What a row changes has the later event time of the rows it is made of. A row
    that is taken away before it came (rows of one key that come over several channels) waits for it.
    """

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        is_changed = CHANGE_COLUMN in batch.schema.names
        # Rows of its own side are only looked at if some are taken away.
        wanted = 3 if is_changed else 1 << (1 - side)
        block = self._kept.load(keys.distinct, wanted)
        changes = change_codes(batch)
        decided = self._decide(side, batch, keys.inverse, changes, block)
        yield from self._told_of(side, batch, keys.inverse, changes, block, decided)
        kept = np.flatnonzero(decided.fate != kernels.DROPPED)
        if len(kept) or block.changed.any():
            forever = np.full(len(kept), NEVER_MS)
            rows = NewRows(side, keys.inverse[kept], times_ms[kept], forever, forever)
            taken = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
            self._write(taken, rows, block, decided.fate[kept] == kernels.KEPT_AS_OWED)

    def _decide(
        self, side: int, batch: pa.RecordBatch, keys: np.ndarray, changes: np.ndarray, block: Block
    ) -> _Decided:
        own, own_offsets = self._joined.encode(side, batch)
        _, own_stops, owed = self._present(block, side)
        starts, stops, _ = self._present(block, 1 - side)
        present = np.diff(own_stops, prepend=0) + block.chunks.rows_not_loaded(side, len(block.keys))
        rows = batch.num_rows
        fate, deed, turns = (np.empty(rows, dtype=np.uint8) for _ in range(3))
        counts = np.empty(rows, dtype=np.int64)
        kernels.decide(
            *(keys, changes, own, own_offsets),
            *(block.data, block.bounds, side, self._kept.columns_at(side), _TELLS[self._spec.how][side]),
            *(np.diff(stops, prepend=0), present, owed),
            *(np.full(len(block.keys), -1), np.empty(rows, dtype=np.int64)),
            *(fate, deed, turns, block.changed, counts),
        )
        return _Decided(fate, deed, turns, counts, starts, stops)

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
        decided: _Decided,
    ) -> Iterator[pa.RecordBatch]:
        """Pieces of about the size of a batch."""
        rows_max = self._context.batch_size
        ends = np.cumsum(decided.counts)
        first = 0
        while first < batch.num_rows:
            done = int(ends[first - 1]) if first else 0
            if int(ends[-1]) == done:
                return
            stop = max(int(np.searchsorted(ends, done + rows_max, side="right")), first + 1)
            size = int(ends[stop - 1]) - done
            change, is_own = np.empty(size, dtype=np.uint8), np.empty(size, dtype=np.uint8)
            row, other = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            kernels.tell(
                *(first, stop, keys, changes, _TELLS[self._spec.how][side]),
                *(decided.starts, decided.stops, decided.deed, decided.turns, decided.counts),
                *(change, row, is_own, other),
            )
            first = stop
            for begin in range(0, size, rows_max):
                part = slice(begin, begin + rows_max)
                yield self._batch(side, batch, block, change[part], row[part], is_own[part], other[part])

    def _batch(
        self,
        side: int,
        batch: pa.RecordBatch,
        block: Block,
        change: np.ndarray,
        row: np.ndarray,
        is_own: np.ndarray,
        other: np.ndarray,
    ) -> pa.RecordBatch:
        has_other = other >= 0
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)[row]
        kept = other[has_other]
        times_ms[has_other] = np.maximum(times_ms[has_other], block.times(kept))
        decoded = self._joined.codecs[1 - side].decode(block.data, kept + self._kept.columns_at(1 - side))
        positions = pa.array(np.cumsum(has_other) - 1, mask=~has_other)
        own_rows = pa.array(row, mask=is_own == 0)
        spec = self._spec
        found = {
            name: batch.column(own).take(pa.array(row))
            for name, own in zip(spec.key_columns, spec.keys_of_input(side), strict=True)
        }
        found |= {output: batch.column(name).take(own_rows) for name, output in self._joined.columns[side]}
        if spec.how not in ("semi", "anti") or side == 1:
            others = zip(self._joined.columns[1 - side], decoded, strict=True)
            found |= {output: array.take(positions) for (_, output), array in others}
        found[CHANGE_COLUMN] = CHANGE_VALUES.take(pa.array(change))
        return self._joined.batch(found, times_ms, batch.column(INGEST_TIME_COLUMN).take(pa.array(row)))

    def _alone(self, side: int, batch: pa.RecordBatch, times_ms: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Rows without a key, which are told alone."""
        if batch.num_rows:
            # The other half of an update may have a key.
            codes = _WITHOUT_UPDATES[change_codes(batch)]
            change = {CHANGE_COLUMN: CHANGE_VALUES.take(pa.array(codes))}
            yield self._joined.alone(side, batch, times_ms, change)
