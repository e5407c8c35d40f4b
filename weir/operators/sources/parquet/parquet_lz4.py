"""A Numba kernel that decompresses blocks of LZ4 ("LZ4_RAW" in Parquet), and notices when one has too few bytes.

A block is a row of sequences. Each has a token with two lengths, a literal, and the distance of a match, which repeats
bytes from there; a length of 15, or of 4 + 15 of a match, goes on in bytes of its own. The last sequence is a literal
alone. Its last five bytes are no match's, and no match begins in the last twelve: other decoders rely on that, so that
a block of another form is damaged.

While enough bytes are left on both sides, a sequence is taken in one step with few branches: a processor cannot
foretell those that depend on lengths. The end of a block, and what is rare, is taken with care.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import byte_at, copy_block, copy_half_block, load4, load8, store8
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BOOL, BYTES, INT
from weir.operators.sources.parquet.parquet_numbers import followed, take_numbers

#: What is copied at a time.
_BLOCK_BYTES = 32
_WORD_BYTES = 8
#: So many bytes are copied of every match: most have no more.
_WORDS_BYTES = 24
#: A length in a token that goes on in bytes of its own, and a byte of those that goes on in the next one.
_LONG, _LONGER = 15, 255
_MATCH_BYTES_MIN = 4
#: So many bytes at the end of a block are a literal, and no match begins in so many.
_LAST_BYTES, _LAST_MATCH_BYTES = 5, 12
#: A step takes so many bytes at most, the token after it among them: a token, a short literal, a distance, a byte of
#: the match's length.
_STEP_BYTES = 1 + 14 + 2 + 1 + 1
#: It makes so many, and leaves those at the end.
_MADE_BYTES = 14 + _MATCH_BYTES_MIN + _LONG + 254 + _LAST_BYTES


@byte_kernel_part
def _repeat(out: np.ndarray, filled: int, offset: int, length: int) -> None:
    """Repeat ``length`` bytes, at least 1, from ``offset`` before the end; writes at most 31 bytes after them."""
    done = 0
    if offset < _BLOCK_BYTES:
        # Whole repetitions at a time, of which there are more and more, all from the same place.
        most = _BLOCK_BYTES - _BLOCK_BYTES % offset
        while done < length:
            copy_block(out, filled + done, out, filled - offset)
            done += min(offset + done, most)
        return
    while done < length:
        copy_block(out, filled + done, out, filled + done - offset)
        done += _BLOCK_BYTES


@byte_kernel_part
def _take_short(
    data: np.ndarray, at: int, at_max: int, out: np.ndarray, filled: int, filled_max: int
) -> tuple[int, int]:
    """Take sequences in steps, while no more than this is taken and made before; see the module.

    Returns:
        Where the next token is, whose sequence is not taken here, and the bytes that there are; -1: a match of what is
        not there.
    """
    last = np.uint64(0)
    last_at = -1
    while at <= at_max and filled <= filled_max:
        token = byte_at(data, at)
        literal = token >> 4
        after = at + 1 + literal
        operands: Any = np.int64(load4(data, after))
        length = token & _LONG
        more = operands >> 16 & 0xFF
        if literal == _LONG:
            break
        after += 2
        if length == _LONG:
            if more == _LONGER:
                break
            length += more
            after += 1
        length += _MATCH_BYTES_MIN
        offset = operands & 0xFFFF
        to = filled + literal
        if offset == 0 or offset > to:
            return -1, filled
        if offset > _WORD_BYTES:
            copy_half_block(out, filled, data, at + 1)
            # Word by word, since what a larger load has from two stores is waited for.
            for done in range(0, _WORDS_BYTES, _WORD_BYTES):
                store8(out, to + done, load8(out, to + done - offset))
            if length > _WORDS_BYTES:
                if offset >= _BLOCK_BYTES:
                    for done in range(_WORDS_BYTES, length, _BLOCK_BYTES):
                        copy_block(out, to + done, out, to + done - offset)
                else:
                    _repeat(out, to, offset, length)
        elif offset == _WORD_BYTES and literal + length <= _WORD_BYTES and filled >= _WORD_BYTES:
            if last_at != filled:
                last = load8(out, filled - _WORD_BYTES)
            if literal + length == _WORD_BYTES and literal:
                # With the token and the distance.
                at, filled, last = take_numbers(
                    data, at, at_max, out, filled, filled_max, last, literal, literal + 3
                )
                last_at = filled
                continue
            word = load8(data, at + 1)
            store8(out, filled, word)
            word = followed(last, word, literal)
            store8(out, to, word)
            last, last_at = followed(word, word, length), to + length
        else:
            copy_half_block(out, filled, data, at + 1)
            _repeat(out, to, offset, length)
        at, filled = after, to + length
    return at, filled


@byte_kernel_part
def _length_at(data: np.ndarray, at: int, stop: int, length: int) -> tuple[int, int]:
    """A length that begins in a token, and where what follows it begins; -1: the block ends before."""
    if length == _LONG:
        byte = _LONGER
        while byte == _LONGER:
            if at >= stop:
                return -1, at
            byte = byte_at(data, at)
            length += byte
            at += 1
    return length, at


@byte_kernel(BOOL(BYTES, INT, INT, BYTES, INT))
def decompress_lz4(data: np.ndarray, at: int, stop: int, out: np.ndarray, size: int) -> bool:
    """Decompress a block.

    Args:
        data: uint8, shape (``stop`` + ``PADDING_BYTES`` or more,); whatever its bytes say, no others are read.
        at: where the compressed bytes begin.
        stop: where they end.
        out: uint8, shape (``size`` + ``PADDING_BYTES`` or more,); filled.
        size: bytes that there must be.

    Returns:
        False: it is not what it should be.
    """
    filled = 0
    while at < stop:
        at, filled = _take_short(data, at, stop - _STEP_BYTES, out, filled, size - _MADE_BYTES)
        if at < 0:
            return False
        token = byte_at(data, at)
        length, at = _length_at(data, at + 1, stop, token >> 4)
        if length < 0 or length > stop - at or length > size - filled:
            return False
        done = 0
        while done < length:
            copy_block(out, filled + done, data, at + done)
            done += _BLOCK_BYTES
        at += length
        filled += length
        if at == stop:
            return filled == size
        if stop - at < 2 or filled > size - _LAST_MATCH_BYTES:
            return False
        offset: Any = np.int64(load4(data, at) & np.uint64(0xFFFF))
        length, at = _length_at(data, at + 2, stop, token & _LONG)
        if length < 0 or offset == 0 or offset > filled:
            return False
        length += _MATCH_BYTES_MIN
        if length > size - filled - _LAST_BYTES:
            return False
        _repeat(out, filled, offset, length)
        filled += length
    return False
