"""Canonical key bytes: they depend on the values alone, not on the process, the batch or the integer width.

The format is a promise (state is stored under these bytes); golden values are in ``tests/weir/test_keys.py``.

- One string or binary column: the value's own bytes.
- One integer-like column (integers, bool, date, time, timestamp, duration): 8 bytes big endian of the value's
  two's complement in 64 bits with the upper bit flipped, so that byte order is numeric order. A uint64 above
  2**63 - 1 wraps: it stays distinct within its column, but sorts below.
- Null in one column: the single byte 0xFF, which is no valid UTF-8 and no 8 bytes. A binary column has no
  bytes left to say null with, so there it is refused.
- Several columns: for each a tag (0 null, 1 integer, 2 bytes), then nothing, the 8 bytes, or a u32 length
  (little endian) and the bytes. Unambiguous; the order of bytes means nothing.

Floating point is refused: -0.0 equals 0.0 and NaN differs from itself, so bytes cannot stand for the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from weir.errors import GraphError, InputError
from weir.keys import key_kernels as kernels

_WIDE_BYTES_IDS = frozenset(plain.id for plain in (pa.large_string(), pa.large_binary()))
#: Types whose buffers are the keys as they stand.
_PLAIN_BYTES_IDS = _WIDE_BYTES_IDS | {pa.string().id, pa.binary().id}
#: The key of a row whose only key column is null.
NULL_KEY = b"\xff"
INTEGER_BYTES = 8


class KeyColumn:
    """The canonical keys of a batch's rows: ``data[offsets[i]:offsets[i + 1]]`` is the key of row i.

    ``data`` is uint8; ``offsets`` is int32 or int64, shape (rows + 1,), and may start above 0. Both may be
    read-only views of Arrow buffers, which they keep alive. A column of integers without nulls also has
    ``integers`` (int64, shape (rows,), the plain values) and writes its bytes only when they are asked for.
    """

    def __init__(
        self, data: np.ndarray | None, offsets: np.ndarray | None, integers: np.ndarray | None = None
    ) -> None:
        self.integers = integers
        if data is not None and offsets is not None:
            self.data, self.offsets = data, offsets
            self.rows = len(offsets) - 1
        elif integers is not None:
            self.rows = len(integers)
        else:
            raise ValueError("a key column needs bytes with offsets, or integers")

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def data(self) -> np.ndarray:
        """All key bytes, uint8."""
        out = np.empty(INTEGER_BYTES * self.rows, dtype=np.uint8)
        kernels.write_integers(self.integers, out)
        return out

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each key starts, and the last one ends; int32 or int64, shape (rows + 1,)."""
        return np.arange(0, INTEGER_BYTES * self.rows + 1, INTEGER_BYTES, dtype=np.int64)

    def key(self, row: int) -> bytes:
        """The key of one row."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def to_list(self, rows: np.ndarray | None = None) -> list[bytes]:
        """Keys as Python bytes, of all rows or of the given row numbers (about 0.1 µs each)."""
        start, stop = int(self.offsets[0]), int(self.offsets[-1])
        raw = self.data[start:stop].tobytes()
        offsets = self.offsets - start
        starts, stops = offsets[:-1], offsets[1:]
        if rows is not None:
            starts, stops = starts[rows], stops[rows]
        return [raw[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]

    @classmethod
    def from_list(cls, keys: Sequence[bytes]) -> KeyColumn:
        """Keys that are already canonical bytes, for example read from the store."""
        offsets = np.zeros(len(keys) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, keys), dtype=np.int64, count=len(keys)), out=offsets[1:])
        return cls(np.frombuffer(b"".join(keys), dtype=np.uint8), offsets)


def check_key_type(column: str, data_type: pa.DataType) -> None:
    """Check that a column of this type can be a key; called when the graph is built.

    Raises:
        GraphError: it cannot; the message names the column, the reason and the mend.
    """
    if pat.is_floating(data_type):
        raise GraphError(
            f"key column {column!r} has type {data_type}: floating-point values cannot be keys, because "
            "equal values may differ in their bytes (0.0 and -0.0, NaN); cast it to an integer or a string"
        )
    if not (is_bytes_like(data_type) or _is_integer_like(data_type)):
        raise GraphError(
            f"key column {column!r} has type {data_type}, which cannot be a key; use a string, binary, "
            "integer, boolean, date or time column, or several of them"
        )


def key_bytes(batch: pa.RecordBatch, columns: Sequence[str]) -> KeyColumn:
    """Canonical keys of all rows. One string or binary column without nulls is not copied.

    Raises:
        GraphError: a column is absent or its type cannot be a key.
        InputError: null in the only key column, and that is binary.
    """
    if not columns:
        raise GraphError("key_by needs at least one key column")
    if len(columns) == 1 and (index := batch.schema.get_field_index(columns[0])) >= 0:
        # The commonest case, ahead of everything else: small batches pay for every look at a type.
        keys = plain_key_bytes(batch.column(index))
        if keys is not None:
            return keys
    arrays = [_column(batch, name) for name in columns]
    if len(arrays) > 1:
        return _composite(arrays)
    array = arrays[0]
    if _is_integer_like(array.type):
        integers = _integers(array)
        if array.null_count == 0:
            return KeyColumn(None, None, integers)
        whole = KeyColumn(None, None, integers)
        array = binary_array(whole.data, whole.offsets, _valid(array))
    elif array.null_count and (pat.is_binary(array.type) or pat.is_large_binary(array.type)):
        raise InputError(
            f"key column {columns[0]!r} is binary and holds null, which has no key bytes of its own; filter "
            "nulls out or add a second key column"
        )
    if array.null_count:
        array = pc.fill_null(array.cast(pa.large_binary()), NULL_KEY)
    return KeyColumn(*_views(array))


def plain_key_bytes(array: pa.Array) -> KeyColumn | None:
    """As :func:`key_bytes`, of the only key column; None if it is not strings or binary without nulls."""
    if array.type.id in _PLAIN_BYTES_IDS and not array.null_count:
        return KeyColumn(*_views(array))
    return None


def is_bytes_like(data_type: pa.DataType) -> bool:
    """Whether the key of such a column is the value's own bytes (strings, binary, dictionaries of them)."""
    if pat.is_dictionary(data_type):
        return is_bytes_like(data_type.value_type)
    return bool(
        pat.is_string(data_type)
        or pat.is_large_string(data_type)
        or pat.is_string_view(data_type)
        or pat.is_binary(data_type)
        or pat.is_large_binary(data_type)
        or pat.is_binary_view(data_type)
        or pat.is_fixed_size_binary(data_type)
    )


