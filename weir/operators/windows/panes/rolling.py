"""Windows of several panes one after the other, each from the one before: panes enter, and panes leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.pane_times import Panes
from weir.operators.windows.panes.running_totals import NoRoomError, StackedTotals, make_totals
from weir.state.tables.panes.window_entries import NOTHING_MS, WindowEntries, joined
from weir.state.tables.panes.window_table import WindowTable


@dataclass(frozen=True, slots=True, eq=False)
class CompleteWindow:
    """A window that has rows."""

    start_ms: int
    end_ms: int
    #: A column for each key column.
    keys: list[pa.Array]
    cells: Cells

    def __len__(self) -> int:
        return len(self.cells.integers)

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """Start and end."""
        return self.start_ms, self.end_ms


class RollingWindows:
    """The windows of all keys of a table, if they have all fired up to the same time.

    Otherwise, and if the totals do not fit the memory, the operator puts each window together from its panes.
    """

    def __init__(self, panes: Panes, folds: Folds, key_types: Sequence[pa.DataType], bytes_max: int) -> None:
        self._panes = panes
        self._folds = folds
        self._key_types = key_types
        self._bytes_max = bytes_max
        self._totals = make_totals(folds, bytes_max)
        #: End of the window up to which panes have entered; what is dead then has left. None: none has entered.
        self._at_ms: int | None = None
        self._ownership = -1
        #: The keys that were decoded last.
        self._decoded: tuple[weir_keys.KeyColumn, list[pa.Array]] | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the totals, which follow from the panes."""
        return self._totals.memory_bytes

    def note(self, ends_ms: np.ndarray) -> None:
        """Rows come into panes with these ends: of those that have entered nothing may change unseen."""
        if self._at_ms is not None and len(ends_ms) and int(ends_ms.min()) <= self._at_ms:
            self.forget()

    def forget(self) -> None:
        """Begin anew, with all panes of the window that fires next."""
        if self._at_ms is not None:
            self._totals.clear()
            self._at_ms = self._decoded = None

    def begin(self, table: WindowTable, until_ms: int) -> bool:
        """Load the panes that enter or leave before a time; False: this is not the way to make the windows."""
        if table.ownership != self._ownership:
            self.forget()
            self._ownership = table.ownership
        if not table.fired_alike:
            self.forget()
            return False
        panes = self._panes
        self._table, self._until_ms = table, until_ms
        self._first_end_ms = panes.first_end(table.first_ms(), table.fired_ms())
        if self._at_ms is None:
            entered_ms = left_ms = panes.start_of(self._first_end_ms)
        else:
            entered_ms, left_ms = self._at_ms, panes.dead_until(self._at_ms)
        dead_ms = min(panes.dead_until(until_ms), until_ms)
        if dead_ms <= entered_ms:
            self._entering = joined(table.entries(entered_ms, until_ms))
            self._leaving = joined(table.entries(left_ms, dead_ms))
        else:
            self._leaving = self._entering = joined(table.entries(left_ms, until_ms))
            if self._leaving is not None:
                entering = np.flatnonzero(self._leaving.ends_ms > entered_ms)
                self._entering = self._leaving.part(entering)
        try:
            self._check_room()
        except NoRoomError:
            self._at_ms = NOTHING_MS
            self.forget()
            return False
        return True

    def _check_room(self) -> None:
        if self._entering is not None:
            self._totals.slots_of(self._entering)
        if isinstance(self._totals, StackedTotals):
            loaded = 0 if self._entering is None else len(self._entering)
            self._totals.check_room(loaded)

    def windows(self) -> Iterator[CompleteWindow]:
        """The windows that end before the time given to :meth:`begin`; nothing else is called meanwhile."""
        panes, end_ms = self._panes, self._first_end_ms
        entering, leaving = _Slices(self._entering), _Slices(self._leaving)
        while end_ms <= self._until_ms:
            if (entries := entering.until(end_ms)) is not None:
                self._totals.enter(entries)
            self._at_ms = end_ms
            slots, keys = self._totals.keys()
            if len(slots):
                yield CompleteWindow(
                    panes.start_of(end_ms), end_ms, self._decode(keys), self._totals.totals(slots)
                )
                self._leave(leaving, end_ms)
                end_ms += panes.step_ms
            elif (next_ms := entering.next_ms()) is not None:
                end_ms = panes.first_end(next_ms, end_ms)
            else:
                break
        if not len(self._totals.keys()[0]):
            self.forget()

    def _leave(self, leaving: _Slices, end_ms: int) -> None:
        panes, totals = self._panes, self._totals
        dead_ms = panes.dead_until(end_ms)
        entries = leaving.until(dead_ms)
        if dead_ms >= end_ms:
            totals.clear()
            return
        if entries is not None:
            totals.leave(entries, dead_ms)
        if isinstance(totals, StackedTotals) and totals.needs_panes:
            staying = joined(self._table.entries(dead_ms, end_ms))
            if staying is not None:
                totals.split(staying, end_ms)

    def _decode(self, keys: weir_keys.KeyColumn) -> list[pa.Array]:
        if self._decoded is None or self._decoded[0] is not keys:
            self._decoded = keys, weir_keys.decode_keys(keys, self._key_types)
        return self._decoded[1]


class _Slices:
    """Entries in the order of their ends, taken from the front."""

    def __init__(self, entries: WindowEntries | None) -> None:
        self._entries = entries
        self._taken = 0

    def until(self, end_ms: int) -> WindowEntries | None:
        """Return the entries that end up to a time and have not been taken; None: none."""
        if self._entries is None:
            return None
        start = self._taken
        self._taken = max(start, int(np.searchsorted(self._entries.ends_ms, end_ms, side="right")))
        if self._taken == start:
            return None
        if self._taken - start == len(self._entries):
            return self._entries
        return self._entries.part(np.arange(start, self._taken))

    def next_ms(self) -> int | None:
        """The end of the first one that has not been taken."""
        if self._entries is None or self._taken == len(self._entries):
            return None
        return int(self._entries.ends_ms[self._taken])
