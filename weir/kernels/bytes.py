"""Bytes in kernels: loads and stores at any address, comparisons, counts of bits, memory fetched ahead.

For byte kernels: in others each call of a part counts references, which takes longer than the work on a few bytes.
Kernels do not notice when something here changes, see :func:`weir.kernels.declare.kernel_part`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weir.kernels.declare import byte_kernel_part

#: Untyped, as numba types only a part of it; and what it builds code of.
_cgutils: Any = cgutils
ir = _cgutils.ir
#: Bytes after the end of its data that a kernel may read.
PADDING_BYTES = 64
_WORD_BYTES = 8
_BLOCK_BYTES = 32


def untyped_intrinsic(function: Callable[..., Any]) -> Any:
    """What numba makes of a function that generates code; without types, which numba lacks."""
    return intrinsic(function)


def byte_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Pointer to the item of the first argument, an array of bytes, whose index is the second one."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@untyped_intrinsic
def load8(typing_context: Any, array: Any, index: Any) -> Any:
    """Eight bytes from any address, little endian, as uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = context.get_value_type(types.uint64)
        pointer = builder.bitcast(byte_pointer(context, builder, signature, args), word.as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(array, types.int64), codegen


@untyped_intrinsic
def load4(typing_context: Any, array: Any, index: Any) -> Any:
    """Four bytes from any address, little endian, as uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = context.get_value_type(types.uint32)
        pointer = builder.bitcast(byte_pointer(context, builder, signature, args), word.as_pointer())
        return builder.zext(builder.load(pointer, align=1), context.get_value_type(types.uint64))

    return types.uint64(array, types.int64), codegen


@untyped_intrinsic
def byte_at(typing_context: Any, array: Any, index: Any) -> Any:
    """One byte as int64; unlike ``array[index]`` without care for negative indices."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = builder.load(byte_pointer(context, builder, signature, args))
        return builder.zext(byte, context.get_value_type(types.int64))

    return types.int64(array, types.int64), codegen


@untyped_intrinsic
def store8(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write eight bytes to any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = byte_pointer(context, builder, signature, args)
        pointer = builder.bitcast(pointer, args[2].type.as_pointer())
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), codegen


@untyped_intrinsic
def one_of(typing_context: Any, is_first: Any, first: Any, second: Any) -> Any:
    """``first if is_first else second`` of int64, without a branch: both are known before it is known which."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(*args)

    return types.int64(types.boolean, types.int64, types.int64), codegen


@untyped_intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Zero bits below the lowest set bit of a uint64 that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), codegen


@untyped_intrinsic
def leading_zeros(typing_context: Any, value: Any) -> Any:
    """Zero bits above the highest set bit of a uint64 that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), codegen


def _copies(signature_args: Any, count: int) -> Any:
    """What copies so many bytes from an array to an array, for arguments as :func:`copy_block` has them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), count)
        to_array = context.make_array(signature.args[0])(context, builder, args[0])
        from_array = context.make_array(signature.args[2])(context, builder, args[2])
        pointers = [
            builder.bitcast(builder.gep(array.data, [index]), vector.as_pointer())
            for array, index in ((to_array, args[1]), (from_array, args[3]))
        ]
        builder.store(builder.load(pointers[1], align=1), pointers[0], align=1)
        return context.get_dummy_value()

    target, source = signature_args
    return types.void(target, types.int64, source, types.int64), codegen


@untyped_intrinsic
def copy_block(typing_context: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """Copy 32 bytes from any address to any address."""
    return _copies((target, source), 32)


@untyped_intrinsic
def copy_half_block(typing_context: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """As :func:`copy_block`, 16 bytes."""
    return _copies((target, source), 16)


@untyped_intrinsic
def copy_block_between(typing_context: Any, to: Any, source: Any) -> Any:
    """As :func:`copy_block`, from an address in memory to another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 32)
        target, pointer = (builder.inttoptr(address, vector.as_pointer()) for address in args)
        builder.store(builder.load(pointer, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@untyped_intrinsic
def copy_line_to(typing_context: Any, address: Any, source: Any, at: Any) -> Any:
    """Copy 64 bytes from any address to an address in memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 64)
        array = context.make_array(signature.args[1])(context, builder, args[1])
        pointer = builder.bitcast(builder.gep(array.data, [args[2]]), vector.as_pointer())
        target = builder.inttoptr(args[0], vector.as_pointer())
        builder.store(builder.load(pointer, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, source, types.int64), codegen


@untyped_intrinsic
def store_byte_to(typing_context: Any, address: Any, byte: Any) -> Any:
    """Write one byte to an address in memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(args[1], ir.IntType(8)), target)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@untyped_intrinsic
def count_bits(typing_context: Any, value: Any) -> Any:
    """Set bits of a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@untyped_intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Have an item of an array in the caches soon, for reading; the index may be anything, nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _fetch(builder, byte_pointer(context, builder, signature, arguments), 0)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@untyped_intrinsic
def prefetch_to_write(typing_context: Any, address: Any) -> Any:
    """Have an address of memory in the caches soon, for writing; it may be anything, nothing is read or written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _fetch(builder, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()), 1)
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _fetch(builder: Any, pointer: Any, is_written: int) -> None:
    byte, number = ir.IntType(8), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
    function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    # Into all caches, data.
    how = [ir.Constant(number, value) for value in (is_written, 3, 1)]
    builder.call(function, [builder.bitcast(pointer, byte.as_pointer()), *how])


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
        if load8(left, first + index) != load8(right, other + index):
            return False
        index += _WORD_BYTES
    # The last ones, some of them for the second time.
    return load8(left, first + last) == load8(right, other + last)


@byte_kernel_part
def copy_bytes(target: Any, to: Any, source: Any, at: Any, length: Any) -> None:
    """Copy ``source[at:at + length]`` to ``target[to:to + length]``, of another array; touches no other bytes."""
    if length < _WORD_BYTES:
        for index in range(length):
            target[to + index] = source[at + index]
        return
    index = 0
    while index + _BLOCK_BYTES <= length:
        copy_block(target, to + index, source, at + index)
        index += _BLOCK_BYTES
    while index + _WORD_BYTES <= length:
        store8(target, to + index, load8(source, at + index))
        index += _WORD_BYTES
    # The last ones, some of them for the second time.
    store8(target, to + length - _WORD_BYTES, load8(source, at + length - _WORD_BYTES))
