"""Comparing and copying bytes in kernels: every length, every place of a difference, nothing touched beyond."""

from __future__ import annotations

import numpy as np
from numba import types

from weir.kernels.bytes import copy_bytes, same_bytes
from weir.kernels.declare import byte_kernel

_BYTES = types.Array(types.uint8, 1, "C", readonly=True, aligned=False)


@byte_kernel(types.boolean(_BYTES, types.int64, _BYTES, types.int64, types.int64))
def _same(left, first, right, other, length):
    return same_bytes(left, first, right, other, length)


def test_bytes_are_compared_to_the_last_one_and_no_further():
    rng = np.random.default_rng(7)
    for length in range(34):
        key = rng.integers(0, 256, length, dtype=np.uint8)
        # Other bytes before and after it, at another distance from a word.
        left = np.concatenate([np.zeros(3, np.uint8), key, np.full(9, 1, np.uint8)])
        right = np.concatenate([np.full(5, 2, np.uint8), key, np.full(9, 3, np.uint8)])
        assert _same(left, 3, right, 5, length)
        for place in range(length):
            right[5 + place] ^= 0x80
            assert not _same(left, 3, right, 5, length)
            right[5 + place] ^= 0x80


@byte_kernel(types.void(types.uint8[::1], types.int64, _BYTES, types.int64, types.int64))
def _copy(target, to, source, at, length):
    copy_bytes(target, to, source, at, length)


def test_bytes_are_copied_to_the_last_one_and_no_further():
    source = np.random.default_rng(7).integers(1, 256, 200, dtype=np.uint8)
    for length in range(120):
        target = np.zeros(length + 12, np.uint8)
        _copy(target, 5, source, 3, length)
        assert target[5 : 5 + length].tolist() == source[3 : 3 + length].tolist()
        assert not target[:5].any()
        assert not target[5 + length :].any()
