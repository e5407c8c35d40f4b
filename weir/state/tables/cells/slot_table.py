"""Keys to slots: an open-addressing index over arrays, with CLOCK eviction. No backend here, no locks.

A slot keeps its number while its key stays, so arrays of accumulators are indexed by slot. Keys are compared byte by
byte, never by hash alone.
"""

from __future__ import annotations

import numpy as np

from weir.keys.hashing import KeyColumn
from weir.state.packed import PackedKeys
from weir.state.tables.cells import slot_choice_kernels as choice
from weir.state.tables.cells import slot_kernels as kernels
from weir.state.tables.cells import slot_key_kernels as key_kernels
from weir.state.tables.cells.accumulators import presence_bytes
from weir.state.tables.cells.slot_layout import (
    ARENA_USED,
    COUNTERS,
    DIRTY,
    FREE,
    LIVE,
    LIVE_KEY_BYTES,
    NEW,
    USED,
)
from weir.state.tables.panes import window_kernels

SLOTS_MIN = 1024
#: Key group, state number and an empty namespace, see ``weir.state.layout``.
STATE_KEY_PREFIX_BYTES = 5
_ARENA_BYTES_MIN = 16 << 10
#: Bytes of a slot beside cells, presence, index and key: hash, start, length, stamp, flags, free list.
_SLOT_BYTES = 8 + 8 + 4 + 4 + 1 + 4
#: The arena holds live keys, as many bytes of waste, and a copy while it is compacted.
_ARENA_COPIES = 3


def bytes_for_slots(slots: int, key_bytes: int, cell_count: int) -> int:
    """The ``bytes_max`` at which a table of keys of this mean length reaches ``slots``."""
    entries = 4
    while entries * 2 // 3 < slots:
        entries *= 2
    slot_bytes = _SLOT_BYTES + 8 * cell_count + presence_bytes(cell_count) + _ARENA_COPIES * key_bytes
    return entries * 8 + slots * slot_bytes


class _Change:
    """See :meth:`SlotTable.change`. One for each table: to make one every time costs a small batch seven calls."""

    __slots__ = ("_table",)

    def __init__(self, table: SlotTable) -> None:
        self._table = table

    def __enter__(self) -> None:
        self._table.changing += 1
        self._table.changes += 1

    def __exit__(self, *_: object) -> None:
        self._table.changing -= 1


