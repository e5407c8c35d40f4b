"""Parts of the JSON scanner: strings and literals, and skipping of whatever is not wanted.

Every part returns a negative position where it is not certain what the strict parser (``json_strict``) would say. What
it skips it has checked: escapes, UTF-8, the grammar of numbers, brackets down to ``SKIP_DEPTH_MAX``.
"""

from __future__ import annotations

import numpy as np

from weir.kernels.bytes import byte_at, copy_block, count_bits, load8, trailing_zeros
from weir.kernels.declare import byte_kernel_part
from weir.kernels.text_masks import string_masks, utf8_masks
from weir.operators.sources.lines.value_texts import skip_number

#: Deeper values are left to the strict parser: the open brackets are the bits of one integer.
SKIP_DEPTH_MAX = 60

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
#: Bits of 32 bytes: all, the last one, the last two.
_BLOCK, _LAST, _LAST_TWO = np.uint64(0xFFFFFFFF), np.uint64(1 << 31), np.uint64(3 << 30)
#: Two sequences of three bytes, and four of two, little endian: the bits that say so, and what they are.
_THREES_MASK, _THREES = np.uint64(0x0000C0C0F0C0C0F0), np.uint64(0x00008080E08080E0)
_TWOS_MASK, _TWOS = np.uint64(0xC0E0C0E0C0E0C0E0), np.uint64(0x80C080C080C080C0)
#: Bits of which a lead of two bytes has one at least, and what carries into the highest bit of its lane then.
_TWOS_LEADS, _TWOS_CARRY = np.uint64(0x001E001E001E001E), np.uint64(0x7FFE7FFE7FFE7FFE)
_LANES = np.uint64(0x8000800080008000)
_BYTE = np.uint64(0xFF)
_THIRD = np.uint64(24)
_E0, _ED = np.uint64(0xE0), np.uint64(0xED)


@byte_kernel_part
def special_bytes(word: np.uint64) -> np.uint64:
    """High bits of the bytes that end a plain run: quote, backslash, control or beyond ASCII.

    Only the lowest bit set is exact, which is all that callers use.
    """
    quote = word ^ _QUOTES
    backslash = word ^ _BACKSLASHES
    found = (quote - _ONES) & ~quote
    found |= (backslash - _ONES) & ~backslash
    found |= (word - _SPACES) & ~word
    return (found | word) & _HIGHS


@byte_kernel_part
def utf8_length(data: np.ndarray, at: int) -> int:
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


@byte_kernel_part
def skip_beyond_ascii(data: np.ndarray, at: int) -> int:
    """Position of the next byte of ASCII after the UTF-8 sequences from ``at`` on; -1: they are not well formed."""
    while True:
        word = load8(data, at)
        length = 0
        if word & _THREES_MASK == _THREES:
            first, second = word & _BYTE, (word >> _THIRD) & _BYTE
            # What may follow these two leads is less than usual.
            if first != _E0 and first != _ED and second != _E0 and second != _ED:
                length = 6
        elif word & _TWOS_MASK == _TWOS and ((word & _TWOS_LEADS) + _TWOS_CARRY) & _LANES == _LANES:
            length = 8
        if length == 0:
            length = utf8_length(data, at)
            if length == 0:
                return -1
        at += length
        if byte_at(data, at) < 0x80:
            return at


@byte_kernel_part
def _hex_digit(byte: int) -> int:
    if 0x30 <= byte <= 0x39:
        return byte - 0x30
    lower = byte | 0x20
    return lower - 0x57 if 0x61 <= lower <= 0x66 else -1


@byte_kernel_part
def _four_hex(data: np.ndarray, at: int) -> int:
    """The number that four hexadecimal digits stand for; negative if they are not such digits."""
    a = _hex_digit(byte_at(data, at))
    b = _hex_digit(byte_at(data, at + 1))
    c = _hex_digit(byte_at(data, at + 2))
    d = _hex_digit(byte_at(data, at + 3))
    return -1 if (a | b | c | d) < 0 else (a << 12) | (b << 8) | (c << 4) | d


