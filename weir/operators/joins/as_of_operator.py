"""The operator of joins with a table that changes: rows with the version of their event time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from weir.operators.change_codes import adds_rows, change_codes
from weir.operators.joins import join_kernels as kernels
from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import KeptRows, version_layout
from weir.operators.joins.new_rows import NewRows
from weir.records import EVENT_TIME_COLUMN, int64_column
from weir.state.tables.opened import OperatorTables

#: Left rows wait until they are complete.
_LEFT = 1


class AsOfJoinOperator(JoinOperator):
    """Keeps right rows as versions of their key, and left rows until the watermark has passed them.

    Then a left row leaves with the latest version that is not after it (of equal times the one that came last). Of each
    key the latest version below the watermark stays, and those above it. A right row that is late counts for what is
    not complete.
    """

    def _open_rows(self, tables: OperatorTables) -> KeptRows:
        return KeptRows(tables.values("rows"), tables.timers("_expiry"), version_layout(), _LEFT)

    def _due_ms(self, watermark_ms: int) -> int | None:
        # A row that is due is told with its version, wherever that lies.
        return None

    def _can_be_late(self, side: int) -> bool:
        return side == 0

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        until = times_ms if side == 0 else np.full(len(times_ms), NEVER_MS)
        block = self._kept.load(keys.distinct)
        if side == 1:
            block.drop_old_versions(self._watermark_ms)
        rows = NewRows(side, keys.inverse, times_ms, times_ms, until)
        # What takes a row away is a version too, without a row; an update is that and the next version.
        is_gone = ~adds_rows(change_codes(batch)) if side == 1 else np.zeros(len(times_ms), dtype=bool)
        self._write(batch, rows, block, is_gone)
        return iter(())

    def _complete(self, block: Block, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        lefts, rights, key_rows = block.versions(watermark_ms)
        is_deleted = (rights >= 0) & (block.data[rights + kernels.FLAGS_AT] & kernels.MATCHED > 0)
        rights[is_deleted] = -1
        if self._spec.how == "inner":
            found = rights >= 0
            lefts, rights, key_rows = lefts[found], rights[found], key_rows[found]
        block.drop_old_versions(watermark_ms)
        size = self._context.batch_size
        parts = (slice(first, first + size) for first in range(0, len(lefts), size))
        return (self._versions(block, lefts[part], rights[part], key_rows[part]) for part in parts)

    def _versions(
        self, block: Block, lefts: np.ndarray, rights: np.ndarray, key_rows: np.ndarray
    ) -> pa.RecordBatch:
        rows = {
            side: self._partners(block, side).columns(starts) for side, starts in enumerate((lefts, rights))
        }
        # Rows of a key group that came from elsewhere may have been complete here before.
        times_ms = np.maximum(block.times(lefts), self._watermark_ms)
        return self._joined.of_kept(
            self._decoded_keys(block, key_rows), rows, times_ms, self._context.clock.now_us()
        )
