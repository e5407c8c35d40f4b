"""Entries of window tables: how their keys are put together and taken apart, and blocks of them.

The key of an entry is ``end of its pane, 8 bytes | user key`` (``weir.state.tables.timers.time_first`` has the bytes of
the end).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.tables.panes import window_kernels as kernels
from weir.state.tables.timers.time_first import TIME_STOP

#: The end of no pane: later than all.
NEVER_MS = 2**63 - 1
#: Nothing has fired; also the time of the entry that is a group's place.
NOTHING_MS = -(2**63)


@dataclass(frozen=True, slots=True, eq=False)
class WindowEntries:
    """Entries of some key groups, in no order."""

    #: End of the pane, ms; int64, shape (entries,).
    ends_ms: np.ndarray
    #: User keys.
    keys: weir_keys.KeyColumn
    #: Key group; uint16, shape (entries,).
    groups: np.ndarray
    #: int64, shape (entries, cells).
    cells: np.ndarray
    #: uint8, shape (entries, presence bytes).
    presence: np.ndarray

    def __len__(self) -> int:
        return len(self.ends_ms)

    def part(self, rows: np.ndarray) -> WindowEntries:
        """Those of these numbers (int64)."""
        return WindowEntries(
            self.ends_ms[rows],
            weir_keys.select_keys(self.keys, rows),
            self.groups[rows],
            self.cells[rows],
            self.presence[rows],
        )


def joined(blocks: Iterable[WindowEntries]) -> WindowEntries | None:
    """All entries of blocks in the order of their ends; None: there are none."""
    parts = [block for block in blocks if len(block)]
    if not parts:
        return None
    whole = concatenated(parts)
    if (whole.ends_ms[1:] >= whole.ends_ms[:-1]).all():
        return whole
    return whole.part(np.argsort(whole.ends_ms, kind="stable"))


def concatenated(parts: list[WindowEntries]) -> WindowEntries:
    """All entries of these blocks, of which there is one at least, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.keys.offsets) for part in parts])
    data = [part.keys.data[int(part.keys.offsets[0]) : int(part.keys.offsets[-1])] for part in parts]
    return WindowEntries(
        np.concatenate([part.ends_ms for part in parts]),
        weir_keys.KeyColumn(np.concatenate(data), key_offsets(lengths)),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.presence for part in parts]),
    )


def key_offsets(lengths: np.ndarray) -> np.ndarray:
    """Offsets of keys with these lengths, int64, shape (keys + 1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def made_entries(
    data: np.ndarray, lengths: np.ndarray, groups: np.ndarray, cells: np.ndarray, presence: np.ndarray
) -> WindowEntries:
    """Entries from their keys, which begin with the ends."""
    return WindowEntries(*end_and_user_keys(data, lengths), groups, cells, presence)


def end_and_user_keys(data: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, weir_keys.KeyColumn]:
    """Ends (int64) and user keys from the keys of entries."""
    ends = np.empty(len(lengths), dtype=np.int64)
    users = np.empty(len(data) - kernels.END_BYTES * len(lengths), dtype=np.uint8)
    kernels.split_keys(data, key_offsets(lengths), ends, users)
    return ends, weir_keys.KeyColumn(users, key_offsets(lengths - kernels.END_BYTES))


def laid_over(entries: WindowEntries | None, below: WindowEntries | None) -> WindowEntries | None:
    """All of ``entries``, and those ``below`` whose end and user key none of them has; None: there are none."""
    if entries is None or not len(entries):
        return below
    if below is None or not len(below):
        return entries
    if np.isin(np.unique(entries.ends_ms), np.unique(below.ends_ms)).any():
        both = concatenated([entries, below])
        hashes, data, offsets = entry_keys(both.ends_ms, weir_keys.hash_keys(both.keys), both.keys)
        firsts, _, _ = weir_keys.distinct_keys(hashes, weir_keys.KeyColumn(data, offsets))
        return both.part(firsts)
    return concatenated([entries, below])


def entry_keys(
    ends_ms: np.ndarray, hashes: np.ndarray, keys: weir_keys.KeyColumn
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes, key bytes and offsets of entries, as :meth:`CellTable.read` takes them."""
    rows = len(ends_ms)
    size_bytes = int(keys.offsets[-1]) - int(keys.offsets[0]) + kernels.END_BYTES * rows
    data = np.empty(size_bytes, dtype=np.uint8)
    offsets = np.empty(rows + 1, dtype=np.int64)
    mixed = np.empty(rows, dtype=np.uint64)
    kernels.entry_keys(ends_ms, hashes, keys.data, keys.offsets, data, offsets, mixed)
    return mixed, data, offsets


def place_keys(groups: np.ndarray, max_parallelism: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes, key bytes and offsets of the places of groups."""
    # The smallest hash of the group.
    hashes = np.array([-(-(int(group) << 32) // max_parallelism) << 32 for group in groups], dtype=np.uint64)
    # The cache finds entries by their bytes: those of two groups must differ.
    data = groups.astype(">u2").view(np.uint8)
    column = weir_keys.KeyColumn(data, np.arange(0, 2 * len(groups) + 1, 2, dtype=np.int64))
    return entry_keys(np.full(len(groups), NOTHING_MS), hashes, column)


assert TIME_STOP == layout.NO_NAMESPACE_HEADER_BYTES + kernels.END_BYTES