class SlotTable:
    """Starts small and doubles up to about ``bytes_max``; then :meth:`choose_victims` makes room.

    ``cells`` is int64, shape (capacity, cells), ``presence`` uint8, shape (capacity, presence_bytes): both belong
    to the caller between calls, but are new arrays after :meth:`grow`.
    """

    def __init__(self, cell_count: int, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._cell_count = cell_count
        self._fixed_bytes = _SLOT_BYTES + 8 * cell_count + presence_bytes(cell_count)
        self.cells = np.zeros((0, cell_count), dtype=np.int64)
        self.presence = np.zeros((0, presence_bytes(cell_count)), dtype=np.uint8)
        self.hashes = np.zeros(0, dtype=np.uint64)
        self._flags = np.zeros(0, dtype=np.uint8)
        self._stamps = np.zeros(0, dtype=np.uint32)
        self._starts = np.zeros(0, dtype=np.int64)
        self._lengths = np.zeros(0, dtype=np.int32)
        self._free_slots = np.zeros(0, dtype=np.int32)
        self._table = np.zeros(0, dtype=np.uint64)
        self._arena = np.zeros(_ARENA_BYTES_MIN, dtype=np.uint8)
        self._counters = np.zeros(COUNTERS, dtype=np.int64)
        self._now = 0
        #: Calls under way that change which key has which slot; and how many there have been.
        self.changing = self.changes = 0
        self._change = _Change(self)
        #: How often the owner has begun to take rows into cells.
        self.updates = 0
        self._resize(min(SLOTS_MIN, self._capacity_max()))

    @property
    def capacity(self) -> int:
        """Slots, used or not."""
        return int(self._flags.size)

    @property
    def live(self) -> int:
        """Slots in use."""
        return int(self._counters[LIVE])

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        return self.capacity * self._fixed_bytes + self._table.nbytes + self._arena.nbytes

    @property
    def rows_max(self) -> int:
        """Rows that one :meth:`probe` may pin at most."""
        return max(1, max(self.capacity, self._capacity_max()) // 2)

    def _capacity_max(self) -> int:
        """Slots that the bound allows, given the mean length of the keys so far."""
        live = self.live
        key_bytes = -(-int(self._counters[LIVE_KEY_BYTES]) // live) if live else 16
        slot_bytes = self._fixed_bytes + _ARENA_COPIES * key_bytes
        slots = 2
        # The index has a power of two of entries, 1.5 to 3 for each slot; so search among its sizes.
        entries = 4
        while entries * 8 < self.bytes_max:
            slots = max(slots, min((self.bytes_max - entries * 8) // slot_bytes, entries * 2 // 3))
            entries *= 2
        return int(slots)

    def probe(
        self, hashes: np.ndarray, data: np.ndarray, offsets: np.ndarray, *, changes: bool = True
    ) -> tuple[np.ndarray, int]:
        """Slots (int32, shape (rows,), -1 if absent) and the number of absent rows; begins a new pin.

        Found slots stay until the next call; ``changes``: they become dirty.
        """
        self._now += 1
        if self._now == 2**32:
            self._now = 1
            self._stamps[:] = 0
        slots = np.empty(len(hashes), dtype=np.int32)
        missing = kernels.probe(
            hashes,
            data,
            offsets,
            self._table,
            self._starts,
            self._lengths,
            self._arena,
            self._flags,
            self._stamps,
            self._now,
            DIRTY if changes else 0,
            slots,
        )
        return slots, missing

    def insert_missing(
        self,
        hashes: np.ndarray,
        data: np.ndarray,
        offsets: np.ndarray,
        first_row: int,
        slots: np.ndarray,
        new_slots: np.ndarray,
    ) -> int:
        """Fill in absent rows from ``first_row`` on with new slots, zeroed, dirty and pinned, as far as there is room.

        ``new_slots`` (int32, shape (rows,)) gets them appended, see :attr:`new_count`. Returns the row that did
        not fit any more, or ``len(slots)``.
        """
        if first_row == 0:
            self._counters[NEW] = 0
        return kernels.insert_missing(
            hashes,
            data,
            offsets,
            first_row,
            slots,
            self._table,
            self._starts,
            self._lengths,
            self._arena,
            self._flags,
            self._stamps,
            self._now,
            self.hashes,
            self.cells,
            self.presence,
            self._free_slots,
            new_slots,
            self._counters,
        )

    def put_clean(
        self,
        hashes: np.ndarray,
        data: np.ndarray,
        offsets: np.ndarray,
        cells: np.ndarray,
        presence: np.ndarray,
        wanted: np.ndarray,
        *,
        may_insert: bool,
    ) -> int:
        """Set keys to what the store has of them: clean, and not pinned; ``may_insert``: also those without a slot.

        ``wanted`` (bool, shape (max_parallelism,)) are the groups whose keys count. Returns the row that did not fit
        any more, or ``len(hashes)``; after :meth:`make_room` the same rows may come again.
        """
        return kernels.put_clean(
            hashes,
            data,
            offsets,
            cells,
            presence,
            wanted,
            may_insert,
            self._table,
            self._starts,
            self._lengths,
            self._arena,
            self._flags,
            self._stamps,
            self.hashes,
            self.cells,
            self.presence,
            self._free_slots,
            self._counters,
        )

    @property
    def now(self) -> int:
        """Number of the latest :meth:`probe`; slots that it met carry it. Begins anew after 4 billion."""
        return self._now

    def change(self) -> _Change:
        """Around everything that changes keys or cells, so that :meth:`peek` of another thread notices it."""
        return self._change

    def peek(self, value: np.uint64, key: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Cells and presence of a key, copied, without noting that it was used; None: it has no slot.

        Any thread may call it; what it returns means something only if :attr:`changing` is 0 and :attr:`changes` the
        same before and afterwards.
        """
        cells, presence = self.cells, self.presence
        cells_out = np.zeros(cells.shape[1], dtype=np.int64)
        presence_out = np.zeros(presence.shape[1], dtype=np.uint8)
        slot = kernels.peek(
            value,
            key,
            self._table,
            self._starts,
            self._lengths,
            self._arena,
            cells,
            presence,
            cells_out,
            presence_out,
        )
        return None if slot < 0 else (cells_out, presence_out)

    def changed_in_groups(self, marks: np.ndarray) -> np.ndarray:
        """Slots that were met after the mark of their key group, int32, ascending.

        ``marks`` (int64, shape (max_parallelism,)) are values of :attr:`now`, negative: not this group.
        """
        found = np.empty(self.capacity, dtype=np.int32)
        return found[: choice.changed_in_groups(self._flags, self.hashes, self._stamps, marks, found)]

    def keys_of(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The keys of slots one after the other (uint8), and their lengths (int32, shape (slots,))."""
        lengths = self._lengths[slots]
        data = np.empty(int(lengths.sum(dtype=np.int64)), dtype=np.uint8)
        key_kernels.copy_keys(slots, self._starts, self._lengths, self._arena, data)
        return data, lengths

    @property
    def new_count(self) -> int:
        """Slots that :meth:`insert_missing` handed out since it was last called for row 0."""
        return int(self._counters[NEW])

    def make_room(self, key_bytes: int) -> bool:
        """Grow slots or arena for at least one more key of ``key_bytes``; False: something must be evicted.

        Slots keep their numbers, but ``cells`` and ``presence`` may be new arrays.
        """
        if int(self._counters[FREE]) == 0:
            capacity = min(2 * self.capacity, self._capacity_max())
            if capacity <= self.capacity:
                return False
            self._resize(capacity)
        used = int(self._counters[ARENA_USED])
        if used + key_bytes > self._arena.size:
            return self._make_arena_room(key_bytes)
        return True

    def _make_arena_room(self, key_bytes: int) -> bool:
        live_bytes = int(self._counters[LIVE_KEY_BYTES])
        size = self._arena.size
        bound = (self.bytes_max - self.capacity * self._fixed_bytes - self._table.nbytes) * 2 // _ARENA_COPIES
        if 2 * (live_bytes + key_bytes) > size:
            size = min(2 * size, max(bound, self._arena.size))
        if 4 * (live_bytes + key_bytes) > 3 * size:
            # Compacting would free little. Evict, but a key that is larger than the arena goes in whatever the bound.
            if live_bytes > self._pinned_key_bytes():
                return False
            size = 2 * (live_bytes + key_bytes)
        arena = np.empty(size, dtype=np.uint8)
        self._counters[ARENA_USED] = key_kernels.compact_arena(
            self._flags, self._arena, arena, self._starts, self._lengths
        )
        self._arena = arena
        return True

    def _pinned_key_bytes(self) -> int:
        pinned = (self._flags & USED != 0) & (self._stamps == self._now)
        return int(self._lengths[pinned].sum())

    def _resize(self, capacity: int) -> None:
        old = self.capacity
        added = capacity - old
        self.cells = np.concatenate([self.cells, np.zeros((added, self._cell_count), dtype=np.int64)])
        self.presence = np.concatenate(
            [self.presence, np.zeros((added, self.presence.shape[1]), dtype=np.uint8)]
        )
        self.hashes = np.concatenate([self.hashes, np.zeros(added, dtype=np.uint64)])
        self._flags = np.concatenate([self._flags, np.zeros(added, dtype=np.uint8)])
        self._stamps = np.concatenate([self._stamps, np.zeros(added, dtype=np.uint32)])
        self._starts = np.concatenate([self._starts, np.zeros(added, dtype=np.int64)])
        self._lengths = np.concatenate([self._lengths, np.zeros(added, dtype=np.int32)])
        free = int(self._counters[FREE])
        # The lowest number on top, so that slots fill in order and scans stay short.
        added_slots = np.arange(capacity - 1, old - 1, -1, dtype=np.int32)
        kept = self._free_slots[:free]
        self._free_slots = np.zeros(capacity, dtype=np.int32)
        self._free_slots[: free + added] = np.concatenate([kept, added_slots])
        self._counters[FREE] = free + added
        entries = 4
        while entries < capacity + capacity // 2:
            entries *= 2
        if entries != self._table.size:
            self._table = np.zeros(entries, dtype=np.uint64)
            kernels.rebuild_index(self._flags, self.hashes, self._table)

    def choose_victims(self, wanted: int) -> np.ndarray:
        """Up to ``wanted`` slots that are neither pinned nor recently used, int32; the caller removes them."""
        victims = np.empty(wanted, dtype=np.int32)
        count = choice.select_victims(wanted, self._flags, self._stamps, self._now, self._counters, victims)
        return victims[:count]

    def remove(self, slots: np.ndarray) -> None:
        """Forget keys; their slots are free."""
        if 4 * len(slots) > self.live:
            # Taking each one out of the index would take longer.
            kernels.free_slots(slots, self._lengths, self._flags, self._free_slots, self._counters)
            self._table[:] = 0
            kernels.rebuild_index(self._flags, self.hashes, self._table)
            return
        kernels.remove_slots(
            slots, self._table, self.hashes, self._lengths, self._flags, self._free_slots, self._counters
        )

    def used_slots(self, *, dirty_only: bool) -> np.ndarray:
        """Slots in use, int32, ascending."""
        found = np.empty(self.capacity, dtype=np.int32)
        bits = USED | DIRTY if dirty_only else USED
        return found[: choice.slots_with(self._flags, bits, found)]

    def slots_in_groups(self, wanted: np.ndarray, *, dirty_only: bool) -> np.ndarray:
        """Slots of the key groups in the mask ``wanted`` (bool, shape (max_parallelism,)), int32, ascending."""
        found = np.empty(self.capacity, dtype=np.int32)
        bits = USED | DIRTY if dirty_only else USED
        return found[: choice.slots_in_groups(self._flags, self.hashes, bits, wanted, found)]

    def are_in_groups_of(self, slots: np.ndarray, statuses: np.ndarray, status: int) -> bool:
        """Whether the key groups of all these slots have this status; ``statuses``: uint8, shape (max_parallelism,)."""
        return bool(choice.are_in_groups_of(self.hashes, slots, statuses, status))

    def recent_in_groups(self, wanted: np.ndarray, count_max: int) -> np.ndarray:
        """The slots of these key groups that were used last, ``count_max`` at most."""
        slots = self.slots_in_groups(wanted, dirty_only=False)
        if len(slots) <= count_max:
            return slots
        latest = np.argpartition(self._stamps[slots], len(slots) - count_max)[len(slots) - count_max :]
        recent: np.ndarray = slots[latest]
        return recent

    def remove_groups(self, wanted: np.ndarray) -> None:
        """Forget all keys of these key groups; faster than :meth:`remove` for many."""
        kernels.remove_groups(
            wanted, self._table, self.hashes, self._lengths, self._flags, self._free_slots, self._counters
        )

    def dirty_among(self, slots: np.ndarray) -> np.ndarray:
        """Those of ``slots`` that are dirty."""
        dirty: np.ndarray = slots[self._flags[slots] & DIRTY != 0]
        return dirty

    def used_among(self, slots: np.ndarray) -> np.ndarray:
        """Those of ``slots`` that are in use."""
        used: np.ndarray = slots[self._flags[slots] & USED != 0]
        return used

    def is_dirty(self, slots: np.ndarray) -> np.ndarray:
        """Which of these slots are in use and dirty, bool; -1 is not."""
        found: np.ndarray = (slots >= 0) & (self._flags[slots] & DIRTY != 0)
        return found

    def mark_clean(self, slots: np.ndarray) -> None:
        """Note that these slots were written."""
        self._flags[slots] &= 0xFF ^ DIRTY

    def mark_dirty(self, slots: np.ndarray) -> None:
        """Note that these slots have to be written, those of them that are in use."""
        self._flags[slots[self._flags[slots] & USED != 0]] |= DIRTY

    def slots_between(self, after_ms: int, until_ms: int, beyond_ms: int) -> tuple[np.ndarray, int]:
        """Of keys that begin with a time: slots with ``after_ms < time <= until_ms``, ascending (3 ns a slot).

        Also returns the smallest time above ``until_ms``, if that is below ``beyond_ms``.
        """
        found = np.empty(self.capacity, dtype=np.int32)
        beyond = np.array([beyond_ms], dtype=np.int64)
        count = window_kernels.slots_between(
            self._flags, self._starts, self._arena, after_ms, until_ms, found, beyond
        )
        return found[:count], int(beyond[0])

    def times_of(self, slots: np.ndarray) -> np.ndarray:
        """The time that each slot's key begins with; int64."""
        times = np.empty(len(slots), dtype=np.int64)
        window_kernels.ends_of_slots(slots, self._starts, self._arena, times)
        return times

    def state_keys(self, slots: np.ndarray, groups: np.ndarray, state_id: int) -> PackedKeys:
        """State keys of slots, in order; ``groups`` is uint16, shape (slots,)."""
        out = np.empty(int(self._lengths[slots].sum(dtype=np.int64)) + 5 * len(slots), dtype=np.uint8)
        offsets = np.empty(len(slots) + 1, dtype=np.int64)
        key_kernels.encode_state_keys(
            slots, groups, state_id, self._starts, self._lengths, self._arena, offsets, out
        )
        return PackedKeys(out, offsets, groups)

    def in_key_order(self, slots: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Positions that sort slots about as their state keys sort; neighbours then share the store's blocks."""
        words = np.empty(len(slots), dtype=np.uint64)
        key_kernels.sort_words(slots, groups, self._starts, self._lengths, self._arena, words)
        return np.argsort(words)


def packed_state_keys(keys: KeyColumn, groups: np.ndarray, state_id: int) -> PackedKeys:
    """State keys of keys that have no slot; ``groups`` is uint16, shape (keys,)."""
    starts = np.asarray(keys.offsets[:-1], dtype=np.int64)
    lengths = np.diff(keys.offsets).astype(np.int32)
    out = np.empty(
        int(keys.offsets[-1]) - int(keys.offsets[0]) + STATE_KEY_PREFIX_BYTES * len(keys), np.uint8
    )
    offsets = np.empty(len(keys) + 1, dtype=np.int64)
    positions = np.arange(len(keys), dtype=np.int32)
    key_kernels.encode_state_keys(positions, groups, state_id, starts, lengths, keys.data, offsets, out)
    return PackedKeys(out, offsets, groups)


def positions_in_key_order(keys: PackedKeys) -> np.ndarray:
    """Positions (int64) that sort state keys about as the store does; for slots see :meth:`SlotTable.in_key_order`."""
    words = np.empty(len(keys), dtype=np.uint64)
    # The group counts by itself; the state number is the same in all of them.
    starts = np.asarray(keys.offsets[:-1] + STATE_KEY_PREFIX_BYTES, dtype=np.int64)
    lengths = (np.diff(keys.offsets) - STATE_KEY_PREFIX_BYTES).astype(np.int32)
    positions = np.arange(len(keys), dtype=np.int32)
    key_kernels.sort_words(positions, keys.groups, starts, lengths, keys.data, words)
    return np.argsort(words)
