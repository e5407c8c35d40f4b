"""A write-back cache of bytes over any backend, bounded in bytes, least recently used first out.

Reads fill it; writes stay in it until :meth:`WriteBackCache.flush` or eviction writes them down; deletes are
kept as tombstones until then. It does not see what others write to the backend behind its back: one cache
per owner of a range of keys. A batch of writes is atomic for readers of the cache; the backend gets it in chunks.

After a failed write-down (StateError) the dirty entries are still there; ``flush`` may be tried again.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from weir.errors import StateError
from weir.state.api import StateBackend, StateSnapshot, StoreStats, prefix_end
from weir.state.tables.capture import Capture

#: What an entry occupies beside its bytes: two object headers and a slot of the ordered dictionary.
ENTRY_OVERHEAD_BYTES = 230
#: Bounds of one write batch to the backend, so that the GIL is not held for long.
WRITE_ENTRIES_MAX = 2_000
WRITE_BYTES_MAX = 1 << 20
#: Entries that rows wait for when dirty ones are written bit by bit.
FLUSH_ENTRIES_MAX = 250
#: Keys of reads that are remembered for a rescale, beyond those of the latest read.
_READ_KEYS_MAX = 20_000
_MISSING = object()


class WriteBackCache(StateBackend):
    """See the module. Methods may be called from any thread; one lock guards them.

    ``snapshot`` first writes all dirty entries down. ``close`` flushes; the
    backend, which is shared, stays open.
    """

    def __init__(
        self, backend: StateBackend, bytes_max: int, owner_of: Callable[[bytes], bytes] | None = None
    ) -> None:
        """``owner_of``: the prefix that a key shares with those that are scanned together, such as elements of a list.

        Then a scan below one such prefix looks at the dirty keys below it only.
        """
        self._backend = backend
        self._owner_of = owner_of
        #: Dirty and captured keys by what ``owner_of`` says.
        self._dirty_of: dict[bytes, set[bytes]] = {}
        self._bytes_max = bytes_max
        self._lock = threading.RLock()
        #: None stands for a key that is known to be absent: a tombstone if dirty.
        self._entries: OrderedDict[bytes, bytes | None] = OrderedDict()
        self._dirty: dict[bytes, object] = {}
        #: What another thread is writing, and its keys; they are clean, and stay until it is written.
        self._captured: tuple[Capture, list[bytes]] | None = None
        #: Keys that :meth:`flush_part` has to write, and how many of them it has.
        self._to_flush: list[bytes] | None = None
        self._flushed = 0
        self._bytes = 0
        self._closed = False
        self._gets = self._puts = self._deletes = self._hits = 0
        #: Prefixes below which nothing that is cached counts.
        self._left: set[bytes] = set()
        #: Keys of the latest reads, oldest first, and how many they are.
        self._read_lately: deque[Sequence[bytes]] = deque()
        self._read_count = 0

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this state cache is closed")

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; what is not cached comes in one read, in key order."""
        with self._lock:
            self._check_open()
            entries = self._entries
            missing = sorted({key for key in keys if key not in entries})
            found = dict(zip(missing, self._backend.get_many(missing), strict=True)) if missing else {}
            self._note_read(keys)
            # Values are taken before anything is evicted to make room for what was read.
            values = [entries[key] if key in entries else found[key] for key in keys]
            self._gets += len(keys)
            self._hits += len(keys) - len(missing)
            for key in keys:
                if key in entries:
                    entries.move_to_end(key)
            for key, value in found.items():
                self._store(key, value)
            self._shrink()
            return values

    def _note_read(self, keys: Sequence[bytes]) -> None:
        self._read_lately.append(keys)
        self._read_count += len(keys)
        while self._read_count > _READ_KEYS_MAX and len(self._read_lately) > 1:
            self._read_count -= len(self._read_lately.popleft())

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes, to the cache; other threads see all of them or none."""
        with self._lock:
            self._check_open()
            for key, value in puts:
                self._store(key, value)
                self._dirty[key] = None
            for key in deletes:
                self._store(key, None)
                self._dirty[key] = None
            if self._owner_of is not None:
                self._note_dirty([*(key for key, _ in puts), *deletes], self._owner_of)
            self._puts += len(puts)
            self._deletes += len(deletes)
            self._shrink()

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range as they are now: the backend's, with dirty entries laid over them."""
        with self._lock:
            self._check_open()
            keys = [
                key
                for key in self._not_in_backend(start, stop)
                if (start is None or key >= start) and (stop is None or key < stop)
            ]
            overlay = [(key, self._entries[key]) for key in sorted(keys, reverse=reverse)]
            return merged(self._backend.scan(start, stop, reverse=reverse), overlay, reverse)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range, here and in the backend."""
        with self._lock:
            self._check_open()
            self._settle()
            self._backend.delete_range(start, stop)
            self.forget(start, stop)

    def forget(self, start: bytes | None, stop: bytes | None) -> None:
        """Drop a range from the cache, unwritten changes too; the backend keeps what it has."""
        with self._lock:
            self._check_open()
            self._settle()
            gone = [
                key
                for key in self._entries
                if (start is None or key >= start) and (stop is None or key < stop)
            ]
            for key in gone:
                self._drop(key)

    def flush_prefixes(self, prefixes: Collection[bytes]) -> None:
        """Write the dirty entries whose keys start with one of these, all of the same length; they stay cached."""
        with self._lock:
            self._check_open()
            self._settle()
            keys = sorted(_starting_with(prefixes, self._dirty))
            while keys:
                del keys[: self._write_down(keys)]

    def leave_prefixes(self, prefixes: Collection[bytes]) -> None:
        """What is cached below these prefixes, clean by now, is of no use, but stays until it is evicted.

        So nobody waits for a walk over all entries (70 ns each). Nothing below them is asked for or written before
        :meth:`return_to_prefixes` was called for them.
        """
        with self._lock:
            self._check_open()
            self._left.update(prefixes)

    def return_to_prefixes(self, prefixes: Collection[bytes]) -> None:
        """Drop what is left below these prefixes; others than those that were left have nothing here."""
        with self._lock:
            self._check_open()
            left = self._left.intersection(prefixes)
            if left:
                self._settle()
                for key in _starting_with(left, self._entries):
                    self._drop(key)
                self._left -= left

    def recent_keys(self, prefixes: Collection[bytes], count_max: int) -> list[bytes]:
        """Keys that start with one of these and were read lately, the last read first, ``count_max`` at most.

        Keys that were only written are no use to who fetches them.
        """
        with self._lock:
            self._check_open()
            latest = dict.fromkeys(key for keys in reversed(self._read_lately) for key in reversed(keys))
            return _starting_with(prefixes, latest)[:count_max]

    def snapshot(self) -> StateSnapshot:
        """A consistent view of now, read from the backend after everything dirty was written to it."""
        with self._lock:
            self.write_dirty()
            return self._backend.snapshot()

    def flush(self) -> None:
        """Write everything dirty to the backend and make it durable."""
        with self._lock:
            self.write_dirty()
            self._backend.flush()

    def write_dirty(self) -> None:
        """Write everything dirty to the backend, which need not have made it durable when this returns."""
        with self._lock:
            self._check_open()
            self._settle()
            keys = sorted(self._dirty)
            while keys:
                del keys[: self._write_down(keys)]

    def flush_part(self, share: float) -> bool:
        """Write what is dirty at the first call bit by bit, at least ``share`` of it (0 to 1); True: all of it."""
        with self._lock:
            self._check_open()
            self._settle()
            if self._to_flush is None:
                self._to_flush, self._flushed = sorted(self._dirty), 0
            wanted = math.ceil(share * len(self._to_flush))
            while self._flushed < wanted:
                # An entry may have been written or dropped meanwhile; if it is dirty it has to go.
                part = self._to_flush[self._flushed : self._flushed + FLUSH_ENTRIES_MAX]
                self._flushed += len(part)
                keys = [key for key in part if key in self._dirty]
                while keys:
                    del keys[: self._write_down(keys)]
            if self._flushed < len(self._to_flush):
                return False
            self._to_flush = None
            return True

    def capture(self) -> Capture | None:
        """Note all dirty entries as they are now; another thread writes them. None: nothing is dirty.

        If writing fails, they are dirty again. The caller flushes the backend.
        """
        with self._lock:
            self._check_open()
            self._settle()
            if not self._dirty:
                return None
            entries = [(key, self._entries[key]) for key in sorted(self._dirty)]
            self._dirty.clear()
            capture = Capture(lambda: self._write_entries(entries, capture.pause))
            self._captured = capture, [key for key, _ in entries]
            return capture

    def stats(self) -> StoreStats:
        """This cache's counters and its memory; the backend has its own."""
        with self._lock:
            self._check_open()
            return StoreStats(
                gets=self._gets,
                puts=self._puts,
                deletes=self._deletes,
                cache_hits=self._hits,
                cache_misses=self._gets - self._hits,
                memory_bytes=self._bytes,
            )

    def close(self) -> None:
        """Flush and drop the entries; the backend stays open. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            try:
                self.flush()
            finally:
                self._closed = True
                self._entries.clear()
                self._dirty.clear()
                self._dirty_of.clear()
                self._bytes = 0

    def _store(self, key: bytes, value: bytes | None) -> None:
        if key in self._entries:
            self._bytes -= _entry_bytes(key, self._entries[key])
        self._entries[key] = value
        self._entries.move_to_end(key)
        self._bytes += _entry_bytes(key, value)

    def _drop(self, key: bytes) -> None:
        self._bytes -= _entry_bytes(key, self._entries.pop(key))
        if self._dirty.pop(key, _MISSING) is None:
            self._forget_dirty((key,))

    def _shrink(self) -> None:
        """Evict down to the bound; dirty entries are written first, a whole chunk of the oldest at a time."""
        if self._bytes > self._bytes_max:
            self._settle()
        while self._bytes > self._bytes_max and self._entries:
            oldest = next(iter(self._entries))
            if oldest in self._dirty:
                self._write_down(key for key in self._entries if key in self._dirty)
            self._drop(oldest)

    def _not_in_backend(self, start: bytes | None, stop: bytes | None) -> Iterable[bytes]:
        """All that is dirty or captured of a range, and perhaps more."""
        if self._owner_of is not None and start is not None and stop is not None:
            owner = self._owner_of(start)
            end = prefix_end(owner)
            if owner and (end is None or stop <= end):
                return self._dirty_of.get(owner, ())
        return self._dirty if self._captured is None else {*self._dirty, *self._captured[1]}

    def _note_dirty(self, keys: Iterable[bytes], owner_of: Callable[[bytes], bytes]) -> None:
        for key in keys:
            self._dirty_of.setdefault(owner_of(key), set()).add(key)

    def _forget_dirty(self, keys: Iterable[bytes]) -> None:
        """These keys are neither dirty nor captured any more."""
        if self._owner_of is None:
            return
        for key in keys:
            owner = self._owner_of(key)
            keys_of = self._dirty_of.get(owner)
            if keys_of is not None:
                keys_of.discard(key)
                if not keys_of:
                    del self._dirty_of[owner]

    def _settle(self) -> None:
        """Wait until what was captured is written; if that failed it is dirty again."""
        if self._captured is not None:
            (capture, keys), self._captured = self._captured, None
            if not capture.wait():
                self._dirty.update(dict.fromkeys(keys))
            else:
                self._forget_dirty(key for key in keys if key not in self._dirty)

    def _write_entries(
        self, entries: Sequence[tuple[bytes, bytes | None]], pause: Callable[[], None]
    ) -> None:
        """Write what was captured; the cache's lock is not needed."""
        start = 0
        while start < len(entries):
            stop, size = start, 0
            while stop < len(entries) and stop - start < WRITE_ENTRIES_MAX and size < WRITE_BYTES_MAX:
                size += len(entries[stop][0]) + len(entries[stop][1] or b"")
                stop += 1
            self._write_chunk(entries[start:stop])
            start = stop
            pause()

    def _write_chunk(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._backend.write(
            puts=[(key, value) for key, value in entries if value is not None],
            deletes=[key for key, value in entries if value is None],
        )

    def _write_down(self, dirty_keys: Iterable[bytes]) -> int:
        """Write one chunk of dirty keys, which stay cached, clean; returns how many."""
        chunk: list[bytes] = []
        size = 0
        for key in dirty_keys:
            chunk.append(key)
            size += len(key) + len(self._entries[key] or b"")
            if len(chunk) >= WRITE_ENTRIES_MAX or size >= WRITE_BYTES_MAX:
                break
        chunk.sort()
        self._write_chunk([(key, self._entries[key]) for key in chunk])
        for key in chunk:
            del self._dirty[key]
        self._forget_dirty(chunk)
        return len(chunk)


def _starting_with(prefixes: Collection[bytes], keys: Iterable[bytes]) -> list[bytes]:
    wanted = frozenset(prefixes)
    length = len(next(iter(wanted), b""))
    return [key for key in keys if key[:length] in wanted]


def _entry_bytes(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + ENTRY_OVERHEAD_BYTES


def merged(
    below: Iterator[tuple[bytes, bytes]], overlay: list[tuple[bytes, bytes | None]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Both in the same order; of equal keys the overlay's wins, and its None hides the key."""
    position = 0
    for entry in below:
        while position < len(overlay) and (
            overlay[position][0] > entry[0] if reverse else overlay[position][0] < entry[0]
        ):
            key, value = overlay[position]
            position += 1
            if value is not None:
                yield key, value
        if position < len(overlay) and overlay[position][0] == entry[0]:
            key, value = overlay[position]
            position += 1
            if value is not None:
                yield key, value
        else:
            yield entry
    for key, value in overlay[position:]:
        if value is not None:
            yield key, value
