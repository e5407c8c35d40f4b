"""Parts of kernels that decompress numbers of eight bytes, most bytes of which repeat those of the one before.

Both Snappy and LZ4 write such a number as a literal of a few bytes, and a copy of the others. A copy that begins with
bytes of more than one store waits for them to reach the cache, so the last eight bytes are kept in a register.
"""

from __future__ import annotations

import numpy as np

from weir.kernels.bytes import load8, store8
from weir.kernels.declare import byte_kernel_part

_WORD_BYTES = 8


@byte_kernel_part
def followed(last: np.uint64, word: np.uint64, length: int) -> np.uint64:
    """The last eight bytes, after the first ``length`` of another word, 0 to 8."""
    if length == _WORD_BYTES:
        return word
    bits = np.uint64(8 * length)
    # Twice, because no word can be shifted by all of its bits.
    return (last >> bits) | (word << np.uint64(1) << (np.uint64(63) - bits))


@byte_kernel_part
def take_numbers(
    data: np.ndarray,
    at: int,
    at_max: int,
    out: np.ndarray,
    filled: int,
    filled_max: int,
    last: np.uint64,
    literal: int,
    step: int,
) -> tuple[int, int, np.uint64]:
    """Take a number whose first bytes are a literal, the others those of the ``last`` one, and all that follow so.

    Each takes ``step`` bytes, at most a word: one, the literal, and what says of the copy. All but the literal are the
    same.
    """
    all_bits = np.uint64(0xFFFFFFFFFFFFFFFF)
    own = ~(all_bits << np.uint64(8 * literal))
    tags = (all_bits >> np.uint64(64 - 8 * step)) ^ (own << np.uint64(8))
    word = load8(data, at)
    expected = word & tags
    while True:
        last = (last & ~own) | ((word >> np.uint64(8)) & own)
        store8(out, filled, last)
        filled += _WORD_BYTES
        at += step
        if at > at_max or filled > filled_max:
            break
        word = load8(data, at)
        if word & tags != expected:
            break
    return at, filled, last
