"""Parts of kernels that read numbers and times: numbers as JSON writes them, dates, timestamps and decimals.

Floats of decimal digits are rounded as IEEE 754 wants it. The method is that of D. Lemire, "Number Parsing at a
Gigabyte per Second" (2021): the digits times a power of five with 128 bits; N. Mushtak and D. Lemire, "Fast Number
Parsing Without Fallback" (2022), prove that no more bits are needed.

Parts that read JSON return a negative position where it is not certain what the strict parser would say of a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import byte_at, ir, leading_zeros, load8, untyped_intrinsic
from weir.kernels.declare import byte_kernel_part
from weir.kernels.kernel_types import TYPES

#: Powers of ten beyond which a slower parser finds the float: it may be infinite, or have fewer bits than usual.
_POWER_MAX = 280
#: Digits that fit into 64 bits, and into the 53 of a float.
_DIGITS_MAX, _EXACT_DIGITS_MAX = 19, 15
_EXACT_POWER_MAX = 22
_BITS = 128
#: Longer numbers may be infinite as float64, which the strict parser refuses.
_WHOLE_DIGITS_MAX = 200
#: A number with so many digits before its point, after its exponent, is finite.
_FINITE_POWER_MAX = 308
#: A tenth of the greatest integer of 64 bits, which ends with a 5.
_UNSIGNED_TENTH = np.uint64((2**64 - 1) // 10)
#: The least power of five that is rounded up: 5**27 is the last to fit into the 64 bits of the digits.
_ROUNDED_UP_MIN = -27
#: Seconds around 1970 that are certain to fit into 63 bits as nanoseconds.
_NANO_SECONDS_MAX = 9_223_372_000
_NANO = 1_000_000_000
#: Digits of an integer that has no overflow.
_INTEGER_DIGITS_MAX = 18
_INTEGERS_OF_TEN = np.array([10**n for n in range(_INTEGER_DIGITS_MAX + 1)], dtype=np.int64)


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


@byte_kernel_part
def simple_number(data: np.ndarray, at: int) -> tuple[int, int, int, int]:
    """Read a number without exponent.

    Returns:
        Position after it (-1: not certain), its digits as an integer of at most 19 digits with sign,
        how many of them follow the point (-1: no point), and how many there are.
    """
    negative = byte_at(data, at) == 0x2D
    if negative:
        at += 1
    first = at
    mantissa = 0
    digit = byte_at(data, at) - 48
    while 0 <= digit <= 9:
        mantissa = mantissa * 10 + digit
        at += 1
        digit = byte_at(data, at) - 48
    digits = at - first
    if digits == 0 or digits > 19 or (byte_at(data, first) == 0x30 and digits > 1):
        return -1, mantissa, -1, digits
    # Some numbers of 19 digits are too large for 63 bits.
    if mantissa < 0:
        return -1, mantissa, -1, digits
    fraction = -1
    if byte_at(data, at) == 0x2E:
        at += 1
        point = at
        digit = byte_at(data, at) - 48
        while 0 <= digit <= 9:
            mantissa = mantissa * 10 + digit
            at += 1
            digit = byte_at(data, at) - 48
        fraction = at - point
        digits += fraction
        if fraction == 0:
            return -1, mantissa, -1, digits
    following = byte_at(data, at) | 0x20
    if following == 0x65:
        return -1, mantissa, fraction, digits
    return at, -mantissa if negative else mantissa, fraction, digits


@byte_kernel_part
def float_number(data: np.ndarray, at: int) -> tuple[int, float, bool]:
    """Read a number of any form.

    Returns:
        Position after it (-1: not certain), its value, and whether it was found: else a slower parser must do it.
    """
    negative = byte_at(data, at) == 0x2D
    if negative:
        at += 1
    first = at
    mantissa = 0
    digit = byte_at(data, at) - 48
    while 0 <= digit <= 9:
        mantissa = mantissa * 10 + digit
        at += 1
        digit = byte_at(data, at) - 48
    digits = at - first
    starts_with_zero = byte_at(data, first) == 0x30
    if digits == 0 or digits > _WHOLE_DIGITS_MAX or (starts_with_zero and digits > 1):
        return -1, 0.0, False
    whole = digits
    if starts_with_zero:
        digits = 0
    power = 0
    is_integer = True
    if byte_at(data, at) == 0x2E:
        is_integer = False
        at += 1
        point = at
        if digits == 0:
            while byte_at(data, at) == 0x30:
                at += 1
        first = at
        word = load8(data, at)
        while is_eight_digits(word):
            mantissa = mantissa * 100_000_000 + int(eight_digits(word))
            at += 8
            word = load8(data, at)
        digit = byte_at(data, at) - 48
        while 0 <= digit <= 9:
            mantissa = mantissa * 10 + digit
            at += 1
            digit = byte_at(data, at) - 48
        if at == point:
            return -1, 0.0, False
        digits += at - first
        power = point - at
    if byte_at(data, at) | 0x20 == 0x65:
        is_integer = False
        at, exponent = _exponent(data, at + 1, whole)
        if at < 0:
            return -1, 0.0, False
        power += exponent
    # The integer -0 is 0.
    value, is_found = float_of_digits(mantissa, digits, power, negative and not (is_integer and digits == 0))
    return at, value, is_found


@byte_kernel_part
def _exponent(data: np.ndarray, at: int, digits: int) -> tuple[int, int]:
    """Read what follows the letter of an exponent: position after it (-1: not certain), and it.

    ``digits``: before the point; with too many of them the number may be infinite.
    """
    negative = byte_at(data, at) == 0x2D
    if negative or byte_at(data, at) == 0x2B:
        at += 1
    first = at
    power = 0
    digit = byte_at(data, at) - 48
    while 0 <= digit <= 9:
        power = power * 10 + digit
        at += 1
        digit = byte_at(data, at) - 48
    if at == first or at - first > 3 or (not negative and digits + power > _FINITE_POWER_MAX):
        return -1, 0
    return at, -power if negative else power


@byte_kernel_part
def unsigned_number(data: np.ndarray, at: int) -> tuple[int, int]:
    """Read an integer without sign: position after it (-1: not certain), and its 64 bits."""
    first = at
    number = np.uint64(0)
    digit = byte_at(data, at) - 48
    while 0 <= digit <= 9 and at - first < 19:
        number = number * np.uint64(10) + np.uint64(digit)
        at += 1
        digit = byte_at(data, at) - 48
    if 0 <= digit <= 9:
        if number > _UNSIGNED_TENTH or (number == _UNSIGNED_TENTH and digit > 5):
            return -1, 0
        number = number * np.uint64(10) + np.uint64(digit)
        at += 1
    byte = byte_at(data, at)
    if at == first or (byte_at(data, first) == 0x30 and at - first > 1):
        return -1, 0
    if 0x30 <= byte <= 0x39 or byte == 0x2E or byte | 0x20 == 0x65:
        return -1, 0
    return at, int(np.int64(number))


@byte_kernel_part
def skip_number(data: np.ndarray, at: int) -> int:
    """Position after a number of any form; -1: not certain. What follows it is the caller's business."""
    if byte_at(data, at) == 0x2D:
        at += 1
    first = at
    while 0x30 <= byte_at(data, at) <= 0x39:
        at += 1
    digits = at - first
    if digits == 0 or digits > _WHOLE_DIGITS_MAX or (byte_at(data, first) == 0x30 and digits > 1):
        return -1
    if byte_at(data, at) == 0x2E:
        at += 1
        point = at
        while is_eight_digits(load8(data, at)):
            at += 8
        while 0x30 <= byte_at(data, at) <= 0x39:
            at += 1
        if at == point:
            return -1
    if byte_at(data, at) | 0x20 == 0x65:
        at, _ = _exponent(data, at + 1, digits)
    return at


