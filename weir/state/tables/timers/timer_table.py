"""Timers over a state backend: (time, key) pairs in the order of time, of which only the changed ones are in memory.

What is due is found by a scan of each key group that begins where the last one ended, so that it never walks over what
RocksDB remembers of fired timers. Whether anything is due is a comparison: the earliest time of each group is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from weir.errors import StateError
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.tables.cached_entries import CachedPart, CachedValues
from weir.state.tables.capture import Capture
from weir.state.tables.table import EntryOrder, IsOver, StateTable, never
from weir.state.tables.timers.time_first import times_bytes
from weir.state.tables.timers.timer_group import NEVER_MS, DuePart, TimerGroup, timer_group
from weir.state.tables.values.value_writes import FLUSH_ENTRIES_MAX, WRITE_ENTRIES_MAX
from weir.types import StoreStats

#: The value of a timer: the version of its form.
TIMER_VALUE = b"\x01"
#: The place of a group is written when so many of its timers have fired since: a new owner walks over them.
FIRED_MAX = 512
#: Timers that new owners are told of in a handover, or that are read ahead, at most: a share of each group.
TOLD_MAX = 16_384
#: Many timers are due where a part has at least this part of what it may have.
_MANY_SHARE = 8
#: Entries that are written in one call of :meth:`TimerTable.flush_part`, at most.
_PART_ENTRIES_MAX = 1_000
#: How far the bound may be exceeded while a checkpoint is written, as a part of it.
_OVERSHOOT = 0.5
#: What a timer takes of a table, about.
_STORED_BYTES = 64
#: What a timer that is not in the store yet occupies: its key, an entry in two dictionaries and in a heap.
_ENTRY_BYTES = 300


@dataclass(frozen=True, slots=True)
class Due:
    """Timers that were taken, of some key groups; :meth:`TimerTable.fired` or :meth:`TimerTable.give_back` follows."""

    #: Store keys, ascending within each group.
    keys: list[bytes]
    parts: list[DuePart]

    def stops(self) -> dict[bytes, bytes]:
        """By the two bytes of a key group, the first store key that is not covered by what was taken."""
        return {part.group.prefix[:2]: part.stop for part in self.parts}


class TimerTable(StateTable):
    """The timers of one kind of an operator in a subtask. A timer that is registered twice is one."""

    order: ClassVar[EntryOrder] = "time"

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        cache_bytes: int,
        groups: Iterable[int],
        fired_max: int = FIRED_MAX,
        told_max: int = TOLD_MAX,
    ) -> None:
        """``groups`` are owned from the beginning; ``cache_bytes`` bounds what is not written yet."""
        self.state_id = state_id
        self._fired_max, self._told_max = fired_max, told_max
        #: Whether many timers were due last.
        self._is_many = False
        #: There are groups that nobody has looked at.
        self._has_new = False
        self._backend = backend
        self._entries_max = max(cache_bytes // _ENTRY_BYTES, 1)
        self._groups: dict[bytes, TimerGroup] = {}
        #: Of groups that are not ours yet: their first timers, the key up to which these are all, and whether that
        #: counts when they are adopted.
        self._told: dict[bytes, list[bytes]] = {}
        self._told_until: dict[bytes, bytes] = {}
        self._kept: set[bytes] = set()
        #: No live timer is earlier; None: not known.
        self._next_ms: int | None = None
        self._dirty: dict[bytes, bool] = {}
        #: What another thread is writing; it is clean.
        self._captured: tuple[Capture, Mapping[bytes, bool]] | None = None
        #: What :meth:`flush_part` has to write, and how much of it is.
        self._to_flush: list[bytes] | None = None
        self._flushed = 0
        #: What goes first when there is too much, the oldest last; what is not dirty any more has gone already.
        self._to_evict: list[bytes] = []
        self._puts = self._deletes = 0
        self.adopt_groups(groups)

    # --- timers ---

    def keys(self, groups: np.ndarray, times_ms: np.ndarray, user_keys: Sequence[bytes]) -> list[bytes]:
        """Store keys of timers; ``groups`` (integer) and ``times_ms`` (int64) are as long as ``user_keys``."""
        prefixes = {number: layout.key_prefix(number, self.state_id) for number in set(groups.tolist())}
        return [
            prefixes[group] + time + key
            for group, time, key in zip(groups.tolist(), times_bytes(times_ms), user_keys, strict=True)
        ]

    def change(self, changes: Mapping[bytes, bool]) -> None:
        """Register timers (True) and delete others (False), by store keys.

        Raises:
            StateError: a key group is not owned, or the store cannot be written.
        """
        groups = self._groups
        earliest_ms = NEVER_MS
        registered = 0
        for key, is_live in changes.items():
            try:
                group = groups[key[:2]]
            except KeyError:
                raise StateError(
                    f"a timer belongs to key group {int.from_bytes(key[:2], 'big')}, which is not here"
                ) from None
            if is_live:
                earliest_ms = min(earliest_ms, group.register(key))
                registered += 1
            else:
                group.unwritten[key] = False
                group.told.discard(key)
        self._dirty.update(changes)
        self._puts += registered
        self._deletes += len(changes) - registered
        if self._next_ms is not None:
            self._next_ms = min(self._next_ms, earliest_ms)
        self._shrink()

    def next_ms(self) -> int:
        """No timer is due before this time; ``NEVER_MS`` if there is none. Costs a seek for each group that is new."""
        if self._next_ms is None:
            self._look()
            times = [group.next_ms for group in self._groups.values() if group.next_ms is not None]
            self._next_ms = min(times, default=NEVER_MS)
        return self._next_ms

    def _look(self) -> None:
        """Find the first timer of each group that is new."""
        if self._has_new:
            self._has_new = False
            fresh = [group for group in self._groups.values() if group.next_ms is None]
            if not fresh:
                return
            places = self._backend.get_many([group.place_key for group in fresh])
            for group, place in zip(fresh, places, strict=True):
                group.begin(place, is_here=self._is_here(group))
            unknown = [group for group in fresh if group.next_ms is None]
            self._backend.will_scan([(group.place, group.end) for group in unknown], 0)
            for group in unknown:
                group.seek(self._backend)

    def _is_here(self, group: TimerGroup) -> bool:
        """Whether all timers of a group are in one store."""
        return self._backend.is_settled(int.from_bytes(group.prefix[:2], "big"))

    def take(self, until_ms: int, count_max: int) -> Due:
        """Timers that are due at a time, about the earliest of each group, at most so many; without any none is due.

        They stay, and nothing else is called for this table, until :meth:`fired` or :meth:`give_back`.
        """
        due = Due([], [])
        while self.next_ms() <= until_ms and not due.keys:
            self._next_ms = None
            looked_at = [
                group
                for group in self._groups.values()
                if group.next_ms is not None and group.next_ms <= until_ms
            ]
            self._read_ahead(looked_at, until_ms, count_max)
            for group in looked_at:
                part = group.take(self._backend, until_ms, count_max - len(due.keys))
                if not part.keys:
                    # The earliest ones were deleted.
                    group.fired(part)
                    continue
                due.keys.extend(part.keys)
                due.parts.append(part)
                if len(due.keys) >= count_max:
                    break
        self._is_many = len(due.keys) * _MANY_SHARE >= count_max
        return due

    def _read_ahead(self, groups: Iterable[TimerGroup], until_ms: int, count_max: int) -> None:
        """Know the timers that are due next in groups that are on their way here, or in all if many are due.

        Timers fire in many parts, and each would scan all groups, and again until it knows how far it goes.
        """
        unknown = [
            (group, place)
            for group in groups
            if (place := group.unknown(until_ms, count_max)) is not None
            and (self._is_many or not self._is_here(group))
        ]
        if not unknown:
            return
        count = max(1, self._told_max // len(self._groups))
        # Each scan by itself would take as long as all together.
        self._backend.will_scan([place for _, place in unknown], count * _STORED_BYTES)
        for group, _ in unknown:
            group.read_ahead(self._backend, count)

    def fired(self, due: Due, changes: Mapping[bytes, bool], left: Iterable[bytes] = ()) -> None:
        """What was taken has fired; ``changes`` has each of its keys, as in :meth:`change`, and may have others.

        ``left``: keys that have not fired after all, and which ``changes`` registers again.
        """
        for part in due.parts:
            part.group.fired(part)
        for key in left:
            # Neither the heap nor the list has it any more.
            group = self._groups[key[:2]]
            group.unwritten.pop(key, None)
            group.told.discard(key)
        self.change(changes)
        # Earlier groups than those that were taken may be left.
        self._next_ms = None

    def give_back(self, due: Due) -> None:
        """What was taken has not fired: an error came between."""
        for part in due.parts:
            part.group.give_back(part)

    def pending(self) -> Iterator[bytes]:
        """Store keys of all timers; not for more than tests and a last look."""
        for group in self._groups.values():
            known = group.unwritten | dict.fromkeys(group.told, True)
            yield from sorted(key for key, is_live in known.items() if is_live)
            yield from (key for key, _ in self._backend.scan(group.place, group.end) if key not in known)

    # --- life cycle ---

    @override
    def flush(self) -> None:
        self._settle()
        self._write_places(self._groups.values())
        self._write_down(sorted(self._dirty))

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """See :class:`StateTable`. While a checkpoint is written or the store stalls, nothing is: rows would wait."""
        if self._has_to_wait():
            return False
        if self._to_flush is None:
            self._to_flush, self._flushed = sorted(self._dirty), 0
        wanted = min(math.ceil(share * len(self._to_flush)), self._flushed + _PART_ENTRIES_MAX)
        while self._flushed < wanted and not self._backend.is_stalled():
            part = self._to_flush[self._flushed : self._flushed + FLUSH_ENTRIES_MAX]
            self._flushed += len(part)
            self._write_down([key for key in part if key in self._dirty])
            if is_over():
                break
        if self._flushed < len(self._to_flush):
            return False
        self._to_flush = None
        self._trim()
        return True

    @override
    def capture(self) -> Capture | None:
        self._settle()
        if not self._dirty:
            return None
        self._look()
        # All of them, so that who goes on from the checkpoint need not look for the first timer of each group, and walk
        # over what has fired: in an image in an object store that takes requests that follow one another.
        places = [put for group in self._groups.values() for put in group.changed_place()]
        captured, self._dirty = self._dirty, {}

        def write() -> None:
            # Sorted here: rows do not wait for it.
            entries = sorted(captured.items())
            self._backend.write(places)
            for start in range(0, len(entries), WRITE_ENTRIES_MAX):
                part = entries[start : start + WRITE_ENTRIES_MAX]
                self._backend.write(
                    [(key, TIMER_VALUE) for key, is_live in part if is_live],
                    [key for key, is_live in part if not is_live],
                )
                capture.pause(self._backend.is_stalled)

        capture = Capture(write)
        self._captured = capture, captured
        return capture

    @override
    def flush_groups(self, groups: Iterable[int]) -> None:
        wanted = {group.to_bytes(2, "big") for group in groups}
        self._settle()
        self._write_places([group for group in self._groups.values() if group.prefix[:2] in wanted])
        self._write_down(sorted(key for key in self._dirty if key[:2] in wanted))

    @override
    def release_groups(self, groups: Iterable[int]) -> None:
        listed = list(groups)
        self.flush_groups(listed)
        for group in listed:
            self._groups.pop(group.to_bytes(2, "big"), None)
        self._next_ms = None

    @override
    def adopt_groups(self, groups: Iterable[int]) -> None:
        for number in groups:
            prefix = number.to_bytes(2, "big")
            group = self._groups[prefix] = timer_group(number, self.state_id)
            until, told = self._told_until.pop(prefix, None), self._told.pop(prefix, ())
            if until is not None and prefix in self._kept:
                group.begin_at(min(until, group.end), told)
            self._kept.discard(prefix)
        self._next_ms = None
        self._has_new = True

    # --- what a new owner would have to look for: a scan for each group, at a peer or in a slow store at first ---

    def notes_at_handover(self, groups: Iterable[int]) -> CachedValues:
        """See :class:`StateTable`: the first timers of each group that has been looked at.

        Keys are those of timers, or the two bytes of a group, with the key up to which its timers are all.
        """
        self._settle()
        wanted = [group.to_bytes(2, "big") for group in groups]
        known = {prefix: self._groups[prefix] for prefix in wanted if prefix in self._groups}
        keys, values = [], []
        for prefix, group in known.items():
            if group.next_ms is not None:
                live, until = group.first_live(self._backend, max(1, self._told_max // len(known)))
                keys += [*live, prefix]
                values += [*([b""] * len(live)), until]
        return CachedValues(self.state_id, keys, values)

    def take_copy(self, entries: CachedPart, groups: Iterable[int]) -> bool:
        """See :class:`StateTable`.

        Raises:
            StateError: the entries are cells.
        """
        if entries.state_id != self.state_id:
            return False
        if not isinstance(entries, CachedValues):
            raise StateError("what is known of timers came as cells, not as values of any length")
        wanted = {group.to_bytes(2, "big") for group in groups}
        for key, until in zip(entries.keys, entries.values, strict=True):
            prefix = key[:2]
            if prefix in wanted and until:
                self._told_until[prefix] = until
            elif prefix in wanted:
                self._told.setdefault(prefix, []).append(key)
        return True

    @override
    def keep_copies(self, groups: Iterable[int]) -> None:
        self._kept.update(group.to_bytes(2, "big") for group in groups)

    @override
    def clear_groups(self, groups: Iterable[int]) -> None:
        for group in groups:
            prefix = group.to_bytes(2, "big")
            self._told.pop(prefix, None)
            self._told_until.pop(prefix, None)
            self._kept.discard(prefix)

    @override
    def stats(self) -> StoreStats:
        # Asked for by another thread, too.
        captured = self._captured
        entries = len(self._dirty) + (0 if captured is None else len(captured[1]))
        return StoreStats(puts=self._puts, deletes=self._deletes, memory_bytes=entries * _ENTRY_BYTES)

    # --- internals ---

    def _settle(self) -> None:
        """Wait until what was captured is written; if that failed it is dirty again."""
        if self._captured is None:
            return
        (capture, keys), self._captured = self._captured, None
        is_written = capture.wait()
        if not is_written:
            self._forget_places()
        for key in keys:
            group = self._groups.get(key[:2])
            if group is None or key in self._dirty:
                continue
            if is_written:
                group.written(key)
            else:
                self._dirty[key] = group.unwritten[key]
        self._trim()

    def _has_to_wait(self) -> bool:
        """Whether rows would wait for a write now."""
        if self._captured is not None and self._captured[0].has_ended:
            self._settle()
        return self._captured is not None or self._backend.writes_wait() or self._backend.is_stalled()

    def _shrink(self) -> None:
        too_many = len(self._dirty) - self._entries_max
        if too_many <= 0 or (too_many < self._entries_max * _OVERSHOOT and self._has_to_wait()):
            return
        self._settle()
        while len(self._dirty) > self._entries_max:
            self._to_evict = self._to_evict or list(self._dirty)[::-1]
            part = self._to_evict[-WRITE_ENTRIES_MAX:]
            del self._to_evict[-WRITE_ENTRIES_MAX:]
            self._write_down(sorted(key for key in part if key in self._dirty))
        self._trim()

    def _write_down(self, keys: Sequence[bytes]) -> None:
        """Write these dirty keys, which are sorted."""
        self._look()
        dirty, groups = self._dirty, self._groups
        for start in range(0, len(keys), WRITE_ENTRIES_MAX):
            entries = [(key, dirty[key]) for key in keys[start : start + WRITE_ENTRIES_MAX]]
            # Before its timers, a place that is too late is moved.
            places = [
                put for key, is_live in entries if is_live for put in groups[key[:2]].lowered_place(key)
            ]
            self._write(entries, places)
            for key, _ in entries:
                groups[key[:2]].written(key)
                del dirty[key]

    def _write_places(self, groups: Iterable[TimerGroup]) -> None:
        """Write where these groups have got to; all of their dirty keys are written next."""
        self._look()
        places = [put for group in groups for put in group.moved_place(self._fired_max)]
        if places:
            self._write((), places)

    def _write(self, entries: Sequence[tuple[bytes, bool]], places: Sequence[tuple[bytes, bytes]]) -> None:
        try:
            self._backend.write(
                puts=[*places, *((key, TIMER_VALUE) for key, is_live in entries if is_live)],
                deletes=[key for key, is_live in entries if not is_live],
            )
        except BaseException:
            self._forget_places()
            raise

    def _forget_places(self) -> None:
        """A place may not have been written: it is written again before the next timer."""
        for group in self._groups.values():
            group.stored_place = group.end

    def _trim(self) -> None:
        for group in self._groups.values():
            group.trim()
