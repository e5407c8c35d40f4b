"""What a cache of values reads before it is asked for, where a read of the store takes long: ranges of owners' keys.

A range that was read is *known* (``weir.state.tables.values.known_ranges``): scans of it, and reads of keys that it has
not, need no store, in later batches too, until something of it leaves the cache. Of an owner one range is known at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from weir.state.api import Head, StateBackend
from weir.state.tables.values.known_ranges import KNOWN_KEYS_MAX, KnownRange
from weir.state.tables.values.value_buckets import Buckets
from weir.state.tables.values.value_groups import Bucket, entry_bytes
from weir.state.tables.values.value_writes import ValueWrites

#: Of one range at a time: so many entries at most, about so many bytes, and so many entries however large they are.
_ROWS_MAX, _HEAD_BYTES, _ROWS_MIN = 100, 64 << 10, 4
#: What is read in one go has this share of the cache at most; and owners.
_SHARE = 4
_OWNERS_MAX = 256

Entries = Iterator[tuple[bytes, bytes]]
#: Scans the cache and the store: start, stop, reverse.
Scan = Callable[[bytes, bytes, bool], Entries]
Range = tuple[bytes, bytes]


class ValuesAhead:
    """Of one cache, whose thread calls the methods with its lock held, unless they say otherwise."""

    def __init__(self, backend: StateBackend, buckets: Buckets, writes: ValueWrites, bytes_max: int) -> None:
        """``buckets``: of a table with owners."""
        self._backend, self._buckets, self._writes = backend, buckets, writes
        self._bytes_max = max(bytes_max // _SHARE, 1)
        #: Entries of a range that are read at a time: fewer where they are large.
        self._rows = _ROWS_MAX
        #: Owners whose entries have found room lately.
        self._owners_max = _OWNERS_MAX

    def is_known(self, owner: bytes) -> bool:
        """Whether something of an owner is known; without the lock."""
        group = self._buckets.groups.get(owner[:2])
        bucket = None if group is None else group.buckets.get(owner)
        return bucket is not None and bucket.known is not None

    def is_absent(self, key: bytes) -> bool:
        """Whether a key, which is not cached, is known not to be in the store."""
        bucket = self._buckets.find(key)
        return bucket is not None and bucket.known is not None and bucket.known.has(key)

    def begin(self, starts: Sequence[bytes]) -> ReadAhead:
        """Find out what is to be read of owners; see :meth:`ReadAhead.end`.

        ``starts``: the owners, or of each the key from which on it is wanted.
        """
        listed = starts[: self._owners_max]
        owners = {start: self._owner_of(start) for start in listed}
        unknown = [(start, owner + b"\xff") for start, owner in owners.items() if not self.is_known(owner)]
        ranges = self._stored(unknown, reverse=False)
        return ReadAhead(self, self._backend, ranges, self._rows, len(starts), len(listed))

    def end(self, read: ReadAhead, heads: Sequence[Head]) -> int:
        """Know what was read; returns of how many owners there was room for it."""
        kept = self._keep_all(read.ranges, heads, reverse=False)
        if kept < len(read.ranges):
            self._owners_max = max(kept, 1)
            return kept
        if read.asked > read.owners:
            self._owners_max = min(2 * self._owners_max, _OWNERS_MAX)
        return read.owners

    def scan(self, start: bytes, stop: bytes, reverse: bool, again: Scan, below: Scan) -> Entries:
        """Entries of a range of one owner, as they are now.

        Args:
            start: the first key.
            stop: ends before it.
            reverse: from the last key to the first.
            again: as this method, without the lock.
            below: reads the store, without the lock.
        """
        if start >= stop:
            return iter(())
        bucket = self._known_at(start, stop, reverse=reverse)
        if bucket is None:
            owner = self._owner_of(start)
            self._load(start, stop if reverse else owner + b"\xff", reverse=reverse)
            bucket = self._known_at(start, stop, reverse=reverse)
        if bucket is None:
            return _later(below, start, stop, reverse)
        known, entries = bucket.known, bucket.entries
        assert known is not None
        # It is used.
        self._buckets.make(start)
        found = [(key, entries[key]) for key in known.between(start, stop) if entries[key] is not None]
        if reverse:
            found.reverse()
        if (known.start <= start) if reverse else (stop <= known.stop):
            return iter(found)
        rest = (start, known.start) if reverse else (known.stop, stop)
        if len(known) >= KNOWN_KEYS_MAX and not reverse:
            known.forget_before(start)
        goes_on = below if len(known) >= KNOWN_KEYS_MAX else again
        return _chained(found, _later(goes_on, *rest, reverse))

    def _owner_of(self, key: bytes) -> bytes:
        assert self._buckets.owner_of is not None
        return self._buckets.owner_of(key)

    def _known_at(self, start: bytes, stop: bytes, *, reverse: bool) -> Bucket | None:
        bucket = self._buckets.find(start)
        if bucket is None or bucket.known is None:
            return None
        return bucket if bucket.known.begins_with(start, stop, reverse=reverse) else None

    def _load(self, start: bytes, stop: bytes, *, reverse: bool) -> None:
        """Know a range, as far as it is read in one go."""
        ranges = self._stored([(start, stop)], reverse=reverse)
        if ranges:
            heads = self._backend.scan_heads(ranges, [self._rows], reverse=reverse)
            self._keep_all(ranges, heads, reverse=reverse)

    def _stored(self, ranges: Sequence[Range], *, reverse: bool) -> list[Range]:
        """Return the ranges that the store has to be asked for; of the others nothing counts that it has."""
        wanted = []
        for start, stop in ranges:
            if self._writes.is_cleared(self._owner_of(start)):
                self._keep(start, stop, Head([], None), reverse=reverse)
            else:
                wanted.append((start, stop))
        return wanted

    def _keep_all(self, ranges: Sequence[Range], heads: Sequence[Head], *, reverse: bool) -> int:
        kept = size_bytes = rows = 0
        for (start, stop), head in zip(ranges, heads, strict=True):
            size_bytes += sum(entry_bytes(key, value) for key, value in head.entries)
            if kept and size_bytes > self._bytes_max:
                break
            rows += len(head.entries)
            self._keep(start, stop, head, reverse=reverse)
            kept += 1
        if rows:
            self._rows = min(max(_HEAD_BYTES * rows // size_bytes, _ROWS_MIN), _ROWS_MAX)
        return kept

    def _keep(self, start: bytes, stop: bytes, head: Head, *, reverse: bool) -> None:
        if head.until is not None and reverse:
            start = head.until
        elif head.until is not None:
            stop = head.until + b"\0"
        if start >= stop:
            return
        owner, bucket = self._owner_of(start), self._buckets.make(start)
        for key, value in head.entries:
            if key not in bucket.entries and self._owner_of(key) == owner:
                self._buckets.store(bucket, key, value)
        known = KnownRange(start, stop, [key for key in bucket.entries if start <= key < stop])
        self._buckets.know(bucket, known if bucket.known is None else bucket.known.joined(known))


@dataclass(slots=True)
class ReadAhead:
    """What a cache is about to read of the store, while its lock is held."""

    ahead: ValuesAhead
    backend: StateBackend
    ranges: list[Range]
    #: Entries of each range at most.
    rows_max: int
    #: Of how many owners it was asked, and of how many it reads.
    asked: int
    owners: int

    def end(self, heads: Sequence[Head]) -> None:
        """Take in what the store has of the ranges; :attr:`owners` is then of how many there was room."""
        self.owners = self.ahead.end(self, heads)


def _later(scan: Scan, start: bytes, stop: bytes, reverse: bool) -> Entries:
    """Begin to scan when the first entry is wanted: the caller has the lock."""
    yield from scan(start, stop, reverse)


def _chained(first: Sequence[tuple[bytes, bytes]], rest: Entries) -> Entries:
    yield from first
    yield from rest
