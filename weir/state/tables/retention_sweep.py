"""Gives back the space of entries that are past their retention: what the index has for them, and nothing else.

Entries are deleted as any write deletes them, through the table's cache: in checkpoints, handovers and at peers they
are like others. What was deleted is not read again: nothing is put before the place up to which a group was swept.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from weir.clock import Clock
from weir.state.api import StateBackend
from weir.state.handles.version_format import is_gone_before
from weir.state.tables.retained import RetainedTable, indexed_entry
from weir.state.tables.stamps import UNDATED
from weir.state.tables.timers.time_first import time_bytes
from weir.state.tables.values.reading_together import read_together

#: Entries of the index that are read at a time.
CHUNK_ENTRIES = 256
#: Key groups of which the index is read together, where a read takes long: about as many requests as are in flight.
_GROUPS_AHEAD = 32
#: Of the retention: see ``_step_ms``.
_SLACK = 16
#: About what an entry and its deletion occupy besides its key.
_ENTRY_BYTES = 32


class RetentionSweep:
    """One for each table; called by the subtask's thread, between two batches."""

    def __init__(self, table: RetainedTable, backend: StateBackend) -> None:
        self._table = table
        self._backend = backend
        groups = len(table.expiry.owned)
        #: By key group: nothing before this time is in the index.
        self._swept_ms = np.full(groups, UNDATED, dtype=np.int64)
        self._known = np.zeros(groups, dtype=np.bool_)
        self._group = -1
        #: Of groups that were left in the middle: where to go on.
        self._positions: dict[int, bytes] = {}
        #: The highest clock of all groups when nothing was left to do.
        self._rested_ms = UNDATED
        #: A group is swept when its clock has gone on by so much.
        self._step_ms = max(table.retention_ms // _SLACK, 1)
        #: Entries of the index that were deleted, since the table was opened.
        self.deleted = 0

    def step(self, until_s: float, clock: Clock) -> bool:
        """Sweep up to a moment of the clock (seconds), give or take a chunk; True: there is more to do now.

        Raises:
            WeirError: the store cannot be read or written.
        """
        if self._backend.writes_wait() or self._backend.is_stalled():
            return False
        expiry = self._table.expiry
        if not (expiry.owned & ~self._known).any() and not _has_gone_on(
            self._rested_ms, self._table.highest_ms, self._step_ms
        ):
            self._known &= expiry.owned
            return False
        # A group that went and came back may have been swept less far elsewhere.
        came = expiry.owned & ~self._known
        self._swept_ms[came] = UNDATED
        for group in np.flatnonzero(came | ~expiry.owned).tolist():
            self._positions.pop(group, None)
        self._known = expiry.owned.copy()
        due = self._due()
        settled = [group for group in due if self._backend.is_settled(group)]
        for index, group in enumerate(settled):
            if self._table.reads_owners and index % _GROUPS_AHEAD == 0:
                starts = list(map(self._start, settled[index : index + _GROUPS_AHEAD]))
                read_together([(self._table, starts)])
            self._group = group
            has_more = True
            while has_more:
                has_more = self._sweep_chunk(group)
                if clock.monotonic_s() >= until_s and (has_more or group != settled[-1]):
                    return True
        if len(settled) == len(due):
            self._rested_ms = self._table.highest_ms
        return False

    def _due(self) -> list[int]:
        """Groups whose clock has gone on, beginning after the one that was swept last."""
        owned = np.flatnonzero(self._known).tolist()
        self._table.read_clocks(owned)
        found = [group for group in owned if self._is_due(group)]
        return [group for group in found if group > self._group] + [
            group for group in found if group <= self._group
        ]

    def _is_due(self, group: int) -> bool:
        cut_ms = self._table.cut_ms(self._table.clock(group), self._table.expiry.passed_ms)
        return _has_gone_on(int(self._swept_ms[group]), cut_ms, self._step_ms)

    def _start(self, group: int) -> bytes:
        """Where to go on in the index of a group."""
        first = self._table.index_prefix(group) + time_bytes(int(self._swept_ms[group]))
        return self._positions.get(group, first)

    def _sweep_chunk(self, group: int) -> bool:
        """Delete what a chunk of the index names; True: there may be more."""
        table = self._table
        cut_ms = table.cut_ms(table.clock(group), table.expiry.passed_ms)
        start = self._start(group)
        self._positions.pop(group, None)
        found = table.scan_stored(start, table.index_prefix(group) + time_bytes(cut_ms))
        keys = [key for key, _ in islice(found, CHUNK_ENTRIES)]
        if keys:
            self._delete(group, keys, cut_ms)
        if len(keys) == CHUNK_ENTRIES:
            self._positions[group] = keys[-1] + b"\0"
            return True
        self._swept_ms[group] = cut_ms
        return False

    def _delete(self, group: int, keys: list[bytes], cut_ms: int) -> None:
        table = self._table
        entries = [indexed_entry(key) for key in keys]
        # A latest version is there to stay unless it says that the value was deleted.
        latest = [key for key in entries if _is_latest(key)]
        kept = {
            key
            for key, data in zip(latest, table.get_stored(latest), strict=True)
            if data is not None and not is_gone_before(data, cut_ms)
        }
        table.write_stored([], [*(key for key in entries if key not in kept), *keys])
        self.deleted += len(keys)
        size_bytes = sum(2 * len(key) + _ENTRY_BYTES for key in keys)
        self._backend.give_back(group, table.state_id, size_bytes)


def _has_gone_on(before_ms: int, now_ms: int, step_ms: int) -> bool:
    return now_ms != UNDATED and (before_ms == UNDATED or now_ms - before_ms >= step_ms)


def _is_latest(entry_key: bytes) -> bool:
    """Whether an entry is the latest version of a user key: nothing follows the mark."""
    return len(entry_key) == 10 + int.from_bytes(entry_key[5:9], "big")
