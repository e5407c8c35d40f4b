"""What versions, windows and sessions share: entries by time below a key, of which late ones are not taken.

``weir.state.tables.retained`` has the store keys, what each key group keeps, and the index.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from weir.state.handles.below_key import CLEARED_ONE_BY_ONE_MAX, ENTRY, BelowKeyHandle
from weir.state.handles.block import Cursor, Keys, check_length
from weir.state.handles.declarations import Declaration
from weir.state.tables.retained import GroupClock, RetainedTable, index_key
from weir.state.tables.timers.time_first import time_bytes
from weir.state.types import listed

if TYPE_CHECKING:
    from weir.state.tables.opened import OperatorTables

#: Times are in this range, so that a retention can be added and taken away.
TIME_MS_MAX = 2**62

_log = logging.getLogger(__name__)


class RetainedHandle(BelowKeyHandle):
    """Entries by time."""

    _table: RetainedTable

    def __init__(self, state: Declaration, tables: OperatorTables, cursor: Cursor) -> None:
        assert state.ttl is not None
        super().__init__(state, tables.retained(state.name, state.ttl), cursor)
        self._dtype = state.type.dtype
        #: Of the block, by key: its key group, and changed entries by their store keys (None: deleted).
        self._groups: list[int] = []
        self._changes: list[dict[bytes, bytes | None]] = []
        #: Keys of the index that are to be written.
        self._indexed: dict[bytes, None] = {}
        #: Clocks whose number went on.
        self._clocks: dict[int, GroupClock] = {}
        #: By key: the time of its rows, where rows of several keys are processed together.
        self._times_ms: list[int] | None = None
        self._has_warned = False

    # --- the block ---

    def _at(self) -> int:
        """The position of the current key in the block, which is begun at its first use.

        Raises:
            StateError: there is no current key.
        """
        block, index = self._current()
        if self._prefixes is None:
            self._begin(block)
        return index

    def _begin(self, block: Keys) -> None:
        self._prefixes = self._ahead.begin(block)
        self._groups = block.groups.tolist()
        self._changes = [{} for _ in self._prefixes]
        self._table.begin(block.hashes, self._groups)
        expiry = self._table.expiry
        self._times_ms = expiry.of_keys(block.hashes).tolist() if expiry.goes_by_keys else None

    @contextmanager
    def _together(self, keys: Keys) -> Iterator[list[int]]:
        """Do :meth:`_as_block`; yields for each row the position of its key there."""
        with self._as_block(keys) as distinct:
            self._begin(distinct)
            yield keys.inverse.tolist()

    def _column(self, data: Sequence[bytes | None]) -> Any:
        """Values as a Polars series, null where there is none; of dataclasses a list."""
        import polars as pl

        values = [None if each is None else self._decode(each) for each in data]
        return values if self._dtype is None else pl.Series(self.name, values, dtype=self._dtype)

    def _times(self, keys: Keys, times_ms: Any) -> list[int]:
        check_length(self.name, keys, times_ms)
        return [checked_time(self.name, time_ms) for time_ms in listed(times_ms)]

    def _values(self, keys: Keys, values: Any) -> list[bytes | None]:
        check_length(self.name, keys, values)
        return [None if value is None else self._encode(value) for value in listed(values)]

    # --- time ---

    def _clock(self, at: int) -> GroupClock:
        group = self._groups[at]
        return self._clocks.get(group) or self._table.clock(group)

    def _cut_ms(self, at: int) -> int:
        """Entries of a key before this time are not there for the row that is processed, and may not be put by it."""
        now_ms = self._table.expiry.now_ms if self._times_ms is None else self._times_ms[at]
        return self._table.cut_ms(self._clock(at), now_ms)

    def _takes(self, at: int, time_ms: int) -> bool:
        """Return whether a time may be put; False: it is past the retention."""
        if time_ms >= self._cut_ms(at):
            return True
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "state %r: something was put for %d ms, which is more than the retention of %d ms before the time of "
                "its row, and was not taken; further ones are not told of",
                self.name,
                time_ms,
                self._table.retention_ms,
            )
        return False

    # --- entries ---

    def _entry_key(self, at: int, time_ms: int, rest: bytes = b"") -> bytes:
        assert self._prefixes is not None
        return self._prefixes[at] + ENTRY + time_bytes(time_ms) + rest

    def _read(self, at: int, key: bytes) -> bytes | None:
        changes = self._changes[at]
        if key in changes:
            return changes[key]
        if at in self._cleared:
            return None
        assert self._prefixes is not None
        self._ahead.use(at, self._prefixes)
        return self._table.get_stored([key])[0]

    def _read_each(self, entries: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Entries of several keys, each with its position in the block; in one go."""
        if any(self._changes) or self._cleared:
            return [self._read(at, key) for at, key in entries]
        return self._table.get_stored([key for _, key in entries])

    def _time_of(self, at: int, key: bytes) -> int:
        """The time in the key of an entry."""
        assert self._prefixes is not None
        start = len(self._prefixes[at]) + 1
        return int.from_bytes(key[start : start + 8], "big") - 2**63

    def _put(self, at: int, key: bytes, data: bytes | None, leaves_ms: int | None) -> None:
        """Change an entry; it leaves when this time is past the retention (None: never, or that is known)."""
        self._changes[at][key] = data
        if data is not None and leaves_ms is not None:
            self._indexed[index_key(key, time_bytes(leaves_ms))] = None
        self._version += 1

    def clear(self) -> None:
        """Take everything of the current key away, whatever its time."""
        at = self._at()
        assert self._prefixes is not None
        prefix = self._prefixes[at]
        entries = list(islice(self._entries(at, prefix + b"\0"), CLEARED_ONE_BY_ONE_MAX + 1))
        if len(entries) > CLEARED_ONE_BY_ONE_MAX:
            self._changes[at] = {}
            self._cleared.add(at)
        else:
            self._changes[at].update(dict.fromkeys([key for key, _ in entries]))
        self._version += 1

    # --- the end of the block ---

    @override
    def apply(self) -> None:
        if self._prefixes is not None:
            for at in self._cleared:
                self._table.clear_owner(self._prefixes[at])
            puts: list[tuple[bytes, bytes]] = []
            deletes: list[bytes] = []
            for changes in self._changes:
                for key, data in changes.items():
                    if data is None:
                        deletes.append(key)
                    else:
                        puts.append((key, data))
            puts += [(key, b"") for key in self._indexed]
            if puts or deletes or self._clocks:
                self._table.write_entries(puts, deletes, self._clocks)
        self.discard()

    @override
    def discard(self) -> None:
        if self._prefixes is not None:
            self._table.expiry.end()
            self._ahead.end()
        self._prefixes = None
        self._groups, self._changes = [], []
        self._indexed, self._clocks, self._times_ms = {}, {}, None
        self._cleared = set()


def checked_time(name: str, time_ms: Any) -> int:
    """A time in milliseconds since the epoch.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is too far away.
    """
    if isinstance(time_ms, bool) or not hasattr(time_ms, "__index__"):
        raise TypeError(f"state {name!r}: {time_ms!r} is no time; give whole milliseconds since the epoch")
    found: int = time_ms.__index__()
    if not -TIME_MS_MAX < found < TIME_MS_MAX:
        raise ValueError(f"state {name!r}: {found} ms is no time that Weir can keep")
    return found


def checked_bound(name: str, time_ms: Any, default: int) -> int:
    """Return one end of a range of times; ``default`` if it is None. Raises as :func:`checked_time`."""
    return default if time_ms is None else checked_time(name, time_ms)
