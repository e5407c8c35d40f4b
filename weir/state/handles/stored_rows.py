"""Whole rows of a key as one value: their number, orders and bytes. A promise: the tests have golden bytes.

====================  =====================================================================================
version               1 byte: 1
rows                  4 bytes, little endian
of each row           8 bytes: its order (int64); 4 bytes: how many bytes it has; both little endian
the rows              one after the other: ``weir.keys.hashing`` of several columns, floats as the integers
                      of their bits, lists, structs and decimals as the bytes of ``weir.rows.nested_values``
====================  =====================================================================================

Rows are in the order in which they are kept. Reading and writing is of all keys of a batch at once; bytes of rows are
moved as they are, and only rows that leave are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.keys import key_kernels
from weir.rows.nested_values import packed_values, unpacked_values
from weir.state.packed import PackedValues

_VERSION = 1
_HEAD_BYTES = 5
#: Of each row in the header.
_ENTRY = np.dtype([("order", "<i8"), ("length", "<u4")])
_ENTRY_BYTES = _ENTRY.itemsize


@dataclass(frozen=True)
class StoredRows:
    """The rows of some keys, those of a key together and in their order."""

    #: By key; int64.
    counts: np.ndarray
    #: By row; int64.
    orders: np.ndarray
    #: By row: where its bytes are in ``data``; int64.
    starts: np.ndarray
    lengths: np.ndarray
    data: np.ndarray

    @property
    def firsts(self) -> np.ndarray:
        """Return for each key the position of its first row; int64."""
        firsts: np.ndarray = np.cumsum(self.counts) - self.counts
        return firsts

    @property
    def keys(self) -> np.ndarray:
        """Return for each row the position of its key; int64, ascending."""
        keys: np.ndarray = np.repeat(np.arange(len(self.counts)), self.counts)
        return keys

    @property
    def encoded(self) -> weir_keys.KeyColumn:
        """The bytes of each row, as :func:`encoded_rows` made them."""
        offsets = _offsets(self.lengths)
        return weir_keys.KeyColumn(_gathered(self.data, self.starts, offsets), offsets)

    def decoded(self, rows: np.ndarray, types: Sequence[pa.DataType]) -> list[pa.Array]:
        """Some rows as columns of these types.

        Raises:
            StateError: the bytes are not rows of these types.
        """
        offsets = _offsets(self.lengths[rows])
        data = _gathered(self.data, self.starts[rows], offsets)
        plain = weir_keys.decode_keys(
            weir_keys.KeyColumn(data, offsets), [plain_type(dtype) for dtype in types]
        )
        return [_typed(column, dtype) for column, dtype in zip(plain, types, strict=True)]


def read_rows(values: Sequence[bytes | None]) -> StoredRows:
    """The rows of keys; of a key without a value there are none.

    Raises:
        StateError: a value is of another form.
    """
    return rows_of(PackedValues.from_list(values))


def rows_of(values: PackedValues) -> StoredRows:
    """Read rows as :func:`read_rows`, of values in one array."""
    column = values.packed()
    data, is_there = column.data, values.lengths > 0
    starts = column.offsets[:-1][is_there]
    if len(starts) and (data[starts] != _VERSION).any():
        raise StateError(
            "the stored rows of a key are not of version 1: another version of Weir has written them"
        )
    counts = np.zeros(len(values), dtype=np.int64)
    heads = _gathered(data, starts + 1, np.arange(len(starts) + 1) * 4).view("<u4").astype(np.int64)
    counts[is_there] = heads
    entries_at = np.repeat(starts + _HEAD_BYTES, heads) + _within(heads) * _ENTRY_BYTES
    entries = _gathered(data, entries_at, np.arange(len(entries_at) + 1) * _ENTRY_BYTES).view(_ENTRY)
    lengths = entries["length"].astype(np.int64)
    before = np.cumsum(lengths) - lengths
    row_starts = np.repeat(starts + _HEAD_BYTES + heads * _ENTRY_BYTES, heads) + before
    row_starts -= np.repeat(before[np.cumsum(heads) - heads] if len(before) else heads, heads)
    return StoredRows(counts, entries["order"].astype(np.int64), row_starts, lengths, data)


def write_rows(
    counts: np.ndarray, orders: np.ndarray, starts: np.ndarray, lengths: np.ndarray, data: np.ndarray
) -> list[bytes]:
    """The value of each key as an object; see :func:`packed_rows`."""
    return packed_rows(counts, orders, starts, lengths, data).to_list()


def packed_rows(
    counts: np.ndarray, orders: np.ndarray, starts: np.ndarray, lengths: np.ndarray, data: np.ndarray
) -> PackedValues:
    """The value of each key.

    Args:
        counts: rows of each key, above 0; int64.
        orders: of each row, those of a key together; int64.
        starts: where the bytes of each row are in ``data``; int64.
        lengths: int64.
        data: uint8.
    """
    entries = np.empty(len(orders), dtype=_ENTRY)
    entries["order"], entries["length"] = orders, lengths
    heads = np.empty((len(counts), _HEAD_BYTES), dtype=np.uint8)
    heads[:, 0] = _VERSION
    heads[:, 1:] = counts.astype("<u4").view(np.uint8).reshape(-1, 4)
    # Of each key: its head, its entries, then its rows.
    firsts = np.cumsum(counts) - counts
    row_bytes = _offsets(lengths)
    heads_at = _HEAD_BYTES * np.arange(len(counts) + 1)
    offsets = heads_at + _offsets(counts) * _ENTRY_BYTES + row_bytes[np.append(firsts, len(lengths))]
    entries_at = offsets[:-1] + _HEAD_BYTES
    rows_at = np.repeat(entries_at + counts * _ENTRY_BYTES - row_bytes[firsts], counts) + row_bytes[:-1]
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    head_bytes, entry_bytes = np.full(len(counts), _HEAD_BYTES), counts * _ENTRY_BYTES
    scatter = key_kernels.scatter_bytes
    scatter(heads.ravel(), heads_at[:-1].copy(), head_bytes, offsets[:-1].copy(), out)
    scatter(entries.view(np.uint8), firsts * _ENTRY_BYTES, entry_bytes, entries_at, out)
    scatter(data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), rows_at, out)
    return PackedValues(out, offsets[:-1], np.diff(offsets))


def encoded_rows(columns: Sequence[pa.Array]) -> weir_keys.KeyColumn:
    """The bytes of rows of several columns."""
    plain = [_plain(column) for column in columns]
    names = [str(index) for index in range(len(plain))]
    return weir_keys.key_bytes(pa.RecordBatch.from_arrays(plain, names=names), names)


def plain_type(dtype: pa.DataType) -> pa.DataType:
    """What rows have in place of a type: integers of the same bits for floats, bytes for nested values."""
    if _is_float(dtype):
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[dtype.bit_width]
    return pa.large_binary() if _is_packed(dtype) else dtype


def _plain(column: pa.Array) -> pa.Array:
    if _is_packed(column.type):
        return packed_values(column, column.type)
    return column.view(plain_type(column.type)) if _is_float(column.type) else column


def _typed(plain: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The column that :func:`_plain` made this of."""
    if _is_packed(dtype):
        return unpacked_values(plain, dtype)
    return plain.view(dtype) if _is_float(dtype) else plain


def _is_float(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_floating(dtype))


def _is_packed(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_nested(dtype) or pa.types.is_decimal(dtype))


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _gathered(data: np.ndarray, starts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    key_kernels.gather_bytes(
        data, np.ascontiguousarray(starts, dtype=np.int64), offsets.astype(np.int64, copy=False), out
    )
    return out


def _within(counts: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... for each of the counts."""
    positions: np.ndarray = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions
