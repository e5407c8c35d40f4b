"""Parts of kernels that write many numbers in few bits, and read them, for ``packed_pane_kernels``.

Bits go from the lowest one of a byte to its highest one, and on in the next byte. A block of numbers ends with a whole
byte; its *code*, a byte that comes before it, says how they are written:

- 0 to 56, 64: each in so many bits;
- 128 + k: by Rice: the number without its k lowest bits as so many ones and a zero, then the k bits. Where there would
    be 24 ones or more, 24 ones and the number in 64 bits. That is what numbers need that are mostly small.

Numba's disk cache does not notice changes here: after one, touch ``packed_pane_kernels.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import leading_zeros, load8, store8, trailing_zeros
from weir.kernels.declare import byte_kernel_part

#: Bytes behind a block that its reading and writing may touch.
PADDING_BYTES = 32
#: Numbers of so many bits there are lengths for, 0 among them.
LENGTHS = 65
#: Wider numbers take eight bytes.
_WIDTH_MAX = 56
_WORD_BITS = 64
#: Codes from here on are those of Rice; k is below the bound, so that ones and bits are written at once.
RICE, _RICE_BITS_MAX = 128, 32
_ESCAPE_ONES = 24
_ESCAPE_BITS = _ESCAPE_ONES + _WORD_BITS
#: Numbers longer by so many bits than k would have that many ones.
_ESCAPE_LENGTH = 5

_ZERO, _ONE, _SEVEN, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(7), np.uint64(8)
_BYTE, _HALF, _HALF_BITS = np.uint64(0xFF), np.uint64(0xFFFFFFFF), np.uint64(32)
_ESCAPE = np.uint64(_ESCAPE_ONES)
_ESCAPE_WORD = np.uint64((1 << _ESCAPE_ONES) - 1)
_SIGN_BIT = 63


@byte_kernel_part
def put(out: Any, at: Any, value: Any, count: Any) -> Any:
    """Append the lowest bytes of a value; returns where they end."""
    word = np.uint64(value)
    for index in range(count):
        out[at + index] = np.uint8(word & _BYTE)
        word >>= _EIGHT
    return at + count


@byte_kernel_part
def get(data: Any, at: Any, count: Any) -> Any:
    """So many bytes as a number, uint64."""
    word = _ZERO
    for index in range(count):
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word


@byte_kernel_part
def folded(value: Any) -> Any:
    """An int64 as a uint64 that is small if the value is near 0."""
    return (np.uint64(value) << _ONE) ^ np.uint64(value >> np.int64(_SIGN_BIT))


@byte_kernel_part
def unfolded(word: Any) -> Any:
    """The value of which :func:`folded` made this, as uint64."""
    return (word >> _ONE) ^ (_ZERO - (word & _ONE))


@byte_kernel_part
def put_signed(out: Any, at: Any, value: Any) -> Any:
    """Append an int64 in few bytes: seven bits in a byte, the upper bit says that more follow."""
    word = folded(value)
    while word > np.uint64(127):
        out[at] = np.uint8((word & np.uint64(127)) | np.uint64(128))
        word >>= _SEVEN
        at += 1
    out[at] = np.uint8(word)
    return at + 1


@byte_kernel_part
def take_signed(data: Any, at: Any, stop: Any) -> Any:
    """A value that :func:`put_signed` wrote, as uint64, and where it ends; -1: beyond ``stop``."""
    word, bits = _ZERO, np.int64(0)
    while at < stop and bits < _WORD_BITS:
        byte = np.uint64(data[at])
        at += 1
        word |= (byte & np.uint64(127)) << np.uint64(bits)
        if byte < np.uint64(128):
            return unfolded(word), at
        bits += 7
    return _ZERO, np.int64(-1)


@byte_kernel_part
def bit_length(word: Any) -> Any:
    """How many bits a number has, without zeros before it."""
    if word == _ZERO:
        return np.int64(0)
    return np.int64(_WORD_BITS) - leading_zeros(word)


@byte_kernel_part
def _rice_bits(words: Any, count: Any, lengths: Any, widest: Any) -> Any:
    """The k with which these numbers take the fewest bits, or nearly, and their bits."""
    chosen, least = np.int64(0), np.int64(1) << np.int64(62)
    for k in range(min(widest + 1, _RICE_BITS_MAX)):
        bits = count * (k + 1)
        for length in range(k + 1, widest + 1):
            if lengths[length]:
                # Half way between the least and the largest number of this length.
                ones = (3 << (length - k)) >> 2 if length - k < _ESCAPE_LENGTH else _ESCAPE_BITS - k - 1
                bits += lengths[length] * ones
        if bits < least:
            chosen, least = np.int64(k), bits
    bits = np.int64(0)
    for index in range(count):
        ones = words[index] >> np.uint64(chosen)
        bits += np.int64(ones) + 1 + chosen if ones < _ESCAPE else _ESCAPE_BITS
    return chosen, bits


@byte_kernel_part
def choose_code(words: Any, count: Any, lengths: Any) -> Any:
    """The code for ``words[:count]``, and the bits that they take then; ``lengths``: int64, for 65 numbers."""
    for length in range(LENGTHS):
        lengths[length] = 0
    widest = np.int64(0)
    for index in range(count):
        length = bit_length(words[index])
        lengths[length] += 1
        widest = max(widest, length)
    width = np.int64(_WORD_BITS) if widest > _WIDTH_MAX else widest
    k, bits = _rice_bits(words, count, lengths, widest)
    if bits < count * width:
        return RICE + k, bits
    return width, count * width


@byte_kernel_part
def _put_bits(out: Any, bit: Any, value: Any) -> Any:
    """Set bits from ``bit`` on, of a value of 56 bits at most; what follows them is zero."""
    at = bit >> 3
    store8(out, at, load8(out, at) | (value << np.uint64(bit & 7)))


@byte_kernel_part
def _bits(data: Any, bit: Any) -> Any:
    """57 bits and more from ``bit`` on."""
    return load8(data, bit >> 3) >> np.uint64(bit & 7)


@byte_kernel_part
def put_numbers(words: Any, first: Any, stop: Any, code: Any, out: Any, at: Any) -> Any:
    """Append ``words[first:stop]`` where ``out`` has zeros only; returns where they end."""
    if code == _WORD_BITS:
        for index in range(first, stop):
            store8(out, at, words[index])
            at += 8
        return at
    bit = np.int64(at) << 3
    if code < _WORD_BITS:
        for index in range(first, stop):
            _put_bits(out, bit, words[index])
            bit += code
        return (bit + 7) >> 3
    k = np.uint64(code - RICE)
    for index in range(first, stop):
        word = words[index]
        ones = word >> k
        if ones < _ESCAPE:
            lowest = word & ((_ONE << k) - _ONE)
            _put_bits(out, bit, ((_ONE << ones) - _ONE) | (lowest << (ones + _ONE)))
            bit += np.int64(ones + _ONE + k)
        else:
            _put_bits(out, bit, _ESCAPE_WORD)
            _put_bits(out, bit + _ESCAPE_ONES, word & _HALF)
            _put_bits(out, bit + _ESCAPE_ONES + 32, word >> _HALF_BITS)
            bit += _ESCAPE_BITS
    return (bit + 7) >> 3


@byte_kernel_part
def take_numbers(data: Any, at: Any, stop: Any, code: Any, words: Any, count: Any) -> Any:
    """Read ``count`` numbers; returns where they end, -1: beyond ``stop``, or there is no such code."""
    if code <= _WIDTH_MAX or code == _WORD_BITS:
        end = at + ((count * code + 7) >> 3)
        if end > stop:
            return np.int64(-1)
        if code == _WORD_BITS:
            for index in range(count):
                words[index] = load8(data, at + 8 * index)
            return np.int64(end)
        bit = np.int64(at) << 3
        mask = (_ONE << np.uint64(code)) - _ONE
        for index in range(count):
            words[index] = _bits(data, bit) & mask
            bit += code
        return np.int64(end)
    if code < RICE or code >= RICE + _RICE_BITS_MAX:
        return np.int64(-1)
    k = np.uint64(code - RICE)
    mask = (_ONE << k) - _ONE
    bit, end_bit = np.int64(at) << 3, np.int64(stop) << 3
    for index in range(count):
        if bit >= end_bit:
            return np.int64(-1)
        word = _bits(data, bit)
        zeros = ~word
        ones = np.uint64(trailing_zeros(zeros)) if zeros != _ZERO else np.uint64(_WORD_BITS)
        if ones < _ESCAPE:
            words[index] = (ones << k) | ((word >> (ones + _ONE)) & mask)
            bit += np.int64(ones + _ONE + k)
        else:
            low = _bits(data, bit + _ESCAPE_ONES) & _HALF
            high = _bits(data, bit + _ESCAPE_ONES + 32) & _HALF
            words[index] = low | (high << _HALF_BITS)
            bit += _ESCAPE_BITS
    return np.int64(-1) if bit > end_bit else (bit + 7) >> 3
