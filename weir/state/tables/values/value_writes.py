"""The way of changed values to the store: all at once, bit by bit, or by another thread for a checkpoint.

Rows wait for every call, so none takes long: writing goes bit by bit; a capture exchanges two dictionaries, which
another thread writes, and old values are kept of what changes meanwhile.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice

from weir.state.api import StateBackend
from weir.state.layout import GROUP_OF
from weir.state.tables.capture import Capture
from weir.state.tables.table import IsOver
from weir.state.tables.values.hidden_ranges import RANGES_MAX, Range, joined, merged, whole
from weir.state.tables.values.value_buckets import Buckets
from weir.state.tables.values.value_groups import Bucket

#: Bounds of one write batch to the store, so that the GIL is not held for long.
WRITE_ENTRIES_MAX = 2_000
WRITE_BYTES_MAX = 1 << 20
#: The same for batches that rows wait for, one at a time: 1 ms. RocksDB keeps the GIL: those of a capture count too.
FLUSH_ENTRIES_MAX = 250
FLUSH_BYTES_MAX = 256 << 10
#: What one :meth:`ValueWrites.write_part` writes at most, whatever its share: about 3 ms.
_PART_ENTRIES_MAX = 1_000
_PART_BYTES_MAX = 1 << 20
#: Of this many times as many keys as are written at a time is asked whether they are dirty.
_LOOK = 4
#: Changes that there must be for each key group to store those of a group together. With one each that took three
#: times as long as one by one, with nine about as long, with forty less.
_GROUP_MIN = 8
#: Keys that are sorted in one call, which keeps the GIL: 1 ms.
_SORTED_MAX = 5_000

_Entries = list[tuple[bytes, bytes | None]]


@dataclass(eq=False)
class _Captured:
    """What another thread is writing."""

    #: By key the bucket that it was in.
    entries: dict[bytes, Bucket]
    #: Ranges of owners that are to be deleted first.
    cleared: dict[bytes, list[Range]]
    #: Values of keys that have changed since.
    saved: dict[bytes, bytes | None] = field(default_factory=dict)
    #: Buckets that were set aside before this do not count.
    time: int = 0


class ValueWrites:
    """What one cache of values has to write. The cache's thread calls the methods; another one writes captures.

    Methods that say so are called with :attr:`lock` held; the others take it themselves, or need it not.
    """

    def __init__(self, backend: StateBackend, buckets: Buckets) -> None:
        self._backend = backend
        self._buckets = buckets
        #: Guards cache and writes against the thread that writes a capture; not held while that is waited for.
        self.lock = threading.Lock()
        #: Keys to be written, in the order in which they changed first. Their buckets may have been set aside.
        self._dirty: dict[bytes, Bucket] = {}
        #: Of owners what is to be deleted in the store, before anything else is written: disjoint ranges in order.
        self._cleared: dict[bytes, list[Range]] = {}
        self._captured: tuple[Capture, _Captured] | None = None
        #: Keys that :meth:`write_part` has to write, and how many of them it has.
        self._to_flush: list[bytes] | None = None
        self._flushed = 0

    # --- what there is to write --------------------------------------------------------------------------------

    def note_change(self, bucket: Bucket, key: bytes) -> None:
        """The value of a key in this bucket is about to change; with the lock."""
        if self._captured is not None:
            captured = self._captured[1]
            if captured.entries.get(key) is bucket and key not in captured.saved:
                # What was noted as deleted may have left the cache with a range.
                captured.saved[key] = bucket.entries.get(key)
        bucket.note_unwritten(key)
        self._dirty[key] = bucket

    def store(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        """Cache new values, which are to be written; with the lock."""
        buckets = self._buckets
        if buckets.owner_of is None:
            if len(puts) >= _GROUP_MIN * len(buckets.groups):
                self._store_by_group(puts)
                return
            if self._captured is None:
                buckets.store_changes(puts, self._dirty)
                return
        else:
            buckets.store_owned(puts, self.note_change)
            return
        for key, value in puts:
            bucket = buckets.make(key)
            self.note_change(bucket, key)
            buckets.store(bucket, key, value)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Note keys as absent, which is to be written; with the lock."""
        buckets = self._buckets
        if buckets.owner_of is not None:
            if len(keys) < _GROUP_MIN or not self._delete_together(dict.fromkeys(keys)):
                buckets.store_owned(((key, None) for key in keys), self.note_change)
            return
        for key in keys:
            bucket = buckets.make(key)
            self.note_change(bucket, key)
            buckets.store(bucket, key, None)

    def _delete_together(self, keys: dict[bytes, None]) -> bool:
        """Delete items of one owner; False: nothing was done, they are to be deleted one by one."""
        if self._captured is not None and not self._captured[1].entries.keys().isdisjoint(keys):
            return False
        bucket = self._buckets.delete_owned(keys)
        if bucket is None:
            return False
        self._dirty.update(dict.fromkeys(keys, bucket))
        return True

    def store_new(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """As :meth:`store`, of owners of which neither the store nor the cache has anything."""
        dirty = self._dirty
        for key, value, bucket in self._buckets.store_new(puts):
            if bucket is None:
                self.store(((key, value),))
            else:
                dirty[key] = bucket

    def _store_by_group(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """As :meth:`store`, of many changes in a table without owners: those of a key group are stored together."""
        groups: defaultdict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
        for pair in puts:
            groups[pair[0][:2]].append(pair)
        captured = None if self._captured is None else self._captured[1].entries.keys()
        for prefix, pairs in groups.items():
            bucket, values = self._buckets.make(prefix), dict(pairs)
            if captured is not None and not captured.isdisjoint(values):
                for key in values:
                    self.note_change(bucket, key)
            self._dirty.update(dict.fromkeys(values, bucket))
            self._buckets.store_group(bucket, values)

    def clear(self, owner: bytes) -> None:
        """Forget an owner; what the store has of it is to be deleted. With the lock."""
        bucket = self._buckets.set_owner_aside(owner)
        if bucket is None or self._may_be_stored(bucket):
            # After others: what was written of it before is deleted with the rest.
            self._cleared[owner] = [whole(owner)]
        elif len(bucket.unwritten) <= _GROUP_MIN:
            # Of many others it is found out one by one that they do not count.
            for key in bucket.unwritten:
                self._dirty.pop(key, None)

    def clear_range(self, owner: bytes, cleared: Range, keys: Collection[bytes]) -> bool:
        """Forget a range of an owner; what the store has of it is to be deleted. With the lock.

        ``keys``: all of the range that have a value, and maybe others of it; each once.

        Returns:
            False: the owner has too many ranges, and nothing was done.
        """
        bucket = self._buckets.find(owner)
        if bucket is None or self._may_be_stored(bucket):
            ranges = joined(self._cleared.get(owner, ()), (cleared,))
            if len(ranges) > RANGES_MAX:
                return False
            self._cleared[owner] = ranges
        self._buckets.void_copy(owner)
        if bucket is not None:
            if self._captured is not None:
                self._save(self._captured[1], bucket, keys)
            # To walk over a set takes as long as for all that it has had.
            for key in bucket.unwritten.intersection(keys) if bucket.unwritten else ():
                self.forget(bucket, key)
            self._buckets.drop_together(bucket, owner, keys)
        return True

    def _may_be_stored(self, bucket: Bucket) -> bool:
        """Return whether the store may have something of a bucket's owner, or get it by a capture."""
        return not bucket.is_whole or bucket.is_stored or bucket.born < self._buckets.time

    def _save(self, captured: _Captured, bucket: Bucket, keys: Collection[bytes]) -> None:
        """Keep what a capture has to write of these keys, which are about to go."""
        entries = bucket.entries
        for key in captured.entries.keys() & keys:
            if captured.entries[key] is bucket and key in entries:
                captured.saved.setdefault(key, entries[key])

    def forget(self, bucket: Bucket, key: bytes) -> None:
        """A key need not be written any more; with the lock."""
        bucket.unwritten.discard(key)
        self._dirty.pop(key, None)

    def may_hide(self) -> bool:
        """Whether the store may have entries of some owner that do not count."""
        return bool(self._cleared) or self._captured is not None

    def is_cleared(self, owner: bytes) -> bool:
        """Whether nothing counts that the store still has of an owner."""
        return whole(owner) in self.hidden(owner)

    def hidden(self, owner: bytes) -> list[Range]:
        """Return where nothing counts that the store still has of an owner; in order."""
        ranges = self._cleared.get(owner, [])
        captured = [] if self._captured is None else self._captured[1].cleared.get(owner, [])
        return joined(ranges, captured) if captured else ranges

    # --- writing down ------------------------------------------------------------------------------------------

    def write_all(self) -> None:
        """Write everything; with the lock, after :meth:`settle`."""
        self.write_clears()
        self.write(in_key_order(self._dirty))

    def write(self, keys: Sequence[bytes]) -> None:
        """Write those of these keys that are dirty; with the lock, after :meth:`settle` and :meth:`write_clears`."""
        start = 0
        while start < len(keys):
            part = keys[start : start + _LOOK * WRITE_ENTRIES_MAX]
            start += self._write_down(part, WRITE_ENTRIES_MAX)[0]

    def write_with_others(self, keys: Collection[bytes]) -> None:
        """Write these keys and some that changed long ago: small writes cost as much as large ones; with the lock."""
        self.write_clears()
        more = islice(self._dirty, FLUSH_ENTRIES_MAX)
        self._write_down(list(dict.fromkeys([*keys, *more])), FLUSH_ENTRIES_MAX + len(keys))

    def write_part(self, share: float, is_over: IsOver) -> bool:
        """See ``WriteBackCache.flush_part``."""
        if self.has_capture() or self.has_to_wait():
            return False
        with self.lock:
            if self._to_flush is None:
                self._to_flush, self._flushed = list(self._dirty), 0
            self.write_clears()
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

    def write_clears(self) -> None:
        """Delete in the store what was cleared; with the lock, before anything else is written."""
        while self._cleared:
            owner = next(iter(self._cleared))
            for each in self._cleared[owner]:
                self._backend.delete_range(*each)
            del self._cleared[owner]

    def _write_down(self, keys: Iterable[bytes], entries_max: int) -> tuple[int, int]:
        """Write one chunk of those keys that are dirty; returns how many were looked at, and bytes.

        They stay cached; no key is there twice.
        """
        bytes_max = WRITE_BYTES_MAX if entries_max == WRITE_ENTRIES_MAX else FLUSH_BYTES_MAX
        chunk: _Entries = []
        count = size_bytes = 0
        for key in keys:
            count += 1
            bucket = self._dirty.get(key)
            if bucket is not None and bucket.died is not None:
                self._dirty.pop(key, None)
            elif bucket is not None:
                value = bucket.entries[key]
                chunk.append((key, value))
                size_bytes += len(key) + len(value or b"")
            if len(chunk) >= entries_max or size_bytes >= bytes_max:
                break
        if chunk:
            chunk.sort()
            self._write_chunk(chunk)
            dirty = self._dirty
            for key, _ in chunk:
                bucket = dirty.pop(key)
                bucket.unwritten.discard(key)
                bucket.is_stored = True
        return count, size_bytes

    def _write_chunk(self, entries: _Entries) -> None:
        self._backend.write(
            puts=[(key, value) for key, value in entries if value is not None],
            deletes=[key for key, value in entries if value is None],
        )

    def has_to_wait(self) -> bool:
        """Whether rows would wait for a write, because of a checkpoint or of a store that cannot keep up."""
        return self._backend.writes_wait() or self._backend.is_stalled()

    # --- captures ----------------------------------------------------------------------------------------------

    def capture(self) -> Capture | None:
        """See ``WriteBackCache.capture``."""
        self.settle()
        self._to_flush = None
        if not self._dirty and not self._cleared:
            return None
        with self.lock:
            self._buckets.time += 1
            captured = _Captured(self._dirty, self._cleared, time=self._buckets.time)
            self._dirty, self._cleared = {}, {}
            capture = Capture(lambda: self._write_captured(captured, capture))
            self._captured = capture, captured
            return capture

    def _write_captured(self, captured: _Captured, capture: Capture) -> None:
        """Write what was captured; called by another thread."""
        for owner, ranges in list(captured.cleared.items()):
            for each in ranges:
                self._backend.delete_range(*each)
            with self.lock:
                del captured.cleared[owner]
        keys = in_key_order(captured.entries)
        start = 0
        while start < len(keys):
            with self.lock:
                stop, chunk = _next_chunk(captured, keys, start)
            self._write_chunk(chunk)
            with self.lock:
                self._note_written(captured, keys[start:stop])
            start = stop
            capture.pause(self._backend.is_stalled)

    def _note_written(self, captured: _Captured, keys: Sequence[bytes]) -> None:
        dirty = self._dirty
        for bucket, run in groupby(keys, captured.entries.pop):
            own = list(run)
            if dirty.keys().isdisjoint(own):
                bucket.unwritten.difference_update(own)
            else:
                bucket.unwritten.difference_update(key for key in own if dirty.get(key) is not bucket)
        if captured.saved:
            for key in keys:
                captured.saved.pop(key, None)

    def has_capture(self) -> bool:
        """Whether something was captured that is not settled yet."""
        return self._captured is not None

    def settle_ended(self) -> None:
        """Take note of a capture if it has ended; without the lock."""
        if self._captured is not None and self._captured[0].has_ended:
            self.settle()

    def settle(self) -> None:
        """Wait until what was captured is written; if that failed it is dirty again. Not called with the lock."""
        if self._captured is None:
            return
        capture, captured = self._captured
        is_written = capture.wait()
        self._captured = None
        if not is_written:
            self._cleared = merged(captured.cleared, self._cleared)
            alive = {
                key: bucket
                for key, bucket in captured.entries.items()
                # What was cleared since is not there any more.
                if bucket.died is None and key in bucket.unwritten
            }
            # Those that changed since are dirty in any case.
            self._dirty = alive | self._dirty


def in_key_order(entries: Iterable[bytes]) -> list[bytes]:
    """State keys in their order, about: key group by key group, and of a group 5,000 sorted at a time.

    RocksDB then puts each key beside the one before it: its part, which has the GIL, takes a quarter less than where
    only chunks are sorted. One call keeps the GIL for about a ms, but the whole takes 0.2 µs a key.
    """
    keys = list(entries)
    groups: dict[bytes, list[bytes]] = {}
    for start in range(0, len(keys), _SORTED_MAX):
        for prefix, run in groupby(keys[start : start + _SORTED_MAX], GROUP_OF):
            groups.setdefault(prefix, []).extend(run)
    ordered: list[bytes] = []
    for prefix in sorted(groups):
        own = groups.pop(prefix)
        for start in range(0, len(own), _SORTED_MAX):
            ordered += sorted(own[start : start + _SORTED_MAX])
    return ordered


def _next_chunk(captured: _Captured, keys: Sequence[bytes], start: int) -> tuple[int, _Entries]:
    """What to write next, in the order of ``keys``, and the position after it."""
    chunk: _Entries = []
    size_bytes, saved = 0, captured.saved
    part = keys[start : start + FLUSH_ENTRIES_MAX]
    # Every value comes here, mostly many of one bucket: nothing is written out for each.
    for bucket, run in groupby(part, captured.entries.__getitem__):
        own = list(run)
        if bucket.died is not None and bucket.died < captured.time:
            continue
        # What was cleared since is saved.
        values = list(map(bucket.entries.get, own))
        if saved and not saved.keys().isdisjoint(own):
            values = [saved.get(key, value) for key, value in zip(own, values, strict=True)]
        chunk += zip(own, values, strict=True)
        size_bytes += sum(map(len, own)) + sum(map(len, filter(None, values)))
    if size_bytes >= FLUSH_BYTES_MAX:
        sizes = accumulate(len(key) + len(value or b"") for key, value in chunk)
        del chunk[bisect_left(list(sizes), FLUSH_BYTES_MAX) + 1 :]
        return keys.index(chunk[-1][0], start) + 1, chunk
    return start + len(part), chunk
