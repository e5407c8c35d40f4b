"""Rows as bytes: what a join keeps of them. A batch is encoded and decoded by columns, not by rows.

This is a persisted format, version 1; golden bytes are in ``tests/weir/operators/joins/test_row_codec.py``. A row is

================  =======================================================================================
bytes             field
================  =======================================================================================
ceil(columns / 8) a bit for each column, in order, the lowest bit of the first byte first: 1 if it is null
width of each     values of fixed width as Arrow has them, little endian, booleans in one byte; 0 where null
4 each            lengths of strings, bytes and values of other types, little endian; 0 where null
the rest          their bytes
================  =======================================================================================

Within each of the three parts columns are in their order. Values of another type (lists, structs, maps) are those of
``weir.rows.nested_values``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import StateMismatchError
from weir.keys import key_kernels
from weir.operators.joins import row_kernels as kernels
from weir.operators.keyed.state_codec import form_text, renamed_keys_mend
from weir.rows.nested_values import packed_values, unpacked_values

#: Of the format.
ROW_VERSION = 1
_NO_NULLS = np.empty(0, dtype=np.uint8)
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Column:
    """Where a column lies in a row."""

    type: pa.DataType
    #: Of its value, or of its length.
    at: int
    null_byte: int
    null_bit: int
    #: Bytes of a value; 0: of any length.
    width: int


class RowCodec:
    """Encodes and decodes rows with columns of these types, in this order."""

    def __init__(self, columns: Sequence[pa.DataType]) -> None:
        widths = [_width(dtype) for dtype in columns]
        null_bytes = (len(columns) + 7) // 8
        fixed_at = null_bytes
        long_at = null_bytes + sum(widths)
        self._columns: list[_Column] = []
        for index, (dtype, width) in enumerate(zip(columns, widths, strict=True)):
            at = fixed_at if width else long_at
            self._columns.append(_Column(dtype, at, index // 8, 1 << index % 8, width))
            fixed_at += width
            long_at += 0 if width else _LENGTH_BYTES
        #: Bytes of a row without those of long values.
        self._least_bytes = long_at

    def encode(self, arrays: Sequence[pa.Array], rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of rows.

        Args:
            arrays: a column each, of ``rows`` rows.
            rows: how many rows.

        Returns:
            uint8, and int64 of shape (rows + 1,): row i is ``data[offsets[i]:offsets[i + 1]]``.
        """
        nulls = [_nulls(array) for array in arrays]
        long = {
            index: _long_parts(array, column.type)
            for index, (array, column) in enumerate(zip(arrays, self._columns, strict=True))
            if not column.width
        }
        lengths = np.full(rows, self._least_bytes, dtype=np.int64)
        for index, (_, value_offsets) in long.items():
            own = np.diff(value_offsets)
            lengths += np.where(nulls[index] == 0, own, 0) if nulls[index].size else own
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        out = np.zeros(int(offsets[-1]), dtype=np.uint8)
        starts = offsets[:-1]
        cursors = starts + self._least_bytes
        for index, (array, column) in enumerate(zip(arrays, self._columns, strict=True)):
            if nulls[index].size:
                kernels.put_nulls(out, starts, column.null_byte, column.null_bit, nulls[index])
            if column.width:
                kernels.put_fixed(
                    out, starts, column.at, _raw(array, column.width), column.width, nulls[index]
                )
            else:
                kernels.put_long(out, starts, column.at, cursors, *long[index], nulls[index])
        return out, offsets

    def decode(self, data: np.ndarray, starts: np.ndarray) -> list[pa.Array]:
        """Columns of the rows that begin at ``starts`` (int64, shape (rows,)) in ``data`` (uint8).

        Raises:
            StateError: the bytes of a value of another type cannot be read.
        """
        cursors = starts + self._least_bytes
        return [self._decoded(column, data, starts, cursors) for column in self._columns]

    def _decoded(
        self, column: _Column, data: np.ndarray, starts: np.ndarray, cursors: np.ndarray
    ) -> pa.Array:
        rows = len(starts)
        is_null = (data[starts + column.null_byte] & column.null_bit) != 0
        bitmap = None
        if is_null.any():
            bitmap = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        if column.width:
            values = np.empty(rows * column.width, dtype=np.uint8)
            kernels.get_fixed(data, starts, column.at, column.width, values)
            if pa.types.is_boolean(column.type):
                values = np.packbits(values, bitorder="little")
            return pa.Array.from_buffers(column.type, rows, [bitmap, pa.py_buffer(values)])
        firsts = np.empty(rows, dtype=np.int64)
        offsets = np.empty(rows + 1, dtype=np.int64)
        kernels.get_long(data, starts, column.at, cursors, firsts, offsets)
        values = np.empty(int(offsets[-1]), dtype=np.uint8)
        key_kernels.gather_bytes(data, firsts, offsets, values)
        wide = pa.large_binary()
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(values)]
        packed = pa.Array.from_buffers(wide, rows, buffers)
        if not _is_bytes(column.type):
            return unpacked_values(packed, column.type)
        if column.type in (pa.string(), pa.binary()):
            small = pa.py_buffer(offsets.astype(np.int32))
            return pa.Array.from_buffers(column.type, rows, [bitmap, small, pa.py_buffer(values)])
        return packed.cast(column.type)


