"""Memory at whose ends nobody may read or write."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


def guarded(size: int, *, is_at_begin: bool = False) -> tuple[mmap.mmap, np.ndarray]:
    """So many bytes, uint8, after or before a page of memory that nobody may read; the first keeps it."""
    size_pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (size_pages + 2) * mmap.PAGESIZE)
    data = np.frombuffer(memory, dtype=np.uint8)
    protect = ctypes.CDLL(None).mprotect
    for page in (0, size_pages + 1):
        assert protect(ctypes.c_void_p(data.ctypes.data + page * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    begin = mmap.PAGESIZE if is_at_begin else (size_pages + 1) * mmap.PAGESIZE - size
    return memory, data[begin : begin + size]
