"""Handles of lists and maps, whose elements have store keys of their own below the key's.

A key's entries begin with ``Keys.element_prefixes``, then come:

==============================  ========================================================================
``00``                          a version byte; of a list the position of its first element (int64) and the number of
                                elements (int64), of a map the number of items (int64); little endian
``01`` + 8 bytes                an element of a list, by its position: big endian, 2**63 added, so that it sorts
``01`` + map key                an item of a map: ``MapKeyType.encode``
==============================  ========================================================================

So adding to a list costs two writes however long it is, and a map is read in the order of its keys.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from weir.errors import StateMismatchError
from weir.state.handles.below_key import BelowKeyHandle
from weir.state.handles.block import Cursor, Keys, element_owner
from weir.state.handles.declarations import Declaration
from weir.state.types import STAMP_BYTES, STAMPED

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

_META = b"\x00"
_VERSION = 1
#: Elements that are read at a time.
READ_COUNT = 1_000
MISSING: Any = object()


class ElementHandle(BelowKeyHandle):
    """What lists and maps share: entries below a key, and those of this batch that are not written yet."""

    _meta_format: struct.Struct

    def __init__(self, state: Declaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables.values(state.name, element_owner, ttl=state.ttl), cursor)
        self._type = state.type
        #: Of the block, by key: meta entry, and changed elements by their store keys (None: deleted).
        self._metas: list[tuple[int, ...]] = []
        self._changes: list[dict[bytes, bytes | None] | None] = []
        self._changed_metas: set[int] = set()
        #: Of the block, by key: ranges of store keys that were taken away, with the keys that had elements.
        self._popped: dict[int, list[tuple[bytes, bytes, list[bytes]]]] = {}

    def _at(self) -> int:
        """The position of the current key, whose meta entry is read.

        Raises:
            StateError: there is no current key.
        """
        if self._prefixes is None or self._cursor.index is None:
            block, index = self._current()
            if self._prefixes is None:
                prefixes = self._ahead.begin(block)
                stored = self._table.get_stored([prefix + _META for prefix in prefixes])
                self._changes = [None] * len(prefixes)
                self._changed_metas = set()
                self._prefixes = prefixes
                self._take_metas(block, stored)
            return index
        return self._cursor.index

    def _places(self, keys: Keys) -> list[int]:
        """Begin the block; return for each row the position of its key there."""
        places: list[int] = keys.inverse.tolist()
        if places:
            self._cursor.index = places[0]
            self._at()
        return places

    def _read_each(self, elements: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Elements of several keys, each with its position in the block; in one go."""
        if any(self._changes):
            return [self._get(at, [key])[0] for at, key in elements]
        return self._table.get_stored([key for _, key in elements])

    def _take_metas(self, block: Keys, stored: list[bytes | None]) -> None:
        """Take in the meta entries of the block's keys."""
        try:
            self._metas = [self._read_meta(data) for data in stored]
        except struct.error:
            # The state had a TTL when these keys were written last. What is left of them is written as without one.
            timed = [at for at, data in enumerate(stored) if data is not None and data[:1] == STAMPED]
            self._metas = [self._read_meta(None if at in timed else data) for at, data in enumerate(stored)]
            for at in timed:
                entries = list(self._entries(at))
                self._take_all(at, [(key, data[STAMP_BYTES:]) for key, data in entries])

    @abstractmethod
    def _take_all(self, at: int, entries: list[tuple[bytes, bytes]]) -> None:
        """Have these elements, which the store holds under these keys with their times, without times."""

    def _read_meta(self, data: bytes | None) -> tuple[int, ...]:
        if data is None:
            return (0,) * (len(self._meta_format.format) - 2)
        version, *numbers = self._meta_format.unpack(data)
        if version != _VERSION:
            raise StateMismatchError(
                f"state {self.name!r} has format version {version}, this program reads {_VERSION}"
            )
        return tuple(numbers)

    def _pack_meta(self, at: int) -> bytes:
        return self._meta_format.pack(_VERSION, *self._metas[at])

    def _get(self, at: int, keys: list[bytes]) -> list[bytes | None]:
        """Elements of one key, as they are now."""
        changes = self._changes[at]
        if at in self._cleared:
            return [(changes or {}).get(key) for key in keys]
        unknown = [key for key in keys if key not in changes] if changes else keys
        if unknown:
            assert self._prefixes is not None
            self._ahead.use(at, self._prefixes)
        if not changes:
            return self._table.get_stored(keys)
        found = dict(zip(unknown, self._table.get_stored(unknown), strict=True)) if unknown else {}
        return [changes[key] if key in changes else found[key] for key in keys]

    def _put(self, at: int, key: bytes, data: bytes | None) -> None:
        changes = self._changes[at]
        if changes is None:
            changes = self._changes[at] = {}
        changes[key] = data
        self._version += 1

    def _set_meta(self, at: int, *numbers: int) -> None:
        self._metas[at] = numbers
        self._changed_metas.add(at)
        self._version += 1

    def _clear_range(self, at: int) -> None:
        """Let all entries of one key be deleted when the batch ends, however many they are."""
        self._changes[at] = None
        self._popped.pop(at, None)
        self._cleared.add(at)

    @override
    def apply(self) -> None:
        if self._prefixes is not None:
            puts: list[tuple[bytes, bytes]] = []
            deletes: list[bytes] = []
            for at in self._cleared:
                self._table.clear_owner(self._prefixes[at])
            # What belongs to one key comes together: the table then looks its place up once.
            for at, changes in enumerate(self._changes):
                if changes and not self._apply_popped(at, changes):
                    deletes += [key for key, data in changes.items() if data is None]
                    puts += [(key, data) for key, data in changes.items() if data is not None]
                if at in self._changed_metas:
                    key = self._prefixes[at] + _META
                    if self._metas[at][-1]:
                        puts.append((key, self._pack_meta(at)))
                    else:
                        deletes.append(key)
            if puts or deletes:
                self._table.write_stored(puts, deletes)
        self.discard()

    def _apply_popped(self, at: int, changes: dict[bytes, bytes | None]) -> bool:
        """Delete the ranges that were taken away from a key, and drop from its changes what they say of that.

        Returns:
            Whether no other changes are left.
        """
        count = 0
        for start, stop, keys in self._popped.get(at, ()):
            self._table.clear_range(start, stop, keys)
            count += len(keys)
        if count == len(changes) == list(changes.values()).count(None):
            return True
        for _, _, keys in self._popped.get(at, ()):
            for key in keys:
                # Some were put again, or taken away again.
                if changes.get(key, b"") is None:
                    del changes[key]
        return not changes

    @override
    def discard(self) -> None:
        if self._prefixes is not None:
            self._ahead.end()
        self._prefixes = None
        self._metas, self._changes = [], []
        self._changed_metas, self._cleared, self._popped = set(), set(), {}
