"""What subtasks have now, read outside their threads: what the stores have not yet is copied between two batches.

The subtask's thread does the copying only. Stores are read and merged afterwards, by the thread of the question: what
is written to a store meanwhile is newer. So no key is older than the moment of the copy. All states that a question
needs are copied at one moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

from task_manager.queries.state_copies import Entries, LivePart, StateCopy
from weir.operators.queries.key_range import Check
from weir.operators.queries.reading import PaneBounds, StoredReading
from weir.protocol.queries import QueryError
from weir.state.api import StateBackend
from weir.state.overlay import overlaid
from weir.state.tables.panes.window_table import WindowTable
from weir.state.tables.stamps import UNDATED


class LiveRange(StoredReading):
    """Implements ``weir.operators.queries.reading.StateReading`` over parts with different key groups."""

    def __init__(
        self,
        parts: Sequence[LivePart],
        state_ids: Mapping[str, int] | None = None,
        check: Check = lambda: None,
    ) -> None:
        """What was copied.

        Args:
            parts: at least one.
            state_ids: numbers of all states, by the names under which the job has them.
            check: see ``RangeReading.check``.
        """
        self.check = check
        self._parts = {group: part for part in parts for group in part.epochs}
        self._is_expired = parts[0].states[parts[0].asked].is_expired
        self._state_ids = state_ids or {}
        self.watermark_ms = max(
            (part.watermark_ms for part in parts if part.watermark_ms is not None), default=UNDATED
        )
        #: By key group and state: what is laid over the store, in order.
        self._changes: dict[tuple[int, int], Entries] = {}
        #: Ranges that are about to be scanned, none of which has been read yet.
        self._begun: dict[StateBackend, list[tuple[bytes, bytes]]] = {}

    @property
    def groups(self) -> list[int]:
        """Return all key groups that are here, ascending."""
        return sorted(self._parts)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys; for few keys."""
        return [next((data for _, data in self.scan(key, key + b"\0")), None) for key in keys]

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as ``RangeReading`` says."""
        group, state_id = int.from_bytes(start[:2], "big"), int.from_bytes(start[2:4], "big")
        part = self._parts[group]
        changes = self._changes.get((group, state_id))
        if changes is None:
            changes = sorted(part.states[state_id].changes(group), key=itemgetter(0))
            self._changes[group, state_id] = changes
        # It has begun when this returns: a store that is elsewhere reads for several scans at a time.
        below = part.store.scan_for_question(start, stop, reverse=reverse)
        if not reverse:
            self._begun.setdefault(part.store, []).append((start, stop))
            below = chain(self._prepared(), below)
        if not changes:
            return below
        first, last = (bisect_left(changes, bound, key=itemgetter(0)) for bound in (start, stop))
        within = changes[first:last][::-1] if reverse else changes[first:last]
        return overlaid(below, within, reverse) if within else below

    def _prepared(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield nothing, and let a store prepare for all scans that have begun when the first of them is read.

        Of images in an object store each would wait for a request by itself: for seconds, where there are many groups.
        """
        begun, self._begun = self._begun, {}
        for store, ranges in begun.items():
            store.will_scan(ranges, 0)
        yield from ()

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """Return the time before which nothing is there any more."""
        return self._state(group, state_id).cuts_ms[group]

    def bounds_of(
        self, group: int, state_id: int, cell_count: int, first_ms: int, last_ms: int
    ) -> PaneBounds | None:
        """Bounds of the panes that are not gone; see ``RangeReading``."""
        state = self._state(group, state_id)
        assert state.fired_ms is not None, "the state is one of windows"
        assert state.gone_ms is not None, "the state is one of windows"
        gone_ms = int(state.gone_ms[group])
        if last_ms <= gone_ms:
            return None
        return PaneBounds(max(first_ms, gone_ms + 1), last_ms, int(state.fired_ms[group]))

    def fired_ms(self, group: int, state_id: int, cell_count: int, *, by_now: bool) -> int:
        """Return up to where windows have fired: in the table, which goes on, or in the copy."""
        state = self._state(group, state_id)
        assert isinstance(state.table, WindowTable), "the state is one of windows"
        assert state.fired_ms is not None, "the state is one of windows"
        return int(state.table.places_ms[group] if by_now else state.fired_ms[group])

    def ends_by_time(self, group: int, state_id: int, cell_count: int) -> bool:
        """Return whether a group's place is marked, as ``RangeReading`` says."""
        state = self._state(group, state_id)
        assert state.unmarked is not None, "the state is one of windows"
        return not state.unmarked[group]

    def is_expired(self, stamp: int) -> bool:
        """Return whether a value has expired."""
        return self._is_expired(stamp)

    def watermark_of(self, group: int) -> int:
        """Return the watermark of a group when its part was taken."""
        watermark_ms = self._parts[group].watermark_ms
        return UNDATED if watermark_ms is None else watermark_ms

    def number_of(self, state: str) -> int:
        """Return the id of a state by its name."""
        return self._state_ids[state]

    def gone_group(self) -> int | None:
        """A key group that has had another owner since the copy was made; None: what was read is of one owner."""
        for group, part in self._parts.items():
            if part.ownership.epoch(group) != part.epochs[group]:
                return group
        return None

    def check_rearranged(self) -> None:
        """Refuse what was read while entries of sessions became one, or left, or rows of a join left their blocks.

        Raises:
            QueryError: some did.
        """
        for part in {id(part): part for part in self._parts.values()}.values():
            for state in part.states.values():
                if state.table.rearranged != state.rearranged:
                    raise QueryError(
                        503,
                        "entries were put together, or elsewhere, while they were read: try again, or ask with "
                        "consistency=checkpoint",
                    )

    def _state(self, group: int, state_id: int) -> StateCopy:
        return self._parts[group].states[state_id]
