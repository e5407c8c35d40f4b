"""Keys: row -> canonical bytes -> stable 64-bit hash -> key group -> subtask, and back to columns. Without the GIL.

Called by exchanges (to split a batch by subtask) and keyed operators (to find state). Hash and group decide where state
lives. Importing this module loads compiled loops from the disk cache (0.4 s), or compiles them once per machine (3 s).

Canonical key bytes: they depend on the values alone, not on the process, the batch or the integer width.

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

from weir.errors import GraphError, InputError, StateError
from weir.keys import key_kernels as kernels
from weir.types import MAX_PARALLELISM_MAX

_WIDE_BYTES_IDS = frozenset(plain.id for plain in (pa.large_string(), pa.large_binary()))
#: Types whose buffers are the keys as they stand.
_PLAIN_BYTES_IDS = _WIDE_BYTES_IDS | {pa.string().id, pa.binary().id}
#: Types whose values are bytes.
_BYTES_IDS = _PLAIN_BYTES_IDS | {
    plain.id for plain in (pa.string_view(), pa.binary_view(), pa.binary(length=1))
}
#: The key of a row whose only key column is null.
NULL_KEY = b"\xff"
INTEGER_BYTES = 8

_SUBTASKS_MAX = 1 << 16


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
    return data_type.id in _BYTES_IDS


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


def hash_keys(keys: KeyColumn) -> np.ndarray:
    """XXH64 with seed 0 of every key's bytes; uint64, shape (rows,)."""
    hashes = np.empty(len(keys), dtype=np.uint64)
    if keys.integers is not None:
        kernels.hash_integers(keys.integers, hashes)
    else:
        kernels.hash_bytes(keys.data, keys.offsets, hashes)
    return hashes


def hash_key(key: bytes) -> np.uint64:
    """As :func:`hash_keys` of one key, without letting go of the GIL."""
    return np.uint64(kernels.hash_one(np.frombuffer(key, dtype=np.uint8)))


