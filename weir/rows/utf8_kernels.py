"""Compiled check of UTF-8: 64 bytes at a time, and where texts begin. Called by ``weir.rows.utf8`` only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from weir.kernels.bytes import byte_pointer, ir, trailing_zeros, untyped_intrinsic
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import input_array

#: Untyped, because numba types only a part of it.
_types: Any = numba.types

BLOCK_BYTES = 64
_HALF = ir.VectorType(ir.IntType(8), BLOCK_BYTES // 2)
_ZERO, _ONE, _TWO, _THREE = (np.uint64(number) for number in range(4))
_ALL = np.uint64(2**64 - 1)
#: Of 64 bytes the last one, the last two and the last three.
_LAST, _LAST_TWO, _LAST_THREE = (np.uint64(2**64 - 2 ** (64 - count)) for count in (1, 2, 3))


_BYTES = input_array(_types.uint8)


class _Block:
    """Code about 64 bytes from any address: LLVM is at a loss with vectors that are longer than the processor's."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self._context, self._builder, self._result = context, builder, signature.return_type
        self._pointer = byte_pointer(context, builder, signature, args)

    def masks(self, *found: Callable[[_Half], Any]) -> Any:
        """For each of these which bytes are so: uint64, the lowest bit for the first byte."""
        halves = [_Half(self._builder, self._pointer, at) for at in (0, _HALF.count)]
        made = []
        for each in found:
            bits = [self._builder.bitcast(each(half), ir.IntType(_HALF.count)) for half in halves]
            low, high = (self._builder.zext(part, ir.IntType(64)) for part in bits)
            made.append(
                self._builder.or_(low, self._builder.shl(high, ir.Constant(ir.IntType(64), _HALF.count)))
            )
        return self._context.make_tuple(self._builder, self._result, made)


class _Half:
    """Code about half a block; its answers are vectors of bits."""

    def __init__(self, builder: Any, pointer: Any, at: int) -> None:
        self._builder = builder
        self._data, self._next = (
            builder.load(
                builder.bitcast(
                    builder.gep(pointer, [ir.Constant(ir.IntType(32), place)]), _HALF.as_pointer()
                ),
                align=1,
            )
            for place in (at, at + 1)
        )

    def between(self, low: int, high: int) -> Any:
        """Which bytes are from ``low`` to ``high``."""
        return self._is_between(self._data, low, high)

    def odd_leads(self) -> Any:
        """Which of E0, ED, F0 and F4 are before a byte that continues others, but not them."""
        found = []
        for lead, low, high in (
            (0xE0, 0x80, 0x9F),
            (0xED, 0xA0, 0xBF),
            (0xF0, 0x80, 0x8F),
            (0xF4, 0x90, 0xBF),
        ):
            is_lead = self._builder.icmp_unsigned("==", self._data, _same(lead))
            found.append(self._builder.and_(is_lead, self._is_between(self._next, low, high)))
        whole = found[0]
        for each in found[1:]:
            whole = self._builder.or_(whole, each)
        return whole

    def _is_between(self, data: Any, low: int, high: int) -> Any:
        above = self._builder.sub(data, _same(low))
        return self._builder.icmp_unsigned("<=", above, _same(high - low))


def _same(value: int) -> Any:
    return ir.Constant(_HALF, [value] * _HALF.count)


@untyped_intrinsic
def _common(typing_context: Any, array: Any, index: Any) -> Any:
    """Of 64 bytes those beyond ASCII; that continue a sequence; that lead one of two bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = _Block(context, builder, signature, args)
        return block.masks(
            lambda half: half.between(0x80, 0xFF),
            lambda half: half.between(0x80, 0xBF),
            lambda half: half.between(0xC2, 0xDF),
        )

    return _types.UniTuple(numba.types.uint64, 3)(array, numba.types.int64), codegen


@untyped_intrinsic
def _longer(typing_context: Any, array: Any, index: Any) -> Any:
    """Of 64 bytes those that lead sequences of three or four bytes; of four; and see ``_Half.odd_leads``.

    One byte more is read.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = _Block(context, builder, signature, args)
        return block.masks(
            lambda half: half.between(0xE0, 0xF4), lambda half: half.between(0xF0, 0xF4), _Half.odd_leads
        )

    return _types.UniTuple(numba.types.uint64, 3)(array, numba.types.int64), codegen


@byte_kernel_part
def _whole_characters(
    data: np.ndarray, at: int, beyond: np.uint64, follows: np.uint64, twos: np.uint64
) -> int:
    """Bytes of the whole characters of a block that begins with one; -1: they are not right."""
    longer, fours, wrong = _longer(data, at)
    leads = twos | longer
    wrong |= beyond ^ (follows | leads)
    wrong |= follows ^ ((leads << _ONE) | (longer << _TWO) | (fours << _THREE))
    cut = (twos & _LAST) | (longer & _LAST_TWO) | (fours & _LAST_THREE)
    below = _ALL
    if cut != _ZERO:
        below = (cut & (~cut + _ONE)) - _ONE
    if wrong & below != _ZERO:
        return -1
    return BLOCK_BYTES if cut == _ZERO else int(trailing_zeros(cut))


@byte_kernel(_types.int64(_BYTES))
def right_bytes(data: np.ndarray) -> int:
    """How many of the first bytes are whole characters of UTF-8, all but 64 at least; -1: some are none."""
    at = 0
    while at + BLOCK_BYTES < len(data):
        beyond, follows, twos = _common(data, at)
        if beyond == _ZERO:
            at += BLOCK_BYTES
        elif beyond == follows | twos and follows == twos << _ONE:
            at += BLOCK_BYTES if twos < _LAST else BLOCK_BYTES - 1
        else:
            step = _whole_characters(data, at, beyond, follows, twos)
            if step < 0:
                return -1
            at += step
    return at


@byte_kernel(
    _types.boolean(_BYTES, input_array(_types.int32)),
    _types.boolean(_BYTES, input_array(_types.int64)),
)
def begin_characters(data: np.ndarray, starts: np.ndarray) -> bool:
    """Whether the bytes at all of these places begin a character, if the whole is UTF-8."""
    wrong = False
    for start in starts:
        wrong |= bool(data[start] & 0xC0 == 0x80)
    return not wrong
