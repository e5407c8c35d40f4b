"""A write-back cache of bytes over any backend, bounded in bytes, least recently used first out (about).

Reads fill it; writes stay in it until :meth:`WriteBackCache.flush` or eviction writes them down; deletes are
kept as tombstones until then. It does not see what others write to the backend behind its back: one cache
per owner of a range of keys. The backend gets what was written in chunks.

Rows wait for every call, so none takes long: writing goes bit by bit; a capture exchanges two dictionaries, which
another thread writes, and old values are kept of what changes meanwhile; what is forgotten is given back bit by bit.

After a failed write-down (StateError) the dirty entries are still there; ``flush`` may be tried again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from weir.errors import StateError
from weir.state.api import StateBackend, StoreStats, prefix_end
from weir.state.tables.capture import Capture
from weir.state.tables.table import IsOver, never
from weir.state.tables.value_buckets import Bucket, Buckets

#: Bounds of one write batch to the backend, so that the GIL is not held for long.
WRITE_ENTRIES_MAX = 2_000
WRITE_BYTES_MAX = 1 << 20
#: The same for batches that rows wait for, one at a time: 1 ms. RocksDB keeps the GIL: those of a capture count too.
FLUSH_ENTRIES_MAX = 250
FLUSH_BYTES_MAX = 256 << 10
#: What one :meth:`WriteBackCache.flush_part` writes at most, whatever its share: about 3 ms.
_PART_ENTRIES_MAX = 1_000
_PART_BYTES_MAX = 1 << 20
#: While writing has to wait, the cache may become larger by this share of its bound.
_OVERSHOOT = 0.25
#: Of this many times as many keys as are written at a time is asked whether they are dirty.
_LOOK = 4
_MISSING: Any = object()


@dataclass(eq=False)
class _Captured:
    """What another thread is writing."""

    #: By key the bucket that it was in.
    entries: dict[bytes, Bucket]
    #: Owners whose entries are to be deleted first.
    cleared: dict[bytes, None]
    #: Values of keys that have changed since.
    saved: dict[bytes, bytes | None] = field(default_factory=dict)
    #: Buckets that were set aside before this do not count.
    time: int = 0


class WriteBackCache(StateBackend):
    """See the module. One thread calls the methods; another one writes captures.

    ``close`` flushes; the backend, which is shared, stays open.
    """

    def __init__(
        self, backend: StateBackend, bytes_max: int, owner_of: Callable[[bytes], bytes] | None = None
    ) -> None:
        """``owner_of``: the prefix that a key shares with those that are scanned and cleared with it, as in a list.

        Then a scan below one such prefix looks at the unwritten keys below it only, and there is :meth:`clear_owner`.
        """
        self._backend = backend
        self._owner_of = owner_of
        self._bytes_max = bytes_max
        #: Guards everything against the thread that writes a capture; not held while that is waited for.
        self._lock = threading.Lock()
        self._buckets = Buckets(owner_of)
        #: Keys to be written, in the order in which they changed first. Their buckets may have been set aside.
        self._dirty: dict[bytes, Bucket] = {}
        #: Owners whose entries in the backend are to be deleted, before anything else is written.
        self._cleared: dict[bytes, None] = {}
        self._captured: tuple[Capture, _Captured] | None = None
        #: Keys that :meth:`flush_part` has to write, and how many of them it has.
        self._to_flush: list[bytes] | None = None
        self._flushed = 0
        self._closed = False
        self._gets = self._puts = self._deletes = self._hits = 0

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this state cache is closed")

    # --- reads and writes --------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; what is not cached comes in one read, in key order."""
        self._begin()
        with self._lock:
            use = self._buckets.use
            values = [use(key, _MISSING) for key in keys]
            self._gets += len(keys)
            self._hits += len(keys)
            if _MISSING in values:
                self._load(keys, values)
        self._shrink()
        return values

    def _load(self, keys: Sequence[bytes], values: list[Any]) -> None:
        """Fill in values that are not cached."""
        missing = sorted({key for key, value in zip(keys, values, strict=True) if value is _MISSING})
        self._hits -= len(missing)
        found: dict[bytes, bytes | None] = {}
        if self._owner_of is not None and (self._cleared or self._captured):
            found = {key: None for key in missing if self._is_cleared(self._owner_of(key))}
            missing = [key for key in missing if key not in found]
        if missing:
            loaded = dict(zip(missing, self._backend.get_many(missing), strict=True))
            for key, value in loaded.items():
                self._buckets.store(self._buckets.make(key), key, value)
            found |= loaded
        for index, value in enumerate(values):
            if value is _MISSING:
                values[index] = found[keys[index]]

    def _is_cleared(self, owner: bytes) -> bool:
        """Whether the backend still has entries of an owner that do not count."""
        return owner in self._cleared or (self._captured is not None and owner in self._captured[1].cleared)

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes, to the cache."""
        self._begin()
        with self._lock:
            for key, value in puts:
                self._change(key, value)
            for key in deletes:
                self._change(key, None)
            self._puts += len(puts)
            self._deletes += len(deletes)
        self._shrink()

    def _change(self, key: bytes, value: bytes | None) -> None:
        bucket = self._buckets.make(key)
        if self._captured is not None:
            captured = self._captured[1]
            if captured.entries.get(key) is bucket:
                captured.saved.setdefault(key, bucket.entries[key])
        self._buckets.store(bucket, key, value)
        bucket.unwritten.add(key)
        self._dirty[key] = bucket

    def clear_owner(self, owner: bytes) -> None:
        """Delete all entries of an owner, however many they are: rows do not wait longer for many."""
        self._begin()
        with self._lock:
            self._buckets.set_aside(owner[:2], owner)
            # Behind others: what was written of it before is deleted with the rest.
            self._cleared[owner] = None
            self._deletes += 1

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range as they are now: the backend's, with unwritten entries laid over them."""
        self._begin()
        hides_all = False
        if self._owner_of is not None and (self._cleared or self._captured):
            if start is not None and stop is not None and self._buckets.is_of_one_owner(start, stop):
                hides_all = self._is_cleared(self._owner_of(start))
            else:
                self._settle()
                with self._lock:
                    self._write_clears()
        with self._lock:
            overlay = sorted(self._buckets.unwritten(start, stop), reverse=reverse)
            below = iter(()) if hides_all else self._backend.scan(start, stop, reverse=reverse)
            return merged(below, overlay, reverse)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range, here and in the backend."""
        self._settle()
        with self._lock:
            self._check_open()
            self._backend.delete_range(start, stop)
        self.forget(start, stop)

    def forget(self, start: bytes | None, stop: bytes | None) -> None:
        """Drop a range from the cache, unwritten changes too; the backend keeps what it has. Walks over everything."""
        self._settle()
        with self._lock:
            self._check_open()
            for group in list(self._buckets.groups.values()):
                for owner, bucket in list(group.buckets.items()):
                    for key in [key for key in bucket.entries if _is_within(key, start, stop)]:
                        bucket.unwritten.discard(key)
                        self._dirty.pop(key, None)
                        self._buckets.drop(bucket, key)
                    self._buckets.forget_empty(bucket, owner)

    # --- writing down ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything dirty to the backend and make it durable."""
        self.write_dirty()
        self._backend.flush()

    def write_dirty(self) -> None:
        """Write everything dirty to the backend, which need not have made it durable when this returns."""
        self._settle()
        with self._lock:
            self._check_open()
            self._write_clears()
            self._write_all(list(self._dirty))

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write what is dirty at the first call bit by bit; True: all of it.

        At least ``share`` of it (0 to 1), but not so much at a time that rows notice, little once it is over, and
        nothing while writing would have to wait for a checkpoint.
        """
        self._begin()
        if self._captured is not None or self._has_to_wait():
            return False
        with self._lock:
            if self._to_flush is None:
                self._to_flush, self._flushed = list(self._dirty), 0
            self._write_clears()
            wanted = min(math.ceil(share * len(self._to_flush)), self._flushed + _PART_ENTRIES_MAX)
            left_bytes = _PART_BYTES_MAX
            while self._flushed < wanted and left_bytes > 0 and not self._backend.is_stalled():
                part = self._to_flush[self._flushed : self._flushed + _LOOK * FLUSH_ENTRIES_MAX]
                count, size_bytes = self._write_down(part, FLUSH_ENTRIES_MAX)
                self._flushed += count
                left_bytes -= size_bytes
                if is_over():
                    break
            if self._flushed < len(self._to_flush):
                return False
            self._to_flush = None
            return True

    def _write_all(self, keys: Sequence[bytes]) -> None:
        start = 0
        while start < len(keys):
            part = keys[start : start + _LOOK * WRITE_ENTRIES_MAX]
            start += self._write_down(part, WRITE_ENTRIES_MAX)[0]

    def _write_clears(self) -> None:
        """Delete in the backend what was cleared; before anything else is written."""
        while self._cleared:
            owner = next(iter(self._cleared))
            self._backend.delete_range(owner, prefix_end(owner))
            del self._cleared[owner]

    def _write_down(self, keys: Iterable[bytes], entries_max: int) -> tuple[int, int]:
        """Write one chunk of those keys that are dirty; returns how many were looked at, and bytes.

        They stay cached; no key is there twice.
        """
        bytes_max = WRITE_BYTES_MAX if entries_max == WRITE_ENTRIES_MAX else FLUSH_BYTES_MAX
        chunk: list[tuple[bytes, bytes | None]] = []
        count = size_bytes = 0
        for key in keys:
            count += 1
            bucket = self._dirty.get(key)
            if bucket is not None and bucket.died is not None:
                del self._dirty[key]
            elif bucket is not None:
                value = bucket.entries[key]
                chunk.append((key, value))
                size_bytes += len(key) + len(value or b"")
            if len(chunk) >= entries_max or size_bytes >= bytes_max:
                break
        if chunk:
            chunk.sort()
            self._write_chunk(chunk)
            for key, _ in chunk:
                self._dirty.pop(key).unwritten.discard(key)
        return count, size_bytes

    def _write_chunk(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._backend.write(
            puts=[(key, value) for key, value in entries if value is not None],
            deletes=[key for key, value in entries if value is None],
        )

    # --- captures ----------------------------------------------------------------------------------------------

    def capture(self) -> Capture | None:
        """Note all dirty entries as they are now; another thread writes them. None: nothing is dirty.

        Takes no longer for many. If writing fails, they are dirty again. The caller flushes the backend.
        """
        self._settle()
        self._check_open()
        self._to_flush = None
        if not self._dirty and not self._cleared:
            return None
        with self._lock:
            self._buckets.time += 1
            captured = _Captured(self._dirty, self._cleared, time=self._buckets.time)
            self._dirty, self._cleared = {}, {}
            capture = Capture(lambda: self._write_captured(captured, capture))
            self._captured = capture, captured
            return capture

    def _write_captured(self, captured: _Captured, capture: Capture) -> None:
        """Write what was captured; called by another thread."""
        for owner in list(captured.cleared):
            self._backend.delete_range(owner, prefix_end(owner))
            with self._lock:
                del captured.cleared[owner]
        keys = list(captured.entries)
        start = 0
        while start < len(keys):
            with self._lock:
                stop, chunk = self._captured_chunk(captured, keys, start)
            self._write_chunk(chunk)
            with self._lock:
                for key in keys[start:stop]:
                    bucket = captured.entries.pop(key)
                    captured.saved.pop(key, None)
                    if self._dirty.get(key) is not bucket:
                        bucket.unwritten.discard(key)
            start = stop
            capture.pause(self._backend.is_stalled)

    @staticmethod
    def _captured_chunk(
        captured: _Captured, keys: Sequence[bytes], start: int
    ) -> tuple[int, list[tuple[bytes, bytes | None]]]:
        """What to write next, in key order, and the position after it."""
        chunk: list[tuple[bytes, bytes | None]] = []
        stop, size_bytes = start, 0
        while stop < len(keys) and stop - start < FLUSH_ENTRIES_MAX and size_bytes < FLUSH_BYTES_MAX:
            key = keys[stop]
            stop += 1
            bucket = captured.entries[key]
            if bucket.died is None or bucket.died >= captured.time:
                value = captured.saved[key] if key in captured.saved else bucket.entries[key]
                chunk.append((key, value))
                size_bytes += len(key) + len(value or b"")
        chunk.sort()
        return stop, chunk

    def _begin(self) -> None:
        """Before an operation: take note of a capture that has ended, give back some of what was forgotten."""
        self._check_open()
        if self._captured is None:
            self._buckets.sweep()
        elif self._captured[0].has_ended:
            self._settle()

    def _settle(self) -> None:
        """Wait until what was captured is written; if that failed it is dirty again. Not called with the lock."""
        if self._captured is None:
            return
        capture, captured = self._captured
        is_written = capture.wait()
        self._captured = None
        if not is_written:
            self._cleared = captured.cleared | self._cleared
            alive = {key: bucket for key, bucket in captured.entries.items() if bucket.died is None}
            # Those that changed since are dirty in any case.
            self._dirty = alive | self._dirty

    def _has_to_wait(self) -> bool:
        """Whether rows would wait for a write, because of a checkpoint or of a store that cannot keep up."""
        return self._backend.writes_wait() or self._backend.is_stalled()

    # --- room --------------------------------------------------------------------------------------------------

    def _shrink(self) -> None:
        """Evict down to the bound, about the least recently used first; dirty entries are written first."""
        if self._buckets.size_bytes <= self._bytes_max:
            return
        if self._captured is None and not self._has_to_wait():
            self._evict(may_write=True)
            return
        self._evict(may_write=False)
        if self._buckets.size_bytes > self._bytes_max * (1 + _OVERSHOOT):
            self._settle()
            self._evict(may_write=True)

    def _evict(self, *, may_write: bool) -> None:
        tries_left = 2 * len(self._buckets.groups)
        with self._lock:
            while self._buckets.size_bytes > self._bytes_max and tries_left > 0:
                bucket, owner, keys = self._buckets.oldest()
                if may_write and not bucket.unwritten.isdisjoint(keys):
                    self._write_clears()
                    # Together with others that changed long ago: small writes cost as much as large ones.
                    more = islice(self._dirty, FLUSH_ENTRIES_MAX)
                    self._write_down(list(dict.fromkeys([*keys, *more])), FLUSH_ENTRIES_MAX + len(keys))
                gone = [key for key in keys if key not in bucket.unwritten]
                for key in gone:
                    if self._buckets.size_bytes <= self._bytes_max:
                        break
                    self._buckets.drop(bucket, key)
                if len(gone) < len(keys) and self._owner_of is not None:
                    bucket.group.buckets.move_to_end(owner)
                self._buckets.forget_empty(bucket, owner)
                self._buckets.forget_group_if_empty(bucket.group)
                tries_left = 2 * len(self._buckets.groups) if gone else tries_left - 1

    def drop_written(self, keys: Sequence[bytes]) -> list[bytes]:
        """Forget those of these keys that are not dirty; returns them. None while a capture is being written."""
        self._begin()
        if self._captured is not None:
            return []
        with self._lock:
            written = []
            for key in keys:
                bucket = self._buckets.find(key)
                if bucket is None:
                    written.append(key)
                elif key not in bucket.unwritten:
                    written.append(key)
                    # A copy for a new owner has it, and what becomes of it.
                    if bucket.group.touched is None and key in bucket.entries:
                        self._buckets.drop(bucket, key)
            return written

    # --- key groups --------------------------------------------------------------------------------------------

    def flush_prefixes(self, prefixes: Collection[bytes]) -> None:
        """Write the dirty entries of these key groups (2 bytes each); they stay cached."""
        self._settle()
        with self._lock:
            self._check_open()
            self._write_clears()
            for prefix in prefixes:
                group = self._buckets.groups.get(prefix)
                buckets = group.buckets.values() if group is not None else ()
                self._write_all([key for bucket in buckets for key in bucket.unwritten])

    def forget_prefixes(self, prefixes: Iterable[bytes]) -> None:
        """Forget these key groups, clean by now: nobody waits for a walk over their entries."""
        self._begin()
        for prefix in prefixes:
            self._buckets.set_aside(prefix)

    def copy_prefixes(
        self, prefixes: Collection[bytes], count_max: int, bytes_max: int
    ) -> list[tuple[bytes, bytes | None]]:
        """What is cached of these key groups, of each those used last; notes from now on what changes."""
        self._begin()
        found: list[tuple[bytes, bytes | None]] = []
        share = max(len(prefixes), 1)
        for prefix in prefixes:
            self._buckets.group(prefix).touched = {}
            found += self._buckets.latest(prefix, count_max // share, bytes_max // share)
        return found

    def has_good_copy(self, prefix: bytes) -> bool:
        """Whether a copy of this key group and what changed since make up all that is worth having."""
        group = self._buckets.groups.get(prefix)
        return group is not None and group.touched is not None

    def changed_since_copy(self, prefixes: Iterable[bytes]) -> list[tuple[bytes, bytes | None]]:
        """What came or changed in these key groups since :meth:`copy_prefixes`, as it is now."""
        found: list[tuple[bytes, bytes | None]] = []
        for prefix in prefixes:
            group = self._buckets.groups.get(prefix)
            for key in (group.touched or ()) if group is not None else ():
                bucket = self._buckets.find(key)
                if bucket is not None and key in bucket.entries:
                    found.append((key, bucket.entries[key]))
        return found

    def take_copy(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Cache entries of key groups that are not ours yet; what does not fit is left out, and not there at all."""
        self._begin()
        buckets = self._buckets
        for key, value in entries:
            bucket = buckets.find(key)
            if buckets.size_bytes + len(value or b"") < self._bytes_max:
                buckets.store(bucket if bucket is not None else buckets.make(key), key, value)
            elif bucket is not None and key in bucket.entries:
                buckets.drop(bucket, key)

    # --- the rest ----------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """This cache's counters and its memory; the backend has its own."""
        self._check_open()
        return StoreStats(
            gets=self._gets,
            puts=self._puts,
            deletes=self._deletes,
            cache_hits=self._hits,
            cache_misses=self._gets - self._hits,
            memory_bytes=self._buckets.size_bytes,
        )

    def close(self) -> None:
        """Flush and drop the entries; the backend stays open. Safe to call twice."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            self._buckets = Buckets(self._owner_of)
            self._dirty.clear()


def _is_within(key: bytes, start: bytes | None, stop: bytes | None) -> bool:
    return (start is None or key >= start) and (stop is None or key < stop)


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
