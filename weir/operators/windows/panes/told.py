"""What entries keep of the results that have been told, in cells after those of the aggregates.

``rows`` is the number of rows, ``told`` what it was when the window was last told. Discarding ones are emptied then. Of
changes, copies of the aggregates' cells say what was told; ``hits`` counts rows that make a window tell its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.aggregation.columns import Cells
from weir.operators.aggregation.fold import Conditions, Fold
from weir.operators.windows.panes.folds import Folds
from weir.rows.records import EVENT_TIME_COLUMN
from weir.specs.window_parts import WindowPartSpec
from weir.specs.windows import WindowAggregate, WindowAggregateSpec

#: Cells that take no rows.
_NO_ROWS = pl.lit(value=False)
#: Of windows that never end and of sessions: first and last event time.
_TIMES = (
    WindowAggregate("first", "min", EVENT_TIME_COLUMN),
    WindowAggregate("last", "max", EVENT_TIME_COLUMN),
)


class ToldCells:
    """Reads and writes these cells of one step."""

    def __init__(self, spec: WindowAggregateSpec | WindowPartSpec) -> None:
        updates, early = spec.updates, spec.updates.early
        self.is_global = spec.window.kind == "global"
        is_session = spec.window.kind == "session"
        self.is_kept = updates.keeps_told
        self._discards = updates.results == "discarding"
        self._is_changelog = updates.results == "changelog"
        self.has_hits = early is not None and early.where is not None
        shown = (*spec.aggregates, *(_TIMES if self.is_global else ()))
        # As for sessions with one result, these come last.
        times = _TIMES if is_session else ()
        added: list[WindowAggregate] = []
        if self.is_kept:
            added += [WindowAggregate("rows", "count"), WindowAggregate("told", "count", None, _NO_ROWS)]
        if self.has_hits:
            assert early is not None
            added.append(WindowAggregate("hits", "count", None, early.where))
        self._triggers = Conditions([each for each in added if each.output == "hits"])
        copies = []
        if self._is_changelog:
            copies = [
                WindowAggregate(a.output, a.function, a.column, _NO_ROWS, a.parameters)
                for a in (*shown, *times)
            ]
        schema = spec.input_schema.append(pa.field(EVENT_TIME_COLUMN, pa.int64()))
        order = _order(spec, len(shown), len(added), len(copies), len(times))
        self.folds = Folds((*shown, *added, *copies, *times), schema, order)
        folds, count = self.folds.folds, len(shown)
        timed = folds[len(folds) - len(times) :]
        self._shown, self._copies = [*folds[:count], *timed], folds[count + len(added) :][: len(copies)]
        #: By cell, bool, as many as presence has bits: it is kept when results are discarded; it is a copy.
        self._is_kept, self._is_copy = (_cells_of(some, self.folds) for some in (timed, self._copies))
        #: Cells.
        self.first = (timed[0] if timed else folds[count - 2]).cell
        self.last = (timed[1] if timed else folds[count - 1]).cell
        self.rows, self.told = (folds[count + number].cell for number in (0, 1)) if self.is_kept else (-1, -1)
        self.hits = folds[count + 2].cell if self.has_hits else -1

    def hits_of(self, batch: pa.RecordBatch) -> np.ndarray:
        """Which rows make their windows told; bool."""
        (mask,) = self._triggers.masks(batch)
        found: np.ndarray = mask.astype(np.bool_) if len(mask) else np.ones(batch.num_rows, dtype=np.bool_)
        return found

    def has_more(self, cells: np.ndarray) -> np.ndarray:
        """Return of which entries more rows have come than were told; bool."""
        more: np.ndarray = cells[:, self.rows] > cells[:, self.told]
        return more

    def note_told(self, cells: Cells) -> None:
        """Note that all rows of these entries have been told; changes the cells."""
        integers, presence = cells
        if self._discards:
            integers[:, ~self._is_kept[: integers.shape[1]]] = 0
            presence &= np.packbits(self._is_kept, bitorder="little")
            return
        integers[:, self.told] = integers[:, self.rows]
        if self.has_hits:
            integers[:, self.hits] = 0
        for shown, copy in zip(self._shown, self._copies, strict=False):
            _copy(cells, cells, shown, copy)

    def shows(self, cells: Cells) -> np.ndarray:
        """Return which entries of sessions with changes as results have what was told of their session; bool."""
        copy = self._copies[-1].cell
        shows: np.ndarray = cells.presence[:, copy // 8] & (1 << copy % 8) != 0
        return shows

    def note_session_told(self, cells: Cells, showing: np.ndarray, sessions: Cells) -> None:
        """Sessions that have these entries have been told; one entry of each has what was; changes ``cells``.

        Args:
            cells: of all entries.
            showing: numbers of those that have it; int64.
            sessions: of their sessions.
        """
        integers, presence = cells
        integers[:, self.told] = integers[:, self.rows]
        integers[:, self._is_copy[: integers.shape[1]]] = 0
        presence &= np.packbits(~self._is_copy, bitorder="little")
        chosen = Cells(integers[showing], presence[showing])
        for shown, copy in zip(self._shown, self._copies, strict=True):
            _copy(sessions, chosen, shown, copy)
        integers[showing], presence[showing] = chosen

    def before(self, cells: Cells) -> Cells:
        """Cells as they were told; copies."""
        found = Cells(cells.integers.copy(), cells.presence.copy())
        for shown, copy in zip(self._shown, self._copies, strict=True):
            _copy(cells, found, copy, shown)
        return found


def _order(
    spec: WindowAggregateSpec | WindowPartSpec, shown: int, added: int, copies: int, times: int
) -> list[int]:
    """The order of the cells of so many shown ones, added ones, copies and times.

    Aggregates that a job got later come last, each with its copy, so that the others stay where they are.
    """
    count = len(spec.aggregates)
    at = count if spec.own_cells_at is None else spec.own_cells_at
    first_copy = shown + added
    order = [*range(at), *range(count, first_copy)]
    if copies:
        order += [*range(first_copy, first_copy + at), *range(first_copy + count, first_copy + copies)]
    order += range(first_copy + copies, first_copy + copies + times)
    for number in range(at, count):
        order += [number, first_copy + number] if copies else [number]
    return order


def _cells_of(chosen: Sequence[Fold], folds: Folds) -> np.ndarray:
    """Return by cell of all folds, and up to a whole byte of presence, whether it is one of these; bool."""
    found = np.zeros(-(-folds.cell_count // 8) * 8, dtype=np.bool_)
    for fold in chosen:
        found[fold.cell : fold.cell + fold.width] = True
    return found


def _copy(source: Cells, target: Cells, whence: Fold, where: Fold) -> None:
    """Copy the cells of one fold to the place of another one of the same function."""
    for number in range(whence.width):
        old, new = whence.cell + number, where.cell + number
        target.integers[:, new] = source.integers[:, old]
        bits = (source.presence[:, old // 8] >> np.uint8(old % 8)) & 1
        kept = target.presence[:, new // 8] & np.uint8(0xFF ^ (1 << new % 8))
        target.presence[:, new // 8] = kept | (bits << np.uint8(new % 8))


def interleaved(before: np.ndarray, count: int) -> np.ndarray:
    """The order of rows of which some have one before them: numbers into first those before, then all ``count``.

    Args:
        before: numbers of the rows that have one, ascending.
        count: rows.
    """
    places: Sequence[np.ndarray] = (before * 2, np.arange(count, dtype=np.int64) * 2 + 1)
    return np.argsort(np.concatenate(places), kind="stable")
