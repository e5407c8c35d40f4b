"""What lists, maps, versions, windows and sessions share: entries of a key with store keys of their own below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weir.state.handles.block import Cursor, Handle, Keys
from weir.state.handles.declarations import Declaration
from weir.state.handles.keys_ahead import KeysAhead
from weir.state.overlay import overlaid
from weir.state.tables.values.value_table import ValueTable

#: What entries begin with below a key, and what comes after them all.
ENTRY, _AFTER = b"\x01", b"\x02"
#: More entries than this are cleared as a range: a store reads more slowly with many deleted ranges.
CLEARED_ONE_BY_ONE_MAX = 1_000


class BelowKeyHandle(Handle):
    """The entries of the current key, and the changes of this batch that are not written yet."""

    def __init__(self, state: Declaration, table: ValueTable, cursor: Cursor) -> None:
        super().__init__(state.name, cursor)
        self._table = table
        self._ahead = KeysAhead(table, cursor)
        self._encode, self._decode = state.type.encode, state.type.decode
        #: Of the block, by key: what store keys begin with, and changed entries by their store keys (None: deleted).
        self._prefixes: list[bytes] | None = None
        self._changes: list[Any] = []
        #: Keys of the block of which nothing in the table counts any more.
        self._cleared: set[int] = set()
        #: Grows with each change, so that an iteration finds out.
        self._version = 0

    @contextmanager
    def _as_block(self, keys: Keys) -> Iterator[Keys]:
        """Use the entries of all of ``keys.distinct``; written in the end.

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

    def _entries(
        self, at: int, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Store keys and bytes of ``start <= key < stop`` below a key (None: all), with this batch's changes."""
        assert self._prefixes is not None
        first = self._prefixes[at] + ENTRY if start is None else start
        last = self._prefixes[at] + _AFTER if stop is None else stop
        counts = first < last and at not in self._cleared
        if counts:
            self._ahead.use(at, self._prefixes)
        below = self._table.scan_stored(first, last, reverse=reverse) if counts else iter(())
        changes = self._changes[at]
        if not changes:
            return below
        overlay = sorted((item for item in changes.items() if first <= item[0] < last), reverse=reverse)
        return overlaid(below, overlay, reverse)

    def _check_unchanged(self, at: int, version: int) -> None:
        if self._version != version or self._cursor.index != at:
            raise RuntimeError(f"state {self.name!r} changed, or the key did, while it was iterated over")

    def prepare(self) -> None:
        """Do nothing: values were encoded when they were put; see :class:`Handle`."""
