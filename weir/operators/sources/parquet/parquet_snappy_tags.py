"""Parts of kernels that take the tags of Snappy: a literal, whose bytes follow, or a copy of bytes made before.

A writer leaves texts as tags of 4 to 12 bytes each, literals and copies by turns that no processor foretells. So a tag
is taken without a branch: what it says is looked up, where its bytes come from is chosen, and two blocks are copied,
however few bytes are meant. What remains is the way from one tag to the next one, some 7 cycles: 2 ns a tag.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import byte_at, copy_block, copy_block_between, load4, one_of
from weir.kernels.declare import byte_kernel_part

_BLOCK_BYTES = 32
#: A literal of more bytes says so after its tag.
_LITERAL_BYTES_MAX = 60
#: What a tag of :func:`take_tags` has at most, with its literal; and what it makes.
TAKEN_BYTES_MAX, MADE_BYTES_MAX = 1 + _LITERAL_BYTES_MAX, 64
#: By kind, 16 bits each: which of the bytes after a tag are those of an offset; none for a literal, and four bytes.
_OFFSET_BITS = 0x0000_FFFF_00FF_0000


def _said_by(tag: int) -> int:
    """What :data:`_SAID` has."""
    kind, number = tag & 3, tag >> 2
    if kind == 0:
        return (number + 1) * 0x101 if number < _LITERAL_BYTES_MAX else 1
    return 4 + (number & 7) | tag >> 5 << 16 if kind == 1 else number + 1


#: What each first byte of a tag says, uint32: the length, and from bit 8 on the offset as far as this byte has it. That
#: of a literal is its length, as of copies that do not overlap themselves; none, where more must be read.
_SAID = np.array([_said_by(tag) for tag in range(256)], dtype=np.uint32)


@byte_kernel_part
def copy_within(out: np.ndarray, filled: int, offset: int, length: int) -> None:
    """Repeat ``length`` bytes from ``offset`` before the end, 1 to 64, which may be among them; it writes up to 96."""
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
def tag_at(data: np.ndarray, at: int) -> tuple[int, int, int]:
    """What a tag says; up to four bytes after the first one are read, whether they belong to it or not.

    Returns:
        The length, 1 or more; the offset of a copy, which may be anything, or -1: a literal; where the tag ends.
    """
    tag = byte_at(data, at)
    kind, number = tag & 3, tag >> 2
    word = int(load4(data, at + 1))
    if kind == 0:
        extra = max(0, number - (_LITERAL_BYTES_MAX - 1))
        if extra:
            number = word & ((1 << (8 * extra)) - 1)
        return number + 1, -1, at + 1 + extra
    if kind == 1:
        return 4 + (number & 7), (tag >> 5 << 8) | (word & 0xFF), at + 2
    if kind == 2:
        return number + 1, word & 0xFFFF, at + 3
    return number + 1, word, at + 5


@byte_kernel_part
def take_tags(
    data: np.ndarray, at: int, at_max: int, out: np.ndarray, first: int, filled: int, filled_max: int
) -> tuple[int, int]:
    """Take tags while no more than this is taken and made before; the next one may be anything.

    Args:
        data: uint8, ``at_max`` + 65 bytes or more; of a tag up to ``TAKEN_BYTES_MAX`` belong to it.
        at: where a tag is.
        at_max: the last place at which one may be.
        out: uint8, ``filled_max`` + 96 bytes or more; up to ``MADE_BYTES_MAX`` are made of a tag.
        first: place of the first byte that a copy may repeat.
        filled: place after the last one.
        filled_max: the last place at which a tag may begin to make bytes.

    Returns:
        Where the next tag is, which is not taken here: it is long, repeats what is not there, or is too near to an end;
        and the place after the bytes that there are.
    """
    here, there = out.ctypes.data, data.ctypes.data + 1
    while at <= at_max and filled <= filled_max:
        tag = byte_at(data, at)
        kind = tag & 3
        # An unsigned index is not looked at for whether it counts from the end.
        said = int(_SAID[np.uint64(tag)])
        length = said & 0xFF
        offset = (said >> 8) + (int(load4(data, at + 1)) & (_OFFSET_BITS >> (kind << 4)) & 0xFFFF)
        if offset < length or offset > filled - first:
            if offset == 0 or offset > filled - first:
                break
            copy_within(out, filled, offset, length)
            at += kind + 1
            filled += length
            continue
        is_literal: Any = kind == 0
        to = here + filled
        source = one_of(is_literal, there + at, to - offset)
        # What is after 32 bytes, or nothing new: what is written beyond the length is in the way of copies from there.
        after = (length - 1) & _BLOCK_BYTES
        copy_block_between(to + after, source + after)
        copy_block_between(to, source)
        at += one_of(is_literal, (tag >> 2) + 1, kind) + 1
        filled += length
    return at, filled