@byte_kernel_part
def _two_digits(data: np.ndarray, at: int) -> int:
    """The number of two digits; negative: they are not digits."""
    tens = byte_at(data, at) - 48
    ones = byte_at(data, at + 1) - 48
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else -1


@byte_kernel_part
def _days(data: np.ndarray, at: int) -> int:
    """Days since 1970 of the date in ten characters at ``at``; -2**62: they are none."""
    century, year = _two_digits(data, at), _two_digits(data, at + 2)
    month, day = _two_digits(data, at + 5), _two_digits(data, at + 8)
    if century < 0 or year < 0 or byte_at(data, at + 4) != 0x2D or byte_at(data, at + 7) != 0x2D:
        return -(1 << 62)
    year += 100 * century
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        last = 29 if is_leap else 28
    if not 1 <= month <= 12 or not 1 <= day <= last:
        return -(1 << 62)
    # Years begin in March, so that the day that some of them lack is their last.
    if month <= 2:
        year -= 1
        month += 12
    in_year = (153 * (month - 3) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + in_year - 719_468


@byte_kernel_part
def scan_date(data: np.ndarray, at: int) -> tuple[int, int]:
    """Read a text such as "2026-11-23": position after its quote (-1: not certain), and days since 1970."""
    if byte_at(data, at) != 0x22:
        return -1, 0
    days = _days(data, at + 1)
    if days == -(1 << 62) or byte_at(data, at + 11) != 0x22:
        return -1, 0
    return at + 12, days


@byte_kernel_part
def _zone(data: np.ndarray, at: int) -> tuple[int, int]:
    """Position after a time zone, if there is one (-1: not certain), and by how many seconds it is ahead of UTC."""
    byte = byte_at(data, at)
    if byte == 0x5A:
        return at + 1, 0
    if byte != 0x2B and byte != 0x2D:
        return at, 0
    hours = _two_digits(data, at + 1)
    at += 3
    minutes = 0
    if byte_at(data, at) != 0x22:
        if byte_at(data, at) == 0x3A:
            at += 1
        minutes = _two_digits(data, at)
        at += 2
    if not 0 <= hours <= 23 or not 0 <= minutes <= 59:
        return -1, 0
    seconds = hours * 3_600 + minutes * 60
    return at, -seconds if byte == 0x2D else seconds


@byte_kernel_part
def _fraction(data: np.ndarray, at: int, per_second: int) -> tuple[int, int]:
    """Read digits after a point: position after them (-1: none, or finer than the unit), and as units."""
    unit = per_second
    found = 0
    digit = byte_at(data, at) - 48
    if not 0 <= digit <= 9:
        return -1, 0
    while 0 <= digit <= 9:
        if unit == 1:
            return -1, 0
        unit //= 10
        found += digit * unit
        at += 1
        digit = byte_at(data, at) - 48
    return at, found


@byte_kernel_part
def scan_timestamp(data: np.ndarray, at: int, per_second: int) -> tuple[int, int]:
    """Read a text such as "2026-11-23T10:00:00.5Z": position after its quote (-1: not certain), and units since 1970.

    Without a zone it is in UTC. ``per_second``: units of a second, 1 to 10**9.
    """
    if byte_at(data, at) != 0x22:
        return -1, 0
    days = _days(data, at + 1)
    if days == -(1 << 62):
        return -1, 0
    seconds = days * 86_400
    units = 0
    at += 11
    byte = byte_at(data, at)
    if byte == 0x54 or byte == 0x20:
        hours, minutes = _two_digits(data, at + 1), _two_digits(data, at + 4)
        if not 0 <= hours <= 23 or byte_at(data, at + 3) != 0x3A or not 0 <= minutes <= 59:
            return -1, 0
        seconds += hours * 3_600 + minutes * 60
        at += 6
        if byte_at(data, at) == 0x3A:
            second = _two_digits(data, at + 1)
            if not 0 <= second <= 59:
                return -1, 0
            seconds += second
            at += 3
            if byte_at(data, at) == 0x2E:
                at, units = _fraction(data, at + 1, per_second)
                if at < 0:
                    return -1, 0
        at, ahead = _zone(data, at)
        seconds -= ahead
    if at < 0 or byte_at(data, at) != 0x22:
        return -1, 0
    if per_second == _NANO and not -_NANO_SECONDS_MAX <= seconds <= _NANO_SECONDS_MAX:
        return -1, 0
    return at + 1, seconds * per_second + units


@byte_kernel_part
def scan_decimal(data: np.ndarray, at: int, scale: int, precision: int) -> tuple[int, int]:
    """Read a number, or a text with one: position after it (-1: not certain), and as units of 10**-scale.

    ``precision``: digits that the type has, 18 at most.
    """
    is_text = byte_at(data, at) == 0x22
    if is_text:
        at += 1
    at, number, fraction, digits = simple_number(data, at)
    if at < 0 or digits > _INTEGER_DIGITS_MAX or fraction > scale:
        return -1, 0
    if is_text:
        if byte_at(data, at) != 0x22:
            return -1, 0
        at += 1
    more = scale - max(fraction, 0)
    if more > precision or abs(number) >= _INTEGERS_OF_TEN[precision - more]:
        return -1, 0
    return at, number * _INTEGERS_OF_TEN[more]
