"""What questions read: store keys and values, of a subtask as it is now or of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from weir.state import layout
from weir.state.api import prefix_end
from weir.state.tables.accumulators import decode_values
from weir.state.tables.packed_reading import get_entries, scan_entries
from weir.state.tables.retained import clock_key, retention_cut_ms, unpack_clock
from weir.state.tables.time_first import time_bytes, time_of
from weir.state.tables.window_entries import NOTHING_MS


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


class StoredReading:
    """What ``StateReading`` asks for beside reading itself, of a state all of which is in a store."""

    watermark_ms: int

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``StateReading``."""
        raise NotImplementedError

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See ``StateReading``."""
        raise NotImplementedError

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """See ``StateReading``."""
        clock = unpack_clock(self.get_many([clock_key(group, state_id)])[0])
        return retention_cut_ms(clock, self.watermark_ms, retention_ms)

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """See ``StateReading``."""
        place = layout.key_prefix(group, state_id) + time_bytes(NOTHING_MS) + group.to_bytes(2, "big")
        data = self.get_many([place])[0]
        fired_ms = NOTHING_MS
        if data is not None:
            cells, presence = decode_values([data], cell_count)
            fired_ms = int(cells[0, 0]) if presence[0, 0] & 1 else NOTHING_MS
        return scanned_bounds(self, group, state_id, fired_ms)

    def pane_entries(
        self, group: int, state_id: int, user_key: bytes, ends_ms: np.ndarray, cell_count: int
    ) -> PaneEntries:
        """See ``StateReading``."""
        prefix = layout.key_prefix(group, state_id)
        keys = [prefix + time_bytes(end_ms) + user_key for end_ms in ends_ms.tolist()]
        found = get_entries(self.get_many, self.scan, keys)
        there = [row for row, data in enumerate(found) if data is not None]
        cells, presence = decode_values([data for data in found if data is not None], cell_count)
        # Kernels take no array that cannot be written, such as that of one entry.
        return PaneEntries(ends_ms[there], cells.copy(), presence.copy())


class _Scanning(Protocol):
    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...


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
