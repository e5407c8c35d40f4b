"""A state of a subtask as it is between two batches, its cache included; used in the subtask's thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weir.operators.queries.reading import PaneBounds, PaneEntries
from weir.state.tables.broadcast import BroadcastTable, entries_of_dict
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.panes.window_table import WindowTable
from weir.state.tables.retained import RetainedTable
from weir.state.tables.stamps import UNDATED
from weir.state.tables.values.value_table import ValueTable


class LiveReading:
    """Implements ``weir.operators.queries.reading.StateReading`` over a table."""

    def __init__(self, table: CellTable | ValueTable | BroadcastTable) -> None:
        self._table = table
        self._expiry = None if isinstance(table, BroadcastTable) else table.expiry
        if self._expiry is not None:
            self._expiry.look()
        self.watermark_ms = UNDATED if self._expiry is None else self._expiry.now_ms

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, as ``StateReading`` says."""
        if isinstance(self._table, BroadcastTable):
            return entries_of_dict(self._table.items, keys)
        return self._table.get_stored(keys)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range; only values of any length have ranges."""
        assert isinstance(self._table, ValueTable)
        return self._table.scan_stored(start, stop, reverse=reverse)

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """Return the time before which nothing is there any more."""
        assert isinstance(self._table, RetainedTable)
        self._table.read_clocks([group])
        return self._table.cut_ms(self._table.clock(group), self.watermark_ms)

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """Return the bounds of a group's panes, as ``StateReading`` says."""
        assert isinstance(self._table, WindowTable)
        found = self._table.bounds_of(group)
        return None if found is None else PaneBounds(*found)

    def bounds_of(
        self, group: int, state_id: int, cell_count: int, first_ms: int, last_ms: int
    ) -> PaneBounds | None:
        """Bounds of the panes, which the table knows; see ``RangeReading``."""
        return self.pane_bounds(group, state_id, cell_count)

    def pane_entries(
        self, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
    ) -> PaneEntries:
        """Return the entries of a key in panes, as ``StateReading`` says."""
        assert isinstance(self._table, WindowTable)
        return PaneEntries(*self._table.entries_of(group, user_key, ends_ms))

    def know_place(self, group: int, state_id: int, data: bytes | None) -> None:
        """Ignore the place: the table knows it; see ``RangeReading``."""

    def fired_ms(self, group: int, state_id: int, cell_count: int, *, by_now: bool) -> int:
        """Return up to where windows of a group have fired."""
        assert isinstance(self._table, WindowTable)
        return int(self._table.places_ms[group])

    def ends_by_time(self, group: int, state_id: int, cell_count: int) -> bool:
        """Return whether a group's place is marked, as ``StateReading`` says."""
        assert isinstance(self._table, WindowTable)
        return not self._table.unmarked[group]

    def watermark_of(self, group: int) -> int:
        """Return the subtask's watermark."""
        return self.watermark_ms

    def number_of(self, state: str) -> int:
        """Raise LookupError: there is one table; what is in several is read from copies."""
        raise LookupError(f"{state} is not read in its subtask's thread")

    def check(self) -> None:
        """Do nothing: no reading here may wait."""

    def is_expired(self, stamp: int) -> bool:
        """Return whether a value has expired."""
        return self._expiry is not None and self._expiry.is_expired(stamp)
