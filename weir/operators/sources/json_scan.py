"""A Numba kernel that reads simple flat JSON objects, one a line, straight into columns.

It takes a line only when it is certain what the strict parser (``json_strict``) would make of it; any other
line is handed back by its position. It knows: one flat object a line; keys without escapes; integers of at most
18 digits; decimals of at most 15 digits without exponent; strings without escapes, whose bytes beyond ASCII
are checked to be UTF-8; ``true`` and ``false``; and it skips unknown keys with such values.

``data`` must be readable for ``PADDING_BYTES`` behind the range given: strings are read eight bytes at once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from weir.operators.byte_access import byte_at, kernel, kernel_part, line_end, load8, store8, trailing_zeros

#: Kinds of fields that the scanner knows.
KIND_INT, KIND_FLOAT, KIND_BOOL, KIND_STRING = range(4)
#: Fields that one 64-bit set of seen fields can hold.
FIELDS_MAX = 62

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_ZERO = np.uint64(0)

_POWERS_OF_TEN = np.array([float(10**n) for n in range(23)])


@kernel_part
def _special(word: np.uint64) -> np.uint64:
    """High bits of the bytes that end a plain run: quote, backslash, control or beyond ASCII.

    Only the lowest bit set is exact, which is all that callers use.
    """
    quote = word ^ _QUOTES
    backslash = word ^ _BACKSLASHES
    found = (quote - _ONES) & ~quote
    found |= (backslash - _ONES) & ~backslash
    found |= (word - _SPACES) & ~word
    return (found | word) & _HIGHS


@kernel_part
def _utf8_length(data: np.ndarray, at: int) -> int:
    """Bytes of the well-formed UTF-8 sequence at ``at``, which starts beyond ASCII; 0 if it is not one."""
    a = byte_at(data, at)
    b = byte_at(data, at + 1)
    if a < 0xC2 or b < 0x80 or b > 0xBF:
        return 0
    if a < 0xE0:
        return 2
    c = byte_at(data, at + 2)
    if c < 0x80 or c > 0xBF:
        return 0
    if a < 0xF0:
        if (a == 0xE0 and b < 0xA0) or (a == 0xED and b > 0x9F):
            return 0
        return 3
    d = byte_at(data, at + 3)
    if d < 0x80 or d > 0xBF or a > 0xF4 or (a == 0xF0 and b < 0x90) or (a == 0xF4 and b > 0x8F):
        return 0
    return 4


@kernel_part
def _copy_string(data: np.ndarray, at: int, out: np.ndarray, to: int) -> tuple[int, int]:
    """Copy a string's bytes from behind its opening quote.

    Returns:
        Position behind the closing quote (-1: not certain), and the end of the copy.
    """
    while True:
        word = load8(data, at)
        store8(out, to, word)
        special = _special(word)
        if special == _ZERO:
            at += 8
            to += 8
            continue
        plain = trailing_zeros(special) >> 3
        at += plain
        to += plain
        if byte_at(data, at) == 0x22:
            return at + 1, to
        if byte_at(data, at) < 0x80:
            return -1, to
        length = _utf8_length(data, at)
        if length == 0:
            return -1, to
        for offset in range(length):
            out[to + offset] = data[at + offset]
        at += length
        to += length


@kernel_part
def _skip_string(data: np.ndarray, at: int) -> int:
    """Position behind the closing quote of a string whose inside begins at ``at``; -1: not certain."""
    while True:
        special = _special(load8(data, at))
        if special == _ZERO:
            at += 8
            continue
        at += trailing_zeros(special) >> 3
        if byte_at(data, at) == 0x22:
            return at + 1
        if byte_at(data, at) < 0x80:
            return -1
        length = _utf8_length(data, at)
        if length == 0:
            return -1
        at += length


@kernel_part
def _scan_number(data: np.ndarray, at: int) -> tuple[int, int, int, int]:
    """Read a number without exponent.

    Returns:
        Position behind it (-1: not certain), its digits as an integer of at most 18 digits with sign,
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
    if digits == 0 or digits > 18 or (byte_at(data, first) == 0x30 and digits > 1):
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
    following = byte_at(data, at)
    if following != 0x2C and following != 0x7D and following != 0x20 and following != 0x09:
        return -1, mantissa, fraction, digits
    return at, -mantissa if negative else mantissa, fraction, digits


