"""A Numba kernel that decompresses Snappy as columns of keys need it: values that repeat most bytes of the one before.

There a copy begins with bytes that were written a moment ago, by more than one store: the processor waits for them to
reach its cache. So the last eight bytes are kept in a register. A million numbers that follow each other take 7 ns each
and not 23.
"""

from __future__ import annotations

import numpy as np

from weir.kernel_bytes import byte_at, copy_block, load4, load8, store8
from weir.kernels import byte_kernel, byte_kernel_part
from weir.operators.kernel_types import BOOL, BYTES, INT

#: What is copied at a time.
_BLOCK_BYTES = 32
_WORD_BYTES = 8
_SIZE_BITS_MAX = 35


@byte_kernel_part
def copy_within(out: np.ndarray, filled: int, offset: int, length: int) -> None:
    """Repeat ``length`` bytes from ``offset`` before the end, 1 to 64, which may be among them."""
    if offset >= _BLOCK_BYTES or offset >= length:
        copy_block(out, filled, out, filled - offset)
        if length > _BLOCK_BYTES:
            copy_block(out, filled + _BLOCK_BYTES, out, filled + _BLOCK_BYTES - offset)
        return
    # Whole repetitions at a time, of which there are more and more.
    most = _BLOCK_BYTES - _BLOCK_BYTES % offset
    done = 0
    while done < length:
        copy_block(out, filled + done, out, filled - offset)
        done += min(offset + done, most)


@byte_kernel_part
def _followed(last: np.uint64, word: np.uint64, length: int) -> np.uint64:
    """The last eight bytes, after the first ``length`` of another word, 1 to 8."""
    bits = np.uint64(8 * length)
    if length == _WORD_BYTES:
        return word
    return (last >> bits) | (word << (np.uint64(64) - bits))


@byte_kernel_part
def _size_at(data: np.ndarray, at: int, stop: int) -> tuple[int, int]:
    """The decompressed bytes that a page says it has, and where its first tag is; -1: it does not say so."""
    size = shift = 0
    byte = 0x80
    while byte >= 0x80:
        if at >= stop or shift >= _SIZE_BITS_MAX:
            return -1, at
        byte = byte_at(data, at)
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
    return size, at


@byte_kernel(BOOL(BYTES, INT, INT, BYTES, INT))
def decompress_snappy(data: np.ndarray, at: int, stop: int, out: np.ndarray, size: int) -> bool:
    """Decompress a page.

    Args:
        data: uint8, shape (``stop`` + ``PADDING_BYTES`` or more,); whatever its bytes say, no others are read.
        at: where the compressed bytes begin.
        stop: where they end.
        out: uint8, shape (``size`` + ``PADDING_BYTES`` or more,); filled.
        size: bytes that there must be.

    Returns:
        False: it is not what it should be.
    """
    said, at = _size_at(data, at, stop)
    if said != size:
        return False
    filled = 0
    last = np.uint64(0)
    while at < stop:
        tag = byte_at(data, at)
        kind, number = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            if number >= 60:
                extra = number - 59
                number = int(load4(data, at)) & ((1 << (8 * extra)) - 1)
                at += extra
            length = number + 1
            if length > stop - at or length > size - filled:
                return False
            if length <= _WORD_BYTES:
                word = load8(data, at)
                store8(out, filled, word)
                last = _followed(last, word, length)
            else:
                done = 0
                while done < length:
                    copy_block(out, filled + done, data, at + done)
                    done += _BLOCK_BYTES
                last = load8(data, at + length - _WORD_BYTES)
            at += length
            filled += length
            continue
        if kind == 1:
            length, offset = 4 + (number & 7), (tag >> 5 << 8) | byte_at(data, at)
            at += 1
        elif kind == 2:
            length, offset = number + 1, int(load4(data, at)) & 0xFFFF
            at += 2
        else:
            length, offset = number + 1, int(load4(data, at))
            at += 4
        if at > stop or length > size - filled or offset == 0 or offset > filled:
            return False
        if offset <= _WORD_BYTES and length <= offset:
            word = last >> np.uint64(8 * (_WORD_BYTES - offset))
            store8(out, filled, word)
            last = _followed(last, word, length)
        else:
            copy_within(out, filled, offset, length)
            if length < _WORD_BYTES:
                last = _followed(last, load8(out, filled), length)
            else:
                last = load8(out, filled + length - _WORD_BYTES)
        filled += length
    return filled == size
