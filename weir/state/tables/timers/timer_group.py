"""The timers of one key group: where they lie in the store, and what the store has not got yet."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from weir.state import layout
from weir.state.api import StateReader, prefix_end
from weir.state.tables.timers.time_first import time_bytes, time_of

#: The time of no timer: later than all.
NEVER_MS = 2**63 - 1
#: Where a group's place is in the store: beside the timers, under a namespace of its own.
_PLACE_NAMESPACE = b"place"
#: The place after all timers: no time begins like this.
_AFTER_ALL = b"\xff" * 9
#: A heap is made anew when most of what it holds was written.
_STALE_MIN = 64
#: Timers of the store that are known of one group.
_TOLD_MAX = 16_384


@dataclass(slots=True)
class DuePart:
    """Timers of one group that were taken, and where the group stands once they have fired."""

    group: TimerGroup
    #: Store keys, ascending.
    keys: list[bytes]
    #: Those of them that the store may not have.
    unwritten: list[bytes]
    #: The first store key that is not covered: all live ones before it were taken.
    stop: bytes
    place: bytes
    next_ms: int


@dataclass(slots=True)
class TimerGroup:
    """One key group; see :class:`weir.state.tables.timers.timer_table.TimerTable`. Keys are whole store keys."""

    prefix: bytes
    #: No live timer lies in the store before this key, and fired ones mostly do: scans begin here.
    place: bytes
    end: bytes
    #: Where the place is in the store.
    place_key: bytes
    #: What the store has as the place, or later; ``end``: anything.
    stored_place: bytes
    #: Timers that have fired since.
    fired_count: int = 0
    #: No live timer is earlier than this; None: nobody has looked.
    next_ms: int | None = None
    #: Timers that changed and are perhaps not in the store yet: True: registered, False: fired or deleted.
    unwritten: dict[bytes, bool] = field(default_factory=dict)
    #: Live timers of the store that a former owner has told of, or that were read ahead, or written since; the place
    #: says nothing of them.
    told: set[bytes] = field(default_factory=set)
    #: Before this key the store has no live timer but those.
    told_until: bytes = b""
    #: The registered ones among the unwritten, and those that are known of the store but not listed, as a heap; others
    #: may be there, too.
    heap: list[bytes] = field(default_factory=list)
    #: What was read ahead, ascending, from a position on: a slice takes a part of it. Others may be there, too.
    listed: list[bytes] = field(default_factory=list)
    listed_from: int = 0

    def register(self, key: bytes) -> int:
        """Note a timer; returns its time, ms."""
        if not self._is_live(key):
            heapq.heappush(self.heap, key)
        self.told.discard(key)
        self.unwritten[key] = True
        time_ms = time_of(key)
        if self.next_ms is not None and time_ms < self.next_ms:
            self.next_ms = time_ms
        return time_ms

    def _is_live(self, key: bytes) -> bool:
        """Whether a timer of the heap is registered."""
        return self.unwritten.get(key, False) or key in self.told

    def written(self, key: bytes) -> None:
        """The store has what is known of a timer: from now on scans have to find it."""
        if self.unwritten.pop(key):
            self.place = min(self.place, key)
            if key < self.told_until:
                self.told.add(key)
                if len(self.told) > _TOLD_MAX:
                    self._forget_later()

    def _forget_later(self) -> None:
        """Leave the later half of what is known of the store to scans."""
        ordered = sorted(self.told)
        self.told_until = ordered[len(ordered) // 2]
        self.told = set(ordered[: len(ordered) // 2])
        # A former owner told of them whatever the place.
        self.place = min(self.place, self.told_until)

    def begin(self, stored: bytes | None, *, is_here: bool) -> None:
        """Go on from the place in the store, if there is one; ``is_here``: a look for the first timer takes no time."""
        if stored is not None:
            self.place = self.stored_place = self.end if stored == _AFTER_ALL else self.prefix + stored
            if not is_here:
                # No timer is before the place.
                self.next_ms = self._first_ms(self.place)

    def lowered_place(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """What to write of the place together with a live timer."""
        return self._put_place(min(key, self._first(self.place))) if key < self.stored_place else []

    def moved_place(self, fired_max: int) -> list[tuple[bytes, bytes]]:
        """What to write of the place together with all that is dirty; it moves up when so many timers have fired."""
        place = self._first(self.place)
        is_due = place < self.stored_place or self.fired_count >= fired_max
        return self._put_place(place) if is_due else []

    def changed_place(self) -> list[tuple[bytes, bytes]]:
        """What to write of the place together with all that is dirty, if the store has another one."""
        place = self._first(self.place)
        return self._put_place(place) if place != self.stored_place else []

    def _put_place(self, place: bytes) -> list[tuple[bytes, bytes]]:
        self.stored_place, self.fired_count = place, 0
        return [(self.place_key, place[len(self.prefix) :] or _AFTER_ALL)]

    def first_live(self, store: StateReader, count_max: int) -> tuple[list[bytes], bytes]:
        """The first live timers, in the store or not, at most so many, and a key before which there is no other."""
        stored, beyond = self._take_stored(store, self.end, count_max)
        own = {key for key, is_live in self.unwritten.items() if is_live} | self.told
        live = sorted(key for key in [*stored, *own] if key < beyond)
        return live[:count_max], live[count_max] if live[count_max:] else beyond

    def begin_at(self, until: bytes, told: Iterable[bytes]) -> None:
        """Take over from an owner whose :meth:`first_live` this was: nobody has to look before a timer beyond these."""
        self.place = self.told_until = until
        self.told.update(told)
        self.listed = sorted(self.told)
        # It is not known whether the store has a later one: it is written anew.
        self.stored_place = self.end
        self.next_ms = self._first_ms(until)

    def unknown(self, until_ms: int, count_max: int) -> tuple[bytes, bytes] | None:
        """Where :meth:`take` would have to look for timers in the store; None: nowhere."""
        start = max(self.place, self.told_until)
        is_known = self._bound(until_ms) <= start or len(self.told) >= count_max
        return None if is_known else (start, self.end)

    def read_ahead(self, store: StateReader, count: int) -> None:
        """Know so many of the next timers in the store, so that it need not be scanned for each part."""
        entries = store.scan(max(self.place, self.told_until), self.end)
        scanned = [key for key, _ in islice(entries, count + 1)]
        until = scanned[count] if len(scanned) > count else self.end
        found = [key for key in scanned[:count] if key not in self.unwritten]
        self.told.update(found)
        self.listed = self.listed[self.listed_from : bisect_left(self.listed, self.told_until)] + found
        self.listed_from = 0
        self.told_until = until

    def trim(self) -> None:
        """Let go of what the heap holds for nothing."""
        if len(self.heap) > 2 * (len(self.unwritten) + len(self.told)) + _STALE_MIN:
            self.heap = [key for key, is_live in self.unwritten.items() if is_live]
            self.heap.extend(self.told.difference(self.listed[self.listed_from :]))
            heapq.heapify(self.heap)

    def seek(self, store: StateReader) -> None:
        """Find the first live timer."""
        stored = self.end
        for key, _ in store.scan(self.place, self.end):
            if key not in self.unwritten:
                stored = key
                break
        self.place = stored
        self.next_ms = self._first_ms(stored)

    def take(self, store: StateReader, until_ms: int, count_max: int) -> DuePart:
        """The first live timers up to a time, at most so many; they stay until :meth:`fired`."""
        bound = self._bound(until_ms)
        stored, beyond = self._take_stored(store, bound, count_max)
        listed, own = self._list(bound, count_max), self._pop(bound, count_max)
        keys = listed if not (stored or own) else sorted({*listed, *stored, *own})
        left = keys[count_max:]
        del keys[count_max:]
        if left:
            for key in own:
                if key >= left[0]:
                    heapq.heappush(self.heap, key)
            own = [key for key in own if key < left[0]]
            beyond = next((key for key in left if not self._is_live(key)), beyond)
        first = self._first(beyond, keys[-1] if keys else b"")
        return DuePart(self, keys, own, min(first, bound), beyond, self._time(first))

    def _take_stored(self, store: StateReader, bound: bytes, count_max: int) -> tuple[list[bytes], bytes]:
        """The first live timers in the store before a key, at most so many, and a key before which there is no other.

        A scan may be a call to a peer, for which all rows wait: there is none where nothing can be due.
        """
        start = max(self.place, self.told_until)
        if bound <= start or len(self.told) >= count_max:
            # The first ones are among those that are known.
            return [], start
        stored: list[bytes] = []
        for key, _ in store.scan(start, self.end):
            if key in self.unwritten:
                continue
            if key >= bound or len(stored) == count_max:
                return stored, key
            stored.append(key)
        return stored, self.end

    def fired(self, part: DuePart) -> None:
        """What was taken has fired; its keys are to be noted as deleted, too."""
        self.place, self.next_ms = part.place, part.next_ms
        self.listed_from = bisect_left(self.listed, part.stop, self.listed_from)
        self.fired_count += len(part.keys)

    def give_back(self, part: DuePart) -> None:
        """What was taken has not fired."""
        for key in part.unwritten:
            heapq.heappush(self.heap, key)

    def _list(self, bound: bytes, count_max: int) -> list[bytes]:
        """The first live timers of the list before a key, at most so many."""
        start = self.listed_from
        part = self.listed[start : bisect_left(self.listed, bound, start)]
        told, unwritten = self.told, self.unwritten
        return [key for key in part if key in told or unwritten.get(key)][:count_max]

    def _pop(self, bound: bytes, count_max: int) -> list[bytes]:
        heap = self.heap
        own: list[bytes] = []
        while heap and heap[0] < bound and len(own) < count_max:
            key = heapq.heappop(heap)
            # A key that was deleted and registered again is there twice.
            if self._is_live(key) and (not own or own[-1] != key):
                own.append(key)
        while own and heap and heap[0] == own[-1]:
            heapq.heappop(heap)
        return own

    def _first(self, stored: bytes, after: bytes = b"") -> bytes:
        """The first one that is known, of those that are listed after a key, or the first one in the store."""
        heap, listed = self.heap, self.listed
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        at = bisect_right(listed, after, self.listed_from)
        while at < len(listed) and not self._is_live(listed[at]):
            at += 1
        return min([stored, *heap[:1], *listed[at : at + 1]])

    def _bound(self, until_ms: int) -> bytes:
        """The first key after all timers up to a time."""
        return self.prefix + time_bytes(until_ms + 1) if until_ms < NEVER_MS else self.end

    def _first_ms(self, stored: bytes) -> int:
        return self._time(self._first(stored))

    def _time(self, key: bytes) -> int:
        return NEVER_MS if key == self.end else time_of(key)


def timer_group(number: int, state_id: int) -> TimerGroup:
    """A key group of whose timers nothing is known."""
    prefix = layout.key_prefix(number, state_id)
    end = prefix_end(prefix)
    assert end is not None, "a prefix ends with the length of an empty namespace, 0"
    place_key = layout.key_prefix(number, state_id, _PLACE_NAMESPACE)
    return TimerGroup(prefix, prefix, end, place_key, prefix)
