"""Handles of lists and maps with a TTL; ``weir.state.handles.expiring_elements`` says how their elements are stored."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from weir.state.handles.block import Keys
from weir.state.handles.elements import READ_COUNT
from weir.state.handles.lists import ListHandle
from weir.state.handles.maps import MapHandle
from weir.state.tables.stamps import UNDATED

if TYPE_CHECKING:
    pass
from weir.state.handles.expiring_elements import _NEVER, _OPEN, _VERSION, ExpiringElements, _Bounds


class ExpiringListHandle(ExpiringElements, ListHandle):
    """The list of the current key without what has expired; later elements move up."""

    _timed_format = struct.Struct("<BqqqB")

    def _from_timed(self, numbers: list[int], newest: int) -> tuple[tuple[int, ...], _Bounds]:
        head, count, oldest, in_order = numbers
        return (head, count), _Bounds(oldest, newest, bool(in_order))

    def _pack_meta(self, at: int) -> bytes:
        numbers = (*self._metas[at], self._oldest(at), self._bounds_of[at].in_order)
        return self._meta_prefix(at) + self._timed_format.pack(_VERSION, *numbers)

    def _at(self) -> int:
        at = super()._at()
        if self._bounds_of[at].good_ms != self._expiry.now_ms:
            self._bounds_of[at].good_ms = self._expiry.now_ms
            if self._may_have_expired(at):
                self._make_good(at)
        return at

    def _make_good(self, at: int) -> None:
        if self._expiry.is_expired(self._bounds_of[at].newest):
            self._set_meta(at, 0, 0)
        elif self._bounds_of[at].in_order:
            self._drop_first(at)
        else:
            self._drop_everywhere(at)
        self._bounds_of[at].good_ms = self._expiry.now_ms
        self._changed_metas.add(at)

    def _drop_first(self, at: int) -> None:
        """Take out what has expired at the beginning; after the first live element there is nothing more."""
        head, count = self._metas[at]
        for start in range(head, head + count, READ_COUNT):
            stop = min(head + count, start + READ_COUNT)
            keys = [self._key(at, position) for position in range(start, stop)]
            for position, key, data in zip(range(start, stop), keys, self._raw(at, keys), strict=True):
                if data is not None and self._expiry.live(data) is not None:
                    self._metas[at] = (position, head + count - position)
                    self._bounds_of[at].oldest = self._dated(self._expiry.stamp_of(data))
                    return
                if data is not None:
                    self._change(at, key, None)
        self._set_meta(at, 0, 0)

    def _drop_everywhere(self, at: int) -> None:
        """Take out what has expired anywhere; what comes after it moves up."""
        head, count = self._metas[at]
        kept: list[tuple[int, bytes]] = []
        for start in range(head, head + count, READ_COUNT):
            positions = range(start, min(head + count, start + READ_COUNT))
            found = self._raw(at, [self._key(at, position) for position in positions])
            kept += [
                (position, data)
                for position, data in zip(positions, found, strict=True)
                if data is not None and self._expiry.live(data) is not None
            ]
        for target, (position, data) in enumerate(kept, head):
            if position != target:
                self._change(at, self._key(at, target), data)
        for position in range(head + len(kept), head + count):
            self._change(at, self._key(at, position), None)
        if not kept:
            self._set_meta(at, 0, 0)
            return
        stamps = [self._dated(self._expiry.stamp_of(data)) for _, data in kept]
        self._metas[at] = (head, len(kept))
        bounds = self._bounds_of[at]
        bounds.oldest, bounds.newest = min(stamps), max(stamps)
        bounds.in_order = stamps == sorted(stamps)
        if self._is_open(bounds.oldest, bounds.newest):
            bounds.newest, bounds.in_order = _OPEN, False

    def appendleft(self, value: Any) -> None:
        """Add an element at the beginning; raises as :meth:`append`."""
        super().appendleft(value)
        self._lose_order()

    def __setitem__(self, index: int, value: Any) -> None:
        super().__setitem__(index, value)
        self._lose_order()

    def _lose_order(self) -> None:
        at = self._at()
        if self._metas[at][1] > 1:
            self._bounds_of[at].in_order = False

    def _read(self, at: int, keys: list[bytes]) -> list[Any]:
        values = super()._read(at, keys)
        if self._is_refreshed_by_access:
            self._refresh(at, keys)
        return values


class ExpiringMapHandle(ExpiringElements, MapHandle):
    """The map of the current key without what has expired."""

    _timed_format = struct.Struct("<Bqq")
    # What has expired for one row stays for others.
    _pops_ranges = False

    def _from_timed(self, numbers: list[int], newest: int) -> tuple[tuple[int, ...], _Bounds]:
        count, oldest = numbers
        return (count,), _Bounds(oldest, newest)

    def _pack_meta(self, at: int) -> bytes:
        return self._meta_prefix(at) + self._timed_format.pack(_VERSION, *self._metas[at], self._oldest(at))

    def __len__(self) -> int:
        at = self._at()
        return self._count(at) if self._may_have_expired(at) else self._metas[at][0]

    def _count(self, at: int) -> int:
        """The number of items. Takes out what has expired for all rows that may come, and notes what is left."""
        live, left, oldest, newest = 0, 0, _NEVER, UNDATED
        for key, data in list(self._raw_entries(at)):
            if self._expiry.kept(data) is None:
                self._change(at, key, None)
                continue
            stamp = self._dated(self._expiry.stamp_of(data))
            left, oldest, newest = left + 1, min(oldest, stamp), max(newest, stamp)
            live += self._expiry.live(data) is not None
        self._metas[at] = (left,)
        if left:
            is_open = self._is_open(oldest, newest)
            self._bounds_of[at].oldest, self._bounds_of[at].newest = oldest, _OPEN if is_open else newest
        else:
            self._bounds_of[at] = _Bounds()
        self._changed_metas.add(at)
        return live

    def _is_kept(self, at: int, key: bytes) -> bool:
        return self._kept_each([(at, key)])[0] is not None

    def _kept_each(self, elements: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        # Items that have expired are counted until they are taken out.
        return [self._expiry.kept(self._raw(at, [key])[0]) for at, key in elements]

    def _all_entries(self, at: int) -> Iterator[tuple[bytes, bytes]]:
        return self._raw_entries(at)

    @override
    def _put_items(self, wanted: dict[tuple[int, bytes], bytes | None]) -> None:
        there = self._kept_each(list(wanted))
        for ((at, key), data), before in zip(wanted.items(), there, strict=True):
            if data is None and before is None:
                continue
            self._put(at, key, data)
            change = (data is not None) - (before is not None)
            if change:
                self._set_meta(at, self._metas[at][0] + change)

    @override
    def _found_items(self, keys: Keys, map_keys: Any) -> list[bytes | None]:
        return self._read_each(self._items_of(keys, map_keys))

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a value as a map without a TTL does, without what has expired."""
        value = super().get(key, default)
        if self._is_refreshed_by_access and not isinstance(key, Keys):
            at = self._at()
            self._refresh(at, [self._key(at, key)])
        return value

    def _items_between(
        self, start: bytes | None, stop: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[Any, Any]]:
        for key, value in super()._items_between(start, stop, reverse=reverse):
            if self._is_refreshed_by_access:
                at = self._at()
                self._refresh(at, [self._key(at, key)])
            yield key, value
