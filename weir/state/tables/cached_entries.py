"""Cached accumulators on their way to a new owner, as contiguous arrays: nothing is done per key in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weir.errors import HandshakeError
from weir.state.tables.accumulators import presence_bytes


@dataclass(frozen=True, slots=True)
class CachedEntries:
    """What a cache had of some keys when they were given away; their store had the same.

    On the wire each array is its bytes, little endian.
    """

    #: Number of the operator's state in the store.
    state_id: int
    #: uint64, shape (keys,).
    hashes: np.ndarray
    #: uint8: the keys' bytes, one behind the other.
    key_data: np.ndarray
    #: int32, shape (keys,).
    key_lengths: np.ndarray
    #: int64, shape (keys, cells).
    cells: np.ndarray
    #: uint8, shape (keys, presence bytes), see ``weir.state.tables.accumulators``.
    presence: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def key_offsets(self) -> np.ndarray:
        """int64, shape (keys + 1,): the key of row i is ``key_data[offsets[i]:offsets[i + 1]]``."""
        offsets = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(self.key_lengths, out=offsets[1:])
        return offsets

    def pieces(self, keys_max: int) -> Iterator[CachedEntries]:
        """The same in parts of at most so many keys; they share the arrays."""
        offsets = self.key_offsets
        for start in range(0, len(self), keys_max):
            stop = min(start + keys_max, len(self))
            yield CachedEntries(
                self.state_id,
                self.hashes[start:stop],
                self.key_data[offsets[start] : offsets[stop]],
                self.key_lengths[start:stop],
                self.cells[start:stop],
                self.presence[start:stop],
            )


@dataclass(frozen=True, slots=True)
class CachedChanges:
    """What a new owner still needs of the old one's cache at a handover."""

    entries: Sequence[CachedEntries]
    #: The groups of which it then has everything that is worth having.
    groups: Sequence[int]
    #: Those of them whose earlier copy, if there is one, is void.
    anew: Sequence[int]


def decode_entries(
    state_id: int,
    cell_count: int,
    *,
    hashes: bytes,
    key_data: bytes,
    key_lengths: bytes,
    cells: bytes,
    presence: bytes,
) -> CachedEntries:
    """Entries from the bytes of their arrays.

    Raises:
        HandshakeError: the arrays do not fit together.
    """
    keys = len(hashes) // 8
    sizes = (len(hashes), len(key_lengths), len(cells), len(presence))
    width = presence_bytes(cell_count)
    if cell_count < 1 or sizes != (8 * keys, 4 * keys, 8 * keys * cell_count, keys * width):
        raise HandshakeError("cached state came with arrays that do not fit together")
    lengths = np.frombuffer(key_lengths, dtype="<i4")
    if keys and (int(lengths.min()) < 0 or int(lengths.sum(dtype=np.int64)) != len(key_data)):
        raise HandshakeError("cached state came with keys of other lengths than it says")
    return CachedEntries(
        state_id,
        np.frombuffer(hashes, dtype="<u8"),
        np.frombuffer(key_data, dtype=np.uint8),
        lengths,
        np.frombuffer(cells, dtype="<i8").reshape(keys, cell_count),
        np.frombuffer(presence, dtype=np.uint8).reshape(keys, width),
    )
