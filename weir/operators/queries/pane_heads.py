"""What a key group has of windows, read at once where it is little: panes would be looked for one after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache, partial
from itertools import islice

from weir.operators.queries.element_runs import Scan, scan_list
from weir.operators.queries.key_range import KeyRange
from weir.operators.queries.merging import Entries
from weir.operators.queries.pane_runs import pane_run
from weir.operators.queries.reading import RangeReading, range_of_panes
from weir.state import layout, wanted
from weir.state.tables.panes.packed_reading import scan_entries
from weir.state.tables.panes.packed_rows import range_of_group
from weir.state.tables.panes.window_entries import NOTHING_MS
from weir.state.tables.timers.time_first import time_bytes, time_of

#: Entries of a group that are read first; and then in all, page by page, if its panes are many and have few each: one
#: more pane costs as much as 30.
_HEAD_ENTRIES, _MORE_ENTRIES = 16, (16, 64, 256)
_SMALL_PANES = 3
#: Packed rows that are read first, and in all if they are small.
_HEAD_ROWS, _SMALL_ROWS, _SMALL_BYTES = 2, 40, 2_048

Entry = tuple[bytes, bytes]


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
        self._packed_ends = first, last
        self._packed = reading.scan(first, last)
        self._last: Iterator[Entry] | None = None
        #: What has been read first: entries, and packed rows, which may be all.
        self._head, self._rows, self._are_rows_all = (
            list[Entry](),
            list[Entry](),
            False,
        )
        #: Reads entries of the group, from memory if they are few.
        self.scan: Scan = reading.scan

    def look(self) -> bool:
        """Take what has been read; returns whether it is all, so that the ends are known without further reading."""
        own = list(islice(self._own, _HEAD_ENTRIES))
        is_own_all = len(own) < _HEAD_ENTRIES
        place = own[0][1] if own and own[0][0] < self._ends[0] else None
        self._reading.know_place(self._group, self._state_id, place)
        if place is not None:
            own = own[1:]
        rows = list(islice(self._packed, _HEAD_ROWS))
        if len(rows) == _HEAD_ROWS and sum(len(value) for _, value in rows) <= _SMALL_BYTES:
            rows += islice(self._packed, _SMALL_ROWS - _HEAD_ROWS)
        # Nobody wants what comes next of them: it must not be read along with what others want.
        self._own = self._packed = iter(())
        self._head, self._rows = own, rows
        self._are_rows_all = len(rows) < _HEAD_ROWS or _HEAD_ROWS < len(rows) < _SMALL_ROWS
        return self._know_all(own, is_own_all=is_own_all)

    def read_on(self) -> Generator[None, None, bool]:
        """Read all that a group has in many panes, if it is not much; returns whether it is. None: as ``runs``."""
        own = self._head
        if not self._are_rows_all or len({time_of(key) for key, _ in own}) < _SMALL_PANES:
            return False
        more = self._reading.scan(own[-1][0] + b"\0", self._ends[1])
        # Panes that have been packed since are among these only.
        packed = self._reading.scan(*self._packed_ends)
        for count in _MORE_ENTRIES:
            yield None
            found = list(islice(more, count))
            own = own + found
            if len(found) < count:
                self._rows = list(islice(packed, _SMALL_ROWS))
                self._are_rows_all = len(self._rows) < _SMALL_ROWS
                return self._know_all(own, is_own_all=True)
        return False

    def _know_all(self, own: list[Entry], *, is_own_all: bool) -> bool:
        is_whole = is_own_all and self._are_rows_all
        if is_whole:
            # Packed ones have a namespace: they come after the others.
            self.scan = partial(scan_list, own + self._rows)
        return is_whole

    def begin_panes(self, keys: KeyRange, ends: range) -> list[Entries]:
        """Begin to read panes, of which nobody knows whether they are there; what is packed is looked for once."""
        packed: list[Iterator[Entry]] = []

        @cache
        def first() -> list[Entry]:
            # It goes, as in look.
            return list(islice(packed.pop(), 1))

        def scan(start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[Entry]:
            if (start, stop) != self._packed_ends:
                return self._reading.scan(start, stop, reverse=reverse)
            return (entry for ask in (first,) for entry in ask())

        runs = [pane_run(scan, keys, end_ms) for end_ms in ends]
        # It begins after them, see scan_entries.
        packed.append(self._reading.scan(*self._packed_ends))
        return runs

    def begin_ends(self) -> None:
        """Begin to read the first and the last entry."""
        if self._head and not self._rows:
            self._own = iter(self._head)
        else:
            self._own = scan_entries(self.scan, *self._ends)
        with wanted.first(1):
            self._last = scan_entries(self.scan, *self._ends, reverse=True)

    def ends(self) -> tuple[int, int] | None:
        """The ends of the first and of the last pane; None: there is none."""
        assert self._last is not None, "begin_ends comes before"
        first = next(self._own, None)
        last = None if first is None else next(self._last, first)
        # As in look.
        self._own, self._last = iter(()), None
        return None if first is None or last is None else (time_of(first[0]), time_of(last[0]))
