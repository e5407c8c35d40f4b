"""Handles of values with a TTL: as those without, but what has expired is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from weir.state.handles.block import Cursor, Keys, StoredValues
from weir.state.handles.byte_values import ABSENT, UNREAD, BytesHandle
from weir.state.handles.declarations import ValueDeclaration
from weir.state.tables.expiry import Expiry
from weir.state.tables.values.value_table import ValueTable

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

#: Presence bits of the two cells: of the value, and of the time.
_VALUE, _TIME = 1, 2


class _Hidden(NamedTuple):
    """What a :class:`BytesHandle` has of a key."""

    stored: bytes | None
    value: Any
    changed: bytes | None
    stamp: int
    accessed: int | None


class ExpiringBytesHandle(BytesHandle):
    """Values of any length."""

    _table: StampedValues

    def __init__(self, state: ValueDeclaration, tables: OperatorTables, cursor: Cursor) -> None:
        super().__init__(state, tables, cursor)
        assert state.ttl is not None
        self._is_refreshed_by_access = state.ttl.refreshed_by == "access"
        #: Positions in the block whose values were read, and the time at which they were last.
        self._accessed: dict[int, int] = {}
        #: Of the block, where each row has its own time: the times of its values; None: all have the same.
        self._stamps: list[int] | None = None
        #: By position what has expired for the row of now, but not for one of an earlier time that may follow it.
        self._hidden: dict[int, _Hidden] = {}

    def _open_table(self, state: ValueDeclaration, tables: OperatorTables) -> StoredValues:
        return StampedValues(tables.values(state.name, ttl=state.ttl))

    @property
    def value(self) -> Any:
        """Return the value of the key, as ``ValueHandle`` says; changing a list or a dict in place counts, too."""
        index = self._cursor.index
        if index is None or self._values is None:
            self._load()
        assert index is not None
        if self._stamps is not None:
            self._turn(index)
        value = super().value
        if self._is_refreshed_by_access or not self._type.is_immutable:
            self._accessed[index] = self._table.expiry.stamp
        if self._is_refreshed_by_access and self._stamps is not None:
            self._stamps[index] = max(self._stamps[index], self._table.expiry.stamp)
        return value

    @value.setter
    def value(self, value: Any) -> None:
        self._set(value)
        if self._stamps is not None:
            assert self._cursor.index is not None
            self._stamps[self._cursor.index] = self._table.expiry.stamp
            self._accessed.pop(self._cursor.index, None)

    @property
    @override
    def is_set(self) -> bool:
        self._load()
        if self._stamps is not None:
            assert self._cursor.index is not None
            self._turn(self._cursor.index)
        return super().is_set

    def _turn(self, index: int) -> None:
        """Let the value of a key be what it is as of the current row."""
        assert self._stamps is not None
        if index in self._hidden or self._accessed.get(index) != self._table.expiry.stamp:
            self._settle(index)
        self._show(index)
        is_there = self._stored[index] is not None or self._changed.get(index) is not None
        if is_there and self._table.expiry.is_expired(self._stamps[index]):
            self._hidden[index] = _Hidden(
                self._stored[index],
                self._values[index],
                self._changed.pop(index, None),
                self._stamps[index],
                self._accessed.pop(index, None),
            )
            self._stored[index], self._values[index] = None, UNREAD

    def _settle(self, index: int) -> None:
        """Notice that a list or a dict was changed in place by the row that read it last."""
        value = self._values[index]
        if index not in self._accessed or self._type.is_immutable or value is UNREAD or value is ABSENT:
            return
        data = self._type.encode(value)
        if data != (self._changed.get(index) or self._stored[index] or self._default_bytes):
            assert self._stamps is not None
            self._changed[index], self._stamps[index] = data, self._accessed[index]

    def _show(self, index: int) -> None:
        """Bring back what was hidden, unless another value has taken its place."""
        hidden = self._hidden.pop(index, None)
        if hidden is None or index in self._changed:
            return
        assert self._stamps is not None
        self._stored[index], self._values[index] = hidden.stored, hidden.value
        self._stamps[index] = hidden.stamp
        if hidden.changed is not None:
            self._changed[index] = hidden.changed
        self._accessed.pop(index, None)
        if hidden.accessed is not None:
            self._accessed[index] = hidden.accessed

    def _load(self) -> None:
        if self._values is not None:
            return
        block, expiry = self._current()[0], self._table.expiry
        expiry.begin(block.hashes)
        if not expiry.is_in_rows:
            super()._load()
            return
        found = self._table.get_raw(block.state_keys(self._table))
        self._stamps = [expiry.stamp if data is None else expiry.stamp_of(data) for data in found]
        self._stored = [expiry.loaded(data) for data in found]
        self._values = [UNREAD] * len(block)
        self._changed = {}

    @override
    def prepare(self) -> None:
        if self._stamps is not None and self._values is not None:
            for index in {*self._accessed, *self._hidden}:
                self._settle(index)
                self._show(index)
        explicit = set(self._changed)
        super().prepare()
        if self._stamps is not None:
            for index in self._changed.keys() - explicit:
                # It was changed in place, by the row that read it last.
                self._stamps[index] = self._accessed.get(index, self._stamps[index])
        if not self._is_refreshed_by_access:
            return
        for index in self._accessed:
            stored = self._stored[index]
            if stored is not None and index not in self._changed:
                # It is written back as it is, with the time of now.
                self._changed[index] = stored

    @override
    def apply(self) -> None:
        if self._stamps is not None and self._changed:
            assert self._cursor.block is not None
            keys, stamps = self._cursor.block.state_keys(self._table), self._stamps
            self._table.write_raw(
                [
                    (keys[index], Expiry.stamped(stamps[index], data))
                    for index, data in self._changed.items()
                    if data is not None
                ],
                [keys[index] for index, data in self._changed.items() if data is None],
            )
            self._changed = {}
        super().apply()

    @override
    def discard(self) -> None:
        super().discard()
        self._accessed, self._hidden, self._stamps = {}, {}, None
        self._table.expiry.end()

    @override
    def get(self, keys: Keys) -> Any:
        table = self._table
        table.expiry.begin(keys.hashes)
        with table.of(keys):
            found = super().get(keys)
        if self._is_refreshed_by_access:
            table.expiry.begin(keys.hashes)
            with table.of(keys.distinct):
                table.refresh(keys.distinct.state_keys(table))
        return found

    @override
    def put(self, keys: Keys, values: Any, *, last: bool = False) -> None:
        self._table.expiry.begin(keys.hashes)
        with self._table.of(keys.distinct):
            super().put(keys, values, last=last)


class StampedValues:
    """A table whose values begin with their time, as one without times in which nothing has expired."""

    def __init__(self, table: ValueTable) -> None:
        assert table.expiry is not None
        self._table = table
        self.expiry: Expiry = table.expiry
        #: By state key the time of its row, and of what it writes; empty: they are the same for all.
        self._times_of: dict[bytes, tuple[int, int]] = {}

    def key_prefix(self, group: int) -> bytes:
        """Return the prefix of a group's keys, as :class:`StoredValues` says."""
        return self._table.key_prefix(group)

    @contextmanager
    def of(self, keys: Keys) -> Iterator[None]:
        """Go by the times of the rows of these keys, where each has its own, for as long as this lasts."""
        if self.expiry.is_in_rows:
            times = (self.expiry.of_keys(keys.hashes, writes=writes).tolist() for writes in (False, True))
            self._times_of = dict(zip(keys.state_keys(self), zip(*times, strict=True), strict=True))
        try:
            yield
        finally:
            self._times_of = {}

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values that have not expired, as :class:`StoredValues` says."""
        expiry, found = self.expiry, self._table.get_stored(keys)
        if not self._times_of:
            return [expiry.live(data) for data in found]
        live = []
        for key, data in zip(keys, found, strict=True):
            expiry.set_now(*self._times_of[key])
            live.append(expiry.live(data))
        return live

    def refresh(self, keys: Sequence[bytes]) -> None:
        """Let the time of these values, those that are there, begin anew; of each key the time of its row."""
        expiry, times, puts = self.expiry, self._times_of, []
        for key, data in zip(keys, self.get_raw(keys), strict=True):
            if key in times:
                expiry.set_now(*times[key])
            plain = expiry.live(data)
            if data is not None and plain is not None and expiry.stamp_of(data) < expiry.stamp:
                puts.append((key, plain))
        self.write_stored(puts, ())

    def get_raw(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values with their times, also those that have expired."""
        return self._table.get_stored(keys)

    def write_stored(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Write values, as :class:`StoredValues` says, with the time of now."""
        prefix, times, stamped = self.expiry.prefix, self._times_of, Expiry.stamped
        self._table.write_stored(
            [(key, stamped(times[key][1], data) if key in times else prefix + data) for key, data in puts],
            deletes,
        )

    def write_raw(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Write values with their times."""
        self._table.write_stored(puts, deletes)
