"""What byte-wise Numba kernels are made of: unaligned loads and stores, and the ways to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic

from weir.kernels import byte_kernel, byte_kernel_part

#: Untyped, because numba types only a part of it; and what it builds code of.
_types: Any = numba.types
_cgutils: Any = cgutils
ir = _cgutils.ir

#: Bytes after the end of its data that a kernel may read.
PADDING_BYTES = 64

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
def load4(typing_context: Any, array: Any, index: Any) -> Any:
    """Four bytes from any address, little endian, as uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = context.get_value_type(numba.types.uint32)
        pointer = builder.bitcast(_byte_pointer(context, builder, signature, args), word.as_pointer())
        return builder.zext(builder.load(pointer, align=1), context.get_value_type(numba.types.uint64))

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


@_intrinsic
def copy_block(typing_context: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """Copy 32 bytes from any address to any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 32)
        to_array = context.make_array(signature.args[0])(context, builder, args[0])
        from_array = context.make_array(signature.args[2])(context, builder, args[2])
        pointers = [
            builder.bitcast(builder.gep(array.data, [index]), vector.as_pointer())
            for array, index in ((to_array, args[1]), (from_array, args[3]))
        ]
        builder.store(builder.load(pointers[1], align=1), pointers[0], align=1)
        return context.get_dummy_value()

    return numba.types.void(target, numba.types.int64, source, numba.types.int64), codegen


@_intrinsic
def count_bits(typing_context: Any, value: Any) -> Any:
    """Set bits of a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return numba.types.int64(numba.types.uint64), codegen


@_intrinsic
def block_masks(typing_context: Any, array: Any, index: Any, wanted: Any, other: Any) -> Any:
    """Of 32 bytes from any address, as bits of two uint64, the lowest for the first byte.

    Those that are ``wanted``; and those that are ``other``, a newline, or beyond ASCII. One vector instruction each.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        vector = ir.VectorType(byte, 32)
        undefined = ir.Constant(vector, ir.Undefined)
        pointer = builder.bitcast(_byte_pointer(context, builder, signature, args), vector.as_pointer())
        data = builder.load(pointer, align=1)

        def everywhere(value: Any) -> Any:
            single = builder.insert_element(undefined, builder.trunc(value, byte), ir.Constant(number, 0))
            return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(number, 32), [0] * 32))

        def bits(found: Any) -> Any:
            return builder.zext(builder.bitcast(found, number), ir.IntType(64))

        ends = builder.icmp_unsigned("==", data, ir.Constant(vector, [10] * 32))
        ends = builder.or_(ends, builder.icmp_unsigned("==", data, everywhere(args[3])))
        ends = builder.or_(ends, builder.icmp_signed("<", data, ir.Constant(vector, [0] * 32)))
        found = builder.icmp_unsigned("==", data, everywhere(args[2]))
        return context.make_tuple(builder, signature.return_type, [bits(found), bits(ends)])

    masks = _types.UniTuple(numba.types.uint64, 2)
    return masks(array, numba.types.int64, numba.types.int64, numba.types.int64), codegen


def _vector_at(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    vector = ir.VectorType(ir.IntType(8), 32)
    pointer = builder.bitcast(_byte_pointer(context, builder, signature, args), vector.as_pointer())
    return builder.load(pointer, align=1)


def _same(value: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(8), 32), [value] * 32)


def _vector_bits(builder: Any, found: Any) -> Any:
    return builder.zext(builder.bitcast(found, ir.IntType(32)), ir.IntType(64))


@_intrinsic
def record_masks(typing_context: Any, array: Any, index: Any, delimiter: Any, quote: Any) -> Any:
    """Of 64 bytes of a CSV record, as bits of four uint64, the lowest for the first byte.

    Those that are the delimiter; the quote; a newline; and those that are beyond ASCII.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number, lanes = ir.IntType(8), ir.IntType(32), 64
        vector = ir.VectorType(byte, lanes)
        pointer = _byte_pointer(context, builder, signature, args)
        data = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
        undefined = ir.Constant(vector, ir.Undefined)

        def everywhere(value: Any) -> Any:
            single = builder.insert_element(undefined, builder.trunc(value, byte), ir.Constant(number, 0))
            places = ir.Constant(ir.VectorType(number, lanes), [0] * lanes)
            return builder.shuffle_vector(single, undefined, places)

        found = [builder.icmp_unsigned("==", data, everywhere(value)) for value in args[2:]]
        found.append(builder.icmp_unsigned("==", data, ir.Constant(vector, [0x0A] * lanes)))
        found.append(builder.icmp_signed("<", data, ir.Constant(vector, [0] * lanes)))
        masks = [builder.bitcast(each, ir.IntType(64)) for each in found]
        return context.make_tuple(builder, signature.return_type, masks)

    masks = _types.UniTuple(numba.types.uint64, 4)
    return masks(array, numba.types.int64, numba.types.int64, numba.types.int64), codegen


@_intrinsic
def string_masks(typing_context: Any, array: Any, index: Any) -> Any:
    """Of 32 bytes of a JSON string, as bits of two uint64, the lowest for the first byte.

    Those that are a quote, a backslash or a control character; and those that are beyond ASCII.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _vector_at(context, builder, signature, args)
        special = builder.icmp_unsigned("<", data, _same(0x20))
        special = builder.or_(special, builder.icmp_unsigned("==", data, _same(0x22)))
        special = builder.or_(special, builder.icmp_unsigned("==", data, _same(0x5C)))
        beyond = builder.icmp_signed("<", data, _same(0))
        masks = [_vector_bits(builder, special), _vector_bits(builder, beyond)]
        return context.make_tuple(builder, signature.return_type, masks)

    return _types.UniTuple(numba.types.uint64, 2)(array, numba.types.int64), codegen


@_intrinsic
def utf8_masks(typing_context: Any, array: Any, index: Any) -> Any:
    """Of 32 bytes of UTF-8, as bits of four uint64, the lowest for the first byte.

    Those that continue a sequence; that lead one of two bytes; that lead one of three of which any may continue it;
    and all others beyond ASCII: what leads sequences that need more care, or none.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _vector_at(context, builder, signature, args)

        def between(low: int, high: int) -> Any:
            return builder.icmp_unsigned("<=", builder.sub(data, _same(low)), _same(high - low))

        follows = between(0x80, 0xBF)
        two = between(0xC2, 0xDF)
        three = builder.and_(between(0xE1, 0xEF), builder.icmp_unsigned("!=", data, _same(0xED)))
        known = builder.or_(builder.or_(follows, two), three)
        others = builder.and_(builder.icmp_signed("<", data, _same(0)), builder.not_(known))
        masks = [_vector_bits(builder, found) for found in (follows, two, three, others)]
        return context.make_tuple(builder, signature.return_type, masks)

    return _types.UniTuple(numba.types.uint64, 4)(array, numba.types.int64), codegen


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
