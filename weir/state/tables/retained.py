"""Entries that belong to times, and leave when their retention is over: versions, windows, sessions.

After key group and state number (``weir.state.layout``) a store key has:

============================================  ========================================================================
``00``, length of the user key (4 bytes), it  an entry: ``00`` the latest version; ``01`` and 8 bytes (the time, see
                                              ``time_first``), then what tells entries of one time apart
``01`` ``x``, a time (8 bytes), the rest      index: the entry whose key goes on like that after ``00`` leaves when the
                                              time is past the retention; no value
``01`` ``t``                                  the group's clock: ``01``, what was the highest time put (below), and a
                                              number that no entry of the group has yet (int64 each, little endian)
``03`` ``ttl``                                the watermark that the former owner had seen (``expiry``)
============================================  ========================================================================

This is a persisted format; the tests have golden bytes. The index is in the order of time, so that what leaves is one
range of it and nothing else is read. An entry that is replaced keeps its index; an index without an entry does no harm.

What a row may put and see goes by its own time, and what leaves the store by the watermark: no row that comes has an
earlier time. Both once went by the highest time that was put. A clock of a checkpoint of then has it still, so that
what was gone stays gone; no clock gets one any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from weir.errors import StateMismatchError
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.handles.block import element_owner
from weir.state.tables.expiry import Expiry
from weir.state.tables.stamps import UNDATED
from weir.state.tables.values.value_table import ValueTable

_INDEX, _CLOCK = b"x", b"t"
#: Bytes of a store key with a namespace of one byte, before the rest.
NAMESPACE_STOP = 6
_CLOCK_FORMAT = struct.Struct("<Bqq")
_CLOCK_VERSION = 1


@dataclass(frozen=True, slots=True)
class GroupClock:
    """The time and the number that a key group keeps besides its entries."""

    #: The highest time that was put when that decided what is gone; ``UNDATED``: it never did.
    stream_ms: int = UNDATED
    #: Greater than that of every entry.
    next_number: int = 0


class RetainedTable(ValueTable):
    """A value table that knows the clock of each key group and indexes its entries by time."""

    expiry: Expiry

    def __init__(self, backend: StateBackend, state_id: int, cache_bytes: int, expiry: Expiry) -> None:
        """``expiry`` has the retention, and the watermark."""
        super().__init__(backend, state_id, cache_bytes, retained_owner, expiry)
        self.retention_ms = expiry.ttl.duration_ms
        self._clocks: dict[int, GroupClock] = {}
        self._highest_stream_ms = UNDATED

    # --- clocks ---

    def begin(self, hashes: np.ndarray, groups: Iterable[int]) -> None:
        """Let the watermark stand still for keys with these hashes, and read the clocks of their key groups."""
        self.expiry.begin(hashes)
        self.read_clocks(groups)

    def read_clocks(self, groups: Iterable[int]) -> None:
        """Have the clocks of these key groups; most are known."""
        unread = [group for group in set(groups) if group not in self._clocks]
        if unread and self.reads_owners:
            # All of them take hardly longer than one.
            unread = sorted({*unread, *np.flatnonzero(self.expiry.owned).tolist()} - self._clocks.keys())
        if unread:
            found = self.get_stored([self._clock_key(group) for group in unread])
            self._note(dict(zip(unread, map(unpack_clock, found), strict=True)))

    def _note(self, clocks: Mapping[int, GroupClock]) -> None:
        self._clocks.update(clocks)
        highest = max(clock.stream_ms for clock in clocks.values())
        self._highest_stream_ms = max(self._highest_stream_ms, highest)

    @property
    def highest_ms(self) -> int:
        """The highest time that decides for any key group what is deleted; ``UNDATED``: none does."""
        return max(self._highest_stream_ms, self.expiry.passed_ms)

    def clock(self, group: int) -> GroupClock:
        """That of a key group which :meth:`begin` was told."""
        return self._clocks[group]

    def cut_ms(self, clock: GroupClock, now_ms: int) -> int:
        """Entries before this time are not there for a row of time ``now_ms``."""
        return retention_cut_ms(clock, now_ms, self.retention_ms, self.expiry.first_ms)

    def write_entries(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        clocks: Mapping[int, GroupClock],
    ) -> None:
        """Write entries and index, and set clocks.

        Raises:
            StateError: the store cannot be written.
        """
        stored = [(self._clock_key(group), pack_clock(clock)) for group, clock in clocks.items()]
        self.write_stored([*puts, *stored], deletes)
        if clocks:
            self._note(clocks)

    def _clock_key(self, group: int) -> bytes:
        return clock_key(group, self.state_id)

    def index_prefix(self, group: int) -> bytes:
        """What the index of a key group begins with; the time follows."""
        return layout.key_prefix(group, self.state_id, _INDEX)

    # --- key groups come and go ---

    @override
    def release_groups(self, groups: Iterable[int]) -> None:
        listed = list(groups)
        super().release_groups(listed)
        self._forget(listed)

    @override
    def adopt_groups(self, groups: Iterable[int]) -> None:
        listed = list(groups)
        super().adopt_groups(listed)
        self._forget(listed)

    def _forget(self, groups: Iterable[int]) -> None:
        for group in groups:
            self._clocks.pop(group, None)


def retained_owner(state_key: bytes) -> bytes:
    """What is scanned and cleared together: the entries of a user key, or the index of a key group."""
    return state_key[:NAMESPACE_STOP] if state_key[4:5] != b"\0" else element_owner(state_key)


def index_key(entry_key: bytes, time: bytes) -> bytes:
    """The key of the index of an entry that leaves after this time (8 bytes)."""
    return entry_key[:4] + b"\x01" + _INDEX + time + entry_key[layout.NO_NAMESPACE_HEADER_BYTES :]


def indexed_entry(key: bytes) -> bytes:
    """The key of the entry that a key of the index is about."""
    return key[:4] + b"\0" + key[NAMESPACE_STOP + 8 :]


def clock_key(group: int, state_id: int) -> bytes:
    """The key of a group's clock."""
    return layout.key_prefix(group, state_id, _CLOCK)


def retention_cut_ms(clock: GroupClock, now_ms: int, retention_ms: int, first_ms: int = UNDATED) -> int:
    """Entries before this time are not there at time ``now_ms``; ``UNDATED``: that is not known.

    ``first_ms``: see ``Expiry.first_ms``, which is later by one than what a retention lets be there.
    """
    past_ms = UNDATED if first_ms == UNDATED else first_ms - 1
    return max(max(clock.stream_ms, now_ms) - retention_ms, past_ms)


def pack_clock(clock: GroupClock) -> bytes:
    """The bytes of a group's clock."""
    return _CLOCK_FORMAT.pack(_CLOCK_VERSION, clock.stream_ms, clock.next_number)


def unpack_clock(data: bytes | None) -> GroupClock:
    """What :func:`pack_clock` returned; None: the group has had nothing yet.

    Raises:
        StateMismatchError: another version of Weir wrote it.
    """
    if data is None:
        return GroupClock()
    if data[:1] != bytes([_CLOCK_VERSION]):
        raise StateMismatchError(
            f"the clock of a key group has format version {data[0]}, this program reads {_CLOCK_VERSION}"
        )
    return GroupClock(*_CLOCK_FORMAT.unpack(data)[1:])