def distinct_keys(hashes: np.ndarray, keys: KeyColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows have the same key; 20 ns a row.

    Args:
        hashes: of :func:`hash_keys`, uint64, shape (rows,).
        keys: of the same rows.

    Returns:
        First and last row of each distinct key, in the order in which they come first, and for each row the position of
        its key among them; all int64.
    """
    rows = len(hashes)
    table = np.zeros(1 << (2 * rows).bit_length(), dtype=np.uint32)
    inverse, firsts, lasts = (np.empty(rows, dtype=np.int64) for _ in range(3))
    count = kernels.distinct_keys(hashes, keys.data, keys.offsets, table, inverse, firsts, lasts)
    return firsts[:count], lasts[:count], inverse


def select_keys(keys: KeyColumn, rows: np.ndarray) -> KeyColumn:
    """The keys of these rows (int64)."""
    starts = np.asarray(keys.offsets[:-1][rows], dtype=np.int64)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(keys.offsets[1:][rows] - starts, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.gather_bytes(keys.data, starts, offsets, data)
    return KeyColumn(data, offsets)


def joined_keys(columns: Sequence[KeyColumn]) -> KeyColumn:
    """All keys of these, one after the other."""
    data, lengths = [np.empty(0, dtype=np.uint8)], [np.empty(0, dtype=np.int64)]
    for keys in columns:
        if len(keys):
            data.append(keys.data[int(keys.offsets[0]) : int(keys.offsets[-1])])
            lengths.append(np.diff(keys.offsets).astype(np.int64))
    offsets = np.zeros(sum(map(len, lengths)) + 1, dtype=np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return KeyColumn(np.concatenate(data), offsets)


def key_groups(hashes: np.ndarray, max_parallelism: int) -> np.ndarray:
    """The key group of each hash; uint16, shape (rows,), ``0 <= group < max_parallelism``.

    The upper 32 bits, scaled: ``(hash >> 32) * max_parallelism >> 32``. So the lower bits stay independent of
    the group, for hash tables within a group.

    Raises:
        ValueError: ``max_parallelism`` is not in 1..4096.
    """
    if not 1 <= max_parallelism <= MAX_PARALLELISM_MAX:
        raise ValueError(f"max_parallelism is {max_parallelism}; it must be in 1..{MAX_PARALLELISM_MAX}")
    groups = np.empty(len(hashes), dtype=np.uint16)
    kernels.groups_of_hashes(hashes, max_parallelism, groups)
    return groups


def partition_hashes(
    hashes: np.ndarray, group_to_subtask: np.ndarray, subtask_count: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sort row numbers by destination, stable, so that rows of one key keep their order.

    Args:
        hashes: uint64, shape (all rows,).
        group_to_subtask: int32, shape (max_parallelism,), values below ``subtask_count``.
        subtask_count: number of destinations; one may get no row.
        rows: numbers of the rows that count; int64, shape (rows,). None: all.

    Returns:
        ``order``, uint32, shape (rows,), and ``offsets``, int64, shape (subtask_count + 1,): the rows of
        subtask s are ``order[offsets[s]:offsets[s + 1]]``.

    Raises:
        ValueError: a destination is out of range.
    """
    if not 1 <= subtask_count <= _SUBTASKS_MAX:
        raise ValueError(f"subtask_count is {subtask_count}; it must be in 1..{_SUBTASKS_MAX}")
    positions = np.zeros(subtask_count + 2, dtype=np.int64)
    order = np.empty(len(hashes if rows is None else rows), dtype=np.uint32)
    if rows is None:
        is_done = kernels.order_by_destination(hashes, group_to_subtask, positions, order)
    else:
        is_done = kernels.order_picked_by_destination(hashes, rows, group_to_subtask, positions, order)
    if not is_done:
        raise ValueError(
            f"routing table of {len(group_to_subtask)} groups names subtasks up to {group_to_subtask.max()}, "
            f"but there are {subtask_count} subtasks"
        )
    return order, positions[:-1]


def decode_keys(keys: KeyColumn, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Arrow columns from canonical keys: one array of ``len(keys)`` rows for each type, in key order.

    Raises:
        StateError: the bytes are not keys of these types.
    """
    if len(types) > 1:
        return _decode_composite(keys, types)
    (data_type,) = types
    lengths = np.diff(keys.offsets)
    starts = np.array(keys.offsets[:-1], dtype=np.int64)
    nulls = np.zeros(len(keys), dtype=bool)
    if not (pat.is_binary(data_type) or pat.is_large_binary(data_type)):
        single = np.flatnonzero(lengths == 1)
        nulls[single] = keys.data[starts[single]] == NULL_KEY[0]
    if is_bytes_like(data_type):
        data, offsets = keys.data, keys.offsets
        if nulls.any():
            # The byte that says null is no UTF-8, and some readers of Arrow look at bytes that belong to no value, too.
            offsets = np.zeros(len(keys) + 1, dtype=np.int64)
            np.cumsum(np.where(nulls, 0, lengths), out=offsets[1:])
            data = np.empty(int(offsets[-1]), dtype=np.uint8)
            kernels.gather_bytes(keys.data, starts, offsets, data)
        return [_bytes_to_arrow(binary_array(data, offsets, ~nulls), data_type)]
    wrong = np.flatnonzero((lengths != INTEGER_BYTES) & ~nulls)
    if len(wrong):
        raise StateError(f"key {keys.key(int(wrong[0]))!r} is not a key of type {data_type}")
    starts[nulls] = -1
    return [_integers_to_arrow(keys.data, starts, data_type)]


def _decode_composite(keys: KeyColumn, types: Sequence[pa.DataType]) -> list[pa.Array]:
    rows = len(keys)
    cursors = np.array(keys.offsets[:-1], dtype=np.int64)
    stops = np.array(keys.offsets[1:], dtype=np.int64)
    columns = []
    for data_type in types:
        starts, lengths = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        tag = kernels.TAG_BYTES if is_bytes_like(data_type) else kernels.TAG_INTEGER
        wrong = kernels.read_component(keys.data, cursors, stops, tag, starts, lengths)
        if wrong >= 0:
            raise StateError(f"key {keys.key(wrong)!r} has no component of type {data_type} where one is due")
        if tag == kernels.TAG_INTEGER:
            columns.append(_integers_to_arrow(keys.data, starts, data_type))
            continue
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        kernels.gather_bytes(keys.data, starts, offsets, data)
        columns.append(_bytes_to_arrow(binary_array(data, offsets, starts >= 0), data_type))
    if rows and not np.array_equal(cursors, stops):
        wrong = int(np.flatnonzero(cursors != stops)[0])
        raise StateError(f"key {keys.key(wrong)!r} has more components than the {len(types)} expected")
    return columns


def _bytes_to_arrow(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    try:
        if pat.is_dictionary(data_type):
            return array.cast(data_type.value_type).dictionary_encode().cast(data_type)
        return array.cast(data_type)
    except pa.ArrowInvalid as error:
        raise StateError(f"stored keys are not of type {data_type}: {error}") from error


def _integers_to_arrow(data: np.ndarray, starts: np.ndarray, data_type: pa.DataType) -> pa.Array:
    """Integer-like values at ``starts``; null where negative."""
    integers = np.zeros(len(starts), dtype=np.int64)
    kernels.read_integers(data, starts, integers)
    mask = None if (starts >= 0).all() else starts < 0
    if data_type == pa.uint64():
        return pa.array(integers.view(np.uint64), mask=mask)
    array = pa.array(integers, mask=mask)
    try:
        if pat.is_temporal(data_type) and data_type.bit_width == 32:
            return array.cast(pa.int32()).view(data_type)
        if pat.is_temporal(data_type):
            return array.view(data_type)
        return array.cast(data_type)
    except pa.ArrowInvalid as error:
        raise StateError(f"stored keys are not of type {data_type}: {error}") from error
