"""The two kinds of timers of a keyed operator, by event time and by processing time, while a batch changes them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from weir.state import layout
from weir.state.handles.block import Keys
from weir.state.tables.timers.time_first import order_of, time_bytes, time_of
from weir.state.tables.timers.timer_group import NEVER_MS
from weir.state.tables.timers.timer_table import Due, TimerTable


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

    def covers(self, key: bytes) -> bool:
        """Whether a timer, by its store key, is due in this firing."""
        return key < self._stops.get(key[:2], b"")

    def register(self, key: bytes, position: int) -> None:
        """Fire a timer too, in its turn, unless it waits for that already."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._touched[key] = False
            heapq.heappush(self._added, (order_of(key), key, position))

    def delete(self, key: bytes) -> None:
        """Do not fire a timer, unless it has fired."""
        self._waiting.discard(key)
        self._touched[key] = False

    def each(self, positions: Sequence[int], is_over: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        """Time (ms) and position of each timer, when its turn comes; ``positions`` are those of :attr:`keys`.

        The first timer fires. Before each other one ``is_over`` is asked: if it is, that one and those after it are
        due as before.
        """
        index, added, waiting, has_fired = 0, self._added, self._waiting, False
        while True:
            if has_fired and is_over():
                self._stop()
                return
            if added and (index == len(self.keys) or added[0][0] < order_of(self.keys[index])):
                _, key, position = heapq.heappop(added)
            elif index < len(self.keys):
                key, position = self.keys[index], positions[index]
                index += 1
            else:
                return
            if key in waiting:
                waiting.discard(key)
                has_fired = True
                yield time_of(key), position

    def _stop(self) -> None:
        self.left = sorted(self._waiting)
        self._touched.update(dict.fromkeys(self.left, True))

    @property
    def gone(self) -> dict[bytes, bool]:
        """All that were fired or deleted, and those that are left, as changes of the table."""
        return self._touched


class TimerSide:
    """The timers of one kind. What a batch changes is applied when it ends."""

    def __init__(self, table: TimerTable) -> None:
        self.table = table
        self._changes: dict[bytes, bool] = {}
        self._due: Due | None = None
        self._firing: Firing | None = None
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
        self._changes.update(dict.fromkeys(stored, is_live))
        if is_live and len(times_ms):
            self.lowest_ms = min(self.lowest_ms, int(times_ms.min()))

    # --- called by the runtime ---

    def begin(self, due: Due, *, one_by_one: bool) -> Firing:
        """Timers are about to fire; one by one, they may change those that are left of them."""
        self._due, firing = due, Firing(due)
        self._firing = firing if one_by_one else None
        return firing

    def end(self) -> None:
        """Apply what the batch changed.

        Raises:
            StateError: the store cannot be written.
        """
        changes, due, firing = self._changes, self._due, self._firing
        self.lowest_ms = NEVER_MS
        self._changes, self._due, self._firing = {}, None, None
        if due is not None:
            gone = dict.fromkeys(due.keys, False) if firing is None else firing.gone
            self.table.fired(due, gone | changes, () if firing is None else firing.left)
        elif changes:
            self.table.change(changes)

    def abandon(self) -> None:
        """The batch failed: forget what it changed; what was to be fired is due as before."""
        due = self._due
        self.lowest_ms = NEVER_MS
        self._changes, self._due, self._firing = {}, None, None
        if due is not None:
            self.table.give_back(due)