@kernel_part
def _skip_space(data: np.ndarray, at: int) -> int:
    while byte_at(data, at) == 0x20 or byte_at(data, at) == 0x09:
        at += 1
    return at


@kernel_part
def _literal(data: np.ndarray, at: int) -> tuple[int, int]:
    """Read ``true``, ``false`` or ``null``: position behind it (-1: none of them), and 1, 0 or -1."""
    if (
        byte_at(data, at) == 0x74
        and byte_at(data, at + 1) == 0x72
        and byte_at(data, at + 2) == 0x75
        and byte_at(data, at + 3) == 0x65
    ):
        return at + 4, 1
    if (
        byte_at(data, at) == 0x6E
        and byte_at(data, at + 1) == 0x75
        and byte_at(data, at + 2) == 0x6C
        and byte_at(data, at + 3) == 0x6C
    ):
        return at + 4, -1
    if (
        byte_at(data, at) == 0x66
        and byte_at(data, at + 1) == 0x61
        and byte_at(data, at + 2) == 0x6C
        and byte_at(data, at + 3) == 0x73
        and byte_at(data, at + 4) == 0x65
    ):
        return at + 5, 0
    return -1, 0


@kernel_part
def _skip_value(data: np.ndarray, at: int) -> int:
    """Position behind a simple value of an unknown key; -1: not certain."""
    byte = byte_at(data, at)
    if byte == 0x22:
        return _skip_string(data, at + 1)
    if byte == 0x2D or (0x30 <= byte <= 0x39):
        return _scan_number(data, at)[0]
    return _literal(data, at)[0]


@kernel_part
def _matches(data: np.ndarray, at: int, keys: np.ndarray, start: int, stop: int) -> bool:
    """Whether the bytes at ``at`` are ``keys[start:stop]``, a key with its closing quote."""
    length = stop - start
    offset = 0
    while offset + 8 <= length:
        if load8(data, at + offset) != load8(keys, start + offset):
            return False
        offset += 8
    while offset < length:
        if byte_at(data, at + offset) != byte_at(keys, start + offset):
            return False
        offset += 1
    return True


@kernel_part
def _find_field(data: np.ndarray, at: int, keys: np.ndarray, key_offsets: np.ndarray, guess: int) -> int:
    """Index of the field whose key begins at ``at``; -1: none."""
    fields = len(key_offsets) - 1
    if guess < fields and _matches(data, at, keys, key_offsets[guess], key_offsets[guess + 1]):
        return guess
    for field in range(fields):
        if _matches(data, at, keys, key_offsets[field], key_offsets[field + 1]):
            return field
    return -1


@kernel_part
def _scan_value(
    data: np.ndarray,
    at: int,
    field: int,
    row: int,
    rows_max: int,
    table: np.ndarray,
    numbers: np.ndarray,
    decimals: np.ndarray,
    offsets: np.ndarray,
    texts: np.ndarray,
) -> int:
    """Read a field's value into ``row`` of its column; position behind it, -1: not certain."""
    kind = table[field, 0]
    slot = table[field, 1]
    if kind == KIND_STRING:
        if byte_at(data, at) != 0x22:
            return -1
        begin = slot * (rows_max + 1) + row
        base = table[field, 4]
        after, end = _copy_string(data, at + 1, texts, base + offsets[begin])
        offsets[begin + 1] = end - base
        return after
    cell = slot * rows_max + row
    if kind == KIND_BOOL:
        after, truth = _literal(data, at)
        if truth < 0:
            return -1
        numbers[cell] = truth
        return after
    after, number, fraction, digits = _scan_number(data, at)
    if kind == KIND_INT:
        if fraction >= 0 or number < table[field, 2] or number > table[field, 3]:
            return -1
        numbers[cell] = number
        return after
    # Both the digits and the power of ten are exact as float64, so one division rounds correctly. A zero is
    # left to the strict parser for the sake of its sign.
    if digits > 15 or number == 0:
        return -1
    decimals[cell] = number / _POWERS_OF_TEN[fraction] if fraction > 0 else float(number)
    return after


