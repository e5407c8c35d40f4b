"""What questions read: store keys and values, of a subtask as it is now or of a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from weir.state import layout
from weir.state.api import prefix_end
from weir.state.tables.cells.accumulators import decode_values
from weir.state.tables.panes.packed_reading import get_entries, scan_entries
from weir.state.tables.panes.pane_table import MARKED
from weir.state.tables.panes.window_entries import NOTHING_MS
from weir.state.tables.retained import clock_key, retention_cut_ms, unpack_clock
from weir.state.tables.timers.time_first import time_bytes, time_of


class PaneEntries(NamedTuple):
    """What one key has in some panes: ends in ms (int64), cells (int64) and presence (uint8), a row for each."""

    ends_ms: np.ndarray
    cells: np.ndarray
    presence: np.ndarray


@dataclass(frozen=True, slots=True)
class PaneBounds:
    """Which panes a key group may have, by their ends; both inclusive."""

    first_ms: int
    last_ms: int
    #: The group's windows have fired up to here; ``NOTHING_MS``: none has.
    fired_ms: int


class RangeReading(Protocol):
    """A state of a step, in the order of keys. Keys are whole state keys; a range lies within one key group."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in key order, or the reverse."""

    def is_expired(self, stamp: int) -> bool:
        """Return whether an entry with this time (``UNDATED``: without one) has expired; for states with a TTL."""

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """Return the time before which versions, windows and sessions that a step declares are not there any more."""

    def bounds_of(
        self, group: int, state_id: int, cell_count: int, first_ms: int, last_ms: int
    ) -> PaneBounds | None:
        """Bounds of aggregates in windows with so many cells, where the first and the last pane are known.

        None: the group has none any more.
        """

    def know_place(self, group: int, state_id: int, data: bytes | None) -> None:
        """Take note of the entry that is the place of a group of windows (None: there is none), if it is of use."""

    def fired_ms(self, group: int, state_id: int, cell_count: int, *, by_now: bool) -> int:
        """Up to where the windows of a group have fired; ``NOTHING_MS``: none has.

        ``by_now``: not only when reading began. To be asked after entries were read: those of windows that have
        fired since may be gone.
        """

    def ends_by_time(self, group: int, state_id: int, cell_count: int) -> bool:
        """Return whether a group's place (of sessions) was marked when reading began, see ``PaneTable.mark_places``."""

    def watermark_of(self, group: int) -> int:
        """The watermark of a group's owner; ``weir.state.tables.stamps.UNDATED``: it is not known."""

    def number_of(self, state: str) -> int:
        """Number in the store of another state of the step, by the name under which the job has it."""

    def check(self) -> None:
        """Wait if that must be, or raise what ends the question; called now and then while much is read."""