def _is_integer_like(data_type: pa.DataType) -> bool:
    return bool(
        pat.is_integer(data_type) or pat.is_boolean(data_type) or pat.is_temporal(data_type)
    ) and not (pat.is_interval(data_type))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column in one of the plain forms: large or small string or binary, or integer-like."""
    if batch.schema.get_field_index(name) < 0:
        known = ", ".join(batch.schema.names)
        raise GraphError(f"key column {name!r} is not in the batch (or there twice); columns are: {known}")
    array = batch.column(name)
    check_key_type(name, array.type)
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pat.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pat.is_binary_view(array.type) or pat.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def _views(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Data and offsets of a string or binary array; views of its buffers, of its own rows only."""
    offset_type = np.int64 if array.type.id in _WIDE_BYTES_IDS else np.int32
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offsets_buffer is None:
        return np.empty(0, dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int64)
    width_bytes = 8 if offset_type is np.int64 else 4
    offsets = np.frombuffer(offsets_buffer, offset_type, len(array) + 1, width_bytes * array.offset)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, dtype=np.uint8)
    return data, offsets


def _integers(array: pa.Array) -> np.ndarray:
    """Values as int64, shape (rows,); 0 where null."""
    if pat.is_boolean(array.type):
        array = array.cast(pa.uint8())
    elif pat.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0, pa.int64()).cast(array.type))
    values: np.ndarray = array.to_numpy(zero_copy_only=True)
    if values.dtype == np.uint64:
        return values.view(np.int64)
    return values.astype(np.int64, copy=False)


def _valid(array: pa.Array) -> np.ndarray:
    """True where not null, shape (rows,)."""
    valid: np.ndarray = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return valid


def _composite(arrays: Sequence[pa.Array]) -> KeyColumn:
    rows = len(arrays[0])
    lengths = np.zeros(rows, dtype=np.int64)
    parts: list[tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None, np.ndarray]] = []
    for array in arrays:
        nulls = np.zeros(rows, dtype=np.uint8) if array.null_count == 0 else (~_valid(array)).view(np.uint8)
        if _is_integer_like(array.type):
            parts.append((_integers(array), None, None, nulls))
            own = np.full(rows, 1 + INTEGER_BYTES, dtype=np.int64)
        else:
            data, offsets = _views(array)
            parts.append((None, data, offsets, nulls))
            own = np.diff(offsets).astype(np.int64) + 5
        own[nulls != 0] = 1
        lengths += own
    offsets = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    cursors = offsets[:-1].copy()
    for integers, part_data, part_offsets, nulls in parts:
        if integers is not None:
            kernels.append_integers(out, cursors, integers, nulls)
        else:
            kernels.append_bytes(out, cursors, part_data, part_offsets, nulls)
    return KeyColumn(out, offsets)


def binary_array(data: np.ndarray, offsets: np.ndarray, valid: np.ndarray) -> pa.Array:
    """A large_binary array over these buffers; null where not ``valid``."""
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    wide = np.ascontiguousarray(offsets, dtype=np.int64)
    buffers = [bitmap, pa.py_buffer(wide), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
