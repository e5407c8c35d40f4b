"""What questions read: store keys and values, of a subtask as it is now or of a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    """One state of one step, in the order of keys. Keys are whole state keys; a range lies within one key group."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in key order, or the reverse."""
        ...

    def is_expired(self, stamp: int) -> bool:
        """Whether an entry with this time (``UNDATED``: without one) has expired; for states with a TTL."""
        ...

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """Of versions, windows and sessions that a step declares: what is before this time is not there any more."""
        ...

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """Of aggregates in windows with so many cells; None: the group has no pane."""
        ...

    def fired_ms(self, group: int, state_id: int, cell_count: int, *, by_now: bool) -> int:
        """Up to where the windows of a group have fired; ``NOTHING_MS``: none has.

        ``by_now``: not only when reading began. To be asked after entries were read: those of windows that have
        fired since may be gone.
        """
        ...

    def ends_by_time(self, group: int, state_id: int, cell_count: int) -> bool:
        """Of sessions: whether the place of a group is marked, see ``PaneTable.mark_places``; of when reading began."""
        ...

    def watermark_of(self, group: int) -> int:
        """The watermark of a group's owner; ``weir.state.tables.expiry.UNDATED``: it is not known."""
        ...

    def number_of(self, state: str) -> int:
        """Number in the store of another state of the step, by the name under which the job has it."""
        ...

    def check(self) -> None:
        """To be called now and then while much is read; may wait, and raises what ends the question."""
        ...


class StateReading(RangeReading, Protocol):
    """The same, read by key too."""

    #: The highest watermark that the step knew; ``weir.state.tables.expiry.UNDATED``: none.
    watermark_ms: int

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where there is none."""
        ...

    def pane_entries(
        self, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
    ) -> PaneEntries:
        """What a key has in the panes with these ends (int64, ascending), in their order."""
        ...


class StoredReading(ABC):
    """What ``StateReading`` asks for beside reading itself, of a state all of which is in a store."""

    watermark_ms: int

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``StateReading``."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See ``StateReading``."""

    def watermark_of(self, group: int) -> int:
        """See ``StateReading``."""
        return self.watermark_ms

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """See ``StateReading``."""
        clock = unpack_clock(self.get_many([clock_key(group, state_id)])[0])
        return retention_cut_ms(clock, self.watermark_ms, retention_ms)

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """See ``StateReading``."""
        return scanned_bounds(self, group, state_id, self.fired_ms(group, state_id, cell_count, by_now=False))

    def fired_ms(self, group: int, state_id: int, cell_count: int, *, by_now: bool) -> int:
        """See ``StateReading``."""
        place_ms, _ = self._place(group, state_id, cell_count)
        return place_ms

    def ends_by_time(self, group: int, state_id: int, cell_count: int) -> bool:
        """See ``StateReading``."""
        _, is_marked = self._place(group, state_id, cell_count)
        return is_marked

    def _place(self, group: int, state_id: int, cell_count: int) -> tuple[int, bool]:
        """The place of a group of windows, and whether it has a mark; without a place none is missing."""
        place = layout.key_prefix(group, state_id) + time_bytes(NOTHING_MS) + group.to_bytes(2, "big")
        data = self.get_many([place])[0]
        if data is None:
            return NOTHING_MS, True
        cells, presence = decode_values([data], cell_count)
        found = int(presence[0, 0])
        return (int(cells[0, 0]), found & MARKED != 0) if found & 1 else (NOTHING_MS, True)

    def pane_entries(
        self, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
    ) -> PaneEntries:
        """See ``StateReading``."""
        return stored_entries(self, group, state_id, user_key, ends_ms, cell_count)


class _Scanning(Protocol):
    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...


class _Getting(_Scanning, Protocol):
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...


def stored_entries(
    reading: _Getting, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
) -> PaneEntries:
    """What a key has in the panes with these ends (int64, ascending), in their order."""
    prefix = layout.key_prefix(group, state_id)
    keys = [prefix + time_bytes(end_ms) + user_key for end_ms in ends_ms.tolist()]
    found = get_entries(reading.get_many, reading.scan, keys)
    there = [row for row, data in enumerate(found) if data is not None]
    cells, presence = decode_values([data for data in found if data is not None], cell_count)
    # Kernels take no array that cannot be written, such as that of one entry.
    return PaneEntries(ends_ms[there], cells.copy(), presence.copy())


def scanned_bounds(reading: _Scanning, group: int, state_id: int, fired_ms: int) -> PaneBounds | None:
    """The bounds of the panes of a group whose windows have fired up to a time; None: it has none."""
    prefix = layout.key_prefix(group, state_id)
    stop = prefix_end(prefix)
    assert stop is not None, "it begins with a key group, which is not only 0xFF"
    start = prefix + time_bytes(NOTHING_MS + 1)
    first = next(iter(scan_entries(reading.scan, start, stop)), None)
    if first is None:
        return None
    last = next(iter(scan_entries(reading.scan, start, stop, reverse=True)), first)
    return PaneBounds(time_of(first[0]), time_of(last[0]), fired_ms)
