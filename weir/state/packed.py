"""State keys and values in arrays, without a Python object for each: what caches of accumulators read and write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.keys.hashing import KeyColumn, select_keys
from weir.keys.key_kernels import gather_bytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedKeys:
    """State keys (``weir.state.layout``), one after the other."""

    #: uint8; key i is ``data[offsets[i]:offsets[i + 1]]``.
    data: np.ndarray
    #: int64, shape (keys + 1,); the first one may be above 0.
    offsets: np.ndarray
    #: uint16, shape (keys,); the key group that each key begins with. Equal ones are neighbours.
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    def to_bytes(self) -> bytes:
        """All keys, one after the other."""
        return self.data[int(self.offsets[0]) : int(self.offsets[-1])].tobytes()

    def lengths(self) -> np.ndarray:
        """Of each key, uint32, little endian, shape (keys,)."""
        return np.diff(self.offsets).astype("<u4")

    def to_list(self) -> list[bytes]:
        """Each key as an object."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        # Arrow makes a list of bytes in 20 ns a key, slicing one by one in 120.
        keys: list[bytes] = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), buffers
        ).to_pylist()
        return keys

    def take(self, positions: np.ndarray) -> PackedKeys:
        """The keys at these positions (int64)."""
        column = select_keys(KeyColumn(self.data, self.offsets), positions)
        return PackedKeys(column.data, column.offsets, self.groups[positions])

    def part(self, start: int, stop: int) -> PackedKeys:
        """The keys ``start <= i < stop``; a view."""
        return PackedKeys(self.data, self.offsets[start : stop + 1], self.groups[start:stop])

    def parts(self, spans: Sequence[tuple[int, int]]) -> PackedKeys:
        """The keys of several ranges, one after the other."""
        if len(spans) == 1:
            return self.part(*spans[0])
        return join_keys([self.part(start, stop) for start, stop in spans])

    def runs(self) -> list[tuple[int, int, int]]:
        """``(group, start, stop)`` of each range of keys of one group."""
        if not len(self):
            return []
        starts = [0, *(np.flatnonzero(self.groups[1:] != self.groups[:-1]) + 1).tolist()]
        groups = self.groups[starts].tolist()
        return list(zip(groups, starts, [*starts[1:], len(self)], strict=True))

    def cut(self, bytes_max: int, entry_bytes: int) -> Iterator[tuple[int, int]]:
        """Ranges of at most ``bytes_max``, each key with ``entry_bytes`` on top; a larger key makes one of its own."""
        sizes = self.offsets + entry_bytes * np.arange(len(self) + 1)
        start = 0
        while start < len(self):
            within = int(np.searchsorted(sizes, sizes[start] + bytes_max, side="right")) - 1
            stop = max(start + 1, within)
            yield start, stop
            start = stop


def join_keys(parts: Sequence[PackedKeys]) -> PackedKeys:
    """All keys of ``parts``, of which there is one at least, in order."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = np.concatenate([part.data[int(part.offsets[0]) : int(part.offsets[-1])] for part in parts])
    return PackedKeys(data, offsets, np.concatenate([part.groups for part in parts]))


def split_rows(rows: np.ndarray) -> list[bytes]:
    """Each row of a uint8 matrix as an object."""
    values: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
    return values


def pack_values(values: Sequence[bytes | None], value_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of one length as arrays.

    Returns:
        ``present``, bool, shape (values,), and the rows of those that are, uint8, shape (present, value_bytes).

    Raises:
        StateMismatchError: a value has another length.
    """
    found = [value for value in values if value is not None]
    joined = b"".join(found)
    if found and set(map(len, found)) != {value_bytes}:
        wrong = next(len(value) for value in found if len(value) != value_bytes)
        raise StateMismatchError(
            f"a stored accumulator has {wrong} bytes, {value_bytes} expected: "
            "the job's aggregates changed; start from an empty store"
        )
    present = np.ones(len(values), dtype=np.bool_)
    if len(found) < len(values):
        present = np.array([value is not None for value in values], dtype=np.bool_)
    return present, np.frombuffer(joined, dtype=np.uint8).reshape(len(found), value_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class PackedValues:
    """Values of any length in one array; those of length 0 are absent, as no state has an empty value."""

    #: uint8; value i is ``data[starts[i]:starts[i] + lengths[i]]``.
    data: np.ndarray
    #: int64, shape (values,).
    starts: np.ndarray
    #: int64, shape (values,).
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_list(cls, values: Sequence[bytes | None]) -> PackedValues:
        """Values that are objects; None: absent."""
        # Calls of C over all values: a batch has thousands.
        found = list(filter(None, values))
        lengths = np.zeros(len(values), dtype=np.int64)
        is_there = np.fromiter(map(bool, values), np.bool_, len(values))
        lengths[is_there] = np.fromiter(map(len, found), np.int64, len(found))
        return cls(np.frombuffer(b"".join(found), dtype=np.uint8), np.cumsum(lengths) - lengths, lengths)

    def value(self, index: int) -> bytes:
        """Return one of them as an object."""
        start = int(self.starts[index])
        return self.data[start : start + int(self.lengths[index])].tobytes()

    def take(self, positions: np.ndarray) -> PackedValues:
        """The values at these positions (int64), where they are."""
        return PackedValues(self.data, self.starts[positions], self.lengths[positions])

    def packed(self) -> KeyColumn:
        """The same one after the other, without what lies between them; a view if they lie so."""
        offsets = self.offsets()
        if not len(self):
            return KeyColumn(self.data[:0], offsets)
        first = int(self.starts[0])
        if np.array_equal(self.starts, offsets[:-1] + first):
            return KeyColumn(self.data[first : first + int(offsets[-1])], offsets)
        out = np.empty(int(offsets[-1]), dtype=np.uint8)
        self.copy_to(out, offsets)
        return KeyColumn(out, offsets)

    def offsets(self) -> np.ndarray:
        """Where each value begins, and the last one ends, once they are one after the other; int64."""
        offsets = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    def copy_to(self, out: np.ndarray, offsets: np.ndarray) -> None:
        """Copy the values to ``out``, another array than ``data``, as :meth:`offsets` says."""
        gather_bytes(self.data, np.ascontiguousarray(self.starts, dtype=np.int64), offsets, out)

    def to_list(self) -> list[bytes]:
        """Return each value as an object; absent ones are empty."""
        column = self.packed()
        buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        values: list[bytes] = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), buffers
        ).to_pylist()
        return values


def join_values(parts: Sequence[PackedValues]) -> PackedValues:
    """Return all values of ``parts``, in order."""
    if len(parts) == 1:
        return parts[0]
    columns = [part.packed() for part in parts]
    lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(part.lengths for part in parts)])
    data = np.concatenate([np.zeros(0, dtype=np.uint8), *(column.data for column in columns)])
    return PackedValues(data, np.cumsum(lengths) - lengths, lengths)
