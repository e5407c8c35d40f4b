"""A write-back cache of bytes over any backend, bounded in bytes, least recently used first out (about).

Reads fill it; writes stay in it until :meth:`WriteBackCache.flush` or eviction writes them down; deletes are
kept as tombstones until then. It does not see what others write to the backend behind its back: one cache
per owner of a range of keys. The backend gets what was written in chunks (``weir.state.tables.values.value_writes``).

Rows wait for every call, so none takes long: what is written and what is forgotten goes bit by bit.

After a failed write-down (StateError) the dirty entries are still there; ``flush`` may be tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from weir.errors import StateError
from weir.state.api import StateBackend, prefix_end
from weir.state.overlay import overlaid
from weir.state.tables.capture import Capture
from weir.state.tables.table import IsOver, never
from weir.state.tables.values.hidden_ranges import hides, left_of
from weir.state.tables.values.value_ahead import ReadAhead, ValuesAhead
from weir.state.tables.values.value_buckets import Buckets
from weir.state.tables.values.value_groups import entry_bytes
from weir.state.tables.values.value_writes import ValueWrites
from weir.types import StoreStats

#: While writing has to wait, the cache may become larger by this share of its bound.
_OVERSHOOT = 0.25
_MISSING: Any = object()


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
        self._buckets = Buckets(owner_of)
        self._writes = ValueWrites(backend, self._buckets)
        self._lock = self._writes.lock
        #: None: the store is quick enough without.
        self._ahead: ValuesAhead | None = None
        if backend.reads_ahead and owner_of is not None:
            self._ahead = ValuesAhead(backend, self._buckets, self._writes, bytes_max)
        self._closed = False
        self._gets = self._puts = self._deletes = self._hits = 0

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this state cache is closed")

    # --- reads and writes --------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[bytes], *, will_write: bool = False) -> list[bytes | None]:
        """Values in the order of ``keys``; what is not cached comes in one read, in key order.

        ``will_write``: the caller writes the keys next, so that it is not worth noting which are not there.
        """
        self._begin()
        with self._lock:
            values = self._buckets.use_many(keys, _MISSING)
            self._gets += len(keys)
            self._hits += len(keys)
            if _MISSING in values:
                self._load(keys, values, will_write)
        self.shrink()
        return values

    def _load(self, keys: Sequence[bytes], values: list[Any], will_write: bool) -> None:
        """Fill in values that are not cached."""
        missing = sorted({key for key, value in zip(keys, values, strict=True) if value is _MISSING})
        self._hits -= len(missing)
        found: dict[bytes, bytes | None] = {}
        if self._owner_of is not None and self._writes.may_hide():
            found = {key: None for key in missing if hides(self._writes.hidden(self._owner_of(key)), key)}
            missing = [key for key in missing if key not in found]
        if self._ahead is not None:
            missing = [key for key in missing if not self._ahead.is_absent(key)]
        if missing:
            entries = zip(missing, self._backend.get_many(missing), strict=True)
            loaded = dict(entry for entry in entries if not will_write or entry[1] is not None)
            self._buckets.store_loaded(loaded.items())
            found |= loaded
        values[:] = [
            found.get(key) if value is _MISSING else value for key, value in zip(keys, values, strict=True)
        ]

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes, to the cache."""
        self._begin()
        with self._lock:
            self._writes.store(puts)
            self._writes.delete(deletes)
            self._puts += len(puts)
            self._deletes += len(deletes)
        self.shrink()

    def write_new(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        """Apply puts of owners that have nothing yet: they are read, and cleared, without a look at the backend."""
        self._begin()
        with self._lock:
            self._writes.store_new(puts)
            self._puts += len(puts)
        self.shrink()

    def clear_owner(self, owner: bytes) -> None:
        """Delete all entries of an owner, however many they are: rows do not wait longer for many."""
        self.clear_owners((owner,))

    def clear_owners(self, owners: Sequence[bytes]) -> None:
        """:meth:`clear_owner` of each."""
        self._begin()
        with self._lock:
            for owner in owners:
                self._writes.clear(owner)
            self._deletes += len(owners)

    def clear_range(self, start: bytes, stop: bytes, keys: Collection[bytes]) -> None:
        """Delete a range of one owner; the store deletes it as a whole, too, when it is written to.

        ``keys``: all of the range that have a value, and maybe others of it; each once.
        """
        self._begin()
        assert self._owner_of is not None
        with self._lock:
            # What is known of ranges where reads are slow would have to know of this.
            is_cleared = self._ahead is None and self._writes.clear_range(
                self._owner_of(start), (start, stop), keys
            )
            if not is_cleared:
                self._writes.delete(list(keys))
            self._deletes += len(keys)
        self.shrink()

    def values_of_owners(self, owners: Sequence[bytes], first: bytes) -> list[list[bytes]]:
        """All values of each owner, in the order of their keys; ``first``: what the first key of one ends with."""
        self._begin()
        with self._lock:
            found = list(map(self._buckets.values_of, owners))
        return [
            [value for _, value in self._scan_owner(owner, first)] if values is None else values
            for owner, values in zip(owners, found, strict=True)
        ]

    def _scan_owner(self, owner: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        owner_of = self._owner_of
        assert owner_of is not None
        return (pair for pair in self.scan(owner + first, owner + b"\xff") if owner_of(pair[0]) == owner)

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range as they are now: the backend's, with unwritten entries laid over them."""
        ahead = self._ahead
        if ahead is None or start is None or stop is None or not self._buckets.is_of_one_owner(start, stop):
            return self._scan(start, stop, reverse)
        self._begin()
        with self._lock:
            found = ahead.scan(start, stop, reverse, self._scan_again, self._scan)
        self.shrink()
        return found

    def _scan_again(self, start: bytes, stop: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        return self.scan(start, stop, reverse=reverse)

    @property
    def reads_owners(self) -> bool:
        """Whether it is worth saying which owners are needed soon."""
        return self._ahead is not None

    def is_known(self, owner: bytes) -> bool:
        """Whether something of an owner was read ahead, and is still here."""
        return self._ahead is not None and self._ahead.is_known(owner)

    @contextmanager
    def reading_ahead(self, starts: Sequence[bytes]) -> Iterator[ReadAhead]:
        """Lock the cache while what owners have is read for it; see ``read_together``.

        ``starts``: the owners, or of each the key from which on it is wanted.
        """
        assert self._ahead is not None
        self._begin()
        with self._lock:
            yield self._ahead.begin(starts)

    def _scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        self._begin()
        shown: list[tuple[bytes | None, bytes | None]] = [(start, stop)]
        if self._owner_of is not None and self._writes.may_hide():
            if start is not None and stop is not None and self._buckets.is_of_one_owner(start, stop):
                shown = [*left_of(start, stop, self._writes.hidden(self._owner_of(start)))]
            else:
                self._writes.settle()
                with self._lock:
                    self._writes.write_clears()
        with self._lock:
            overlay = sorted(self._buckets.unwritten(start, stop), reverse=reverse)
            scans = [self._backend.scan(*part, reverse=reverse) for part in shown]
            below = scans[0] if len(scans) == 1 else chain.from_iterable(scans[::-1] if reverse else scans)
            return overlaid(below, overlay, reverse) if overlay else below

    def write_clears(self) -> None:
        """Delete in the backend what was cleared as a whole, so that its scans do not have it."""
        self._begin()
        if self._owner_of is not None and self._writes.may_hide():
            self._writes.settle()
            with self._lock:
                self._writes.write_clears()

    def unwritten_below(
        self, prefixes: Iterable[bytes], count_max: int
    ) -> list[tuple[bytes, bytes | None]] | None:
        """What is to be written of keys with these prefixes, in no order; None: more than ``count_max`` entries."""
        self._begin()
        found: list[tuple[bytes, bytes | None]] = []
        with self._lock:
            for prefix in prefixes:
                found += islice(
                    self._buckets.unwritten(prefix, prefix_end(prefix)), count_max + 1 - len(found)
                )
                if len(found) > count_max:
                    return None
        return found

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range, here and in the backend."""
        self._writes.settle()
        with self._lock:
            self._check_open()
            self._backend.delete_range(start, stop)
        self.forget(start, stop)

    def forget(self, start: bytes | None, stop: bytes | None) -> None:
        """Drop a range from the cache, unwritten changes too; the backend keeps what it has. Walks over everything."""
        self._writes.settle()
        with self._lock:
            self._check_open()
            for group in list(self._buckets.groups.values()):
                for owner, bucket in list(group.buckets.items()):
                    for key in [key for key in bucket.entries if _is_within(key, start, stop)]:
                        self._writes.forget(bucket, key)
                        self._buckets.drop(bucket, key)
                    self._buckets.forget_empty(bucket, owner)

    # --- writing down ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything dirty to the backend and make it durable."""
        self.write_dirty()
        self._backend.flush()

    def write_dirty(self) -> None:
        """Write everything dirty to the backend, which need not have made it durable when this returns."""
        self._writes.settle()
        with self._lock:
            self._check_open()
            self._writes.write_all()

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write what is dirty at the first call bit by bit; True: all of it.

        At least ``share`` of it (0 to 1), but not so much at a time that rows notice, little once it is over, and
        nothing while writing would have to wait for a checkpoint.
        """
        self._begin()
        return self._writes.write_part(share, is_over)

    def capture(self) -> Capture | None:
        """Note all dirty entries as they are now; another thread writes them. None: nothing is dirty.

        Takes no longer for many. If writing fails, they are dirty again. The caller flushes the backend.
        """
        self._check_open()
        return self._writes.capture()

    def _begin(self) -> None:
        """Before an operation: take note of a capture that has ended, give back some of what was forgotten."""
        self._check_open()
        if self._writes.has_capture():
            self._writes.settle_ended()
        else:
            self._buckets.sweep()

    # --- room --------------------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Evict down to the bound, about the least recently used first; dirty entries are written first."""
        if self._buckets.size_bytes <= self._bytes_max:
            return
        if not self._writes.has_capture() and not self._writes.has_to_wait():
            self._evict(may_write=True)
            return
        self._evict(may_write=False)
        if self._buckets.size_bytes > self._bytes_max * (1 + _OVERSHOOT):
            self._writes.settle()
            self._evict(may_write=True)

    def _evict(self, *, may_write: bool) -> None:
        tries_left = 2 * len(self._buckets.groups)
        with self._lock:
            while self._buckets.size_bytes > self._bytes_max and tries_left > 0:
                bucket, owner, keys = self._buckets.oldest()
                if may_write and not bucket.unwritten.isdisjoint(keys):
                    self._writes.write_with_others(keys)
                gone = [key for key in keys if key not in bucket.unwritten]
                # Of an owner without entries it may be known that it has none.
                is_progress = bool(gone) or (not keys and bucket.known is not None)
                for key in gone:
                    if self._buckets.size_bytes <= self._bytes_max:
                        break
                    self._buckets.drop(bucket, key)
                if len(gone) < len(keys) and self._owner_of is not None:
                    bucket.group.buckets.move_to_end(owner)
                self._buckets.forget_empty(bucket, owner)
                self._buckets.forget_group_if_empty(bucket.group)
                tries_left = 2 * len(self._buckets.groups) if is_progress else tries_left - 1

    def drop_written(self, keys: Sequence[bytes]) -> list[bytes]:
        """Forget those of these keys that are not dirty; returns them. None while a capture is being written."""
        self._begin()
        if self._writes.has_capture():
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
        self._writes.settle()
        with self._lock:
            self._check_open()
            self._writes.write_clears()
            for prefix in prefixes:
                group = self._buckets.groups.get(prefix)
                buckets = group.buckets.values() if group is not None else ()
                self._writes.write([key for bucket in buckets for key in bucket.unwritten])

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

    def changed_since_copy(
        self, prefixes: Sequence[bytes], loaded_bytes_max: int | None = None
    ) -> list[tuple[bytes, bytes | None]]:
        """What came or changed in these key groups since :meth:`copy_prefixes`, as it is now.

        ``loaded_bytes_max``: of what came and has not changed, about so many bytes at most, which came last.
        """
        found: list[tuple[bytes, bytes | None]] = []
        share_bytes = None if loaded_bytes_max is None else loaded_bytes_max // max(len(prefixes), 1)
        for prefix in prefixes:
            group = self._buckets.groups.get(prefix)
            left_bytes = share_bytes
            own: list[tuple[bytes, bytes | None]] = []
            for key, is_change in reversed((group.touched or {}).items() if group is not None else ()):
                bucket = self._buckets.find(key)
                if bucket is None or key not in bucket.entries:
                    continue
                value = bucket.entries[key]
                if not is_change and left_bytes is not None:
                    if left_bytes <= 0:
                        continue
                    left_bytes -= entry_bytes(key, value)
                own.append((key, value))
            # What was used last comes last.
            found += reversed(own)
        return found

    def begin_changes(self, prefixes: Iterable[bytes]) -> None:
        """What :meth:`changed_since_copy` returned is part of the copies from now on, of those that are good."""
        for prefix in prefixes:
            if self.has_good_copy(prefix):
                self._buckets.groups[prefix].touched = {}

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
            self._ahead = None
            self._buckets = Buckets(self._owner_of)
            self._writes = ValueWrites(self._backend, self._buckets)


def _is_within(key: bytes, start: bytes | None, stop: bytes | None) -> bool:
    return (start is None or key >= start) and (stop is None or key < stop)
