"""Parts of the CSV scanner: where fields end, and the values of integers, decimals and bools.

What they read of ``data`` may be up to ``PADDING_BYTES`` after the range that they are given.
"""

from __future__ import annotations

import numpy as np

from weir.kernels.bytes import byte_at, copy_block, count_bits, leading_zeros, load8, store8, trailing_zeros
from weir.kernels.declare import byte_kernel_part
from weir.kernels.text_masks import block_masks, record_masks, utf8_masks
from weir.operators.sources.json.json_tokens import utf8_length
from weir.operators.sources.lines.value_texts import float_of_digits

#: Why a record is not good.
GOOD, BAD_FIELDS, BAD_QUOTE, OPEN_QUOTE, BAD_UTF8, BAD_NULL, BAD_VALUE, OUT_OF_RANGE, TOO_LONG = range(9)
#: What :func:`quoted_field` found: its end, a quote that ends it in the wrong place, or no end.
FIELD_QUOTED, FIELD_MISPLACED, FIELD_OPEN = range(3)

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ALL = ~_ZERO
_TWO = np.uint64(2)
#: From the last bit of a block of 64 bytes, and the last but one, to the first.
_LAST, _LAST_BUT_ONE = np.uint64(63), np.uint64(62)
_HALF = np.uint64(32)
_SHIFTS = tuple(np.uint64(shift) for shift in (1, 2, 4, 8, 16, 32))
#: Of ten, larger than any float has.
_POWER_MAX = 1 << 20


@byte_kernel_part
def _quoted_ends(word: np.uint64, quotes: np.uint64, escapes: np.uint64) -> np.uint64:
    """High bits of quotes, of escapes, and of what is beyond ASCII; only the lowest is exact."""
    quote = word ^ quotes
    escape = word ^ escapes
    return (((quote - _ONES) & ~quote) | ((escape - _ONES) & ~escape) | word) & _HIGHS


@byte_kernel_part
def skip_fields(data: np.ndarray, at: int, limit: int, delimiter: int, quote: int) -> tuple[int, int]:
    """Pass over plain fields of ASCII, 32 bytes at a time, from the beginning of one on.

    Returns:
        How many, at most ``limit``; and the beginning of the next one, which has a quote, or something beyond ASCII, or
        ends the record, unless there were so many.
    """
    start = at
    skipped = 0
    while True:
        found, stops = block_masks(data, at, delimiter, quote)
        if stops != _ZERO:
            found &= (stops & (~stops + np.uint64(1))) - np.uint64(1)
        count = count_bits(found)
        if skipped + count >= limit:
            while skipped + 1 < limit:
                found &= found - np.uint64(1)
                skipped += 1
            return limit, at + trailing_zeros(found) + 1
        skipped += count
        if count > 0:
            start = at + 64 - leading_zeros(found)
        if stops != _ZERO:
            return skipped, start
        at += 32


@byte_kernel_part
def rest_of_record(
    data: np.ndarray, at: int, stop: int, delimiter: int, quote: int, has_quote: bool
) -> tuple[int, int]:
    """Pass over all fields from the beginning of one to the end of the record, 64 bytes at a time.

    Quoted fields and UTF-8 are looked at in whole blocks, as bits. What is wrong, and what is rare, is not told apart:
    quoted newlines, a quote before CR and LF, and characters of four bytes or of some of the three.

    Returns:
        Position of the newline that ends the record, and how many fields there were; -1: look at each field.
    """
    fields = 1
    inside = _ZERO
    # What the last byte of the block before was.
    was_delimiter = _ONE
    was_closing = _ZERO
    owed = _ZERO
    while at < stop:
        delimiters, quotes, newlines, beyond = record_masks(data, at, delimiter, quote)
        if not has_quote:
            quotes = _ZERO
        # Each bit becomes the parity of the quotes up to it: 1 from an opening one on to before the closing one.
        within = quotes
        within ^= within << _SHIFTS[0]
        within ^= within << _SHIFTS[1]
        within ^= within << _SHIFTS[2]
        within ^= within << _SHIFTS[3]
        within ^= within << _SHIFTS[4]
        within ^= within << _SHIFTS[5]
        within ^= inside
        opening = quotes & within
        closing = quotes & ~within
        delimiters &= ~within
        ends = newlines & ~within
        before = _ALL
        counted = _ALL
        if ends != _ZERO:
            end = ends & (~ends + _ONE)
            before = end - _ONE
            counted = before | end
        # A quote inside quotes is two: the first seems to close the field, and the second to open it again.
        wrong = opening & ~(((delimiters | closing) << _ONE) | was_delimiter | was_closing)
        wrong |= ((closing << _ONE) | was_closing) & ~(delimiters | ends | opening)
        wrong |= newlines & within
        if (beyond & before) | owed != _ZERO:
            follows, twos, threes, others = utf8_masks(data, at)
            next_follows, next_twos, next_threes, next_others = utf8_masks(data, at + 32)
            follows |= next_follows << _HALF
            threes |= next_threes << _HALF
            leads = twos | threes | (next_twos << _HALF)
            due = (leads << _ONE) | (threes << _TWO) | owed
            wrong |= others | (next_others << _HALF) | (due ^ follows)
            owed = (leads >> _LAST) | (threes >> _LAST_BUT_ONE)
        if wrong & counted != _ZERO:
            return -1, 0
        fields += count_bits(delimiters & before)
        if ends != _ZERO:
            return at + trailing_zeros(ends), fields
        inside = _ZERO - (within >> _LAST)
        was_delimiter = delimiters >> _LAST
        was_closing = closing >> _LAST
        at += 64
    return -1, 0


