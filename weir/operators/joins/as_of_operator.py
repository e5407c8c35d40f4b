"""The operator of joins with a table that changes: rows with the version of their event time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from weir.operators.joins import join_kernels as kernels
from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import LATE_VERSIONS, KeptRows, version_layout
from weir.operators.joins.new_rows import NewRows
from weir.operators.joins.row_codec import ROW_VERSION
from weir.rows import row_watermarks
from weir.rows.change_codes import adds_rows, change_codes
from weir.rows.records import EVENT_TIME_COLUMN, int64_column
from weir.specs import JoinSpec
from weir.state.tables.opened import OperatorTables

#: Left rows wait until they are complete.
_LEFT = 1
#: Among the flags of a late version: what tells its side from the right one.
_LATE = (LATE_VERSIONS & ~kernels.SIDE) << 2
#: Of the form of rows: version 2 may have late versions.
_ROWS_VERSION = 2


class AsOfJoinOperator(JoinOperator):
    """Keeps right rows as versions of their key, and left rows until the watermark has passed them.

    Then a left row leaves with the latest version that is not after it (of equal times the one that came last). Of each
    key the latest version below the watermark stays, and those above it. A right row that is late counts for left rows
    from the watermark of its split, as of it, on: no input has come to these before, whichever is ahead.
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        # Nothing leaves because of rows.
        self.knows_rows_by_time = False

    def _open_rows(self, tables: OperatorTables) -> KeptRows:
        return KeptRows(tables.values("rows"), tables.timers("_expiry"), version_layout(), _LEFT)

    def _due_ms(self, watermark_ms: int) -> int | None:
        # A row that is due is told with its version, wherever that lies.
        return None

    def _can_be_late(self, side: int) -> bool:
        return side == 0

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        late_ms = row_watermarks.late_ms(batch, times_ms) if side == 1 else None
        if late_ms is None:
            self._put(side, side, batch, times_ms)
        else:
            is_late = late_ms > times_ms
            for kept_as, chosen in ((side, ~is_late), (LATE_VERSIONS, is_late)):
                if chosen.any():
                    self._put(side, kept_as, batch.filter(pa.array(chosen)), late_ms[chosen])
        return iter(())

    def _put(self, side: int, kept_as: int, batch: pa.RecordBatch, lower_ms: np.ndarray) -> None:
        """Keep rows of a side; ``lower_ms``: of late versions, from when on they count."""
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        until = times_ms if side == 0 else np.full(len(times_ms), NEVER_MS)
        block = self._kept.load(keys.distinct)
        if side == 1:
            block.drop_old_versions(self._watermark_ms)
        rows = NewRows(kept_as, keys.inverse, times_ms, lower_ms, until)
        # What takes a row away is a version too, without a row; an update is that and the next version.
        is_gone = ~adds_rows(change_codes(batch)) if side == 1 else np.zeros(len(times_ms), dtype=bool)
        self._store(rows, block, is_gone, *self._joined.encode(side, batch))

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
        # The columns of late versions begin later.
        shift = self._kept.columns_at(LATE_VERSIONS) - self._kept.columns_at(1)
        is_late = (rights >= 0) & (block.data[rights + kernels.FLAGS_AT] & _LATE > 0)
        rights = rights + shift * is_late
        rows = {
            side: self._partners(block, side).columns(starts) for side, starts in enumerate((lefts, rights))
        }
        # Rows of a key group that came from elsewhere may have been complete here before.
        times_ms = np.maximum(block.times(lefts), self._watermark_ms)
        return self._joined.of_kept(
            self._decoded_keys(block, key_rows), rows, times_ms, self._context.clock.now_us()
        )

    def _codec(self) -> dict[str, Any]:
        return super()._codec() | {"values": _ROWS_VERSION}

    def _check_codec(self, stored: dict[str, Any]) -> None:
        # What version 1 may have is a part of that.
        is_older = stored.get("values") == ROW_VERSION
        super()._check_codec(stored | {"values": _ROWS_VERSION} if is_older else stored)
