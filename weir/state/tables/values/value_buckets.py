"""Cached values by key group, and within a group by the prefix that is scanned and cleared as a whole. No store here.

A table of plain values has one bucket for each key group. A table of lists or maps has one for each user key (*owner*,
see ``ValueTable``), so that clearing a list of a million elements sets one bucket aside, and so that a scan looks at
what is not written yet of one map only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, repeat
from typing import Any

from weir.state.tables.values.known_ranges import KNOWN_BYTES, KnownRange
from weir.state.tables.values.value_groups import ENTRY_OVERHEAD_BYTES, Bucket, Group, entry_bytes

#: Entries that are given back at a time, of those that were set aside: about 0.1 ms.
_SWEPT_MAX = 1_000
#: Evicting takes this share of a bucket at a time, and so many entries at least and at most.
_EVICTED_SHARE, _EVICTED_MIN, _EVICTED_MAX = 64, 16, 500
#: A copy for a new owner of which more keys were changed since is not worth completing.
_TOUCHED_MAX = 20_000
#: What no key has.
_ABSENT: Any = object()


class Buckets:
    """All that one table has cached."""

    def __init__(self, owner_of: Callable[[bytes], bytes] | None) -> None:
        """``owner_of``: the owner that a key begins with."""
        self.owner_of = owner_of
        #: In the order in which they are evicted from.
        self.groups: OrderedDict[bytes, Group] = OrderedDict()
        self.size_bytes = 0
        #: Grows with each capture.
        self.time = 0
        self._aside: deque[Any] = deque()

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def find(self, key: bytes) -> Bucket | None:
        """The bucket that the key belongs to, if there is one."""
        group = self.groups.get(key[:2])
        return None if group is None else group.buckets.get(self.owner_of(key) if self.owner_of else b"")

    def use(self, key: bytes, absent: Any) -> Any:
        """The cached value of a key, which is used; ``absent`` if it is not cached."""
        group = self.groups.get(key[:2])
        if group is None:
            return absent
        if self.owner_of is None:
            value = group.entries.get(key, absent)
            if value is not absent:
                group.entries.move_to_end(key)
            return value
        owner = self.owner_of(key)
        bucket = group.buckets.get(owner)
        if bucket is None:
            return absent
        group.buckets.move_to_end(owner)
        return bucket.entries.get(key, absent)

    def use_many(self, keys: Sequence[bytes], absent: Any) -> list[Any]:
        """:meth:`use` of each key."""
        # Every row of a batch comes here: no call for each.
        values: list[Any] = []
        groups, owner_of = self.groups, self.owner_of
        if owner_of is not None:
            for key in keys:
                group = groups.get(key[:2])
                owner = owner_of(key)
                bucket = None if group is None else group.buckets.get(owner)
                if group is None or bucket is None:
                    values.append(absent)
                    continue
                group.buckets.move_to_end(owner)
                values.append(bucket.entries.get(key, absent))
            return values
        for key in keys:
            group = groups.get(key[:2])
            if group is None:
                values.append(absent)
                continue
            entries = group.entries
            value = entries.get(key, absent)
            if value is not absent:
                entries.move_to_end(key)
            values.append(value)
        return values

    def make(self, key: bytes) -> Bucket:
        """The bucket that the key belongs to; a new one if need be. It is used."""
        return self._made(key[:2], self.owner_of(key) if self.owner_of else b"")

    def _made(self, prefix: bytes, owner: bytes) -> Bucket:
        """Return the bucket of an owner in a key group; a new one if need be. It is used."""
        group = self.groups.get(prefix) or self.group(prefix)
        bucket = group.buckets.get(owner)
        if bucket is None:
            bucket = group.buckets[owner] = Bucket(group, self.time, is_ordered=self.owner_of is None)
            if self.owner_of is None:
                group.entries = bucket.entries
        elif self.owner_of is not None:
            group.buckets.move_to_end(owner)
        return bucket

    def group(self, prefix: bytes) -> Group:
        """The key group; a new one if need be."""
        group = self.groups.get(prefix)
        if group is None:
            group = self.groups[prefix] = Group()
        return group

    def store(self, bucket: Bucket, key: bytes, value: bytes | None) -> None:
        """Cache a value; it is used."""
        entries = bucket.entries
        size_bytes = entry_bytes(key, value)
        if key in entries:
            size_bytes -= entry_bytes(key, entries[key])
            entries[key] = value
            if self.owner_of is None:
                entries.move_to_end(key)
        else:
            entries[key] = value
            if bucket.known is not None:
                bucket.known.note(key)
        bucket.size_bytes += size_bytes
        self.size_bytes += size_bytes
        if bucket.group.touched is not None:
            self._touch(bucket.group, (key,), is_change=True)

    def store_changes(self, puts: Iterable[tuple[bytes, bytes]], dirty: dict[bytes, Bucket]) -> None:
        """Cache values that are to be written, in a table without owners; ``dirty`` is told of each."""
        # Every row of a small batch comes here: no call for each.
        groups, grown = self.groups, 0
        for key, value in puts:
            group = groups.get(key[:2])
            if group is None or group.touched is not None or not group.buckets:
                bucket = self.make(key)
                self.store(bucket, key, value)
            else:
                bucket = group.buckets[b""]
                entries = group.entries
                old = entries.get(key, _ABSENT)
                entries[key] = value
                if old is _ABSENT:
                    size_bytes = len(key) + len(value) + ENTRY_OVERHEAD_BYTES
                else:
                    entries.move_to_end(key)
                    size_bytes = len(value) - len(old or b"")
                bucket.size_bytes += size_bytes
                grown += size_bytes
            bucket.unwritten.add(key)
            dirty[key] = bucket
        self.size_bytes += grown

    def store_owned(
        self, puts: Iterable[tuple[bytes, bytes | None]], note_change: Callable[[Bucket, bytes], None]
    ) -> None:
        """Cache values that are to be written (None: deleted), in a table with owners.

        ``note_change`` is told of each before.
        """
        owner_of = self.owner_of
        assert owner_of is not None
        # Every item of a batch comes here: nothing is looked up twice for the items of one owner.
        owner, bucket, grown = b"", None, 0
        for key, value in puts:
            if bucket is None or not owner or not key.startswith(owner):
                owner = owner_of(key)
                bucket = self._made(key[:2], owner)
            note_change(bucket, key)
            if bucket.known is not None or bucket.group.touched is not None or not owner:
                self.store(bucket, key, value)
                continue
            entries = bucket.entries
            old = entries.get(key, _ABSENT)
            entries[key] = value
            if old is _ABSENT:
                size_bytes = len(key) + len(value or b"") + ENTRY_OVERHEAD_BYTES
            else:
                size_bytes = len(value or b"") - len(old or b"")
            bucket.size_bytes += size_bytes
            grown += size_bytes
        self.size_bytes += grown

    def delete_owned(self, keys: dict[bytes, None]) -> Bucket | None:
        """Note keys of one owner as absent, and return its bucket.

        Returns:
            None: they are of several owners, or something is to be noted for each. Nothing was done.
        """
        assert self.owner_of is not None
        owner = self.owner_of(next(iter(keys)))
        # What lies between two keys of an owner is the owner's.
        if not owner or not (min(keys).startswith(owner) and max(keys).startswith(owner)):
            return None
        bucket = self._made(owner[:2], owner)
        if bucket.known is not None:
            return None
        bucket.note_all_unwritten(keys)
        # Each item of a range comes here: of what is not cached nothing is written out for each.
        entries = bucket.entries
        before = {key: entries[key] for key in keys.keys() & entries.keys()}
        size_bytes = _bytes_of(keys) - _bytes_of(before)
        entries.update(keys)
        bucket.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._touch(bucket.group, keys, is_change=True)
        return bucket

    def store_group(self, bucket: Bucket, values: dict[bytes, bytes]) -> None:
        """Cache values of one bucket of a table without owners, which are to be written; they are used."""
        # Every row of a large batch comes here: of what is new nothing is written out for each.
        entries, size_bytes = bucket.entries, _bytes_of(values)
        if not entries.keys().isdisjoint(values):
            for key in values:
                old = entries.get(key, _ABSENT)
                if old is not _ABSENT:
                    entries.move_to_end(key)
                    size_bytes -= len(key) + len(old or b"") + ENTRY_OVERHEAD_BYTES
        entries.update(values)
        bucket.unwritten.update(values)
        bucket.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._touch(bucket.group, values, is_change=True)

    def store_loaded(self, loaded: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Cache values of keys that are not cached, those of a key group one after the other; they are used."""
        if self.owner_of is not None:
            for key, value in loaded:
                self.store(self.make(key), key, value)
            return
        for prefix, entries in groupby(loaded, _prefix):
            part = dict(entries)
            bucket = self.make(prefix)
            bucket.entries.update(part)
            size_bytes = _bytes_of(part)
            bucket.size_bytes += size_bytes
            self.size_bytes += size_bytes
            self._touch(bucket.group, part, is_change=False)

    def store_new(self, puts: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes, Bucket | None]]:
        """Cache values, each the first one of an owner of which the store has nothing.

        Returns:
            They again, and where they are; None: something of the owner is cached, and the value is not.
        """
        assert self.owner_of is not None
        groups, owner_of, time = self.groups, self.owner_of, self.time
        for key, value in puts:
            group = groups.get(key[:2]) or self.group(key[:2])
            owner = owner_of(key)
            if owner in group.buckets:
                yield key, value, None
                continue
            bucket = group.buckets[owner] = Bucket(group, time, is_ordered=False)
            bucket.is_whole = True
            bucket.entries[key] = value
            bucket.unwritten.add(key)
            bucket.size_bytes = len(key) + len(value) + ENTRY_OVERHEAD_BYTES
            self.size_bytes += bucket.size_bytes
            if group.touched is not None:
                self._touch(group, (key,), is_change=True)
            yield key, value, bucket

    def values_of(self, owner: bytes) -> list[bytes] | None:
        """All values of an owner, in the order of their keys; None: the store may have others."""
        group = self.groups.get(owner[:2])
        bucket = None if group is None else group.buckets.get(owner)
        if bucket is None or not bucket.is_whole:
            return None
        entries = bucket.entries
        ordered = entries if len(entries) == 1 else sorted(entries)
        return [value for key in ordered if (value := entries[key]) is not None]

    def _touch(self, group: Group, keys: Iterable[bytes], *, is_change: bool) -> None:
        if group.touched is not None:
            group.touched.update(dict.fromkeys(keys, is_change))
            if len(group.touched) > _TOUCHED_MAX:
                group.touched = None

    def know(self, bucket: Bucket, known: KnownRange | None) -> None:
        """Note where an owner has nothing but what is cached; None: anywhere it may."""
        grown = KNOWN_BYTES * ((known is not None) - (bucket.known is not None))
        bucket.known = known
        bucket.size_bytes += grown
        self.size_bytes += grown

    def drop(self, bucket: Bucket, key: bytes) -> None:
        """Forget a value that is written; a copy of its group that lacks a change of it is void."""
        bucket.is_whole = False
        if bucket.known is not None:
            self.know(bucket, None)
        size_bytes = entry_bytes(key, bucket.entries.pop(key))
        bucket.size_bytes -= size_bytes
        self.size_bytes -= size_bytes
        touched = bucket.group.touched
        if touched is not None and touched.pop(key, False):
            bucket.group.touched = None

    def drop_together(self, bucket: Bucket, owner: bytes, keys: Collection[bytes]) -> None:
        """Forget those of these keys of an owner, each there once, that are cached."""
        if bucket.known is not None:
            self.know(bucket, None)
        # Each item of a range comes here, mostly all of it is cached or nothing: nothing is written out for each.
        entries = bucket.entries
        count = len(entries)
        values = list(map(entries.pop, keys, repeat(_ABSENT)))
        count -= len(entries)
        cached: Collection[bytes] = keys if count else ()
        if 0 < count < len(keys):
            cached = [key for key, value in zip(keys, values, strict=True) if value is not _ABSENT]
            values = [value for value in values if value is not _ABSENT]
        size_bytes = 0
        if cached:
            size_bytes = sum(map(len, cached)) + sum(map(len, filter(None, values)))
        size_bytes += ENTRY_OVERHEAD_BYTES * count
        bucket.size_bytes -= size_bytes
        self.size_bytes -= size_bytes
        self.forget_empty(bucket, owner)

    def void_copy(self, owner: bytes) -> None:
        """What a copy of the owner's group for a new owner lacks is not noted one by one."""
        group = self.groups.get(owner[:2])
        if group is not None:
            group.touched = None

    def forget_empty(self, bucket: Bucket, owner: bytes) -> None:
        """Forget a bucket that has nothing any more."""
        if not bucket.entries and bucket.group.buckets.get(owner) is bucket:
            self.know(bucket, None)
            del bucket.group.buckets[owner]
            bucket.group.entries = {}

    def set_aside(self, prefix: bytes) -> None:
        """Forget a key group with all of its buckets; takes no longer for many entries."""
        group = self.groups.pop(prefix, None)
        for bucket in () if group is None else group.buckets.values():
            self._set_aside(bucket)

    def set_owner_aside(self, owner: bytes) -> Bucket | None:
        """Forget the bucket of an owner and return it, if there is one; takes no longer for many entries."""
        group = self.groups.get(owner[:2])
        if group is None:
            return None
        group.touched = None
        bucket = group.buckets.pop(owner, None)
        if bucket is not None:
            self._set_aside(bucket)
        return bucket

    def _set_aside(self, bucket: Bucket) -> None:
        bucket.died = self.time
        self.size_bytes -= bucket.size_bytes
        self._aside.append(bucket.entries)

    def sweep(self) -> None:
        """Give some of what was set aside back to the system."""
        left = _SWEPT_MAX
        while self._aside and left > 0:
            entries = self._aside[0]
            for _ in range(min(left, len(entries))):
                entries.popitem()
                left -= 1
            if not entries:
                self._aside.popleft()
            left -= 1

    def oldest(self) -> tuple[Bucket, bytes, list[bytes]]:
        """The bucket that is evicted from next, with its owner, and the keys that go; the group's turn is over."""
        prefix, group = next(iter(self.groups.items()))
        self.groups.move_to_end(prefix)
        if not group.buckets:
            return Bucket(group, self.time, is_ordered=False), b"", []
        owner, bucket = next(iter(group.buckets.items()))
        count = min(max(len(bucket.entries) // _EVICTED_SHARE, _EVICTED_MIN), _EVICTED_MAX)
        return bucket, owner, list(islice(bucket.entries, count))

    def forget_group_if_empty(self, group: Group) -> None:
        """Forget a key group without buckets, unless it is copied to a new owner; it had the latest turn."""
        if not group.buckets and group.touched is None:
            prefix = next(reversed(self.groups))
            if self.groups[prefix] is group:
                del self.groups[prefix]

    def latest(self, prefix: bytes, count_max: int, bytes_max: int) -> list[tuple[bytes, bytes | None]]:
        """Entries of a key group, those used last last, and only these if there are more than so many."""
        found: list[tuple[bytes, bytes | None]] = []
        group = self.groups.get(prefix)
        for bucket in reversed(group.buckets.values()) if group is not None else ():
            for key in reversed(bucket.entries):
                value = bucket.entries[key]
                bytes_max -= len(key) + len(value or b"")
                if bytes_max < 0 or len(found) >= count_max:
                    return found[::-1]
                found.append((key, value))
        return found[::-1]

    def unwritten(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """What the store has not of a range; ascending, if it is of one owner, else in no order."""
        if start is not None and stop is not None and self.is_of_one_owner(start, stop):
            owned = self.find(start)
            yield from () if owned is None else owned.unwritten_between(start, stop)
            return
        for bucket in self._reaching_into(start, stop):
            for key in bucket.unwritten:
                if (start is None or key >= start) and (stop is None or key < stop):
                    yield key, bucket.entries[key]

    def _reaching_into(self, start: bytes | None, stop: bytes | None) -> Iterable[Bucket]:
        if start is not None and stop is not None and len(start) >= 2 and stop <= start[:2] + b"\xff":
            group = self.groups.get(start[:2])
            return () if group is None else group.buckets.values()
        return [bucket for group in self.groups.values() for bucket in group.buckets.values()]

    def is_of_one_owner(self, start: bytes, stop: bytes) -> bool:
        """Whether a range has keys of one owner only."""
        if self.owner_of is None:
            return False
        owner = self.owner_of(start)
        return bool(owner) and stop <= owner + b"\xff"


def _bytes_of(entries: Mapping[bytes, bytes | None]) -> int:
    """Return the sum of :func:`entry_bytes`, without a call for each entry."""
    values_bytes = sum(map(len, filter(None, entries.values())))
    return sum(map(len, entries)) + values_bytes + ENTRY_OVERHEAD_BYTES * len(entries)


def _prefix(entry: tuple[bytes, bytes | None]) -> bytes:
    return entry[0][:2]
