"""What kernels do with bytes of keys: compare them eight at a time, and have memory fetched before they need it.

For byte kernels: in others each call of a part counts references, which takes longer than a key. Kernels do not notice
when something here changes, see :func:`weir.kernels.kernel_part`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weir.kernels import byte_kernel_part

#: Untyped, as numba types only a part of it.
_cgutils: Any = cgutils
_ir = _cgutils.ir
_WORD_BYTES = 8


def _intrinsic(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


def _byte_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    view = context.make_array(signature.args[0])(context, builder, arguments[0])
    pointer = builder.gep(view.data, [arguments[1]])
    return builder.bitcast(pointer, _ir.IntType(8).as_pointer())


@_intrinsic
def _word_at(typing_context: Any, array: Any, index: Any) -> Any:
    """The eight bytes from a byte of an array of bytes on, as uint64; without care for negative indices."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = context.get_value_type(types.uint64)
        pointer = _byte_pointer(context, builder, signature, arguments)
        return builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)

    return types.uint64(array, types.int64), generate


@_intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Have an item of an array in the caches soon, for reading; the index may be anything, nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = _ir.IntType(8), _ir.IntType(32)
        kind = _ir.FunctionType(_ir.VoidType(), [byte.as_pointer(), number, number, number])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # To read, into all caches, data.
        how = [_ir.Constant(number, value) for value in (0, 3, 1)]
        builder.call(function, [_byte_pointer(context, builder, signature, arguments), *how])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@byte_kernel_part
def same_bytes(left: Any, first: Any, right: Any, other: Any, length: Any) -> Any:
    """Whether ``left[first:first + length]`` are the bytes of ``right[other:other + length]``; reads no others."""
    if length < _WORD_BYTES:
        index = 0
        while index < length and left[first + index] == right[other + index]:
            index += 1
        return index == length
    last = length - _WORD_BYTES
    index = 0
    while index < last:
        if _word_at(left, first + index) != _word_at(right, other + index):
            return False
        index += _WORD_BYTES
    # The last ones, some of them for the second time.
    return _word_at(left, first + last) == _word_at(right, other + last)
