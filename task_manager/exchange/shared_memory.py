"""Memory that both ends of a link share on one machine: large batches lie there, and only their places travel.

The sender makes the memory, and hands it over with the first bytes of the connection. It has no name: nothing of it is
left when both processes are gone, however they ended. A batch is written once, into a free part of it, and read where
it lies. The part is free again when nothing at the receiving end refers to it any more, which goes back with credits.
While there is no room, because consumers keep rows, batches travel through the connection.

Long texts that a source copies to their consumer are written there at once, where the message of their batch will have
them (:meth:`SentMemory.reserve`), and the rest of it is put around them.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import HandshakeError

#: Of one link in one direction. Only what was used once takes memory. A subtask may divide 20 MiB for a link while as
#: much is in flight; without room its rows are copied.
SHARED_BYTES = 64 << 20
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
        wanted = _rounded(size_bytes)
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

    def shrink(self, at: int, size_bytes: int) -> None:
        """Give back what follows so many bytes of the part that begins there."""
        self._ends[bisect_left(self._starts, at)] = at + _rounded(size_bytes)

    @property
    def taken_bytes(self) -> int:
        """Bytes of all parts that are taken."""
        return sum(self._ends) - sum(self._starts)

    def _insert(self, index: int, at: int, size_bytes: int) -> int:
        self._starts.insert(index, at)
        self._ends.insert(index, at + size_bytes)
        return at


def _rounded(size_bytes: int) -> int:
    return max(1, -(-size_bytes // _ALIGNMENT_BYTES)) * _ALIGNMENT_BYTES


@dataclass(slots=True)
class _Reserved:
    """A part for a message of which the texts are there first."""

    at: int
    size_bytes: int
    #: Where in the memory the texts begin, and their bytes.
    texts_at: int
    texts_bytes: int = 0
    #: The receiver knows of it, and gives it back.
    is_sent: bool = False


class SharedRoom:
    """Room for the texts of a message that will lie around them; see ``weir.rows.late_column.TextRoom``.

    It is free again when nothing refers to the texts any more, unless the message was sent.
    """

    def __init__(self, memory: np.ndarray, address: int, part: _Reserved, unused: deque[_Reserved]) -> None:
        """Made by :meth:`SentMemory.reserve`."""
        self.address = address
        self._memory = memory
        self._part = part
        self._unused = unused

    def taken(self, size_bytes: int) -> pa.Buffer:
        """The first bytes; they may not be looked at any more when the message was sent."""
        self._part.texts_bytes = size_bytes
        return pa.foreign_buffer(self.address, size_bytes, self)

    def __del__(self) -> None:
        self._unused.append(self._part)


class SentMemory:
    """The sender's end; any thread may use it."""

    def __init__(self, descriptor: int) -> None:
        """Maps a file of :func:`make_memory`, which belongs to the caller."""
        size_bytes = os.fstat(descriptor).st_size
        self._bytes = np.frombuffer(mmap.mmap(descriptor, size_bytes), dtype=np.uint8)
        self._begin: int = self._bytes.ctypes.data
        self._places = Places(size_bytes)
        #: By where their texts begin.
        self._reserved: dict[int, _Reserved] = {}
        #: Nothing refers to their texts any more. No lock: what appends to it may run at any moment, in any thread.
        self._unused: deque[_Reserved] = deque()
        self._lock = threading.Lock()

    @property
    def taken_bytes(self) -> int:
        """Bytes that the other end has not given back, or that are reserved."""
        with self._lock:
            self._free_unused()
            return self._places.taken_bytes

    def reserve(self, before_bytes: int, texts_bytes: int, after_bytes: int) -> SharedRoom | None:
        """Room for texts within a message that :meth:`put` completes; None: there is none.

        Args:
            before_bytes: of the message before its texts; if it is another number then, they are copied.
            texts_bytes: room for them.
            after_bytes: the most that the message has after them.
        """
        size_bytes = before_bytes + texts_bytes + after_bytes
        with self._lock:
            self._free_unused()
            at = self._places.take(size_bytes)
            if at is None:
                return None
            part = _Reserved(at, size_bytes, at + before_bytes)
            self._reserved[part.texts_at] = part
        return SharedRoom(self._bytes, self._begin + part.texts_at, part, self._unused)

    def put(self, pieces: Sequence[bytes | pa.Buffer]) -> tuple[int, int] | None:
        """Copy pieces one after the other; returns where they begin and their bytes. None: there is no room.

        Around texts in a room of :meth:`reserve`, if they are among the pieces and nothing else is in their place.
        """
        size_bytes = sum(map(len, pieces))
        with self._lock:
            self._free_unused()
            at = self._place_around(pieces, size_bytes)
            if at is None:
                at = self._places.take(size_bytes)
        if at is None:
            return None
        to = at
        for piece in pieces:
            size = len(piece)
            source = piece.address if isinstance(piece, pa.Buffer) else piece
            if size and source != self._begin + to:
                # Without the GIL.
                ctypes.memmove(self._begin + to, source, size)
            to += size
        return at, size_bytes

    def _place_around(self, pieces: Sequence[bytes | pa.Buffer], size_bytes: int) -> int | None:
        """Returns the place of the message, one of whose pieces was written into room kept for it; None: none was."""
        before_bytes = 0
        for piece in pieces:
            part = self._reserved.get(piece.address - self._begin) if isinstance(piece, pa.Buffer) else None
            if part is not None and len(piece):
                # All of them: what another message has of them would be gone with this one.
                is_whole = len(piece) == part.texts_bytes and before_bytes == part.texts_at - part.at
                if not is_whole or size_bytes > part.size_bytes:
                    return None
                part.is_sent = True
                del self._reserved[part.texts_at]
                self._places.shrink(part.at, size_bytes)
                return part.at
            before_bytes += len(piece)
        return None

    def _free_unused(self) -> None:
        while self._unused:
            part = self._unused.popleft()
            if not part.is_sent:
                del self._reserved[part.texts_at]
                self._places.free(part.at)

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
        self._begin: int = self._bytes.ctypes.data
        self._size_bytes = size_bytes
        #: Parts to which nothing refers any more, and of which the sender was not told yet. No lock: what appends to it
        #: may run at any moment, in any thread.
        self.freed: deque[int] = deque()

    def part(self, at: int, size_bytes: int) -> pa.Buffer:
        """A part where it lies; it is free when the buffer and all that was made of it are gone.

        Raises:
            HandshakeError: it is not within the memory.
        """
        if not 0 <= at <= at + size_bytes <= self._size_bytes:
            raise HandshakeError(f"a batch is said to be at {at}, beyond the memory that is shared")
        return pa.foreign_buffer(self._begin + at, size_bytes, _Part(self._bytes, at, self.freed))

    def take_freed(self) -> list[int]:
        """Parts that became free since the last call."""
        freed = []
        while self.freed:
            freed.append(self.freed.popleft())
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
