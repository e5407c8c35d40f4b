"""The two kinds of timers of a keyed operator, by event time and by processing time, while a batch changes them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from weir.rows.records import WATERMARK_MIN_MS
from weir.state import layout
from weir.state.handles.block import Keys
from weir.state.tables.timers.time_first import order_of, time_bytes, time_of, user_key_of
from weir.state.tables.timers.timer_group import NEVER_MS
from weir.state.tables.timers.timer_table import Due, TimerTable

_NO_POSITION = -1
#: Timers in a row that are earlier than one that has fired. They fire in one part, in which no barrier passes.
EARLIER_MAX = 100_000


class Firing:
    """Timers that are due, one after the other in the order of time; those that are fired may change the others."""

    def __init__(self, due: Due) -> None:
        #: Store keys of what is due, by time.
        self.keys = sorted(due.keys, key=order_of)
        self._stops = due.stops()
        self._waiting = set(due.keys)
        #: What was registered meanwhile, as a heap: order, store key, position of the user key in the block.
        self._added: list[tuple[bytes, bytes, int]] = []
        self._touched = dict.fromkeys(due.keys, False)
        #: Those that were to fire and are due as before, because it took too long.
        self.left: list[bytes] = []
        self._has_fired = False
        #: The highest time of those that have fired: one that they register may be earlier.
        self.reached_ms = WATERMARK_MIN_MS
        #: How many have fired, and of the last ones how many were earlier than one before them.
        self.fired = self._earlier = 0
        #: Of those that fire together the store keys, and the same by their user keys as soon as one registers others.
        self._part: list[bytes] = []
        self._by_user: dict[bytes, bytes] | None = None
        #: Whether these have changed which ones are left.
        self.has_changed = False
        #: Of what timers of the same key registered for an earlier time than theirs: theirs.
        self._behind: dict[bytes, int] = {}

    def covers(self, key: bytes) -> bool:
        """Return whether a timer, by its store key, is due in this firing."""
        return key < self._stops.get(key[:2], b"")

    def register(self, key: bytes, position: int) -> None:
        """Fire a timer too, in its turn, unless it waits for that already."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._touched[key] = False
            heapq.heappush(self._added, (order_of(key), key, position))
            self._note_change(key)

    def delete(self, key: bytes) -> None:
        """Do not fire a timer, unless it has fired."""
        self.has_changed |= key in self._waiting
        self._waiting.discard(key)
        self._touched[key] = False

    def stops_before(self, time_ms: int, is_over: Callable[[], bool]) -> bool:
        """Return whether the next one that waits, at ``time_ms``, and those after it are due as before: ``is_over``.

        Not if none has fired yet, nor if the next one is earlier than one that has: it is as of the time of that one,
        which nobody would know when it fires in a later part, or after a restart.
        """
        if not self._has_fired or time_ms < self.reached_ms or not is_over():
            return False
        self.left = sorted(self._waiting)
        self._touched.update(dict.fromkeys(self.left, True))
        self._waiting.clear()
        return True

    # --- one by one ---

    def each(self, positions: Sequence[int], is_over: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        """Time (ms) and position of each timer, when its turn comes; ``positions`` are those of :attr:`keys`.

        Up to where it stops: see :meth:`stops_before`.

        Raises:
            ValueError: timers register earlier ones again and again.
        """
        index, added, waiting = 0, self._added, self._waiting
        while True:
            if added and (index == len(self.keys) or added[0][0] < order_of(self.keys[index])):
                _, key, position = heapq.heappop(added)
            elif index < len(self.keys):
                key, position = self.keys[index], positions[index]
                index += 1
            else:
                return
            if key in waiting:
                time_ms = time_of(key)
                if self.stops_before(time_ms, is_over):
                    return
                waiting.discard(key)
                self._reach(time_ms, 1)
                yield time_ms, position

    def _reach(self, time_ms: int, count: int) -> None:
        self.fired += count
        self._earlier = self._earlier + count if time_ms < self.reached_ms else 0
        if self._earlier > EARLIER_MAX:
            raise ValueError(
                f"more than {EARLIER_MAX:,} timers in a row were registered for times before {self.reached_ms}, "
                "that of the timer that began with it; does each register an earlier one? Let it end, "
                "or register later ones"
            )
        self._has_fired, self.reached_ms = True, max(time_ms, self.reached_ms)

    # --- together ---

    def waiting_keys(self) -> list[bytes]:
        """Store keys of all that have not fired yet, by time."""
        self.has_changed = False
        if self._added:
            return sorted(self._waiting, key=order_of)
        return [key for key in self.keys if key in self._waiting]

    def begin_part(self, keys: list[bytes]) -> None:
        """Mark these, by time, as those that fire now; no two of them are of one key.

        Raises:
            ValueError: timers register earlier ones again and again.
        """
        self._part, self._by_user = keys, None
        self._reach(time_of(keys[-1]), len(keys))
        self._waiting.difference_update(keys)

    @property
    def has_behind(self) -> bool:
        """Return whether one that has fired has registered one for an earlier time."""
        return bool(self._behind)

    def behind_ms(self, key: bytes) -> int | None:
        """The time of the timer of the same key that registered this one, if that is later."""
        return self._behind.get(key)

    def _note_change(self, key: bytes) -> None:
        self.has_changed = True
        if self._by_user is None:
            self._by_user = {user_key_of(fired): fired for fired in self._part}
        fired = self._by_user.get(user_key_of(key))
        if fired is not None:
            reached_ms = max(time_of(fired), self._behind.get(fired, WATERMARK_MIN_MS))
            if reached_ms > time_of(key):
                self._behind[key] = reached_ms

    @property
    def gone(self) -> dict[bytes, bool]:
        """Return as changes of the table the timers that were fired or deleted, and those that are left."""
        return self._touched


class TimerSide:
    """The timers of one kind. What a batch changes is applied when it ends."""

    def __init__(self, table: TimerTable) -> None:
        self.table = table
        self._changes: dict[bytes, bool] = {}
        self._due: Due | None = None
        self._firing: Firing | None = None
        self._is_one_by_one = False
        self._prefixes: dict[int, bytes] = {}
        #: The lowest time that was registered in the batch.
        self.lowest_ms = NEVER_MS

    def change(self, keys: Keys, position: int, time_ms: int, *, is_live: bool) -> None:
        """Register or delete a timer of the key at a position of distinct keys."""
        group, user_key = keys.group_and_key(position)
        prefix = self._prefixes.get(group)
        if prefix is None:
            prefix = self._prefixes[group] = layout.key_prefix(group, self.table.state_id)
        key = prefix + time_bytes(time_ms) + user_key
        firing = self._firing
        if firing is None or not firing.covers(key):
            self._changes[key] = is_live
            if is_live and time_ms < self.lowest_ms:
                self.lowest_ms = time_ms
        elif is_live:
            firing.register(key, position)
        else:
            firing.delete(key)

    def change_many(self, keys: Keys, times_ms: np.ndarray, *, is_live: bool) -> None:
        """Register or delete timers; ``times_ms`` (int64) has one for each of ``keys``."""
        stored = self.table.keys(keys.groups, times_ms, keys.user_keys)
        firing = self._firing
        if firing is not None and not self._is_one_by_one:
            for key in filter(firing.covers, stored):
                # Positions are for those that fire one by one.
                if is_live:
                    firing.register(key, _NO_POSITION)
                else:
                    firing.delete(key)
            stored = [key for key in stored if not firing.covers(key)]
        self._changes.update(dict.fromkeys(stored, is_live))
        if is_live and len(times_ms):
            self.lowest_ms = min(self.lowest_ms, int(times_ms.min()))

    # --- called by the runtime ---

    def begin(self, due: Due, *, one_by_one: bool) -> Firing:
        """Timers are about to fire, one by one or many at once; they may change those that are left of them."""
        self._due, self._is_one_by_one = due, one_by_one
        self._firing = Firing(due)
        return self._firing

    def end(self) -> None:
        """Apply what the batch changed.

        Raises:
            StateError: the store cannot be written.
        """
        changes, due, firing = self._changes, self._due, self._firing
        self.lowest_ms = NEVER_MS
        self._changes, self._due, self._firing = {}, None, None
        if due is not None:
            assert firing is not None
            self.table.fired(due, firing.gone | changes, firing.left)
        elif changes:
            self.table.change(changes)

    def abandon(self) -> None:
        """The batch failed: forget what it changed; what was to be fired is due as before."""
        due = self._due
        self.lowest_ms = NEVER_MS
        self._changes, self._due, self._firing = {}, None, None
        if due is not None:
            self.table.give_back(due)
