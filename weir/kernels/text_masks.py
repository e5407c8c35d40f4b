"""Bytes of text in kernels: which of 32 or 64 at once are quotes, delimiters, newlines or beyond ASCII."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from weir.kernels.bytes import byte_pointer, ir, load8, trailing_zeros, untyped_intrinsic
from weir.kernels.declare import byte_kernel_part

#: Untyped, because numba types only a part of it.
_types: Any = numba.types


@untyped_intrinsic
def block_masks(typing_context: Any, array: Any, index: Any, wanted: Any, other: Any) -> Any:
    """Of 32 bytes from any address, as bits of two uint64, the lowest for the first byte.

    Those that are ``wanted``; and those that are ``other``, a newline, or beyond ASCII. One vector instruction each.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        vector = ir.VectorType(byte, 32)
        undefined = ir.Constant(vector, ir.Undefined)
        pointer = builder.bitcast(byte_pointer(context, builder, signature, args), vector.as_pointer())
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
    pointer = builder.bitcast(byte_pointer(context, builder, signature, args), vector.as_pointer())
    return builder.load(pointer, align=1)


def _same(value: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(8), 32), [value] * 32)


def _vector_bits(builder: Any, found: Any) -> Any:
    return builder.zext(builder.bitcast(found, ir.IntType(32)), ir.IntType(64))


@untyped_intrinsic
def record_masks(typing_context: Any, array: Any, index: Any, delimiter: Any, quote: Any) -> Any:
    """Of 64 bytes of a CSV record, as bits of four uint64, the lowest for the first byte.

    Those that are the delimiter; the quote; a newline; and those that are beyond ASCII.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number, lanes = ir.IntType(8), ir.IntType(32), 64
        vector = ir.VectorType(byte, lanes)
        pointer = byte_pointer(context, builder, signature, args)
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


@untyped_intrinsic
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


@untyped_intrinsic
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


@byte_kernel_part
def line_end(data: np.ndarray, at: int) -> int:
    """Position of the next newline; there must be one."""
    while True:
        different = load8(data, at) ^ _NEWLINES
        found = (different - _ONES) & ~different & _HIGHS
        if found != np.uint64(0):
            return at + int(trailing_zeros(found) >> 3)
        at += 8
