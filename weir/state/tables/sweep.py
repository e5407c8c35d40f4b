"""Gives the space of expired entries of one state back, bit by bit, whether their keys are used again or not.

The sweep walks over the store's entries of one key group after the other, remembers its place, and deletes what has
expired. It reads no key through the cache and changes nothing that is unwritten. When it comes to a group again, is
decided by the oldest entry that it left there: not before an eighth of the TTL more than that has passed, so that in
the time of one TTL an entry is read about eight times at most. After a group it tells the store how many bytes it has
deleted there, so that the store gives them back to the disk (``StateBackend.give_back``).

An index by time would find what has expired without reading anything else, but each write would cost two or three more:
the entry, and the deletion of the one before. See docs/design/0003.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from weir.clock import Clock, SystemClock
from weir.state import layout
from weir.state.api import StateBackend, prefix_end
from weir.state.tables.expiry import Expiry
from weir.state.tables.stamps import UNDATED

#: Entries that are read at a time: with all of them deleted about a millisecond.
CHUNK_ENTRIES = 512
#: Rows wait for a step; about so long.
STEP_S = 0.002
#: Of the TTL: how much more of it passes before a group is looked at again.
_SLACK = 8
#: After so long a group is looked at again in which something could not be deleted, because it was being written.
_RETRY_MS = 60_000
#: About what an entry and its deletion occupy besides key and value.
_ENTRY_BYTES = 16


class SweptTable(Protocol):
    """What the sweep needs of a table."""

    def stamps_of(self, values: Sequence[bytes]) -> np.ndarray:
        """The times of stored values, int64; ``UNDATED`` where there is none."""

    def drop_written(self, keys: Sequence[bytes], *, has_more: bool) -> list[bytes]:
        """Forget those of these state keys that are written; returns those that may be deleted from the store.

        ``has_more``: the store may have more entries after the last of the keys.
        """


class Sweep:
    """One for each table with a TTL; called by the subtask's thread, between two batches."""

    def __init__(
        self,
        table: SweptTable,
        backend: StateBackend,
        state_id: int,
        expiry: Expiry,
    ) -> None:
        self._table = table
        self._backend = backend
        self._state_id = state_id
        self._expiry = expiry
        groups = len(expiry.owned)
        self._known = np.zeros(groups, dtype=np.bool_)
        #: By key group: the time at which it is looked at next.
        self._due_ms = np.full(groups, UNDATED, dtype=np.int64)
        #: What has expired at this time has for all that is still to come.
        self._now_ms = UNDATED
        #: The group that is swept, where in it, and what was found there so far; or the group after which to search.
        self._group = -1
        self._position: bytes | None = None
        self._oldest = 0
        self._deleted_bytes = 0
        self._left_some = False
        #: Entries that were deleted, since the table was opened.
        self.deleted = 0

    def step(self, until_s: float, clock: Clock) -> bool:
        """Sweep up to a moment of the clock (seconds), give or take a chunk; True: there is more to do now.

        Raises:
            WeirError: the store cannot be read or written.
        """
        if self._backend.writes_wait():
            return False
        self._now_ms = self._expiry.passed_ms
        if self._now_ms == UNDATED:
            return False
        self._note_owned()
        while self._position is not None or self._begin_group():
            self._sweep_chunk()
            if clock.monotonic_s() >= until_s:
                return True
        return False

    def _note_owned(self) -> None:
        owned = self._expiry.owned
        self._due_ms[owned & ~self._known] = UNDATED
        self._known = owned.copy()
        if self._position is not None and not owned[self._group]:
            # The new owner sweeps it.
            self._position = None

    def _begin_group(self) -> bool:
        """Begin with the next group that is due; False: none is."""
        due = self._expiry.owned & (self._due_ms <= self._now_ms)
        groups = np.flatnonzero(due)
        if not len(groups):
            return False
        # Those after the last one first.
        for group in (*groups[groups > self._group].tolist(), *groups[groups <= self._group].tolist()):
            if self._backend.is_settled(group):
                self._group = group
                self._position = layout.key_prefix(group, self._state_id)
                self._oldest, self._deleted_bytes, self._left_some = self._now_ms, 0, False
                return True
        return False

    def _sweep_chunk(self) -> None:
        assert self._position is not None
        prefix = layout.key_prefix(self._group, self._state_id)
        stop = prefix_end(prefix)
        entries = list(islice(self._backend.scan(self._position, stop), CHUNK_ENTRIES))
        has_more = len(entries) == CHUNK_ENTRIES
        if entries:
            stamps = self._table.stamps_of([value for _, value in entries])
            expired = self._expiry.expired(stamps, self._expiry.passed_cut_ms)
            if not expired.all():
                oldest = int(stamps[~expired].min())
                self._oldest = min(self._oldest, self._expiry.since_ms if oldest == UNDATED else oldest)
            if expired.any():
                self._delete(
                    [entries[index] for index in np.flatnonzero(expired).tolist()], has_more=has_more
                )
        if has_more:
            self._position = entries[-1][0] + b"\0"
        else:
            self._end_group()

    def _delete(self, entries: Sequence[tuple[bytes, bytes]], *, has_more: bool) -> None:
        keys = self._table.drop_written([key for key, _ in entries], has_more=has_more)
        self._left_some |= len(keys) < len(entries)
        if keys:
            self._backend.write(deletes=keys)
            self.deleted += len(keys)
            size_bytes = sum(len(key) + len(value) for key, value in entries) * len(keys) // len(entries)
            self._deleted_bytes += size_bytes + _ENTRY_BYTES * len(keys)

    def _end_group(self) -> None:
        self._position = None
        ttl_ms = self._expiry.ttl.duration_ms
        due_ms = self._oldest + ttl_ms + ttl_ms // _SLACK
        if self._left_some:
            due_ms = min(due_ms, self._now_ms + min(ttl_ms // _SLACK + 1, _RETRY_MS))
        self._due_ms[self._group] = due_ms
        if self._deleted_bytes:
            self._backend.give_back(self._group, self._state_id, self._deleted_bytes)


class SweepSteps(Protocol):
    """The sweep of one table."""

    #: Entries that were deleted, since the table was opened.
    deleted: int

    def step(self, until_s: float, clock: Clock) -> bool:
        """Sweep up to a moment of the clock (seconds), give or take a chunk; True: there is more to do now."""


class Sweeps:
    """The sweeps of one subtask, in turn."""

    def __init__(self) -> None:
        self._sweeps: list[SweepSteps] = []
        self._next = 0
        #: Whether there are any; subtasks ask after every batch.
        self.are_wanted = False

    def add(self, sweep: SweepSteps) -> None:
        """Drive this one, too."""
        self._sweeps.append(sweep)
        self.are_wanted = True

    def __iter__(self) -> Iterator[SweepSteps]:
        return iter(self._sweeps)

    def __bool__(self) -> bool:
        return bool(self._sweeps)

    def step(self, budget_s: float = STEP_S, clock: Clock | None = None) -> bool:
        """Sweep for this many seconds at most, give or take a chunk; True: there is more to do now.

        Raises:
            WeirError: the store cannot be read or written.
        """
        clock = clock or SystemClock()
        until_s = clock.monotonic_s() + budget_s
        for _ in range(len(self._sweeps)):
            sweep = self._sweeps[self._next]
            if sweep.step(until_s, clock):
                return True
            self._next = (self._next + 1) % len(self._sweeps)
        return False
