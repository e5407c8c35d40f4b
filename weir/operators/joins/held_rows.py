"""Rows of one side of a join in memory: some that came together, and all that are held, filed by key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weir.keys import hashing as weir_keys
from weir.keys import key_kernels
from weir.operators.joins import recent_kernels as kernels

_ROWS_LEAST = 16
#: Of each row, beside its key and columns: hash, three times, where both begin, and the row after it.
_ROW_BYTES = 8 + 3 * 8 + 2 * 8 + 4
#: The last time at which a row matches that is there no more.
DEAD_MS = -(2**63)


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of one side, in the order in which they came; arrays are of shape (rows,), offsets one longer."""

    hashes: np.ndarray
    keys: weir_keys.KeyColumn
    times: np.ndarray
    lower: np.ndarray
    until: np.ndarray
    #: Their columns, see ``row_codec``.
    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    def key_columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What ``recent_kernels`` take of keys."""
        return self.hashes, self.keys.data, self.keys.offsets.astype(np.int64, copy=False)

    def numbers(self) -> np.ndarray:
        """Return times, ``lower`` and ``until``, one below the other."""
        return np.stack((self.times, self.lower, self.until))

    def only(self, rows: np.ndarray, data: np.ndarray, offsets: np.ndarray) -> HeldRows:
        """Some of them, by their numbers (int64), with these columns."""
        keys = weir_keys.select_keys(self.keys, rows)
        times, lower, until = self.times[rows], self.lower[rows], self.until[rows]
        return HeldRows(self.hashes[rows], keys, times, lower, until, data, offsets)

    def chosen(self, rows: np.ndarray) -> HeldRows:
        """Some of them, by their numbers (int64), with their columns."""
        firsts = self.offsets[:-1][rows]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(self.offsets[1:][rows] - firsts, out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        key_kernels.gather_bytes(self.data, firsts, offsets, data)
        return self.only(rows, data, offsets)


class HeldSide:
    """The rows of a side that are held, and where those of a key are. Arrays have room for more, and double."""

    def __init__(self) -> None:
        self._begin(_ROWS_LEAST, 0, 0)

    def _begin(self, rows: int, key_bytes: int, column_bytes: int) -> None:
        """Hold nothing, with room for so much."""
        self._count = 0
        #: So many rows are there no more.
        self.dead = 0
        #: So many of the first rows are written, too.
        self.written = 0
        self._hashes = np.empty(rows, dtype=np.uint64)
        self._numbers = np.empty((3, rows), dtype=np.int64)
        self._key_offsets, self._offsets = (np.zeros(rows + 1, dtype=np.int64) for _ in range(2))
        self._key_data = np.empty(key_bytes, dtype=np.uint8)
        self._data = np.empty(column_bytes, dtype=np.uint8)
        self._file_anew()

    def _file_anew(self) -> None:
        rows = len(self._hashes)
        self._heads, self._tails = (np.zeros(1 << rows.bit_length(), dtype=np.int32) for _ in range(2))
        self._nexts = np.empty(rows, dtype=np.int32)
        kernels.file_rows(self._hashes[: self._count], 0, self._heads, self._tails, self._nexts)

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """What of the arrays is used: the rest of them was never written, and is no memory."""
        own = self._key_offsets[self._count] + self._offsets[self._count]
        return int(own) + self._count * _ROW_BYTES + self._heads.nbytes + self._tails.nbytes

    def rows(self) -> HeldRows:
        """What is held; good until the next call that changes it."""
        count = self._count
        keys = weir_keys.KeyColumn(self._key_data, self._key_offsets[: count + 1])
        times, lower, until = self._numbers[:, :count]
        return HeldRows(
            self._hashes[:count], keys, times, lower, until, self._data, self._offsets[: count + 1]
        )

    def to_match(self) -> tuple[np.ndarray, ...]:
        """What ``recent_kernels.match`` takes."""
        return *self.rows().key_columns(), self._numbers, self._heads, self._nexts

    def put(self, rows: HeldRows) -> None:
        """Hold more rows."""
        before, count = self._count, self._count + len(rows)
        key_offsets = rows.keys.offsets
        key_bytes = _appended(self._key_offsets, before, key_offsets)
        column_bytes = _appended(self._offsets, before, rows.offsets)
        is_full = count > len(self._hashes)
        if is_full:
            size = 1 << (count - 1).bit_length()
            self._hashes = _larger(self._hashes, size, before)
            self._key_offsets, self._offsets = (
                _larger(each, size + 1, before + 1) for each in (self._key_offsets, self._offsets)
            )
            self._numbers = np.stack([_larger(each, size, before) for each in self._numbers])
        self._key_data = _with_room(self._key_data, key_bytes, int(self._key_offsets[before]))
        self._data = _with_room(self._data, column_bytes, int(self._offsets[before]))
        self._hashes[before:count] = rows.hashes
        for numbers, own in zip(self._numbers, (rows.times, rows.lower, rows.until), strict=True):
            numbers[before:count] = own
        for offsets, data, own_offsets, own_data in (
            (self._key_offsets, self._key_data, key_offsets, rows.keys.data),
            (self._offsets, self._data, rows.offsets, rows.data),
        ):
            first = int(own_offsets[0])
            begin = int(offsets[before])
            offsets[before + 1 : count + 1] = own_offsets[1:]
            offsets[before + 1 : count + 1] += begin - first
            data[begin : int(offsets[count])] = own_data[first : int(own_offsets[-1])]
        self._count = count
        if is_full:
            self._file_anew()
        else:
            kernels.file_rows(self._hashes[:count], before, self._heads, self._tails, self._nexts)

    def kill(self, rows: np.ndarray) -> None:
        """Let go of rows by their numbers (int64) that were not let go of; their memory is free a little later."""
        # No row that comes is looked for where this one is filed, and has its hash: it would have its key.
        self._hashes[rows] = ~self._hashes[rows]
        self._numbers[2, rows] = DEAD_MS
        self.dead += len(rows)

    def keep(self, rows: np.ndarray) -> None:
        """Let go of all but these, by their numbers (int64, ascending)."""
        stay, size = self.rows().chosen(rows), len(self._hashes)
        dead = int(np.count_nonzero(stay.until == DEAD_MS))
        written = int(np.searchsorted(rows, self.written))
        # Whoever comes next needs about as much room as was needed before.
        size = max(size // 2, _ROWS_LEAST) if 4 * len(rows) < size else size
        self._begin(size, min(len(self._key_data), 2 * len(stay.keys.data)), len(stay.data) * 5 // 4)
        self.put(stay)
        self.written, self.dead = written, dead

    def drop(self, watermark_ms: int) -> None:
        """Let go of rows that can match no more; of less than half of all a little later."""
        stay = self._numbers[2, : self._count] >= watermark_ms
        if self._count and 2 * np.count_nonzero(stay) <= self._count:
            self.keep(np.flatnonzero(stay))


def _appended(offsets: np.ndarray, rows: int, more: np.ndarray) -> int:
    """How many bytes there are with those of more rows."""
    return int(offsets[rows]) + int(more[-1]) - int(more[0])


def _larger(array: np.ndarray, size: int, used: int) -> np.ndarray:
    larger = np.empty(size, dtype=array.dtype)
    larger[:used] = array[:used]
    return larger


def _with_room(array: np.ndarray, size: int, used: int) -> np.ndarray:
    return array if size <= len(array) else _larger(array, max(size, 2 * len(array)), used)
