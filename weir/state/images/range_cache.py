"""Parts of files of a checkpoint store, kept on this disk within a bound; what was used longest ago goes first."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from weir import threads
from weir.clock import Clock, SystemClock
from weir.protocol.checkpoints.manifest import FileRef
from weir.state import waits

#: What is fetched is a multiple of it: an index of a small table comes with one request, and blocks with their
#: neighbours, which a scan wants next.
CHUNK_BYTES = 32 << 10
#: Of one request, and requests that a thread makes at the same time, about as many as go out together: those of rows
#: come behind no more of what a scan or a question begins.
_FETCHED_MAX, _REQUESTS_MAX = 1 << 20, 24
CACHED_BYTES_MAX = 1 << 30

#: Returns ranges (file, offset, bytes) of files, several at a time.
FetchRanges = Callable[[Sequence[tuple[FileRef, int, int]]], list[bytes]]


class RangeCache:
    """Reads parts of files through a file of this disk. Methods may be called from any thread.

    What one thread fetches others wait for: rows that begin while indexes are brought ask for the same ends of tables.

    Args:
        folder: on the disk; the file there has no name, and is gone with the process.
        fetch: reads from the checkpoint store.
        bytes_max: of the disk.
        clock: tells how long threads wait for what is fetched; None: the machine's.
    """

    def __init__(
        self,
        folder: Path,
        fetch: FetchRanges,
        bytes_max: int = CACHED_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._fetch = fetch
        self._clock = clock or SystemClock()
        # Open as long as the cache is, so not in a ``with``.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._slots_max = max(1, bytes_max // CHUNK_BYTES)
        #: Held for a moment only; notified when something is not under way any more.
        self._lock = threads.condition()
        #: By path and number of a chunk, where it is in the file; the last used last.
        self._slots: OrderedDict[tuple[str, int], int] = OrderedDict()
        #: The same chunks, while they are fetched.
        self._under_way: set[tuple[str, int]] = set()
        #: Places in the file that have nothing any more, and how many were ever used.
        self._free: list[int] = []
        self._used = 0
        self._fetched_bytes = 0

    @property
    def fetched_bytes(self) -> int:
        """What was fetched so far."""
        return self._fetched_bytes

    def read(self, file: FileRef, offset: int, size_bytes: int, ahead_bytes: int = 0) -> bytes:
        """A part of a file; so many bytes behind it are fetched with it, if it has to be fetched.

        Raises:
            CheckpointError: it cannot be fetched.
        """
        first, stop = offset // CHUNK_BYTES, -(-(offset + size_bytes) // CHUNK_BYTES)
        skipped = offset - first * CHUNK_BYTES
        found = self._find(file, range(first, stop))
        if found is None:
            self.bring([(file, offset, size_bytes + ahead_bytes)])
            found = self._find(file, range(first, stop))
        if found is None:
            # The bound is small, or the disk is full.
            with self._waiting():
                return self._fetch([(file, offset, size_bytes)])[0]
        return found[skipped : skipped + size_bytes]

    def bring(self, wanted: Iterable[tuple[FileRef, int, int]]) -> None:
        """Fetch what is not here of some parts (file, offset, bytes) of files, several at a time.

        Returns when what another thread fetches of them has come, too, or has failed there.

        Raises:
            CheckpointError: one cannot be fetched.
        """
        left = deque(
            (file, number)
            for file, offset, size_bytes in wanted
            for number in range(
                offset // CHUNK_BYTES, -(-min(offset + size_bytes, file.size_bytes) // CHUNK_BYTES)
            )
        )
        others: set[tuple[str, int]] = set()
        ranges = self._begin(left, others)
        if not ranges and not others:
            return
        with self._waiting():
            while ranges:
                self._bring(ranges)
                ranges = self._begin(left, others)
            # Nobody waits who has something under way, so nobody waits for ever.
            with self._lock:
                self._lock.wait_for(lambda: self._under_way.isdisjoint(others))

    def _begin(
        self, left: deque[tuple[FileRef, int]], others: set[tuple[str, int]]
    ) -> list[tuple[FileRef, int, int]]:
        """Take ranges off what is left of some chunks, as many as are fetched at the same time; none: nothing is left.

        Of the rest nothing is under way: whoever wants a chunk of it meanwhile need not wait until its turn comes.

        Args:
            left: file and number of each chunk; those that need not be fetched are taken off, too.
            others: gets the chunks that another thread fetches.
        """
        ranges: list[tuple[FileRef, int, int]] = []
        own: set[tuple[str, int]] = set()
        with self._lock:
            while left:
                file, number = left[0]
                name = file.path, number
                if name not in self._slots and name not in own:
                    begin = number * CHUNK_BYTES
                    chunk_bytes = min(CHUNK_BYTES, file.size_bytes - begin)
                    if name in self._under_way:
                        others.add(name)
                    elif ranges and _goes_on(ranges[-1], file, begin):
                        ranges[-1] = (file, ranges[-1][1], ranges[-1][2] + chunk_bytes)
                        own.add(name)
                    elif len(ranges) < _REQUESTS_MAX:
                        ranges.append((file, begin, chunk_bytes))
                        own.add(name)
                    else:
                        break
                left.popleft()
            self._under_way |= own
        return ranges

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count time for which the thread waits: more rows at a time would share it, and few are taken otherwise."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            waits.of_thread.seconds += self._clock.monotonic_s() - began_s

    def _bring(self, ranges: Sequence[tuple[FileRef, int, int]]) -> None:
        """Fetch ranges, the chunks of which are under way."""
        own = {
            (file.path, (offset + start) // CHUNK_BYTES)
            for file, offset, size_bytes in ranges
            for start in range(0, size_bytes, CHUNK_BYTES)
        }
        try:
            for (file, offset, _), data in zip(ranges, self._fetch(ranges), strict=True):
                own -= self._keep(file, offset, data)
        finally:
            self._arrived(own)

    def _keep(self, file: FileRef, offset: int, data: bytes) -> set[tuple[str, int]]:
        """Keep what was fetched, and return which chunks it is."""
        names = [(file.path, (offset + start) // CHUNK_BYTES) for start in range(0, len(data), CHUNK_BYTES)]
        self._write(names, data)
        self._arrived(names)
        return set(names)

    def _write(self, names: Sequence[tuple[str, int]], data: bytes) -> None:
        with self._lock:
            self._fetched_bytes += len(data)
            for start, name in zip(range(0, len(data), CHUNK_BYTES), names, strict=True):
                if name in self._slots or self._file.closed:
                    continue
                if not self._free and self._used >= self._slots_max:
                    if not self._slots:
                        return
                    self._free.append(self._slots.popitem(last=False)[1])
                slot = self._free.pop() if self._free else self._next_slot()
                try:
                    os.pwrite(self._file.fileno(), data[start : start + CHUNK_BYTES], slot * CHUNK_BYTES)
                    self._slots[name] = slot
                except OSError:
                    # Without room on the disk it is fetched again, whenever it is needed.
                    self._free.append(slot)
                    return

    def _arrived(self, chunks: Iterable[tuple[str, int]]) -> None:
        """Nobody needs to wait for these any more."""
        with self._lock:
            self._under_way.difference_update(chunks)
            self._lock.notify_all()

    def _next_slot(self) -> int:
        self._used += 1
        return self._used - 1

    def _find(self, file: FileRef, numbers: range) -> bytes | None:
        parts = []
        with self._lock:
            for number in numbers:
                slot = self._slots.get((file.path, number))
                if slot is None or self._file.closed:
                    return None
                self._slots.move_to_end((file.path, number))
                size_bytes = min(CHUNK_BYTES, file.size_bytes - number * CHUNK_BYTES)
                parts.append(os.pread(self._file.fileno(), size_bytes, slot * CHUNK_BYTES))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Let go of the disk; what is read later is fetched."""
        with self._lock:
            self._slots.clear()
            self._file.close()


def _goes_on(before: tuple[FileRef, int, int], file: FileRef, offset: int) -> bool:
    same = before[0].path == file.path and before[1] + before[2] == offset
    return same and before[2] + CHUNK_BYTES <= _FETCHED_MAX
