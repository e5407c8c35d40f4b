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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

import polars as pl

from weir.errors import StateMismatchError
from weir.state.handles.block import Cursor, Handle, Keys, check_length, element_owner, listed
from weir.state.tables.value_cache import merged
from weir.state_types import STAMP_BYTES, STAMPED

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables
    from weir.states import ListState, MapState

_META, _ELEMENT, _BEHIND = b"\x00", b"\x01", b"\x02"
_VERSION = 1
#: More elements than this are cleared as a range: a store reads more slowly with many deleted ranges.
_CLEARED_ONE_BY_ONE_MAX = 1_000
#: Elements that are read at a time.
_READ_COUNT = 1_000
_MISSING: Any = object()


class ElementHandle(Handle):
    """What lists and maps share: entries below a key, and those of this batch that are not written yet."""

    _meta_format: struct.Struct

    def __init__(self, state: ListState | MapState, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state.name, cursor)
        self._table = tables.values(state.name, element_owner, ttl=state.ttl)
        self._encode, self._decode = state.type.encode, state.type.decode
        self._dtype = state.type.dtype
        #: Of the block, by key: prefix, meta entry, and changed elements by their store keys (None: deleted).
        self._prefixes: list[bytes] | None = None
        self._metas: list[tuple[int, ...]] = []
        self._changes: list[dict[bytes, bytes | None] | None] = []
        self._changed_metas: set[int] = set()
        #: Keys of the block of which nothing in the table counts any more.
        self._cleared: set[int] = set()
        #: Grows with each change, so that an iteration finds out.
        self._version = 0

    def _at(self) -> int:
        """The position of the current key, whose meta entry is read.

        Raises:
            StateError: there is no current key.
        """
        if self._prefixes is None or self._cursor.index is None:
            block, index = self._current()
            if self._prefixes is None:
                prefixes = block.element_prefixes(self._table)
                stored = self._table.get_stored([prefix + _META for prefix in prefixes])
                self._changes = [None] * len(prefixes)
                self._changed_metas = set()
                self._prefixes = prefixes
                self._take_metas(block, stored)
            return index
        return self._cursor.index

    @contextmanager
    def _together(self, keys: Keys) -> Iterator[Keys]:
        """Use the elements of all of ``keys.distinct``, whose meta entries are read in one go; written in the end.

        What was changed before, below ``context.visit``, is written first. After an error nothing is written.
        """
        self.apply()
        cursor = self._cursor
        before = cursor.block, cursor.index
        cursor.block, cursor.index = keys.distinct, None
        try:
            yield keys.distinct
            self.apply()
        finally:
            self.discard()
            cursor.block, cursor.index = before

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
                entries = list(self._entries(at, None, None, reverse=False))
                self._take_all(at, [(key, data[STAMP_BYTES:]) for key, data in entries])

    @abstractmethod
    def _take_all(self, at: int, entries: list[tuple[bytes, bytes]]) -> None:
        """Have these elements, which the store holds under these keys with their times, without times."""

    def _entries(
        self, at: int, start: bytes | None, stop: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Store keys and bytes of ``start <= key < stop`` below a key (None: all), with this batch's changes."""
        assert self._prefixes is not None
        first = self._prefixes[at] + _ELEMENT if start is None else start
        last = self._prefixes[at] + _BEHIND if stop is None else stop
        counts = first < last and at not in self._cleared
        below = self._table.scan_stored(first, last, reverse=reverse) if counts else iter(())
        changes = self._changes[at]
        if not changes:
            return below
        overlay = sorted((item for item in changes.items() if first <= item[0] < last), reverse=reverse)
        return merged(below, overlay, reverse)

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
        if not changes:
            return self._table.get_stored(keys)
        unknown = [key for key in keys if key not in changes]
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
        self._cleared.add(at)

    def _check_unchanged(self, at: int, version: int) -> None:
        if self._version != version or self._cursor.index != at:
            raise RuntimeError(f"state {self.name!r} changed, or the key did, while it was iterated over")

    def prepare(self) -> None:
        """See :class:`Handle`; values were encoded when they were put."""

    def apply(self) -> None:
        """See :class:`Handle`."""
        if self._prefixes is not None:
            puts: list[tuple[bytes, bytes]] = []
            deletes: list[bytes] = []
            for at in self._cleared:
                self._table.clear_owner(self._prefixes[at])
            for changes in self._changes:
                if changes:
                    for key, data in changes.items():
                        if data is None:
                            deletes.append(key)
                        else:
                            puts.append((key, data))
            for at in self._changed_metas:
                numbers, key = self._metas[at], self._prefixes[at] + _META
                if numbers[-1]:
                    puts.append((key, self._pack_meta(at)))
                else:
                    deletes.append(key)
            if puts or deletes:
                self._table.write_stored(puts, deletes)
        self.discard()

    def discard(self) -> None:
        """See :class:`Handle`."""
        self._prefixes = None
        self._metas, self._changes = [], []
        self._changed_metas, self._cleared = set(), set()


class ListHandle(ElementHandle):
    """The list of the current key; indexes and errors as a Python list has them.

    An element that is read is a copy: to change it, put it back (``names[0] = changed``).
    """

    _meta_format = struct.Struct("<Bqq")

    def __len__(self) -> int:
        at = self._at()
        return self._metas[at][1]

    def __bool__(self) -> bool:
        return len(self) > 0

    def _key(self, at: int, position: int) -> bytes:
        assert self._prefixes is not None
        return self._prefixes[at] + _ELEMENT + (position + 2**63).to_bytes(8, "big")

    def _take_all(self, at: int, entries: list[tuple[bytes, bytes]]) -> None:
        for key, _ in entries:
            self._put(at, key, None)
        for position, (_, data) in enumerate(entries):
            self._put(at, self._key(at, position), data)
        self._set_meta(at, 0, len(entries))

    def _position(self, at: int, index: int) -> int:
        head, count = self._metas[at]
        if not -count <= index < count:
            raise IndexError(
                f"state {self.name!r}: index {index} is out of range, the list has {count} elements"
            )
        return head + (index if index >= 0 else index + count)

    def append(self, value: Any) -> None:
        """Add an element at the end.

        Raises:
            TypeError, ValueError: it is not of the declared type.
        """
        data = self._encode(value)
        at = self._at()
        head, count = self._metas[at]
        self._put(at, self._key(at, head + count), data)
        self._set_meta(at, head, count + 1)

    def appendleft(self, value: Any) -> None:
        """Add an element at the beginning; raises as :meth:`append`."""
        data = self._encode(value)
        at = self._at()
        head, count = self._metas[at]
        self._put(at, self._key(at, head - 1), data)
        self._set_meta(at, head - 1, count + 1)

    @overload
    def extend(self, values: Iterable[Any], /) -> None: ...
    @overload
    def extend(self, keys: Keys, values: Any, /) -> None: ...
    def extend(self, first: Any, second: Any = _MISSING, /) -> None:
        """Add elements at the end, all or, if one is not of the declared type, none.

        ``extend(values)`` adds to the list of the current key. ``extend(keys, values)`` adds one value to the list of
        each key, in order, at once, also if the batch fails later; of a key that is there twice both values count. The
        values are a series, an array of numpy or Arrow, or a list.

        Raises:
            TypeError, ValueError: a value is not of the declared type, or there are more or fewer than keys.
        """
        if second is _MISSING:
            self._extend([self._encode(value) for value in first])
            return
        keys: Keys = first
        check_length(self.name, keys, second)
        data = [self._encode(value) for value in listed(second)]
        with self._together(keys) as distinct:
            added: list[list[bytes]] = [[] for _ in range(len(distinct))]
            for at, value in zip(keys.inverse.tolist(), data, strict=True):
                added[at].append(value)
            for at, values in enumerate(added):
                self._cursor.index = at
                self._extend(values)

    def _extend(self, values: list[bytes]) -> None:
        at = self._at()
        head, count = self._metas[at]
        for offset, data in enumerate(values):
            self._put(at, self._key(at, head + count + offset), data)
        if values:
            self._set_meta(at, head, count + len(values))

    def get(self, keys: Keys) -> Any:
        """The lists of these keys, which may repeat: a Polars series of lists; of dataclasses a list of lists.

        A key without elements has an empty list. All elements of all of these keys are read, in one go.
        """
        with self._together(keys) as distinct:
            places: list[tuple[int, bytes]] = []
            for index in range(len(distinct)):
                self._cursor.index = index
                at = self._at()
                head, count = self._metas[at]
                places += [(at, self._key(at, position)) for position in range(head, head + count)]
            lists: list[list[Any]] = [[] for _ in range(len(distinct))]
            for (at, _), data in zip(places, self._read_each(places), strict=True):
                lists[at].append(self._decoded(data))
        rows = [lists[at] for at in keys.inverse.tolist()]
        return rows if self._dtype is None else pl.Series(self.name, rows, dtype=pl.List(self._dtype))

    def pop(self, index: int = -1) -> Any:
        """Take the last element away, or with index 0 the first one, and return it.

        Raises:
            IndexError: the list is empty, or ``index`` is of an element between.
        """
        at = self._at()
        head, count = self._metas[at]
        if not count:
            raise IndexError(f"state {self.name!r}: pop from an empty list")
        position = self._position(at, index)
        if position not in (head, head + count - 1):
            raise IndexError(
                f"state {self.name!r}: only the first and the last element can be taken out, not {index}"
            )
        key = self._key(at, position)
        value = self._read(at, [key])[0]
        self._put(at, key, None)
        is_last = position == head + count - 1
        self._set_meta(at, *((0, 0) if count == 1 else (head if is_last else head + 1, count - 1)))
        return value

    def popleft(self) -> Any:
        """Take the first element away and return it.

        Raises:
            IndexError: the list is empty.
        """
        return self.pop(0)

    def clear(self) -> None:
        """Take all elements away; a million as quickly as a thousand."""
        at = self._at()
        head, count = self._metas[at]
        if count > _CLEARED_ONE_BY_ONE_MAX:
            self._clear_range(at)
        else:
            for position in range(head, head + count):
                self._put(at, self._key(at, position), None)
        if count:
            self._set_meta(at, 0, 0)

    def replace(self, values: Iterable[Any]) -> None:
        """Have these elements and no others; raises as :meth:`append`, and then nothing has changed."""
        listed = list(values)
        for value in listed:
            self._encode(value)
        self.clear()
        self.extend(listed)

    def __getitem__(self, index: int | slice) -> Any:
        at = self._at()
        if isinstance(index, slice):
            head, count = self._metas[at]
            return self._read(at, [self._key(at, head + offset) for offset in range(*index.indices(count))])
        return self._read(at, [self._key(at, self._position(at, index))])[0]

    def __setitem__(self, index: int, value: Any) -> None:
        data = self._encode(value)
        at = self._at()
        self._put(at, self._key(at, self._position(at, index)), data)

    def __iter__(self) -> Iterator[Any]:
        at = self._at()
        head, count = self._metas[at]
        version = self._version
        for start in range(head, head + count, _READ_COUNT):
            stop = min(head + count, start + _READ_COUNT)
            self._check_unchanged(at, version)
            for value in self._read(at, [self._key(at, position) for position in range(start, stop)]):
                self._check_unchanged(at, version)
                yield value

    def _read(self, at: int, keys: list[bytes]) -> list[Any]:
        return [self._decoded(data) for data in self._get(at, keys)]

    def _decoded(self, data: bytes | None) -> Any:
        if data is None:
            raise StateMismatchError(f"state {self.name!r}: the store lacks an element of a list")
        return self._decode(data)


class MapHandle(ElementHandle):
    """The map of the current key, as a ``dict`` whose items are in the order of their keys.

    A value that is read is a copy: to change it, put it back.
    """

    _meta_format = struct.Struct("<Bq")

    def __init__(self, state: MapState, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        self._key_type = state.key_type

    def __len__(self) -> int:
        at = self._at()
        return self._metas[at][0]

    def __bool__(self) -> bool:
        return len(self) > 0

    def _take_all(self, at: int, entries: list[tuple[bytes, bytes]]) -> None:
        for key, data in entries:
            self._put(at, key, data)
        self._set_meta(at, len(entries))

    def _key(self, at: int, key: Any) -> bytes:
        assert self._prefixes is not None
        return self._prefixes[at] + _ELEMENT + self._key_type.encode(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key; ``default`` if it has none.

        ``get(keys, map_keys)`` with the :class:`Keys` of rows returns the value of one item of each row's map, read in
        one go: a Polars series, null where there is none; of dataclasses a list. Items may repeat.
        """
        if isinstance(key, Keys):
            return self._get_column(key, default)
        at = self._at()
        (data,) = self._get(at, [self._key(at, key)])
        return default if data is None else self._decode(data)

    def put(self, key: Any, value: Any, values: Any = _MISSING) -> None:
        """Set the value of a key.

        ``put(keys, map_keys, values)`` with the :class:`Keys` of rows sets one item of each row's map at once, also if
        the batch fails later. Of an item that is there twice the last value counts; null takes an item away.

        Raises:
            TypeError, ValueError: one of them is not of the declared type, or there are more or fewer than keys.
        """
        if isinstance(key, Keys):
            self._put_column(key, value, values)
            return
        data = self._encode(value)
        at = self._at()
        stored = self._key(at, key)
        if self._get(at, [stored])[0] is None:
            self._set_meta(at, self._metas[at][0] + 1)
        self._put(at, stored, data)

    def _items_of(self, keys: Keys, map_keys: Any) -> list[tuple[int, bytes]]:
        """For each row the position of its key in the block, and the store key of its item."""
        check_length(self.name, keys, map_keys)
        places = []
        for index, map_key in zip(keys.inverse.tolist(), listed(map_keys), strict=True):
            self._cursor.index = index
            at = self._at()
            places.append((at, self._key(at, map_key)))
        return places

    def _get_column(self, keys: Keys, map_keys: Any) -> Any:
        with self._together(keys):
            found = self._read_each(self._items_of(keys, map_keys))
        values = [None if data is None else self._decode(data) for data in found]
        return values if self._dtype is None else pl.Series(self.name, values, dtype=self._dtype)

    def _put_column(self, keys: Keys, map_keys: Any, values: Any) -> None:
        check_length(self.name, keys, values)
        column = [None if value is None else self._encode(value) for value in listed(values)]
        with self._together(keys):
            places = self._items_of(keys, map_keys)
            wanted = dict(zip(places, column, strict=True))
            there = self._read_each(list(wanted))
            for ((at, key), data), before in zip(wanted.items(), there, strict=True):
                if data is None and before is None:
                    continue
                self._put(at, key, data)
                change = (data is not None) - (before is not None)
                if change:
                    self._set_meta(at, self._metas[at][0] + change)

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: Any) -> bool:
        return self.get(key, _MISSING) is not _MISSING

    def delete(self, key: Any) -> bool:
        """Take a key away; returns whether it was there."""
        at = self._at()
        stored = self._key(at, key)
        if self._get(at, [stored])[0] is None:
            return False
        self._put(at, stored, None)
        self._set_meta(at, self._metas[at][0] - 1)
        return True

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Take a key away and return its value.

        Raises:
            KeyError: it is not there, and no default is given.
        """
        value = self.get(key, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise KeyError(key)
            return default
        self.delete(key)
        return value

    def update(self, items: Mapping[Any, Any]) -> None:
        """Set several; raises as :meth:`put`."""
        for key, value in items.items():
            self.put(key, value)

    def clear(self) -> None:
        """Take all items away; a million as quickly as a thousand."""
        at = self._at()
        if self._metas[at][0] > _CLEARED_ONE_BY_ONE_MAX:
            self._clear_range(at)
        else:
            for key, _ in list(self._entries(at, None, None, reverse=False)):
                self._put(at, key, None)
        if self._metas[at][0]:
            self._set_meta(at, 0)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def keys(self) -> Iterator[Any]:
        """All keys, in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """All values, in the order of their keys."""
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All items, in the order of their keys."""
        return self.range()

    def range(
        self, start: Any = None, stop: Any = None, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Items with ``start <= key < stop`` in the order of their keys, or the reverse; None: no bound."""
        at = self._at()
        version = self._version
        assert self._prefixes is not None
        skipped = len(self._prefixes[at]) + 1
        for key, data in self._entries(at, *self._bounds(at, start, stop), reverse=reverse):
            self._check_unchanged(at, version)
            yield self._key_type.decode(key[skipped:]), self._decode(data)
        self._check_unchanged(at, version)

    def _bounds(self, at: int, start: Any, stop: Any) -> tuple[bytes | None, bytes | None]:
        first = None if start is None else self._key(at, start)
        return first, None if stop is None else self._key(at, stop)
