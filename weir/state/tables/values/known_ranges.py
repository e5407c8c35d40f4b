"""Ranges of an owner's keys of which a cache has everything: what it lacks there is in no store, either."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

#: Keys of one range at most. What comes later is mostly asked for later, too, so that the first ones are let go.
KNOWN_KEYS_MAX = 1_000
#: What a range occupies beside the entries, in the bound of a cache, with the bucket of an owner without entries.
KNOWN_BYTES = 600


class KnownRange:
    """The keys of one range, those that are known to be absent among them."""

    __slots__ = ("_is_sorted", "_keys", "start", "stop")

    def __init__(self, start: bytes, stop: bytes, keys: Iterable[bytes]) -> None:
        """All keys with ``start <= key < stop`` that the cache or the store has."""
        self.start, self.stop = start, stop
        self._keys = list(keys)
        self._is_sorted = False
        self._trim()

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, key: bytes) -> bool:
        """Whether the key lies within."""
        return self.start <= key < self.stop

    def begins_with(self, start: bytes, stop: bytes, *, reverse: bool) -> bool:
        """Whether the entries that a scan comes to first are known."""
        return self.start < stop <= self.stop if reverse else self.has(start)

    def note(self, key: bytes) -> None:
        """The cache has a key that it did not have."""
        if self.has(key):
            self._keys.append(key)
            self._is_sorted = False
            self._trim()

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys from one on to before another, in order, as far as the range goes."""
        self._sort()
        return self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]

    def joined(self, other: KnownRange) -> KnownRange:
        """Both as one where they touch; else the other one."""
        if self.start > other.stop or other.start > self.stop:
            return other
        start, stop = min(self.start, other.start), max(self.stop, other.stop)
        return KnownRange(start, stop, {*self._keys, *other._keys})

    def forget_before(self, start: bytes) -> None:
        """Keys before this one are not asked for any more."""
        if self.start < start < self.stop:
            self._sort()
            del self._keys[: bisect_left(self._keys, start)]
            self.start = start

    def _trim(self) -> None:
        if len(self._keys) > 2 * KNOWN_KEYS_MAX:
            self._sort()
            self.forget_before(self._keys[-KNOWN_KEYS_MAX])

    def _sort(self) -> None:
        if not self._is_sorted:
            self._keys.sort()
            self._is_sorted = True