@byte_kernel_part
def plain_field(
    data: np.ndarray,
    at: int,
    delimiter: int,
    quote: int,
    copies: bool,
    texts: np.ndarray,
    to: int,
) -> tuple[int, bool, bool]:
    """Pass over a field that does not begin with a quote, or copy it.

    Returns:
        Position of the delimiter or newline that ends it; whether its quotes, and whether its UTF-8 are right.
    """
    quotes_right = True
    utf8_right = True
    while True:
        if copies:
            copy_block(texts, to, data, at)
        found, stops = block_masks(data, at, delimiter, quote)
        found |= stops
        if found == _ZERO:
            at += 32
            to += 32
            continue
        plain = trailing_zeros(found)
        at += plain
        to += plain
        byte = byte_at(data, at)
        if byte < 0x80:
            if byte == 0x0A or byte == delimiter:
                return at, quotes_right, utf8_right
            quotes_right = False
            at += 1
            to += 1
            continue
        length = utf8_length(data, at)
        if length == 0:
            utf8_right = False
            length = 1
        if copies:
            for offset in range(length):
                texts[to + offset] = data[at + offset]
        at += length
        to += length


@byte_kernel_part
def quoted_field(
    data: np.ndarray,
    at: int,
    stop: int,
    delimiter: int,
    quotes: np.uint64,
    escape: int,
    copies: bool,
    texts: np.ndarray,
    to: int,
) -> tuple[int, int, int, int, bool]:
    """Pass over a field whose opening quote is before ``at``, or copy what is in it.

    ``escape``: what stands before quotes, and before itself, that are in the field; the quote: nothing does.

    Returns:
        Position of the delimiter or newline that ends it; ``FIELD_QUOTED``, ``FIELD_MISPLACED`` or ``FIELD_OPEN``;
        position of its closing quote; the end of the copy; and whether its UTF-8 is right.
    """
    utf8_right = True
    quote = int(quotes & np.uint64(0xFF))
    escapes = np.uint64(escape) * _ONES
    while at < stop:
        word = load8(data, at)
        if copies:
            store8(texts, to, word)
        found = _quoted_ends(word, quotes, escapes)
        if found == _ZERO:
            at += 8
            to += 8
            continue
        plain = int(trailing_zeros(found) >> 3)
        at += plain
        to += plain
        if at >= stop:
            break
        byte = byte_at(data, at)
        if byte == quote:
            following = byte_at(data, at + 1)
            if following == quote and at + 1 < stop:
                at += 2
                to += 1
                continue
            if following == delimiter or following == 0x0A:
                return at + 1, FIELD_QUOTED, at, to, utf8_right
            if following == 0x0D and byte_at(data, at + 2) == 0x0A:
                return at + 2, FIELD_QUOTED, at, to, utf8_right
            return at, FIELD_MISPLACED, at, to, utf8_right
        if byte == escape:
            following = byte_at(data, at + 1)
            is_meant = following == quote
            is_meant |= following == escape
            if is_meant and at + 1 < stop:
                at += 1
                if copies:
                    texts[to] = following
            at += 1
            to += 1
            continue
        length = utf8_length(data, at)
        if length == 0:
            utf8_right = False
            length = 1
        if copies:
            for offset in range(length):
                texts[to + offset] = data[at + offset]
        at += length
        to += length
    return at, FIELD_OPEN, at, to, utf8_right


