"""The operator of joins of several streams over one key, each result of which is told once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from weir.operators.joins.combinations import GroupedRows, chosen, grouped_by_key, pieces, totals
from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import ALL_SIDES
from weir.operators.joins.new_rows import NewRows
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, int64_column
from weir.specs.multi_joins import MultiJoinSpec


class MultiJoinOperator(JoinOperator):
    """Keeps the rows of all streams by key, and yields a combination when the last of its rows comes.

    A chain of joins of two streams would keep the combinations of the first two, of the first three and so on too.
    Output: the columns of ``MultiJoinSpec.output_schema``, then both time columns; the event time is the latest one.

    Of a left join, whose rows are in windows, the rows of a window for which a stream has none leave when the watermark
    has passed it, with nulls for that stream and the last event time of the window. Those of other windows have left
    before, in all of their combinations.
    """

    def __init__(self, spec: MultiJoinSpec) -> None:
        super().__init__(spec)
        self._multi = spec

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        until = self._until(times_ms)
        block = self._kept.load(keys.distinct, ALL_SIDES & ~(1 << side))
        yield from self._combined(side, batch, keys.inverse, times_ms, until, block)
        kept = np.flatnonzero(until >= self._stays_until(side))
        if len(kept):
            rows = NewRows(side, keys.inverse[kept], times_ms[kept], until[kept], until[kept])
            taken = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
            self._write(taken, rows, block, np.zeros(len(kept), dtype=bool))

    def _stays_until(self, side: int) -> int:
        """The watermark at which a new row of a side has nothing to wait for, if it has passed the row."""
        if self._told:
            # Of a window that lacks rows of a stream all the others leave together.
            return self._watermark_ms
        # A row of another stream may come that goes with it.
        others = [time_ms for index, time_ms in enumerate(self._input_watermarks_ms) if index != side]
        return max(self._watermark_ms, min(others))

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
        """Yield each new row with one kept row of every other stream, a piece at a time."""
        others = {
            other: grouped_by_key(*block.rows_of(other))
            for other in range(self._multi.inputs_count)
            if other != side
        }
        for rows, numbers in pieces(totals(others)[keys], self._context.batch_size):
            found = chosen(others, keys[rows], numbers)
            yield from self._piece(side, batch, block, rows, found, times_ms, until)

    def _piece(
        self,
        side: int,
        batch: pa.RecordBatch,
        block: Block,
        rows: np.ndarray,
        found: Mapping[int, np.ndarray],
        times_ms: np.ndarray,
        until: np.ndarray,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the combinations whose times go together."""
        latest = earliest = times_ms[rows]
        together = np.ones(len(rows), dtype=bool)
        for other, starts in found.items():
            own = block.times(starts)
            latest, earliest = np.maximum(latest, own), np.minimum(earliest, own)
            if self._multi.window_ms is not None:
                together &= block.until(other, starts) == until[rows]
        if self._multi.span_ms is not None:
            together &= latest - earliest <= self._multi.span_ms
        taken = np.flatnonzero(together)
        if len(taken):
            kept = {
                other: self._partners(block, other).columns(starts[taken]) for other, starts in found.items()
            }
            new = batch.take(pa.array(rows[taken]))
            made = self._joined.combinations(side, new, kept, latest[taken])
            yield row_watermarks.made_of(batch, rows[taken], made)

    def _due_ms(self, watermark_ms: int) -> int | None:
        # A row that is due is told with those of its window, wherever they lie.
        return None if self._told else watermark_ms

    def _complete(self, block: Block, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        if not self._told:
            return iter(())
        keys, until, sides = self._windows(block, watermark_ms)
        # Of the others all combinations have left.
        lacks = np.any([rows.counts == 0 for rows in sides.values()], axis=0)
        windows = np.flatnonzero(lacks)
        filled = {side: rows.only(windows).or_none() for side, rows in sides.items()}
        return self._filled(block, keys[windows], until[windows], filled)

    def _windows(
        self, block: Block, watermark_ms: int
    ) -> tuple[np.ndarray, np.ndarray, dict[int, GroupedRows]]:
        """The windows below a watermark in which a key has rows of the first stream.

        Returns:
            Positions of the keys, the last times of the windows, and the rows of each side, each window a group.
        """
        found = []
        for side in range(self._multi.inputs_count):
            starts, stops = block.rows_of(side)
            keys, until = (
                np.repeat(np.arange(len(stops)), np.diff(stops, prepend=0)),
                block.until(side, starts),
            )
            is_due = until < watermark_ms
            found.append((starts[is_due], keys[is_due], until[is_due]))
        ends = np.unique(np.concatenate([until for _, _, until in found]))
        # One number for a key and a window.
        codes = [keys * len(ends) + np.searchsorted(ends, until) for _, keys, until in found]
        windows = np.unique(codes[0])
        sides = {}
        for side, (starts, _, _) in enumerate(found):
            order = np.argsort(codes[side], kind="stable")
            ordered = codes[side][order]
            firsts = np.searchsorted(ordered, windows)
            counts = np.searchsorted(ordered, windows, side="right") - firsts
            sides[side] = GroupedRows(starts[order], firsts, counts)
        return windows // len(ends), ends[windows % len(ends)], sides

    def _filled(
        self, block: Block, keys: np.ndarray, until: np.ndarray, sides: Mapping[int, GroupedRows]
    ) -> Iterator[pa.RecordBatch]:
        """Yield all combinations of some windows."""
        for windows, numbers in pieces(totals(sides), self._context.batch_size):
            kept = {
                side: self._partners(block, side).columns(starts)
                for side, starts in chosen(sides, windows, numbers).items()
            }
            # Rows of a key group that came from elsewhere may have been complete here before.
            times_ms = np.maximum(until[windows], self._watermark_ms)
            now_us = self._context.clock.now_us()
            yield self._joined.of_kept(self._decoded_keys(block, keys[windows]), kept, times_ms, now_us)

    def _check_codec(self, stored: dict[str, Any]) -> None:
        # Checkpoints of before left joins do not say how rows are joined.
        super()._check_codec({"how": "inner", **stored})
