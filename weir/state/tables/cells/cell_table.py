"""Keyed accumulators whose key groups come and go, and which others may ask.

``weir.state.tables.cells.cell_cache`` has what one owner does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.packed import PackedKeys, split_rows
from weir.state.tables.cached_entries import CachedEntries, CachedPart
from weir.state.tables.cells import accumulators
from weir.state.tables.cells.cell_cache import CellCache
from weir.state.tables.stamps import cell_stamps

#: What a key adds to a copy beside its cells, about.
_COPIED_KEY_BYTES = 32


class ChangingError(Exception):
    """The table is being changed: look again in a moment."""


@dataclass(frozen=True)
class WholeCell:
    """The only cell of which a value is made: each row replaces it at once, so that it always means something."""

    cell: int
    #: A number of rows, which has no flag "has had a value"; 0: it may not have met its first row.
    counts: bool = False

    def has_value(self, cells: np.ndarray, presence: np.ndarray) -> bool:
        """Whether a row of the key has been taken in; arrays as of :meth:`SlotTable.peek`."""
        if self.counts:
            return bool(cells[self.cell])
        return bool(presence[self.cell // 8] & (1 << (self.cell % 8)))


class CellTable(CellCache):
    """Accumulators of one operator in one subtask; arguments are those of :class:`CellCache`."""

    @cached_property
    def _copied(self) -> np.ndarray:
        """By key group: when it was copied for a new owner (the table's ``now``); negative: not, or it is void."""
        return np.full(self._max_parallelism, -1, dtype=np.int64)

    @cached_property
    def _kept(self) -> np.ndarray:
        """Groups that are not ours yet, whose cached keys count when they are adopted."""
        return np.zeros(self._max_parallelism, dtype=np.bool_)

    def _note_evicted(self, slots: np.ndarray, groups: np.ndarray) -> None:
        # What is changed and then evicted would be missing among the changes since the copy.
        self._copied[groups] = -1

    # --- key groups come and go --------------------------------------------------------------------------------

    def release_groups(self, groups: Iterable[int]) -> None:
        """Write the dirty slots of these key groups and do not touch them any more: they have a new owner.

        Their slots stay until they are evicted or :meth:`clear_groups` removes them, so that nobody waits for it
        (25 ns a key).
        """
        self._check_usable()
        wanted = self._wanted(groups)
        self._writes.settle()
        self._writes.write(self._table.slots_in_groups(wanted, dirty_only=True))
        if self.expiry is not None:
            self.expiry.release_groups(np.flatnonzero(wanted).tolist())
        self._stored.forget(wanted)
        self._copied[wanted] = -1

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """These key groups are ours now, and the backend may have keys of them that we do not know of."""
        wanted = self._wanted(groups)
        self.clear_groups(np.flatnonzero(wanted & ~self._kept).tolist())
        self._kept[wanted] = False
        self._stored.note_stored(wanted)
        if self.expiry is not None:
            self.expiry.adopt_groups(np.flatnonzero(wanted).tolist())

    def clear_groups(self, groups: Iterable[int]) -> None:
        """Forget what is cached of these key groups, which are not ours."""
        self._check_usable()
        wanted = self._wanted(groups)
        self._kept[wanted] = False
        self._latest_read = None
        if len(self._table.slots_in_groups(wanted, dirty_only=False)):
            with self._table.change():
                self._table.remove_groups(wanted)

    # --- copies for a new owner --------------------------------------------------------------------------------

    def copy_groups(self, groups: Iterable[int], count_max: int, bytes_max: int) -> CachedPart:
        """Returns the cached cells of these key groups, for their new owner; 50 ns a key.

        If there are more than ``count_max`` keys, or ``bytes_max`` of them with keys of usual length, those used last.
        :meth:`changes_since_copy` returns the rest.
        """
        self._check_usable()
        wanted = self._wanted(groups)
        self._copied[wanted] = self._table.now
        count_max = min(count_max, bytes_max // (_COPIED_KEY_BYTES + self._copied_value_bytes()))
        return self._entries(self._table.recent_in_groups(wanted, count_max))

    def good_copies(self, groups: Iterable[int]) -> list[int]:
        """Those of these key groups whose copy and the changes since it make up all that is worth having.

        Not those of which something was evicted meanwhile: it may have changed, and would be missing.
        """
        self._check_usable()
        good = self._wanted(groups) & (self._copied >= 0) & (self._copied <= self._table.now)
        return np.flatnonzero(good).tolist()

    def changes_since_copy(self, groups: Iterable[int]) -> CachedPart:
        """What is cached of keys of these key groups that were used since :meth:`copy_groups`."""
        self._check_usable()
        marks = np.where(self._wanted(groups), self._copied, -1)
        return self._entries(self._table.changed_in_groups(marks))

    def _copied_value_bytes(self) -> int:
        """About what the value of a key adds to a copy."""
        return self._value_bytes

    def _entries(self, slots: np.ndarray) -> CachedPart:
        table = self._table
        data, lengths = table.keys_of(slots)
        return CachedEntries(
            self.state_id, table.hashes[slots], data, lengths, table.cells[slots], table.presence[slots]
        )

    def take_copy(self, entries: CachedPart, groups: Iterable[int]) -> bool:
        """Cache what the owner of these key groups has cached, before they are ours; False: another operator's.

        Later entries of a key replace earlier ones. Nothing is evicted for it: what does not fit is left out.
        """
        if entries.state_id != self.state_id:
            return False
        if not isinstance(entries, CachedEntries):
            raise StateError("cached state came as values of any length, not as cells")
        if entries.cells.shape[1] != self._cell_count:
            raise StateError(f"cached state has {entries.cells.shape[1]} cells a key, not {self._cell_count}")
        keys = weir_keys.KeyColumn(entries.key_data, entries.key_offsets)
        self._take(entries.hashes, keys, entries.cells, entries.presence, groups)
        return True

    def _take(
        self,
        hashes: np.ndarray,
        keys: weir_keys.KeyColumn,
        cells: np.ndarray,
        presence: np.ndarray,
        groups: Iterable[int],
        *,
        may_insert: bool = True,
    ) -> None:
        """Cache cells of keys, as :meth:`take_copy`; ``may_insert``: also those that are not cached."""
        self._check_usable()
        table, wanted = self._table, self._wanted(groups)
        arrays = (hashes, keys.data, keys.offsets, cells, presence)
        with table.change():
            while (row := table.put_clean(*arrays, wanted, may_insert=may_insert)) < len(hashes):
                if not table.make_room(int(keys.offsets[row + 1] - keys.offsets[row])):
                    # An older copy of a key must not stay.
                    table.put_clean(*arrays, wanted, may_insert=False)
                    break

    def keep_copies(self, groups: Iterable[int]) -> None:
        """What came of these key groups is complete: it counts when they are adopted next."""
        self._kept[self._wanted(groups)] = True

    # --- expired entries go ------------------------------------------------------------------------------------

    def stamps_of(self, values: Sequence[bytes]) -> np.ndarray:
        """See ``weir.state.tables.sweep.SweptTable``."""
        return cell_stamps(values)

    def drop_written(self, keys: Sequence[bytes], *, has_more: bool) -> list[bytes]:
        """See ``weir.state.tables.sweep.SweptTable``."""
        self._check_usable()
        if self._writes.is_captured():
            return []
        self._writes.settle()
        users = [key[layout.NO_NAMESPACE_HEADER_BYTES :] for key in keys]
        offsets = np.zeros(len(users) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, users), np.int64, len(users)), out=offsets[1:])
        column = weir_keys.KeyColumn(np.frombuffer(b"".join(users), dtype=np.uint8), offsets)
        slots, _ = self._table.probe(weir_keys.hash_keys(column), column.data, offsets, changes=False)
        self._latest_read = None
        dirty = self._table.is_dirty(slots)
        cached = slots[(slots >= 0) & ~dirty]
        if len(cached):
            with self._table.change():
                self._table.remove(cached)
        return [key for key, is_dirty in zip(keys, dirty.tolist(), strict=True) if not is_dirty]

    # --- questions from outside --------------------------------------------------------------------------------

    def look_at(self, value: np.uint64, key: np.ndarray, whole: WholeCell | None = None) -> bytes | None:
        """The value of a cached key as the store would have it, as it is between two batches; None: not cached.

        Any thread may call it.

        Args:
            value: the key's hash.
            key: the key's bytes, uint8.
            whole: the only cell that matters: as it is between two rows, also in the midst of a batch.

        Raises:
            ChangingError: the table is being changed just now.
        """
        table = self._table
        changes, updates, is_updated = table.changes, table.updates, self._in_piece
        if table.changing or self._failed or (is_updated and whole is None):
            raise ChangingError
        found = table.peek(value, key)
        if table.changing or table.changes != changes:
            raise ChangingError
        is_updated = is_updated or table.updates != updates
        # A key that this batch has brought has a slot before it has a value.
        if is_updated and found is not None and (whole is None or not whole.has_value(*found)):
            raise ChangingError
        return None if found is None else accumulators.encode_one(*found)

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values as the store would have them, by state keys, as they are now; nothing is cached for it.

        For questions from outside; a key that was looked up before it had a state may have a value of zeros.
        """
        self._check_usable()
        if not keys:
            return []
        slots, _ = self._table.probe(*self._slot_keys(keys), changes=False)
        self._latest_read = None
        missing = [key for key, slot in zip(keys, slots.tolist(), strict=True) if slot < 0]
        found = dict(zip(missing, self._backend.get_many(missing), strict=True)) if missing else {}
        cached = slots[slots >= 0]
        if not len(cached):
            return [found[key] for key in keys]
        rows = split_rows(accumulators.encode_rows(self._table.cells[cached], self._table.presence[cached]))
        values = iter(rows)
        return [
            found[key] if slot < 0 else next(values) for key, slot in zip(keys, slots.tolist(), strict=True)
        ]

    def unwritten_entries(
        self, count_max: int, of_group: int | None = None
    ) -> tuple[PackedKeys, np.ndarray, np.ndarray] | None:
        """State keys (in no order), cells and presence that the store may not have yet; 25 to 40 ns a key.

        None: there are more than ``count_max``. For questions from outside. ``of_group``: only of this key group.
        """
        self._check_usable()
        slots = self._writes.unwritten_slots()
        groups = self._groups(slots)
        if of_group is not None:
            within = groups == of_group
            slots, groups = slots[within], groups[within]
        if len(slots) > count_max:
            return None
        keys = self._table.state_keys(slots, groups, self.state_id)
        return keys, self._table.cells[slots], self._table.presence[slots]

    def _slot_keys(self, keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hashes, data and offsets with which state keys are in the slots."""
        column = weir_keys.KeyColumn.from_list([key[layout.NO_NAMESPACE_HEADER_BYTES :] for key in keys])
        return weir_keys.hash_keys(column), column.data, column.offsets