class StateReading(RangeReading, Protocol):
    """The same, read by key too."""

    #: The highest watermark that the step knew; ``weir.state.tables.stamps.UNDATED``: none.
    watermark_ms: int

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where there is none."""

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """Bounds of aggregates in windows with so many cells; None: the group has no pane."""

    def pane_entries(
        self, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
    ) -> PaneEntries:
        """What a key has in the panes with these ends (int64, ascending), in their order."""


class StoredReading(ABC):
    """What ``StateReading`` asks for beside reading itself, of a state that is read as from a store."""

    watermark_ms: int

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, as ``StateReading`` says."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as ``StateReading`` says."""

    def watermark_of(self, group: int) -> int:
        """Return the watermark of what is read, as ``StateReading`` says."""
        return self.watermark_ms

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """Return the time before which nothing is there any more, as ``StateReading`` says."""
        clock = unpack_clock(self.get_many([clock_key(group, state_id)])[0])
        return retention_cut_ms(clock, self.watermark_ms, retention_ms)

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """Return the bounds of a group's panes, as ``StateReading`` says."""
        ends = scanned_ends(self, group, state_id)
        return None if ends is None else self.bounds_of(group, state_id, cell_count, *ends)

    def bounds_of(
        self, group: int, state_id: int, cell_count: int, first_ms: int, last_ms: int
    ) -> PaneBounds | None:
        """Bounds of the panes; see ``RangeReading``."""
        return PaneBounds(first_ms, last_ms, self.fired_ms(group, state_id, cell_count, by_now=False))

    def fired_ms(self, group: int, state_id: int, cell_count: int, *, by_now: bool) -> int:
        """Return up to where windows have fired, as ``StateReading`` says."""
        place_ms, _ = self._place(group, state_id, cell_count)
        return place_ms

    def ends_by_time(self, group: int, state_id: int, cell_count: int) -> bool:
        """Return whether a group's place is marked, as ``StateReading`` says."""
        _, is_marked = self._place(group, state_id, cell_count)
        return is_marked

    def _place(self, group: int, state_id: int, cell_count: int) -> tuple[int, bool]:
        """The place of a group of windows, and whether it has a mark; without a place none is missing."""
        data = self._stored_place(group, state_id)
        if data is None:
            return NOTHING_MS, True
        cells, presence = decode_values([data], cell_count)
        found = int(presence[0, 0])
        return (int(cells[0, 0]), found & MARKED != 0) if found & 1 else (NOTHING_MS, True)

    def know_place(self, group: int, state_id: int, data: bytes | None) -> None:  # noqa: B027
        """Ignore the place, which is read again; see ``RangeReading``."""

    def _stored_place(self, group: int, state_id: int) -> bytes | None:
        """The entry that is the place of a group of windows."""
        return self.get_many([place_key(group, state_id)])[0]

    def pane_entries(
        self, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
    ) -> PaneEntries:
        """Return the entries of a key in panes, as ``StateReading`` says."""
        prefix = layout.key_prefix(group, state_id)
        keys = [prefix + time_bytes(end_ms) + user_key for end_ms in ends_ms.tolist()]
        found = get_entries(self.get_many, self.scan, keys)
        there = [row for row, data in enumerate(found) if data is not None]
        cells, presence = decode_values([data for data in found if data is not None], cell_count)
        # Kernels take no array that cannot be written, such as that of one entry.
        return PaneEntries(ends_ms[there], cells.copy(), presence.copy())


#: Scans that begin before the first of them is read.
_BEGUN_MAX = 64
_Of = TypeVar("_Of")


def begun_together(
    items: Iterable[_Of], begin: Callable[[_Of], Iterator[tuple[bytes, bytes]]]
) -> Iterator[tuple[_Of, Iterator[tuple[bytes, bytes]]]]:
    """Items with what is scanned for each; some scans begin at a time, which a store elsewhere reads in one go."""
    left = iter(items)
    while some := [(item, begin(item)) for item in islice(left, _BEGUN_MAX)]:
        yield from some


def place_key(group: int, state_id: int) -> bytes:
    """Key of the entry that says up to where the windows of a group have fired."""
    return layout.key_prefix(group, state_id) + time_bytes(NOTHING_MS) + group.to_bytes(2, "big")


def range_of_panes(group: int, state_id: int) -> tuple[bytes, bytes]:
    """Range of the entries of the panes of a group that are not packed."""
    prefix = layout.key_prefix(group, state_id)
    stop = prefix_end(prefix)
    assert stop is not None, "it begins with a key group, which is not only 0xFF"
    return prefix + time_bytes(NOTHING_MS + 1), stop


def scanned_ends(reading: StoredReading, group: int, state_id: int) -> tuple[int, int] | None:
    """The ends of the first and the last pane of a group; None: it has none."""
    start, stop = range_of_panes(group, state_id)
    # Both begin before one is looked at, see scan_entries.
    first_entries = scan_entries(reading.scan, start, stop)
    last_entries = scan_entries(reading.scan, start, stop, reverse=True)
    first = next(first_entries, None)
    return None if first is None else (time_of(first[0]), time_of(next(last_entries, first)[0]))