@kernel_part
def _scan_object(
    data: np.ndarray,
    at: int,
    row: int,
    rows_max: int,
    keys: np.ndarray,
    key_offsets: np.ndarray,
    table: np.ndarray,
    numbers: np.ndarray,
    decimals: np.ndarray,
    offsets: np.ndarray,
    texts: np.ndarray,
) -> int:
    """Read the object that starts at ``at`` and its newline; position behind it, -1: not certain.

    Every field must be there once.
    """
    field_count = len(key_offsets) - 1
    seen = 0
    guess = 0
    at = _skip_space(data, at)
    if byte_at(data, at) != 0x7B:
        return -1
    while True:
        at = _skip_space(data, at + 1)
        if byte_at(data, at) != 0x22:
            return -1
        at += 1
        field = _find_field(data, at, keys, key_offsets, guess)
        if field >= 0:
            if seen & (1 << field):
                return -1
            seen |= 1 << field
            at += key_offsets[field + 1] - key_offsets[field]
            guess = field + 1
        else:
            at = _skip_string(data, at)
            if at < 0:
                return -1
        at = _skip_space(data, at)
        if byte_at(data, at) != 0x3A:
            return -1
        at = _skip_space(data, at + 1)
        if field >= 0:
            at = _scan_value(data, at, field, row, rows_max, table, numbers, decimals, offsets, texts)
        else:
            at = _skip_value(data, at)
        if at < 0:
            return -1
        at = _skip_space(data, at)
        if byte_at(data, at) != 0x2C:
            break
    if byte_at(data, at) != 0x7D or seen != (1 << field_count) - 1:
        return -1
    at = _skip_space(data, at + 1)
    if byte_at(data, at) == 0x0D:
        at += 1
    return at + 1 if byte_at(data, at) == 0x0A else -1


#: Untyped, because numba types only a part of it.
_types: Any = numba.types
_BYTES = numba.types.Array(numba.types.uint8, 1, "C")
_INTS = numba.types.Array(numba.types.int64, 1, "C")
_INTS_2D = numba.types.Array(numba.types.int64, 2, "C")
_FLOATS = numba.types.Array(numba.types.float64, 1, "C")
_OFFSETS = numba.types.Array(numba.types.int32, 1, "C")
_INT = numba.types.int64


@kernel(
    _types.UniTuple(_INT, 3)(
        _BYTES, _INT, _INT, _INT, _INT, _BYTES, _INTS, _INTS_2D, _INTS, _FLOATS, _OFFSETS, _BYTES, _INTS_2D
    )
)
def scan_lines(
    data: np.ndarray,
    start: int,
    stop: int,
    lines_max: int,
    line_bytes_max: int,
    keys: np.ndarray,
    key_offsets: np.ndarray,
    table: np.ndarray,
    numbers: np.ndarray,
    decimals: np.ndarray,
    offsets: np.ndarray,
    texts: np.ndarray,
    unsure: np.ndarray,
) -> tuple[int, int, int]:
    """Read whole lines into columns until ``stop`` or ``lines_max`` lines.

    The arrays are flat because views made inside a kernel cost reference counts.

    Args:
        data: uint8, shape (bytes + PADDING_BYTES,).
        start: position of the first line.
        stop: end of the lines; ``data[stop - 1]`` is a newline.
        lines_max: rows that a column has room for.
        line_bytes_max: longer lines are not certain.
        keys: uint8, the fields' keys with their closing quotes, concatenated and padded.
        key_offsets: int64, shape (fields + 1,), where each begins in ``keys``.
        table: int64, shape (fields, 5): kind, index of the column among the numbers or the strings, least
            and greatest integer, where the column begins in ``texts``.
        numbers: int64, shape (number columns * lines_max,): integers, and bools as 0 or 1.
        decimals: the same memory as float64.
        offsets: int32, shape (string columns * (lines_max + 1),); each column starts with 0.
        texts: uint8; each string column has room for ``stop - start + PADDING_BYTES``.
        unsure: int64, shape (lines_max, 3); filled with start, end (behind the newline) and number of rows
            before it for each line that is not certain.

    Returns:
        Position behind the last line read, rows, unsure lines.
    """
    at = start
    row = 0
    unsure_count = 0
    while at < stop and row + unsure_count < lines_max:
        after = _scan_object(
            data, at, row, lines_max, keys, key_offsets, table, numbers, decimals, offsets, texts
        )
        if after >= 0 and after - at <= line_bytes_max:
            row += 1
            at = after
            continue
        after = line_end(data, at) + 1
        unsure[unsure_count, 0] = at
        unsure[unsure_count, 1] = after
        unsure[unsure_count, 2] = row
        unsure_count += 1
        at = after
    return at, row, unsure_count