def _width(dtype: pa.DataType) -> int:
    if pa.types.is_boolean(dtype):
        return 1
    plain = pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype) or pa.types.is_fixed_size_binary(dtype)
    return int(dtype.bit_width // 8) if plain else 0


def _is_bytes(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_binary(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_large_binary(dtype)
    )


def _nulls(array: pa.Array) -> np.ndarray:
    """uint8, 1 where null; of shape (0,) if nothing is."""
    if array.null_count == 0:
        return _NO_NULLS
    nulls: np.ndarray = pc.is_null(array).to_numpy(zero_copy_only=False).view(np.uint8)
    return nulls


def _raw(array: pa.Array, width: int) -> np.ndarray:
    """The bytes of values of fixed width."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) * width, dtype=np.uint8)
    return np.frombuffer(buffer, dtype=np.uint8)[array.offset * width : (array.offset + len(array)) * width]


def _long_parts(array: pa.Array, dtype: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and offsets (int32 or int64) of strings, bytes, or packed values."""
    if not _is_bytes(array.type):
        array = packed_values(array, dtype)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.empty(0, dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int64)
    offsets = np.frombuffer(offset_buffer, dtype=np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, dtype=np.uint8)
    return data, offsets


def check_join_codec(step: str, stored: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Check what the bytes of a join's rows mean in a checkpoint against what this job reads.

    Raises:
        StateMismatchError: they are not the same.
    """
    for part in needed:
        if stored.get(part) != needed[part]:
            then, now = form_text(stored.get(part)), form_text(needed[part])
            renamed = renamed_keys_mend(stored.get(part), needed[part]) if part == "keys" else ""
            raise StateMismatchError(
                f"step {step!r}: {part} of the join are {then} in the checkpoint, the job now has {now}; {renamed}"
                "start without the checkpoint, or give the step another name if it may begin with empty state"
            )


def check_other_keys(step: str, stored: Sequence[Sequence[str]], needed: Sequence[Sequence[str]]) -> None:
    """Check by which columns the rows of the inputs but the first came to a join; results do not have them.

    Raises:
        StateMismatchError: rows that are kept came by other columns.
    """
    for number, (then, now) in enumerate(zip(stored, needed, strict=False), 2):
        was = [getattr(name, "renamed_from", name) for name in now]
        if list(then) not in (list(now), was):
            raise StateMismatchError(
                f"step {step!r}: keys of input {number} of the join are {', '.join(then)} in the checkpoint, in the "
                f"job {', '.join(now)}; {renamed_keys_mend(then, now)}"
                "start without the checkpoint, or give the step another name if it may begin with empty state"
            )
