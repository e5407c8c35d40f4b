"""The operator of joins of several streams over one key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import ALL_SIDES, KeptRows, multi_layout
from weir.operators.joins.new_rows import NewRows
from weir.records import EVENT_TIME_COLUMN, int64_column
from weir.specs.multi_joins import MultiJoinSpec
from weir.state.tables.opened import OperatorTables


class MultiJoinOperator(JoinOperator):
    """Keeps the rows of all streams by key, and yields a combination when the last of its rows comes.

    A chain of joins of two streams would keep the combinations of the first two, of the first three and so on too.
    Output: the columns of ``MultiJoinSpec.output_schema``, then both time columns; the event time is the latest one.
    """

    def __init__(self, spec: MultiJoinSpec) -> None:
        super().__init__(spec)
        self._multi = spec

    def _open_rows(self, tables: OperatorTables) -> KeptRows:
        timers = tables.timers("_expiry") if self._multi.is_bounded else None
        return KeptRows(tables.values("rows"), timers, multi_layout(self._multi), 0)

    def _can_be_late(self, side: int) -> bool:
        return self._multi.is_bounded

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        until = self._until(times_ms)
        block = self._kept.load(keys.distinct, ALL_SIDES & ~(1 << side))
        yield from self._combined(side, batch, keys.inverse, times_ms, until, block)
        # A row stays while one of another stream may come that goes with it.
        others = [time_ms for index, time_ms in enumerate(self._input_watermarks_ms) if index != side]
        kept = np.flatnonzero(until >= max(self._watermark_ms, min(others)))
        if len(kept):
            rows = NewRows(side, keys.inverse[kept], times_ms[kept], until[kept], until[kept])
            taken = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
            self._write(taken, rows, block, np.zeros(len(kept), dtype=bool))

    def _until(self, times_ms: np.ndarray) -> np.ndarray:
        """The last time that may go with each row."""
        spec = self._multi
        if spec.window_ms is not None:
            ends: np.ndarray = times_ms - (times_ms - spec.offset_ms) % spec.window_ms + spec.window_ms - 1
            return ends
        return np.full(len(times_ms), NEVER_MS) if spec.span_ms is None else times_ms + spec.span_ms

    def _combined(
        self,
        side: int,
        batch: pa.RecordBatch,
        keys: np.ndarray,
        times_ms: np.ndarray,
        until: np.ndarray,
        block: Block,
    ) -> Iterator[pa.RecordBatch]:
        """Each new row with one kept row of every other stream, a piece at a time.

        Combinations are numbered, row after row; the number says which kept row of each stream is in it, as digits do.
        """
        others = [other for other in range(self._multi.inputs_count) if other != side]
        found = [block.rows_of(other) for other in others]
        counts = [np.diff(stops, prepend=0)[keys] for _, stops in found]
        firsts = [np.concatenate([[0], stops[:-1]])[keys] for _, stops in found]
        ends = np.cumsum(np.prod(counts, axis=0, dtype=np.int64))
        size = self._context.batch_size
        for start in range(0, int(ends[-1]), size):
            numbers = np.arange(start, min(start + size, int(ends[-1])))
            rows = np.searchsorted(ends, numbers, side="right")
            left = numbers - np.concatenate([[0], ends[:-1]])[rows]
            chosen = []
            # The last stream changes quickest, as in nested loops.
            for (starts, _), count, first in zip(
                reversed(found), reversed(counts), reversed(firsts), strict=True
            ):
                chosen.append(starts[first[rows] + left % count[rows]])
                left //= count[rows]
            yield from self._piece(
                side, batch, block, rows, dict(zip(reversed(others), chosen, strict=True)), times_ms, until
            )

    def _piece(
        self,
        side: int,
        batch: pa.RecordBatch,
        block: Block,
        rows: np.ndarray,
        chosen: dict[int, np.ndarray],
        times_ms: np.ndarray,
        until: np.ndarray,
    ) -> Iterator[pa.RecordBatch]:
        """Those combinations whose times go together."""
        latest = earliest = times_ms[rows]
        together = np.ones(len(rows), dtype=bool)
        for other, starts in chosen.items():
            own = block.times(starts)
            latest, earliest = np.maximum(latest, own), np.minimum(earliest, own)
            if self._multi.window_ms is not None:
                together &= block.until(other, starts) == until[rows]
        if self._multi.span_ms is not None:
            together &= latest - earliest <= self._multi.span_ms
        taken = np.flatnonzero(together)
        if not len(taken):
            return
        kept = {
            other: self._joined.codecs[other].decode(block.data, starts[taken] + self._kept.columns_at(other))
            for other, starts in sorted(chosen.items())
        }
        yield self._joined.combinations(side, batch.take(pa.array(rows[taken])), kept, latest[taken])