@byte_kernel_part
def is_null(
    data: np.ndarray, start: int, stop: int, empty_is_null: bool, nulls: np.ndarray, null_offsets: np.ndarray
) -> bool:
    """Whether a field is one of the null values."""
    length = stop - start
    if length == 0:
        return empty_is_null
    for index in range(len(null_offsets) - 1):
        first = null_offsets[index]
        if null_offsets[index + 1] - first != length:
            continue
        offset = 0
        while offset < length and byte_at(data, start + offset) == byte_at(nulls, first + offset):
            offset += 1
        if offset == length:
            return True
    return False


@byte_kernel_part
def integer(data: np.ndarray, at: int, stop: int) -> tuple[int, int]:
    """Digits with a sign or without: the number, and ``GOOD``, ``BAD_VALUE`` or ``OUT_OF_RANGE``."""
    negative = byte_at(data, at) == 0x2D
    if negative or byte_at(data, at) == 0x2B:
        at += 1
    if at >= stop:
        return 0, BAD_VALUE
    number = 0
    why = GOOD
    while at < stop:
        digit = byte_at(data, at) - 48
        if digit < 0 or digit > 9:
            return 0, BAD_VALUE
        # Negative, because there is one more of these.
        if number < -922337203685477580 or (number == -922337203685477580 and digit > 8):
            why = OUT_OF_RANGE
            number = 0
        number = number * 10 - digit
        at += 1
    if not negative:
        if number == -9223372036854775807 - 1:
            return 0, OUT_OF_RANGE
        number = -number
    return number, why


@byte_kernel_part
def decimal(data: np.ndarray, at: int, stop: int) -> tuple[float, int, bool]:
    """A number of any form: its value, ``GOOD`` or ``BAD_VALUE``, and whether a slower parser must find the value."""
    negative = byte_at(data, at) == 0x2D
    if negative or byte_at(data, at) == 0x2B:
        at += 1
    first = at
    mantissa = 0
    digits = 0
    zeros = 0
    fraction = 0
    while at < stop and 0x30 <= byte_at(data, at) <= 0x39:
        mantissa = mantissa * 10 + byte_at(data, at) - 48
        zeros += mantissa == 0 and zeros == digits
        digits += 1
        at += 1
    if at < stop and byte_at(data, at) == 0x2E:
        at += 1
        while at < stop and 0x30 <= byte_at(data, at) <= 0x39:
            mantissa = mantissa * 10 + byte_at(data, at) - 48
            zeros += mantissa == 0 and zeros == digits
            digits += 1
            fraction += 1
            at += 1
    if digits == 0:
        # nan, inf, infinity
        length = stop - first
        a = byte_at(data, first) | 0x20
        b = byte_at(data, first + 1) | 0x20
        c = byte_at(data, first + 2) | 0x20
        if length == 3 and a == 0x6E and b == 0x61 and c == 0x6E:
            return np.nan, GOOD, False
        endless = -np.inf if negative else np.inf
        if a == 0x69 and b == 0x6E and c == 0x66:
            if length == 3:
                return endless, GOOD, False
            is_long = length == 8 and (load8(data, first) | np.uint64(0x2020202020202020)) == np.uint64(
                0x7974696E69666E69
            )
            return endless, GOOD if is_long else BAD_VALUE, False
        return 0.0, BAD_VALUE, False
    power = 0
    if at < stop and byte_at(data, at) | 0x20 == 0x65:
        at += 1
        below_one = at < stop and byte_at(data, at) == 0x2D
        if at < stop and (byte_at(data, at) == 0x2B or below_one):
            at += 1
        exponent = at
        while at < stop and 0x30 <= byte_at(data, at) <= 0x39:
            power = min(power * 10 + byte_at(data, at) - 48, _POWER_MAX)
            at += 1
        if at == exponent:
            return 0.0, BAD_VALUE, False
        if below_one:
            power = -power
    if at != stop:
        return 0.0, BAD_VALUE, False
    value, is_found = float_of_digits(mantissa, digits - zeros, power - fraction, negative)
    return value, GOOD, not is_found


@byte_kernel_part
def truth(data: np.ndarray, at: int, stop: int) -> int:
    """1 for true, 0 for false in letters of any case; -1: neither."""
    word = load8(data, at) | np.uint64(0x2020202020202020)
    if stop - at == 4 and (word & np.uint64(0xFFFFFFFF)) == np.uint64(0x65757274):
        return 1
    if stop - at == 5 and (word & np.uint64(0xFFFFFFFFFF)) == np.uint64(0x65736C6166):
        return 0
    return -1
