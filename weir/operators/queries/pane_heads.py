"""What a key group has of windows, read at once where it is little: panes would be looked for one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from weir.operators.queries.element_runs import Scan, scan_list
from weir.operators.queries.reading import RangeReading, range_of_panes
from weir.state import layout
from weir.state.tables.panes.packed_reading import scan_entries
from weir.state.tables.panes.packed_rows import range_of_group
from weir.state.tables.panes.window_entries import NOTHING_MS
from weir.state.tables.timers.time_first import time_bytes, time_of

#: Entries of a group that are read first, and in all if its panes have few each: one more pane costs as much as 30.
_HEAD_ENTRIES, _SMALL_ENTRIES = 16, 336
_SMALL_PANES = 3
#: Packed rows that are read first, and in all if they are small.
_HEAD_ROWS, _SMALL_ROWS, _SMALL_BYTES = 2, 40, 2_048


class PaneHead:
    """The entries of one key group, which have begun to be read when this is made."""

    def __init__(self, reading: RangeReading, group: int, state_id: int) -> None:
        first, last = range_of_group(group, state_id)
        assert last is not None, "a group's prefix has an end"
        self._ends = range_of_panes(group, state_id)
        self._reading, self._group, self._state_id = reading, group, state_id
        # In this order, see scan_entries. The place of the group lies before its panes. The start must not name the
        # group again, as the key of the place does: requests are shared by groups with the same bounds.
        self._own = reading.scan(layout.key_prefix(group, state_id) + time_bytes(NOTHING_MS), self._ends[1])
        self._packed = reading.scan(first, last)
        self._last: Iterator[tuple[bytes, bytes]] | None = None
        #: Reads entries of the group, from memory if they are few.
        self.scan: Scan = reading.scan

    def look(self) -> bool:
        """Take what has been read; returns whether it is all, so that the ends are known without further reading."""
        own = list(islice(self._own, _HEAD_ENTRIES))
        place = own[0][1] if own and own[0][0] < self._ends[0] else None
        self._reading.know_place(self._group, self._state_id, place)
        if place is not None:
            own = [*own[1:], *islice(self._own, 1)]
        if len(own) == _HEAD_ENTRIES and time_of(own[0][0]) != time_of(own[-1][0]):
            panes = len({time_of(key) for key, _ in own})
            own += islice(self._own, _SMALL_ENTRIES - _HEAD_ENTRIES if panes >= _SMALL_PANES else 0)
        rows = list(islice(self._packed, _HEAD_ROWS))
        if len(rows) == _HEAD_ROWS and sum(len(value) for _, value in rows) <= _SMALL_BYTES:
            rows += islice(self._packed, _SMALL_ROWS - _HEAD_ROWS)
        # Nobody wants what comes next of them: it must not be read along with what others want.
        self._own = self._packed = iter(())
        is_own_whole = len(own) < _HEAD_ENTRIES or _HEAD_ENTRIES < len(own) < _SMALL_ENTRIES
        is_whole = is_own_whole and (len(rows) < _HEAD_ROWS or _HEAD_ROWS < len(rows) < _SMALL_ROWS)
        if is_whole:
            # Packed ones have a namespace: they come after the others.
            self.scan = partial(scan_list, own + rows)
        return is_whole

    def begin_ends(self) -> None:
        """Begin to read the first and the last entry."""
        self._own = scan_entries(self.scan, *self._ends)
        self._last = scan_entries(self.scan, *self._ends, reverse=True)

    def ends(self) -> tuple[int, int] | None:
        """The ends of the first and of the last pane; None: there is none."""
        assert self._last is not None, "begin_ends comes before"
        first = next(self._own, None)
        return None if first is None else (time_of(first[0]), time_of(next(self._last, first)[0]))
