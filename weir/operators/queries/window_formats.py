"""What windows of each kind are told from: panes that are windows, panes that windows share, sessions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.queries.panes import Found, PaneFormat, Taken, Wanted
from weir.operators.queries.reading import PaneBounds
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.pane_times import panes_of
from weir.operators.windows.sessions.session_aggregates import Sessions, session_folds
from weir.protocol.queries import QueryError
from weir.specs.windows import WindowAggregateSpec
from weir.state.tables.panes.window_entries import NOTHING_MS, WindowEntries

#: Windows of a block of keys, about; and keys, where more than cells is read of each.
_BLOCK_WINDOWS = 50_000
_PART_ROWS = 1_000


class WindowFormat(PaneFormat):
    """Tumbling, sliding, cumulative and global windows that have not fired, or still take late rows."""

    @override
    def __init__(self, spec: WindowAggregateSpec, index: int, part_state: str | None = None) -> None:
        self._panes = panes_of(spec.window)
        super().__init__(spec, index, part_state)

    def _made_folds(self) -> Folds:
        return (
            Folds(self._spec.aggregates, self._spec.input_schema) if self._told is None else self._told.folds
        )

    @property
    @override
    def block_rows(self) -> int:
        rows = max(_BLOCK_WINDOWS // (self._panes.size_ms // self._panes.step_ms), 16)
        return rows if self._part is None else min(rows, _PART_ROWS)

    def _closed(self, fired_ms: np.ndarray) -> np.ndarray:
        """Windows that end up to here are over."""
        return np.where(fired_ms == NOTHING_MS, NOTHING_MS, fired_ms - self._lateness_ms)

    def _pane_ends(self, bounds: PaneBounds, first_ms: int, last_ms: int) -> range:
        panes = self._panes
        after_ms = bounds.first_ms - 1
        if not self._is_global:
            after_ms = max(after_ms, first_ms)
            last_ms = min(bounds.last_ms, last_ms + panes.size_ms)
        else:
            last_ms = bounds.last_ms
        if bounds.fired_ms != NOTHING_MS:
            after_ms = max(after_ms, panes.dead_until(bounds.fired_ms - self._lateness_ms))
        first_end_ms = after_ms - (after_ms - panes.offset_ms) % panes.pane_ms + panes.pane_ms
        return range(first_end_ms, max(last_ms + 1, first_end_ms), panes.pane_ms)

    @property
    def _is_global(self) -> bool:
        return self._spec.window.kind == "global"

    def _windows(self, taken: Taken, wanted: Wanted) -> Found:
        closed_ms = self._closed(taken.fired_ms)
        first_ms, last_ms = wanted.first_ms, wanted.last_ms
        single = self._panes.is_single
        parts = list(self._single(taken, closed_ms) if single else self._combined(taken, closed_ms, wanted))
        numbers, starts_ms, ends_ms = (np.concatenate([part[at] for part in parts]) for at in range(3))
        cells, presence = (np.concatenate([part[at] for part in parts]) for at in (3, 4))
        if self._is_global:
            assert self._told is not None, "global windows tell early"
            starts_ms, ends_ms = cells[:, self._told.first], cells[:, self._told.last] + 1
            within = (starts_ms <= last_ms) & (ends_ms > first_ms)
        else:
            within = (starts_ms >= first_ms) & (starts_ms <= last_ms)
        rows = np.flatnonzero(within & self._has_more(cells))
        rows = rows[np.lexsort((ends_ms[rows], numbers[rows]))]
        _check_count(numbers[rows], wanted)
        return Found(
            numbers[rows], starts_ms[rows], ends_ms[rows], self._values(taken, cells[rows], presence[rows])
        )

    def _single(self, taken: Taken, closed_ms: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the windows of which each is a whole entry."""
        rows = np.flatnonzero(taken.ends_ms > closed_ms)
        ends_ms = taken.ends_ms[rows]
        starts_ms = ends_ms - self._panes.size_ms
        cells = Cells(taken.cells[rows], taken.presence[rows])
        index = np.full(len(taken.ends_ms), -1, dtype=np.int64)
        index[rows] = np.arange(len(rows))
        taken.fill(index, cells)
        yield taken.numbers[rows], starts_ms, ends_ms, *cells

    def _combined(
        self, taken: Taken, closed_ms: np.ndarray, wanted: Wanted
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield windows that combine the panes of their keys; see ``WindowAggregateOperator``."""
        panes, (ends_ms, cells, presence, numbers, *_) = self._panes, taken
        nothing = np.empty(0, dtype=np.int64)
        yield nothing, nothing, nothing, cells[:0], presence[:0]
        if not len(ends_ms):
            return
        count = int(numbers.max()) + 1
        first_ms, last_ms = wanted.first_ms, wanted.last_ms
        after_ms, until_ms = max(int(closed_ms.min()), first_ms), last_ms + panes.size_ms
        made = 0
        for end_ms in wanted.ordered(list(panes.ends(np.unique(ends_ms).tolist(), until_ms, after_ms))):
            start_ms = panes.start_of(end_ms)
            if not first_ms <= start_ms <= last_ms:
                continue
            within = (ends_ms > start_ms) & (ends_ms <= end_ms) & (closed_ms < end_ms)
            if wanted.cuts:
                if made > wanted.limit:
                    return
                made += bool(within.any())
            else:
                made += 1
                if made > wanted.limit:
                    raise _too_many(wanted.limit)
            index = np.where(within, numbers, -1)
            whole = self._folds.merged(index, cells, presence, count)
            taken.fill(index, whole)
            rows = np.unique(numbers[within])
            starts, ends = (np.full(len(rows), bound, dtype=np.int64) for bound in (start_ms, end_ms))
            yield rows, starts, ends, whole.integers[rows], whole.presence[rows]


class SessionFormat(PaneFormat):
    """Sessions that are not over."""

    moves_entries = True

    @property
    @override
    def block_rows(self) -> int:
        return super().block_rows if self._part is None else _PART_ROWS

    def _made_folds(self) -> Folds:
        spec = self._spec
        if self._told is not None:
            return self._told.folds
        return session_folds(spec.aggregates, spec.input_schema, spec.own_cells_at)

    @property
    def _gap_ms(self) -> int:
        return self._spec.window.size_ms

    def _pane_ends(self, bounds: PaneBounds, first_ms: int, last_ms: int) -> range:
        # A session may go on beyond the times that are asked for, and rows beyond them make two sessions one.
        gap_ms, after_ms = self._gap_ms, bounds.first_ms - 1
        if bounds.fired_ms != NOTHING_MS:
            after_ms = max(after_ms, bounds.fired_ms - gap_ms)
        first_end_ms = after_ms - after_ms % gap_ms + gap_ms
        return range(first_end_ms, max(bounds.last_ms + 1, first_end_ms), gap_ms)

    def _windows(self, taken: Taken, wanted: Wanted) -> Found:
        count = len(taken.ends_ms)
        # The number of a key tells it apart as well as its bytes.
        keys = weir_keys.KeyColumn(
            np.ascontiguousarray(taken.numbers).view(np.uint8), np.arange(0, 8 * count + 1, 8, dtype=np.int64)
        )
        groups = np.zeros(count, dtype=np.uint16)
        entries = WindowEntries(taken.ends_ms, keys, groups, taken.cells, taken.presence)
        block = Sessions(entries, taken.fired_ms, self._folds, self._gap_ms, taken.by_time)
        taken.fill(block.number, Cells(block.cells, block.presence))
        numbers = taken.numbers[block.an_entry]
        ends_ms = block.lasts_ms + self._gap_ms
        within = (block.firsts_ms <= wanted.last_ms) & (ends_ms >= wanted.first_ms)
        within &= self._has_more(block.cells)
        rows = np.flatnonzero(within)
        rows = rows[np.lexsort((block.firsts_ms[rows], numbers[rows]))]
        _check_count(numbers[rows], wanted)
        values = self._values(taken, block.cells[rows], block.presence[rows])
        return Found(numbers[rows], block.firsts_ms[rows], ends_ms[rows], values)


def _check_count(numbers: np.ndarray, wanted: Wanted) -> None:
    limit = wanted.limit
    if not wanted.cuts and len(numbers) > limit and int(np.bincount(numbers).max()) > limit:
        raise _too_many(limit)


def _too_many(limit: int) -> QueryError:
    return QueryError(413, f"a key has more than {limit:,} windows then: ask for less time, or give limit")
