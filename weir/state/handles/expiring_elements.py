"""Handles of lists and maps with a TTL: each element has a time of its own, and is gone when it has expired.

The store keys are those without a TTL (``weir.state.handles.elements``), each value begins with its time
(``weir.state.tables.expiry``), and the entry ``00`` has another form:

=====  ===============================================================================================================
list   the time of its newest element; ``02``; position of the first element, number of elements and a time before
       which no element was written (int64 each); whether the times never decrease from the first one to the last
map    the time of its newest item; ``02``; number of items, a time before which no item was written (int64 each)
=====  ===============================================================================================================

Elements that have expired may be there still, or may have been swept: the entry ``00`` does not say. It says when
something may have: then, at the first use in a batch, a list is made good, that is, expired elements are taken out
(from its beginning on if times do not decrease; else all of it is read). A map is made good when its length is asked
for: all of it is read; otherwise expired items are passed over.

Rows are not in the order of their times: what has expired for one row may be there for the next one. A list, which is
in order of place, drops it all the same; a map keeps it until the watermark has passed it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from weir.errors import StateMismatchError
from weir.state.handles.block import Cursor, Keys
from weir.state.handles.declarations import Declaration
from weir.state.handles.elements import ElementHandle
from weir.state.tables.expiry import Expiry
from weir.state.tables.stamps import UNDATED
from weir.state.types import STAMP_BYTES, STAMPED

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

_VERSION = 2
_NEVER = 2**63 - 1
#: The newest of elements of which some have a time that is not known yet: it is looked at each.
_OPEN = 2**62


class _Bounds:
    """What is known of the times of the elements of one key."""

    __slots__ = ("good_ms", "in_order", "newest", "oldest")

    def __init__(self, oldest: int = _NEVER, newest: int = UNDATED, in_order: bool = True) -> None:
        self.oldest, self.newest, self.in_order = oldest, newest, in_order
        #: Nothing among the elements has expired at this time; None: that was not looked at.
        self.good_ms: int | None = None


class ExpiringElements(ElementHandle):
    """What lists and maps with a TTL share. Changes of the batch have their times, as in the table."""

    _timed_format: struct.Struct

    def __init__(self, state: Declaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        assert state.ttl is not None
        assert self._table.expiry is not None
        self._expiry: Expiry = self._table.expiry
        self._is_refreshed_by_access = state.ttl.refreshed_by == "access"
        self._bounds_of: list[_Bounds] = []

    # --- the entry 00 ---

    def _take_metas(self, block: Keys, stored: list[bytes | None]) -> None:
        self._expiry.begin(block.hashes)
        self._metas, self._bounds_of = [], []
        for data in stored:
            numbers, bounds = self._read_timed(data)
            self._metas.append(numbers)
            self._bounds_of.append(bounds)

    def _read_timed(self, data: bytes | None) -> tuple[tuple[int, ...], _Bounds]:
        plain = self._expiry.kept(data)
        if data is None or plain is None:
            # If its newest element has expired, all have.
            return self._read_meta(None), _Bounds()
        if data[:1] != STAMPED:
            return self._read_meta(data), _Bounds(UNDATED)
        version, *numbers = self._timed_format.unpack(plain)
        if version != _VERSION:
            raise StateMismatchError(
                f"state {self.name!r} has format version {version}, this program reads {_VERSION}"
            )
        return self._from_timed(numbers, self._expiry.stamp_of(data))

    def _from_timed(self, numbers: list[int], newest: int) -> tuple[tuple[int, ...], _Bounds]:
        raise NotImplementedError

    def _oldest(self, at: int) -> int:
        """What to store: undated elements are as old as the state's knowledge of the time."""
        return self._dated(self._bounds_of[at].oldest)

    def _dated(self, stamp: int) -> int:
        """Time of an element; undated ones count as of when the state knew the time, once it does."""
        return self._expiry.since_ms if stamp == UNDATED else stamp

    def _is_open(self, oldest: int, newest: int) -> bool:
        """Return whether the time of undated elements is not known yet, which may be later than that of others."""
        return oldest == UNDATED != newest and self._expiry.since_ms == UNDATED

    def _meta_prefix(self, at: int) -> bytes:
        """The time of the newest element, which rows after the one that wrote it must not make later."""
        newest = self._bounds_of[at].newest
        return self._expiry.stamped(newest, b"") if self._expiry.is_in_rows else self._expiry.prefix

    def _set_meta(self, at: int, *numbers: int) -> None:
        super()._set_meta(at, *numbers)
        if not numbers[-1]:
            self._bounds_of[at] = _Bounds()

    def _at(self) -> int:
        at = super()._at()
        self._turn(at)
        return at

    def _turn(self, at: int) -> None:
        """Where rows of several keys are processed together: it is the turn of this key."""
        if self._expiry.goes_by_keys:
            assert self._cursor.block is not None
            self._expiry.turn_to(int(self._cursor.block.hashes[at]))

    def _may_have_expired(self, at: int) -> bool:
        if not self._metas[at][-1]:
            return False
        bounds = self._bounds_of[at]
        # Of undated ones and others it is not known which are the oldest.
        return bounds.oldest == UNDATED != bounds.newest or self._expiry.is_expired(bounds.oldest)

    # --- elements ---

    def _raw(self, at: int, keys: list[bytes]) -> list[bytes | None]:
        return super()._get(at, keys)

    def _raw_entries(self, at: int) -> Iterator[tuple[bytes, bytes]]:
        return super()._entries(at)

    def _get(self, at: int, keys: list[bytes]) -> list[bytes | None]:
        self._turn(at)
        live = self._expiry.live
        return [live(data) for data in super()._get(at, keys)]

    def _entries(
        self, at: int, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, data in super()._entries(at, start, stop, reverse=reverse):
            plain = self._expiry.live(data)
            if plain is not None:
                yield key, plain

    def _put(self, at: int, key: bytes, data: bytes | None) -> None:
        if data is None:
            super()._put(at, key, None)
        else:
            self._turn(at)
            super()._put(at, key, self._expiry.prefix + data)
            self._note_written(at)

    @override
    def _places(self, keys: Keys) -> list[int]:
        places = super()._places(keys)
        for place in places:
            self._turn(place)
        return places

    def _read_each(self, elements: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Elements of several keys in one go, without what has expired; of those in use the time begins anew."""
        if any(self._changes):
            found = [self._get(at, [key])[0] for at, key in elements]
        else:
            stored = self._table.get_stored([key for _, key in elements])
            found = [self._live_of(at, data) for (at, _), data in zip(elements, stored, strict=True)]
        if self._is_refreshed_by_access:
            for at, key in elements:
                self._refresh(at, [key])
        return found

    def _live_of(self, at: int, data: bytes | None) -> bytes | None:
        """An element as of the time of the key at this position."""
        self._turn(at)
        return self._expiry.live(data)

    def _note_written(self, at: int) -> None:
        """An element has the time of now: the entry 00 has to say so."""
        bounds, stamp = self._bounds_of[at], self._expiry.stamp
        bounds.oldest = min(bounds.oldest, stamp)
        if self._is_open(bounds.oldest, stamp):
            bounds.newest = _OPEN
        if stamp < bounds.newest:
            bounds.in_order = False
        else:
            bounds.newest = stamp
        self._changed_metas.add(at)

    def _change(self, at: int, key: bytes, data: bytes | None) -> None:
        """Change an entry, with its time, without the author's doing: iterations go on."""
        changes = self._changes[at]
        if changes is None:
            changes = self._changes[at] = {}
        changes[key] = data

    def _refresh(self, at: int, keys: list[bytes]) -> None:
        """Let the time of these elements, those that are there, begin anew."""
        self._turn(at)
        stamp = self._expiry.stamp
        for key, data in zip(keys, self._raw(at, keys), strict=True):
            if data is None or self._expiry.live(data) is None or self._expiry.stamp_of(data) >= stamp:
                continue
            plain = data[STAMP_BYTES:] if data[:1] == STAMPED else data
            self._change(at, key, self._expiry.prefix + plain)
            self._note_written(at)
            self._bounds_of[at].in_order = False

    @override
    def discard(self) -> None:
        super().discard()
        self._bounds_of = []
        self._expiry.end()
