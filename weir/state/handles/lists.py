"""The handle of a list: its elements lie by their positions; ``elements`` has the store keys."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, overload

import polars as pl
from typing_extensions import override

from weir.errors import StateMismatchError
from weir.state.handles.below_key import CLEARED_ONE_BY_ONE_MAX, ENTRY
from weir.state.handles.block import Keys, check_length
from weir.state.handles.elements import MISSING, READ_COUNT, ElementHandle
from weir.state.types import listed


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

    @property
    @override
    def is_set(self) -> bool:
        return len(self) > 0

    def _key(self, at: int, position: int) -> bytes:
        assert self._prefixes is not None
        return self._prefixes[at] + ENTRY + (position + 2**63).to_bytes(8, "big")

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
    def extend(self, first: Any, second: Any = MISSING, /) -> None:
        """Add elements at the end, all or, if one is not of the declared type, none.

        ``extend(values)`` adds to the list of the current key. ``extend(keys, values)`` adds one value to the list of
        each key, in order, at once, also if the batch fails later; of a key that is there twice both values count. The
        values are a series, an array of numpy or Arrow, or a list.

        Raises:
            TypeError, ValueError: a value is not of the declared type, or there are more or fewer than keys.
        """
        if second is MISSING:
            self._extend([self._encode(value) for value in first])
            return
        keys: Keys = first
        check_length(self.name, keys, second)
        data = [self._encode(value) for value in listed(second)]
        with self._as_block(keys) as distinct:
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
        with self._as_block(keys) as distinct:
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
        dtype = self._type.dtype
        return rows if dtype is None else pl.Series(self.name, rows, dtype=pl.List(dtype))

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
        if count > CLEARED_ONE_BY_ONE_MAX:
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
        for start in range(head, head + count, READ_COUNT):
            stop = min(head + count, start + READ_COUNT)
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
