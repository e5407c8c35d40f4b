"""Where cached values lie: the entries that go together, and those of one key group. See ``value_buckets``."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from weir.state.tables.values.key_order import KeyOrder
from weir.state.tables.values.known_ranges import KnownRange

#: What an entry occupies beside its bytes: two object headers and a slot of the ordered dictionary.
ENTRY_OVERHEAD_BYTES = 230


class Bucket:
    """Entries that are evicted, scanned and cleared together."""

    __slots__ = (
        "born",
        "died",
        "entries",
        "group",
        "is_stored",
        "is_whole",
        "known",
        "order",
        "size_bytes",
        "unwritten",
    )

    def __init__(self, group: Group, born: int, *, is_ordered: bool) -> None:
        self.group = group
        #: None stands for a key that is known to be absent. Of plain tables in the order of use, the last used last.
        self.entries: Any = OrderedDict() if is_ordered else {}
        #: Keys that the store has not as they were at the latest barrier, or now.
        self.unwritten: set[bytes] = set()
        self.size_bytes = 0
        #: When it was made, and when it was set aside, see ``Buckets.time``; None: it counts.
        self.born = born
        self.died: int | None = None
        #: Whether the store has nothing that is not cached; and whether it has something, but for captures.
        self.is_whole = self.is_stored = False
        #: Of an owner: where the store has no keys but those that are here.
        self.known: KnownRange | None = None
        #: Of an owner that was scanned: what is unwritten, and more, in order.
        self.order: KeyOrder | None = None

    def note_unwritten(self, key: bytes) -> None:
        """The store has not a key as it is now."""
        if self.order is not None and key not in self.unwritten:
            if self.order.is_stale(self.unwritten):
                # The next scan, if one comes, begins anew.
                self.order = None
            else:
                self.order.note(key)
        self.unwritten.add(key)

    def note_all_unwritten(self, keys: dict[bytes, None]) -> None:
        """:meth:`note_unwritten` of each."""
        if self.order is not None:
            if self.order.is_stale(self.unwritten):
                self.order = None
            else:
                self.order.note_all(keys.keys() - self.unwritten)
        self.unwritten.update(keys)

    def unwritten_between(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes | None]]:
        """What the store has not of a range, ascending."""
        if not self.unwritten:
            self.order = None
            return []
        if self.order is None:
            self.order = KeyOrder(self.unwritten)
        entries = self.entries
        return [(key, entries[key]) for key in self.order.between(start, stop, self.unwritten)]


class Group:
    """The buckets of one key group, by owner (of a table without owners: below the empty one), the last used last."""

    __slots__ = ("buckets", "entries", "touched")

    def __init__(self) -> None:
        self.buckets: OrderedDict[bytes, Bucket] = OrderedDict()
        #: Of a table without owners the entries of the only bucket.
        self.entries: Any = {}
        #: Keys that came (False) or changed (True) since the group was copied for a new owner; None: it was not, or
        #: the copy is void.
        self.touched: dict[bytes, bool] | None = None


def entry_bytes(key: bytes, value: bytes | None) -> int:
    """What an entry counts for in the bound of the cache."""
    return len(key) + len(value or b"") + ENTRY_OVERHEAD_BYTES
