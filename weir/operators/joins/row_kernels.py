"""Compiled loops of the row codec: columns to the bytes of rows, and back. Called by ``row_codec`` only.

Common arguments:

- ``data`` or ``out``: uint8, rows one after the other.
- ``starts``: int64, shape (rows,): where each row begins.
- ``at``: where a field lies within a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.bytes import load8, store8
from weir.kernels.declare import byte_kernel
from weir.kernels.kernel_types import input_array

_U8, _I64, _I32 = input_array(types.uint8), input_array(types.int64), input_array(types.int32)
_OUT_U8, _OUT_I64 = types.uint8[::1], types.int64[::1]
_INT = types.int64


@byte_kernel(types.void(_OUT_U8, _I64, _INT, _U8, _INT, _U8))
def put_fixed(out: Any, starts: Any, at: Any, values: Any, width: Any, nulls: Any) -> None:
    """Write values of ``width`` bytes; what is null (``nulls`` not 0; shape (0,): nothing) stays as it is."""
    for row in range(starts.size):
        if nulls.size == 0 or nulls[row] == 0:
            start = starts[row] + at
            for index in range(width):
                out[start + index] = values[row * width + index]


@byte_kernel(
    types.void(_OUT_U8, _I64, _INT, _OUT_I64, _U8, _I32, _U8),
    types.void(_OUT_U8, _I64, _INT, _OUT_I64, _U8, _I64, _U8),
)
def put_long(out: Any, starts: Any, at: Any, cursors: Any, values: Any, offsets: Any, nulls: Any) -> None:
    """Write the length of each value at ``at`` (4 bytes, little endian) and its bytes at the row's cursor."""
    for row in range(starts.size):
        if nulls.size == 0 or nulls[row] == 0:
            first = offsets[row]
            length = offsets[row + 1] - first
            start = starts[row] + at
            for index in range(4):
                out[start + index] = np.uint8((length >> (8 * index)) & 255)
            cursor = cursors[row]
            whole = length & ~7
            for index in range(0, whole, 8):
                store8(out, cursor + index, load8(values, first + index))
            for index in range(whole, length):
                out[cursor + index] = values[first + index]
            cursors[row] = cursor + length


@byte_kernel(types.void(_OUT_U8, _I64, _INT, types.uint8, _U8))
def put_nulls(out: Any, starts: Any, at: Any, bit: Any, nulls: Any) -> None:
    """Set a bit of the rows in which a column is null."""
    for row in range(starts.size):
        if nulls[row]:
            out[starts[row] + at] |= bit


@byte_kernel(types.void(_U8, _I64, _INT, _INT, _OUT_U8))
def get_fixed(data: Any, starts: Any, at: Any, width: Any, out: Any) -> None:
    """Read values of ``width`` bytes."""
    for row in range(starts.size):
        start = starts[row] + at
        for index in range(width):
            out[row * width + index] = data[start + index]


@byte_kernel(types.void(_U8, _I64, _INT, _OUT_I64, _OUT_I64, _OUT_I64))
def get_long(data: Any, starts: Any, at: Any, cursors: Any, firsts: Any, offsets: Any) -> None:
    """Where each value lies (``firsts``), and where it goes among all of them (``offsets``, shape (rows + 1,))."""
    offsets[0] = 0
    for row in range(starts.size):
        start = starts[row] + at
        length = (
            np.int64(data[start])
            | np.int64(data[start + 1]) << 8
            | np.int64(data[start + 2]) << 16
            | np.int64(data[start + 3]) << 24
        )
        firsts[row] = cursors[row]
        cursors[row] += length
        offsets[row + 1] = offsets[row] + length
