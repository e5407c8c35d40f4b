"""The handle of a map: its items lie in the order of their keys; ``elements`` has the store keys."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import polars as pl
from typing_extensions import override

from weir.state.api import prefix_end
from weir.state.handles.below_key import CLEARED_ONE_BY_ONE_MAX, ENTRY
from weir.state.handles.block import Cursor, Keys, check_length
from weir.state.handles.declarations import MapDeclaration
from weir.state.handles.elements import MISSING, ElementHandle
from weir.state.handles.map_key_columns import key_columns
from weir.state.types import listed

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

_log = logging.getLogger(__name__)

#: More items than this that are taken away together are deleted as a range, one for all that follow one another.
POPPED_ONE_BY_ONE_MAX = 200


class MapHandle(ElementHandle):
    """The map of the current key, as a ``dict`` whose items are in the order of their keys.

    A value that is read is a copy: to change it, put it back.
    """

    _meta_format = struct.Struct("<Bq")
    #: Whether many items that are taken away together are deleted as a range: all that is in it is gone for good.
    _pops_ranges = True

    def __init__(self, state: MapDeclaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        self._key_type = state.key_type
        self._has_warned = False

    def __len__(self) -> int:
        at = self._at()
        return self._metas[at][0]

    def __bool__(self) -> bool:
        return len(self) > 0

    @property
    @override
    def is_set(self) -> bool:
        return len(self) > 0

    def _take_all(self, at: int, entries: list[tuple[bytes, bytes]]) -> None:
        for key, data in entries:
            self._put(at, key, data)
        self._set_meta(at, len(entries))

    def _key(self, at: int, key: Any) -> bytes:
        assert self._prefixes is not None
        return self._prefixes[at] + ENTRY + self._key_type.encode(key)

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

    def put(self, key: Any, value: Any, values: Any = MISSING) -> None:
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
        if not self._is_kept(at, stored):
            self._set_meta(at, self._metas[at][0] + 1)
        self._put(at, stored, data)

    def _is_kept(self, at: int, key: bytes) -> bool:
        """Return whether an item is counted."""
        return self._get(at, [key])[0] is not None

    def _kept_each(self, elements: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Items of several keys that are counted; all of them are written next."""
        if any(self._changes):
            return self._read_each(elements)
        # So it is not worth noting which are not there.
        return self._table.get_stored([key for _, key in elements], will_write=True)

    def _all_entries(self, at: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries that are counted, by store key."""
        return self._entries(at, None, None, reverse=False)

    def _items_of(self, keys: Keys, map_keys: Any) -> list[tuple[int, bytes]]:
        """Return for each row the position of its key in the block, and the store key of its item."""
        check_length(self.name, keys, map_keys)
        encoded = self._key_type.encode_many(listed(map_keys))
        places = self._places(keys)
        prefixes = [prefix + ENTRY for prefix in self._prefixes or ()]
        return [(at, prefixes[at] + key) for at, key in zip(places, encoded, strict=True)]

    def _found_items(self, keys: Keys, map_keys: Any) -> list[bytes | None]:
        """The item of each row; how many a key has does not matter."""
        check_length(self.name, keys, map_keys)
        self._prefixes = self._ahead.begin(keys.distinct)
        prefixes = [prefix + ENTRY for prefix in self._prefixes]
        encoded = self._key_type.encode_many(listed(map_keys))
        return self._table.get_stored(
            [prefixes[at] + key for at, key in zip(keys.inverse.tolist(), encoded, strict=True)]
        )

    def _get_column(self, keys: Keys, map_keys: Any) -> Any:
        with self._as_block(keys):
            found = self._found_items(keys, map_keys)
        values = self._type.decode_many(found)
        return values.alias(self.name) if isinstance(values, pl.Series) else values

    def _put_column(self, keys: Keys, map_keys: Any, values: Any) -> None:
        check_length(self.name, keys, values)
        column = self._type.encode_many(values)
        with self._as_block(keys):
            self._put_items(dict(zip(self._items_of(keys, map_keys), column, strict=True)))

    def _put_items(self, wanted: dict[tuple[int, bytes], bytes | None]) -> None:
        """Set items (None: take away) by position of the key in the block and store key; nothing else was changed."""
        # Every row of a batch comes here: no call for each.
        there, changes, metas = self._kept_each(list(wanted)), self._changes, self._metas
        for ((at, key), data), before in zip(wanted.items(), there, strict=True):
            if data is None and before is None:
                continue
            own = changes[at]
            if own is None:
                changes[at] = {key: data}
            else:
                own[key] = data
            if (data is None) != (before is None):
                metas[at] = (metas[at][0] + (1 if before is None else -1),)
                self._changed_metas.add(at)
        self._version += 1

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: Any) -> bool:
        return self.get(key, MISSING) is not MISSING

    def delete(self, key: Any) -> bool:
        """Take a key away; returns whether it was there."""
        at = self._at()
        stored = self._key(at, key)
        if self._get(at, [stored])[0] is None:
            return False
        self._put(at, stored, None)
        self._set_meta(at, self._metas[at][0] - 1)
        return True

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """Take a key away and return its value.

        Raises:
            KeyError: it is not there, and no default is given.
        """
        value = self.get(key, MISSING)
        if value is MISSING:
            if default is MISSING:
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
        if self._metas[at][0] > CLEARED_ONE_BY_ONE_MAX:
            self._clear_range(at)
        else:
            for key, _ in list(self._all_entries(at)):
                self._put(at, key, None)
        if self._metas[at][0]:
            self._set_meta(at, 0)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def keys(self) -> Iterator[Any]:
        """Yield all keys, in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        """Yield all values, in the order of their keys."""
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all items, in the order of their keys."""
        return self._items_between(None, None, reverse=False)

    def range(
        self, first: Any = None, last: Any = None, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Items with ``first <= key <= last`` in the order of their keys, or the reverse; None: no bound.

        If the first key comes after the last one there are none, and the log warns of it once.
        """
        start, stop = self._range_bounds(self._at(), first, last)
        return self._items_between(start, stop, reverse=reverse)

    def _range_bounds(self, at: int, first: Any, last: Any) -> tuple[bytes | None, bytes | None]:
        """Store keys of a range, ``start <= key < stop``; warns of one that can have none."""
        start = None if first is None else self._key(at, first)
        # No key comes between a key and what begins with it.
        stop = None if last is None else self._key(at, last) + b"\0"
        if start is not None and stop is not None and start > stop and not self._has_warned:
            self._has_warned = True
            _log.warning("state %r: a range from %r to %r has no items", self.name, first, last)
        return start, stop

    def pop_range(self, first: Any = None, last: Any = None, *, limit: int) -> list[tuple[Any, Any]]:
        """Take away the first ``limit`` items with ``first <= key <= last`` (None: no bound); return them in order."""
        keys, values, skipped = self._pop(first, last, limit)
        decoded = self._key_type.decode_many([key[skipped:] for key in keys])
        return list(zip(decoded, map(self._decode, values), strict=True))

    def pop_frame(self, first: Any = None, last: Any = None, *, limit: int) -> pl.DataFrame:
        """Take items away as :meth:`pop_range` does, without a Python object for each.

        Returns:
            The columns ``key`` (of tuples ``key_0``, ``key_1`` and so on) and ``value``.

        Raises:
            TypeError: values are of a dataclass, so that no column has them.
        """
        if self._type.dtype is None:
            raise TypeError(
                f"state {self.name!r} has values of {self._type}, which no column has; use pop_range"
            )
        keys, values, skipped = self._pop(first, last, limit)
        columns = key_columns(self._key_type, keys, skipped)
        is_tuple = self._key_type.is_tuple
        named = {f"key_{number}" if is_tuple else "key": column for number, column in enumerate(columns)}
        return pl.DataFrame({**named, "value": self._type.decode_many(values)})

    def _pop(self, first: Any, last: Any, limit: int) -> tuple[list[bytes], list[bytes], int]:
        """Take items away.

        Returns:
            Their store keys and bytes, in order, and how many bytes of each store key come before the item's key.
        """
        at = self._at()
        assert self._prefixes is not None
        prefix = self._prefixes[at] + ENTRY
        start, stop = self._range_bounds(at, first, last)
        found = list(islice(self._entries(at, start, stop, reverse=False), max(0, limit)))
        if not found:
            return [], [], len(prefix)
        keys, values = [key for key, _ in found], [data for _, data in found]
        changes = self._changes[at]
        if changes is None:
            changes = self._changes[at] = {}
        changes.update(dict.fromkeys(keys))
        if self._pops_ranges and len(keys) > POPPED_ONE_BY_ONE_MAX:
            # No other item lies between the first and the last one that were found.
            popped = start or prefix, keys[-1] + b"\0", keys
            self._popped.setdefault(at, []).append(popped)
        self._set_meta(at, self._metas[at][0] - len(keys))
        return keys, values, len(prefix)

    def prefix_scan(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Items whose key begins with this text, these bytes or, where keys are tuples, these first parts, in order.

        Raises:
            TypeError: keys are neither of these, or the prefix is not what they are.
        """
        at = self._at()
        assert self._prefixes is not None
        start = self._prefixes[at] + ENTRY + self._key_type.encode_prefix(prefix)
        return self._items_between(start, prefix_end(start), reverse=reverse)

    def _items_between(
        self, start: bytes | None, stop: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[Any, Any]]:
        """Items by their store keys, ``start <= key < stop``; None: no bound."""
        at = self._at()
        version = self._version
        assert self._prefixes is not None
        skipped = len(self._prefixes[at]) + 1
        for key, data in self._entries(at, start, stop, reverse=reverse):
            self._check_unchanged(at, version)
            yield self._key_type.decode(key[skipped:]), self._decode(data)
        self._check_unchanged(at, version)
