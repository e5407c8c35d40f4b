"""What byte-wise Numba kernels are made of: unaligned loads and stores, and the ways to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic

from weir.kernels import byte_kernel, byte_kernel_part

#: Bytes after the end of its data that a kernel may read.
PADDING_BYTES = 16

kernel, kernel_part = byte_kernel, byte_kernel_part


def _intrinsic(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


def _byte_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@_intrinsic
def load8(typing_context: Any, array: Any, index: Any) -> Any:
    """Eight bytes from any address, little endian, as uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = context.get_value_type(numba.types.uint64)
        pointer = builder.bitcast(_byte_pointer(context, builder, signature, args), word.as_pointer())
        return builder.load(pointer, align=1)

    return numba.types.uint64(array, numba.types.int64), codegen


@_intrinsic
def byte_at(typing_context: Any, array: Any, index: Any) -> Any:
    """One byte as int64; unlike ``array[index]`` without care for negative indices."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = builder.load(_byte_pointer(context, builder, signature, args))
        return builder.zext(byte, context.get_value_type(numba.types.int64))

    return numba.types.int64(array, numba.types.int64), codegen


@_intrinsic
def store8(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write eight bytes to any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _byte_pointer(context, builder, signature, args)
        pointer = builder.bitcast(pointer, args[2].type.as_pointer())
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64, numba.types.uint64), codegen


@_intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Zero bits below the lowest set bit of a uint64 that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return numba.types.int64(numba.types.uint64), codegen


@_intrinsic
def leading_zeros(typing_context: Any, value: Any) -> Any:
    """Zero bits above the highest set bit of a uint64 that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], cgutils.true_bit)

    return numba.types.int64(numba.types.uint64), codegen


_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)


@kernel_part
def line_end(data: np.ndarray, at: int) -> int:
    """Position of the next newline; there must be one."""
    while True:
        different = load8(data, at) ^ _NEWLINES
        found = (different - _ONES) & ~different & _HIGHS
        if found != np.uint64(0):
            return at + int(trailing_zeros(found) >> 3)
        at += 8
