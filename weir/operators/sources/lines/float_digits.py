"""Parts of kernels that make floats of decimal digits, rounded as IEEE 754 wants it, and read digits eight at a time.

The method is that of D. Lemire, "Number Parsing at a Gigabyte per Second" (2021): the digits times a power of five with
128 bits; N. Mushtak and D. Lemire, "Fast Number Parsing Without Fallback" (2022), prove that no more bits are needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import ir, leading_zeros, untyped_intrinsic
from weir.kernels.declare import byte_kernel_part
from weir.kernels.kernel_types import TYPES

#: Powers of ten beyond which a slower parser finds the float: it may be infinite, or have fewer bits than usual.
_POWER_MAX = 280
#: Digits that fit into 64 bits, and into the 53 of a float.
_DIGITS_MAX, _EXACT_DIGITS_MAX = 19, 15
_EXACT_POWER_MAX = 22
_BITS = 128
#: The least power of five that is rounded up: 5**27 is the last to fit into the 64 bits of the digits.
_ROUNDED_UP_MIN = -27


def _powers_of_five() -> np.ndarray:
    """Of 5**-280 to 5**280 the first 128 bits, of which the highest is 1, as two words, the higher one first.

    They are rounded down, but up where digits by a power of five can be exactly between two floats: with what is a bit
    less, they would seem to be nearer to the lower one.
    """
    words = []
    for power in range(-_POWER_MAX, _POWER_MAX + 1):
        number = 5 ** abs(power)
        if power < 0:
            up = power >= _ROUNDED_UP_MIN
            number = (1 << (number.bit_length() + _BITS - 1)) // number + up
        shift = number.bit_length() - _BITS
        number = number >> shift if shift > 0 else number << -shift
        words += [number >> 64, number & (2**64 - 1)]
    return np.array(words, dtype=np.uint64)


_FIVES = _powers_of_five()
_TENS = np.array([float(10**n) for n in range(_EXACT_POWER_MAX + 1)])
_ZERO, _ONE, _THREE = np.uint64(0), np.uint64(1), np.uint64(3)
_HIDDEN, _LOW_NINE = np.uint64(1 << 52), np.uint64(0x1FF)
_SHIFT_TOP, _SHIFT_EXPONENT, _SIGN = np.uint64(63), np.uint64(52), np.uint64(1 << 63)


@untyped_intrinsic
def _product(typing_context: Any, left: Any, right: Any) -> Any:
    """Of two uint64 the product of 128 bits, as two words, the higher one first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide, word = ir.IntType(_BITS), ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return context.make_tuple(builder, signature.return_type, [high, builder.trunc(product, word)])

    words = TYPES.UniTuple(TYPES.uint64, 2)
    return words(TYPES.uint64, TYPES.uint64), codegen


@untyped_intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float64 that a uint64 is the bits of."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return TYPES.float64(TYPES.uint64), codegen


@byte_kernel_part
def _rounded(digits: np.uint64, power: int) -> np.uint64:
    """The bits of the float nearest to ``digits * 10**power``; digits are not 0, the power is 280 at most."""
    zeros = leading_zeros(digits)
    digits <<= np.uint64(zeros)
    index = 2 * (power + _POWER_MAX)
    high, low = _product(digits, _FIVES[index])
    if high & _LOW_NINE == _LOW_NINE:
        more, _ = _product(digits, _FIVES[index + 1])
        low += more
        if low < more:
            high += _ONE
    top = high >> _SHIFT_TOP
    shift = top + np.uint64(9)
    mantissa = high >> shift
    exponent = ((217_706 * power) >> 16) + 1_086 + np.int64(top) - zeros
    # Exactly between two floats the even one is nearest; that is so for few powers only.
    if low <= _ONE and -4 <= power <= 23 and mantissa & _THREE == _ONE and mantissa << shift == high:
        mantissa &= ~_ONE
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    if mantissa >= _HIDDEN << _ONE:
        mantissa = _HIDDEN
        exponent += 1
    return np.uint64((mantissa & ~_HIDDEN) | (np.uint64(exponent) << _SHIFT_EXPONENT))


@byte_kernel_part
def float_of_digits(digits: int, count: int, power: int, negative: bool) -> tuple[float, bool]:
    """The float nearest to ``digits * 10**power``, and whether it was found: else a slower parser must do it.

    Args:
        digits: the number that the digits are; with more than 18 its lower 64 bits.
        count: how many digits there are from the first one on that is not 0.
        power: of ten.
        negative: whether the number is; also -0.0.
    """
    if count <= _EXACT_DIGITS_MAX and -_EXACT_POWER_MAX <= power <= _EXACT_POWER_MAX:
        # Both are exact as float64, so one operation rounds correctly.
        value = float(digits)
        value = value / _TENS[-power] if power < 0 else value * _TENS[power]
        return -value if negative else value, True
    if count > _DIGITS_MAX or power > _POWER_MAX or power < -_POWER_MAX or digits == 0:
        return 0.0, False
    bits = _rounded(np.uint64(digits), power)
    return _float_of_bits(bits | _SIGN if negative else bits), True


@byte_kernel_part
def is_eight_digits(word: np.uint64) -> bool:
    """Whether all bytes of a word are digits."""
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    carried = (word + np.uint64(0x0606060606060606)) & high
    return bool(((word & high) | (carried >> np.uint64(4))) == np.uint64(0x3333333333333333))


@byte_kernel_part
def eight_digits(word: np.uint64) -> np.int64:
    """The number that eight digits are, the first one in the lowest byte."""
    word &= np.uint64(0x0F0F0F0F0F0F0F0F)
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    # With a sign: of a number without one and one with it Numba makes a float.
    return np.int64((word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF))