@byte_kernel_part
def _escape(data: np.ndarray, at: int) -> tuple[int, int]:
    """The character of the escape whose backslash is at ``at``; position after it, -1: not certain.

    Half of a surrogate pair is not certain.
    """
    byte = byte_at(data, at + 1)
    if byte == 0x75:
        code = _four_hex(data, at + 2)
        if code < 0 or 0xDC00 <= code <= 0xDFFF:
            return -1, 0
        if code < 0xD800 or code > 0xDFFF:
            return at + 6, code
        if byte_at(data, at + 6) != 0x5C or byte_at(data, at + 7) != 0x75:
            return -1, 0
        low = _four_hex(data, at + 8)
        if low < 0xDC00 or low > 0xDFFF:
            return -1, 0
        return at + 12, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    if byte == 0x22 or byte == 0x5C or byte == 0x2F:
        return at + 2, byte
    if byte == 0x6E:
        return at + 2, 0x0A
    if byte == 0x74:
        return at + 2, 0x09
    if byte == 0x72:
        return at + 2, 0x0D
    if byte == 0x62:
        return at + 2, 0x08
    if byte == 0x66:
        return at + 2, 0x0C
    return -1, 0


@byte_kernel_part
def _put_utf8(out: np.ndarray, to: int, code: int) -> int:
    """Write a character; the position after it."""
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to] = 0xC0 | (code >> 6)
        out[to + 1] = 0x80 | (code & 0x3F)
        return to + 2
    if code < 0x10000:
        out[to] = 0xE0 | (code >> 12)
        out[to + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[to + 2] = 0x80 | (code & 0x3F)
        return to + 3
    out[to] = 0xF0 | (code >> 18)
    out[to + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[to + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[to + 3] = 0x80 | (code & 0x3F)
    return to + 4


@byte_kernel_part
def skip_key(data: np.ndarray, at: int) -> int:
    """Position after the closing quote of a key whose inside begins at ``at``; -1: not certain.

    With an escape it is not certain: the key may be a wanted one, see :func:`is_key_with_escapes`.
    """
    while True:
        special = special_bytes(load8(data, at))
        if special == _ZERO:
            at += 8
            continue
        at += trailing_zeros(special) >> 3
        byte = byte_at(data, at)
        if byte == 0x22:
            return at + 1
        if byte < 0x80:
            return -1
        at = skip_beyond_ascii(data, at)
        if at < 0:
            return -1


@byte_kernel_part
def _skip_text_block(
    data: np.ndarray, at: int, special: np.uint64, beyond: np.uint64, below: np.uint64
) -> int:
    """Pass over what is beyond ASCII in the next 32 bytes, and what is between; -1: it is not well-formed UTF-8.

    Args:
        data: the bytes.
        at: where the 32 bytes begin, with a whole character.
        special: which of them may end the text.
        beyond: which are beyond ASCII.
        below: those before the first special one.

    Returns:
        The beginning of a character after them, at most that of the first special one.
    """
    follows, two, three, others = utf8_masks(data, at)
    if others & below != _ZERO:
        return skip_beyond_ascii(data, at + trailing_zeros(beyond))
    if special == _ZERO:
        # A sequence that goes on after the block is for the next one.
        cut = (two & _LAST) | (three & _LAST_TWO)
        if cut != _ZERO:
            below = (cut & (~cut + _ONE)) - _ONE
    two &= below
    three &= below
    if follows & below != ((two | three) << _ONE) | (three << _TWO):
        return -1
    return at + int(count_bits(below))


@byte_kernel_part
def skip_string(data: np.ndarray, at: int) -> int:
    """Position after the closing quote of a string whose inside begins at ``at``; -1: not certain."""
    while True:
        special, beyond = string_masks(data, at)
        below = _BLOCK
        if special != _ZERO:
            below = (special & (~special + _ONE)) - _ONE
        if beyond & below != _ZERO:
            at = _skip_text_block(data, at, special, beyond, below)
            if at < 0:
                return -1
            continue
        if special == _ZERO:
            at += 32
            continue
        at += trailing_zeros(special)
        byte = byte_at(data, at)
        if byte == 0x22:
            return at + 1
        if byte != 0x5C:
            return -1
        at, _ = _escape(data, at)
        if at < 0:
            return -1


@byte_kernel_part
def copy_string(data: np.ndarray, at: int, out: np.ndarray, to: int) -> tuple[int, int]:
    """Copy a string's characters, from after its opening quote; escapes become what they stand for.

    ``out``: has room for ``PADDING_BYTES`` after the copy.

    Returns:
        Position after the closing quote (-1: not certain), and the end of the copy.
    """
    while True:
        copy_block(out, to, data, at)
        special, beyond = string_masks(data, at)
        below = _BLOCK
        if special != _ZERO:
            below = (special & (~special + _ONE)) - _ONE
        if beyond & below != _ZERO:
            after = _skip_text_block(data, at, special, beyond, below)
            if after < 0:
                return -1, to
            offset = 32
            while offset < after - at:
                copy_block(out, to + offset, data, at + offset)
                offset += 32
            to += after - at
            at = after
            continue
        if special == _ZERO:
            at += 32
            to += 32
            continue
        plain = trailing_zeros(special)
        at += plain
        to += plain
        byte = byte_at(data, at)
        if byte == 0x22:
            return at + 1, to
        if byte != 0x5C:
            return -1, to
        at, code = _escape(data, at)
        if at < 0:
            return -1, to
        to = _put_utf8(out, to, code)


@byte_kernel_part
def skip_space(data: np.ndarray, at: int) -> int:
    """Position of the next byte that is neither a space nor a tab."""
    while byte_at(data, at) == 0x20 or byte_at(data, at) == 0x09:
        at += 1
    return at


@byte_kernel_part
def literal(data: np.ndarray, at: int) -> tuple[int, int]:
    """Read ``true``, ``false`` or ``null``: position after it (-1: none of them), and 1, 0 or -1."""
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


@byte_kernel_part
def _after_utf8(data: np.ndarray, at: int, code: int) -> int:
    """Position after a character, if it is there; -1: it is not."""
    if code < 0x80:
        return at + 1 if byte_at(data, at) == code else -1
    if code < 0x800:
        lead, more = 0xC0 | (code >> 6), 1
    elif code < 0x10000:
        lead, more = 0xE0 | (code >> 12), 2
    else:
        lead, more = 0xF0 | (code >> 18), 3
    if byte_at(data, at) != lead:
        return -1
    while more > 0:
        at += 1
        more -= 1
        if byte_at(data, at) != 0x80 | ((code >> (6 * more)) & 0x3F):
            return -1
    return at + 1


@byte_kernel_part
def is_key_with_escapes(data: np.ndarray, at: int, keys: np.ndarray, start: int, stop: int) -> bool:
    """Whether the key whose inside begins at ``at`` stands for ``keys[start:stop]``, which ends with a quote.

    ``skip_string`` has found it to be certain.
    """
    last = stop - 1
    while start >= 0:
        byte = byte_at(data, at)
        if byte == 0x22:
            return start == last
        if start == last:
            return False
        if byte == 0x5C:
            at, code = _escape(data, at)
            start = _after_utf8(keys, start, code)
        elif byte == byte_at(keys, start):
            at += 1
            start += 1
        else:
            return False
    return False


@byte_kernel_part
def skip_value(data: np.ndarray, at: int) -> int:
    """Position after the value at ``at``, with all that is in it; -1: not certain."""
    byte = byte_at(data, at)
    if byte == 0x22:
        return skip_string(data, at + 1)
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        return skip_number(data, at)
    if byte != 0x7B and byte != 0x5B:
        return literal(data, at)[0]
    # Of each enclosing bracket a bit: 1 for an object.
    outer = 0
    depth = 0
    in_object = byte == 0x7B
    is_open = True
    at += 1
    while True:
        at = skip_space(data, at)
        byte = byte_at(data, at)
        if not (is_open and byte == (0x7D if in_object else 0x5D)):
            if in_object:
                if byte != 0x22:
                    return -1
                at = skip_string(data, at + 1)
                if at < 0:
                    return -1
                at = skip_space(data, at)
                if byte_at(data, at) != 0x3A:
                    return -1
                at = skip_space(data, at + 1)
                byte = byte_at(data, at)
            if byte == 0x22:
                at = skip_string(data, at + 1)
            elif byte == 0x7B or byte == 0x5B:
                if depth == SKIP_DEPTH_MAX:
                    return -1
                outer = (outer << 1) | (1 if in_object else 0)
                depth += 1
                in_object = byte == 0x7B
                is_open = True
                at += 1
                continue
            elif byte == 0x2D or 0x30 <= byte <= 0x39:
                at = skip_number(data, at)
            else:
                at = literal(data, at)[0]
            if at < 0:
                return -1
        while True:
            at = skip_space(data, at)
            byte = byte_at(data, at)
            at += 1
            if byte == 0x2C:
                is_open = False
                break
            if byte != (0x7D if in_object else 0x5D):
                return -1
            if depth == 0:
                return at
            depth -= 1
            in_object = (outer & 1) == 1
            outer >>= 1
