"""Entries that aggregates keep besides a key's cells: a key goes on with a value, a bucket or a block of registers.

An entry's key is ``user key | value | length of the user key (4 bytes, big endian)``, where the value is in the form of
keys (``weir.keys.hashing``). Its key group is that of the user key. This is a persisted format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weir.keys import hashing as weir_keys
from weir.keys import key_kernels
from weir.operators.aggregation import part_kernels as kernels


def part_keys(
    hashes: np.ndarray, keys: weir_keys.KeyColumn, values: weir_keys.KeyColumn
) -> tuple[np.ndarray, weir_keys.KeyColumn]:
    """Hashes and keys of the entries of values of these keys; ``hashes`` are those of ``keys``."""
    rows = len(hashes)
    offsets, value_offsets = _wide(keys), _wide(values)
    size_bytes = int(offsets[-1] - offsets[0] + value_offsets[-1] - value_offsets[0])
    out = np.empty(size_bytes + kernels.LENGTH_BYTES * rows, dtype=np.uint8)
    out_offsets = np.empty(rows + 1, dtype=np.int64)
    out_hashes = np.empty(rows, dtype=np.uint64)
    kernels.part_keys(
        hashes,
        keys.data,
        offsets,
        weir_keys.hash_keys(values),
        values.data,
        value_offsets,
        out,
        out_offsets,
        out_hashes,
    )
    return out_hashes, weir_keys.KeyColumn(out, out_offsets)


@dataclass(frozen=True)
class PartEntries:
    """Entries that were read, in no order."""

    #: Whole keys.
    keys: weir_keys.KeyColumn
    #: int64, shape (entries, cells).
    cells: np.ndarray
    #: End of the pane, ms; int64.
    ends_ms: np.ndarray

    def some(self, rows: np.ndarray) -> PartEntries:
        """Return the entries of these numbers (int64)."""
        return PartEntries(weir_keys.select_keys(self.keys, rows), self.cells[rows], self.ends_ms[rows])

    @property
    def user_keys(self) -> weir_keys.KeyColumn:
        """The keys that the entries belong to."""
        offsets = _wide(self.keys)
        return _cut(self.keys.data, offsets[:-1], self._stops)

    @property
    def integers(self) -> np.ndarray:
        """Values that are integers; int64."""
        found = np.empty(len(self.ends_ms), dtype=np.int64)
        key_kernels.read_integers(self.keys.data, self._stops, found)
        return found

    @property
    def values(self) -> weir_keys.KeyColumn:
        """The values of entries."""
        return _cut(self.keys.data, self._stops, _wide(self.keys)[1:] - kernels.LENGTH_BYTES)

    @property
    def _stops(self) -> np.ndarray:
        stops = np.empty(len(self.ends_ms), dtype=np.int64)
        kernels.user_key_stops(self.keys.data, _wide(self.keys), stops)
        return stops


def _cut(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> weir_keys.KeyColumn:
    offsets = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    key_kernels.gather_bytes(data, np.ascontiguousarray(starts), offsets, out)
    return weir_keys.KeyColumn(out, offsets)


def _wide(keys: weir_keys.KeyColumn) -> np.ndarray:
    return np.ascontiguousarray(keys.offsets, dtype=np.int64)
