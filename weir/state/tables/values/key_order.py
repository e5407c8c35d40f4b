"""Keys of an owner that are not written yet, in their order: kept from one scan to the next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable

#: So many new keys are put in one by one, each of which moves those after it; more are sorted in.
_ONE_BY_ONE_MAX = 64
#: Keys that are not there any more are dropped when they are more than those that are, and than this.
_GONE_MAX = 1_000


class KeyOrder:
    """A scan looks at its range only, however many keys there are besides. Not for several threads at once."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = sorted(keys)
        self._added: list[bytes] = []

    def note(self, key: bytes) -> None:
        """A key is new, or may be."""
        self._added.append(key)

    def note_all(self, keys: Iterable[bytes]) -> None:
        """:meth:`note` of each."""
        self._added += keys

    def is_stale(self, kept: Collection[bytes]) -> bool:
        """Whether far more was noted since the last scan than ``kept`` has: it is written often, but not scanned."""
        return len(self._added) > 2 * len(kept) + _GONE_MAX

    def between(self, start: bytes, stop: bytes, kept: Collection[bytes]) -> list[bytes]:
        """Keys with ``start <= key < stop`` that are among ``kept``, ascending, each once.

        ``kept``: no key that was neither given at first nor noted; those that are not in it need not be told.
        """
        self._take_in()
        if len(self._keys) > 2 * len(kept) + _GONE_MAX:
            self._keys = sorted(kept)
        found = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        return [key for key in dict.fromkeys(found) if key in kept]

    def _take_in(self) -> None:
        keys, added = self._keys, self._added
        if not added:
            return
        self._added = []
        added.sort()
        if not keys or keys[-1] <= added[0]:
            keys += added
        elif len(added) <= _ONE_BY_ONE_MAX:
            for key in added:
                insort(keys, key)
        else:
            keys += added
            # Two runs in order are merged, not sorted.
            keys.sort()
