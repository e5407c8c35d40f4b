"""Parts of the JSON scanner for timestamps, dates and decimals: the usual forms of them, as one integer each.

What else there may be in such a text is not certain, and left to the strict parser.
"""

from __future__ import annotations

import numpy as np

from weir.kernels.bytes import byte_at
from weir.kernels.declare import byte_kernel_part
from weir.operators.sources.lines.number_texts import simple_number

#: Seconds around 1970 that are certain to fit into 63 bits as nanoseconds.
_NANO_SECONDS_MAX = 9_223_372_000
_NANO = 1_000_000_000
#: Digits of an integer that has no overflow.
_DIGITS_MAX = 18
_INTEGERS_OF_TEN = np.array([10**n for n in range(_DIGITS_MAX + 1)], dtype=np.int64)


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
    if at < 0 or digits > _DIGITS_MAX or fraction > scale:
        return -1, 0
    if is_text:
        if byte_at(data, at) != 0x22:
            return -1, 0
        at += 1
    more = scale - max(fraction, 0)
    if more > precision or abs(number) >= _INTEGERS_OF_TEN[precision - more]:
        return -1, 0
    return at, number * _INTEGERS_OF_TEN[more]
