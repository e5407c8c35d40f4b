"""Memory that both ends of a link share on one machine: large batches lie there, and only their places travel.

The sender makes the memory, and hands it over with the first bytes of the connection. It has no name: nothing of it is
left when both processes are gone, however they ended. A batch is written once, into a free part of it, and read where
it lies. The part is free again when nothing at the receiving end refers to it any more, which goes back with credits.
While there is no room, because consumers keep rows, batches travel through the connection.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from weir.errors import HandshakeError

#: Of one link in one direction. Only what was used once takes memory.
SHARED_BYTES = 32 << 20
#: Parts begin at multiples of this: what Arrow recommends for buffers.
_ALIGNMENT_BYTES = 64


class Places:
    """Which parts of a memory are taken; the caller guards it."""

    def __init__(self, size_bytes: int) -> None:
        """Everything is free."""
        self._size_bytes = size_bytes
        #: Where taken parts begin, rising, and where each ends.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, size_bytes: int) -> int | None:
        """The beginning of a part that is free; None: no part is so large.

        The first one that fits, so that little memory is used, and again while it is in the processors' caches.
        """
        wanted = max(1, -(-size_bytes // _ALIGNMENT_BYTES)) * _ALIGNMENT_BYTES
        at = 0
        for index, start in enumerate(self._starts):
            if start - at >= wanted:
                return self._insert(index, at, wanted)
            at = self._ends[index]
        return self._insert(len(self._starts), at, wanted) if self._size_bytes - at >= wanted else None

    def free(self, at: int) -> None:
        """Give a part back.

        Raises:
            HandshakeError: none begins there.
        """
        index = bisect_left(self._starts, at)
        if index == len(self._starts) or self._starts[index] != at:
            raise HandshakeError(f"memory is given back that was not taken, at {at}")
        del self._starts[index], self._ends[index]

    @property
    def taken_bytes(self) -> int:
        """Bytes of all parts that are taken."""
        return sum(self._ends) - sum(self._starts)

    def _insert(self, index: int, at: int, size_bytes: int) -> int:
        self._starts.insert(index, at)
        self._ends.insert(index, at + size_bytes)
        return at


class SentMemory:
    """The sender's end; any thread may use it."""

    def __init__(self, descriptor: int) -> None:
        """Maps a file of :func:`make_memory`, which belongs to the caller."""
        size_bytes = os.fstat(descriptor).st_size
        self._bytes = np.frombuffer(mmap.mmap(descriptor, size_bytes), dtype=np.uint8)
        self._places = Places(size_bytes)
        self._lock = threading.Lock()

    @property
    def taken_bytes(self) -> int:
        """Bytes that the other end has not given back."""
        with self._lock:
            return self._places.taken_bytes

    def put(self, pieces: Sequence[bytes | pa.Buffer]) -> tuple[int, int] | None:
        """Copy pieces one after the other; returns where they begin and their bytes. None: there is no room."""
        size_bytes = sum(map(len, pieces))
        with self._lock:
            at = self._places.take(size_bytes)
        if at is None:
            return None
        to = at
        for piece in pieces:
            if len(piece):
                # Without the GIL.
                np.copyto(self._bytes[to : to + len(piece)], np.frombuffer(piece, dtype=np.uint8))
            to += len(piece)
        return at, size_bytes

    def free(self, places: Iterable[int]) -> None:
        """The other end reads these parts no more.

        Raises:
            HandshakeError: one of them was not taken.
        """
        with self._lock:
            for at in places:
                self._places.free(at)


class ReceivedMemory:
    """The receiver's end; any thread may use what it returns."""

    def __init__(self, descriptor: int) -> None:
        """Maps what the sender has made, read-only; the file belongs to the caller.

        Raises:
            HandshakeError: the file could shrink, which would end this process when it reads.
            OSError: it cannot be mapped.
        """
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise HandshakeError("memory that another task manager shares is not sealed")
        size_bytes = os.fstat(descriptor).st_size
        self._bytes = np.frombuffer(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ), dtype=np.uint8)
        #: Parts to which nothing refers any more, and of which the sender was not told yet. No lock: what appends to it
        #: may run at any moment, in any thread.
        self._freed: deque[int] = deque()

    def part(self, at: int, size_bytes: int) -> pa.Buffer:
        """A part where it lies; it is free when the buffer and all that was made of it are gone.

        Raises:
            HandshakeError: it is not within the memory.
        """
        if not 0 <= at <= at + size_bytes <= len(self._bytes):
            raise HandshakeError(f"a batch is said to be at {at}, beyond the memory that is shared")
        return pa.foreign_buffer(
            self._bytes.ctypes.data + at, size_bytes, _Part(self._bytes, at, self._freed)
        )

    def take_freed(self) -> list[int]:
        """Parts that became free since the last call."""
        freed = []
        while self._freed:
            freed.append(self._freed.popleft())
        return freed


class _Part:
    """Lives as long as anything refers to a part of the memory, and keeps it mapped."""

    def __init__(self, memory: np.ndarray, at: int, freed: deque[int]) -> None:
        self._memory = memory
        self._at = at
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append(self._at)


def make_memory(size_bytes: int = SHARED_BYTES) -> int | None:
    """A file without a name that only lives in memory and never shrinks; the caller closes it. None: there is none."""
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.memfd_create("weir-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
