"""The panes of a window table that are packed: in the store, and in memory as far as there is room.

A packed pane is never changed. What comes for it later is an entry of its own, which counts instead. A pane mostly
refers to an earlier one for its keys (``weir.state.tables.panes.packed_rows``), which stays until it is gone as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weir.keys import hashing as weir_keys
from weir.state.api import StateBackend
from weir.state.tables.panes.packed_rows import (
    PackedPane,
    end_of,
    packed_from,
    range_of_group,
    range_of_pane,
    row_keys,
)
from weir.state.tables.panes.pane_packing import KnownKeys, known_keys, pack_pane, unpack_panes
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries
from weir.state.tables.table import IsOver, never

#: Of one write to the store.
_WRITE_BYTES_MAX = 256 << 10
#: So many panes refer to one at most: keys come and go.
REFERRING_MAX = 64


class PackedPanes:
    """Panes by their end. Called by ``weir.state.tables.panes.window_table``, in the subtask's thread."""

    def __init__(self, backend: StateBackend, state_id: int, cell_count: int, max_parallelism: int) -> None:
        self._backend = backend
        self._state_id = state_id
        self._cell_count = cell_count
        self._max_parallelism = max_parallelism
        #: The rows of all owned groups, in one or several parts; None: the store has to be asked.
        self._panes: dict[int, list[PackedPane] | None] = {}
        #: Ends of panes, int64, ascending; None: they have changed.
        self._ends_ms: np.ndarray | None = None
        #: By end: key groups (bool) from which the store is to lose the pane, and the groups of all of its rows, one
        #: part after the other; None: these are not known.
        self._gone: dict[int, tuple[np.ndarray, list[np.ndarray] | None]] = {}
        #: Panes that are over, but have keys of others that are not; as ``_panes``.
        self._over: dict[int, list[PackedPane] | None] = {}
        #: By end of a pane: the largest end of those that refer to it, and the ends of those to which it refers.
        self._referring_ms: dict[int, int] = {}
        self._referred_ms: dict[int, set[int]] = {}
        #: The pane to which the next one is to refer, and how many do.
        self._reference_ms = NOTHING_MS
        self._referring = 0
        #: Bytes in memory.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._panes)

    def __contains__(self, end_ms: int) -> bool:
        return end_ms in self._panes

    def first_ms(self) -> int:
        """The smallest end; ``NEVER_MS``: there is none."""
        ends_ms = self._ends()
        return int(ends_ms[0]) if len(ends_ms) else NEVER_MS

    def last_ms(self) -> int:
        """The largest end; ``NOTHING_MS``: there is none."""
        ends_ms = self._ends()
        return int(ends_ms[-1]) if len(ends_ms) else NOTHING_MS

    def _ends(self) -> np.ndarray:
        if self._ends_ms is None or len(self._ends_ms) != len(self._panes):
            self._ends_ms = np.array(sorted(self._panes), dtype=np.int64)
        return self._ends_ms

    def are_among(self, ends_ms: np.ndarray) -> np.ndarray:
        """Which of these ends (int64) are those of packed panes; bool."""
        packed_ms = self._ends()
        if not len(packed_ms) or not len(ends_ms) or int(ends_ms.min()) > packed_ms[-1]:
            return np.zeros(len(ends_ms), dtype=np.bool_)
        return np.isin(ends_ms, packed_ms)

    def in_memory(self) -> list[int]:
        """The ends of panes that are in memory, ascending."""
        return sorted(end_ms for end_ms, parts in self._panes.items() if parts is not None)

    def pack(
        self,
        end_ms: int,
        keys: weir_keys.KeyColumn,
        groups: np.ndarray,
        cells: np.ndarray,
        presence: np.ndarray,
    ) -> None:
        """Write a pane, of which these are all entries of some key groups, to the store, and keep it.

        Raises:
            StateError: the store cannot be written.
        """
        entries = end_ms, keys, groups, cells, presence
        known = self._next_reference()
        pane = pack_pane(*entries) if known is None else pack_pane(*entries, known)
        if pane.referred_ms():
            self._referring += 1
        else:
            self._reference_ms, self._referring = end_ms, 0
        self._put(pane)

    def _next_reference(self) -> KnownKeys | None:
        """The keys to which the next pane may refer, if they are at hand; None: it is to have its own."""
        parts = self._panes.get(self._reference_ms)
        if parts is None or self._referring >= REFERRING_MAX:
            return None
        return known_keys({self._reference_ms: parts}, self._max_parallelism)

    def _put(self, pane: PackedPane) -> None:
        rows, size = [], 0
        for key, value in pane.stored(self._state_id):
            rows.append((key, value))
            size += len(value)
            if size >= _WRITE_BYTES_MAX:
                self._backend.write(rows)
                rows, size = [], 0
        self._backend.write(rows)
        self._keep(pane)

    def _keep(self, pane: PackedPane) -> None:
        if pane.end_ms not in self._panes:
            self._ends_ms = None
        parts = self._panes.setdefault(pane.end_ms, [])
        if parts is not None:
            parts.append(pane)
            self.bytes += pane.nbytes
        self._referred_ms.setdefault(pane.end_ms, set()).update(pane.referred_ms())
        self._note_referring(pane.end_ms, pane.end_ms)

    def _note_referring(self, end_ms: int, until_ms: int) -> None:
        """The panes to which a pane refers have to stay until panes up to a time are over."""
        for referred_ms in self._referred_ms[end_ms]:
            before_ms = self._referring_ms.get(referred_ms, until_ms)
            self._referring_ms[referred_ms] = max(before_ms, until_ms)

    def load(self, group: int) -> None:
        """Find out what the store has of a key group of which nothing is known here."""
        found: dict[int, list[tuple[int, bytes]]] = {}
        for key, value in self._backend.scan(*range_of_group(group, self._state_id)):
            found.setdefault(end_of(key), []).append((group, value))
        for end_ms, rows in found.items():
            self._keep(packed_from(end_ms, rows))

    def entries(self, after_ms: int, until_ms: int, wanted: np.ndarray) -> WindowEntries | None:
        """Entries of panes with ``after_ms < end <= until_ms`` of key groups (bool); None: there are none."""
        ends_ms = self._ends()
        found = ends_ms[(ends_ms > after_ms) & (ends_ms <= until_ms)].tolist()
        return self._unpacked(found, wanted) if found else None

    def _unpacked(self, ends_ms: Iterable[int], wanted: np.ndarray) -> WindowEntries | None:
        parts: list[PackedPane] = []
        for end_ms in ends_ms:
            held = self._panes[end_ms]
            parts += [self._stored(end_ms, wanted)] if held is None else held
        parts = [part.of_groups(wanted) for part in parts]
        return unpack_panes(parts, self._cell_count, self._known(parts))

    def _known(self, panes: Iterable[PackedPane]) -> KnownKeys:
        """The keys to which panes refer."""
        wanted: dict[int, np.ndarray] = {}
        for pane in panes:
            for end_ms in pane.referred_ms():
                groups = wanted.setdefault(end_ms, np.zeros(self._max_parallelism, dtype=np.bool_))
                groups[pane.groups[pane.references_ms == end_ms]] = True
        found = {end_ms: self._parts(end_ms, groups) for end_ms, groups in wanted.items()}
        return known_keys(found, self._max_parallelism)

    def _parts(self, end_ms: int, wanted: np.ndarray) -> list[PackedPane]:
        """The rows of a pane of these key groups (bool), also if it is over."""
        held: list[PackedPane] = []
        for panes in (self._panes, self._over):
            parts = panes.get(end_ms, [])
            if parts is None:
                return [self._stored(end_ms, wanted)]
            held += parts
        return [part.of_groups(wanted) for part in held]

    def _stored(self, end_ms: int, wanted: np.ndarray) -> PackedPane:
        """The rows that the store has of a pane of these key groups (bool), without those that it is to lose.

        Where some groups came later than others, the pane may be over for these alone, and so may that to which their
        rows refer.
        """
        if end_ms in self._gone:
            wanted = wanted & ~self._gone[end_ms][0]
        rows = [
            (group, value)
            for group in np.flatnonzero(wanted).tolist()
            for _, value in self._backend.scan(*range_of_pane(group, self._state_id, end_ms))
        ]
        return packed_from(end_ms, rows)

    def find(
        self, ends_ms: np.ndarray, groups: np.ndarray, keys: weir_keys.KeyColumn
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that are packed, int64, and their cells and presence.

        Args:
            ends_ms: end of each row's pane, int64.
            groups: its key group.
            keys: user keys.
        """
        found, blocks = [np.empty(0, dtype=np.int64)], []
        are_packed = self.are_among(ends_ms)
        for end_ms in np.unique(ends_ms[are_packed]).tolist():
            rows = np.flatnonzero(ends_ms == end_ms)
            wanted = np.zeros(self._max_parallelism, dtype=np.bool_)
            wanted[groups[rows]] = True
            entries = self._unpacked([end_ms], wanted)
            if entries is None:
                continue
            asked = weir_keys.select_keys(keys, rows)
            both = weir_keys.joined_keys([entries.keys, asked])
            _, _, position = weir_keys.distinct_keys(weir_keys.hash_keys(both), both)
            # The entries come first and differ from each other.
            at = position[len(entries) :]
            there = at < len(entries)
            found.append(rows[there])
            blocks.append(entries.part(at[there]))
        cells = [np.empty((0, self._cell_count), dtype=np.int64), *(block.cells for block in blocks)]
        presence = [np.empty((0, (self._cell_count + 7) // 8), dtype=np.uint8)]
        presence += [block.presence for block in blocks]
        return np.concatenate(found), np.concatenate(cells), np.concatenate(presence)

    def give_up_last(self) -> bool:
        """Leave the latest pane that is in memory to the store, since it leaves last; False: there is none."""
        held = self.in_memory()
        if held:
            self._count_out(self._panes[held[-1]])
            self._panes[held[-1]] = None
            return True
        for end_ms, parts in self._over.items():
            if parts is not None:
                self._count_out(parts)
                self._over[end_ms] = None
                return True
        return False

    def _count_out(self, parts: list[PackedPane] | None) -> None:
        for part in parts or ():
            self.bytes -= part.nbytes

    def drop(self, until_ms: int, owned: np.ndarray) -> None:
        """Forget panes up to this end; the store loses them, in these key groups (bool), with the next flush.

        Those to which others refer stay there until these are dropped.
        """
        for end_ms in self._ends()[self._ends() <= until_ms].tolist():
            self._ends_ms = None
            parts, before = self._panes.pop(end_ms), self._over.get(end_ms, [])
            self._over[end_ms] = None if parts is None or before is None else [*before, *parts]
            if parts is None or before is None:
                self._count_out(parts or before)
        for end_ms in sorted(self._over, reverse=True):
            referring_ms = self._referring_ms.get(end_ms, end_ms)
            if referring_ms > until_ms:
                # Of key groups that came from elsewhere it may refer to another one.
                self._note_referring(end_ms, referring_ms)
            else:
                self._release(end_ms, owned)

    def _release(self, end_ms: int, owned: np.ndarray) -> None:
        """A pane that is over has no keys of others any more."""
        self._referring_ms.pop(end_ms, None)
        self._referred_ms.pop(end_ms, None)
        parts = self._over.pop(end_ms)
        self._count_out(parts)
        gone, rows = self._gone.get(end_ms, (np.zeros_like(owned), []))
        if parts is None or rows is None:
            self._gone[end_ms] = gone | owned, None
        else:
            self._gone[end_ms] = gone | owned, [*rows, *(part.groups for part in parts)]

    def delete_gone(self, is_over: IsOver = never) -> bool:
        """Delete from the store what is to be deleted; whether all of it is gone."""
        # What others refer to goes last: nothing in the store ever refers to what is not there.
        for end_ms in sorted(self._gone, reverse=True):
            gone, rows = self._gone[end_ms]
            if rows is None:
                ranges = [
                    range_of_pane(group, self._state_id, end_ms) for group in np.flatnonzero(gone).tolist()
                ]
                keys = [key for bounds in ranges for key, _ in self._backend.scan(*bounds)]
            else:
                keys = [key for part in rows for key in row_keys(part[gone[part]], self._state_id, end_ms)]
            if keys:
                self._backend.write(deletes=keys)
            del self._gone[end_ms]
            if is_over():
                break
        return not self._gone

    def keep_groups(self, owned: np.ndarray) -> None:
        """Forget what there is of other key groups than these (bool): whoever has them deletes what is gone."""
        self._ends_ms = None
        for panes in (self._panes, self._over):
            for end_ms, parts in list(panes.items()):
                if parts is None:
                    continue
                self._count_out(parts)
                kept = [part for each in parts if len((part := each.of_groups(owned)).groups)]
                panes[end_ms] = kept
                self.bytes += sum(part.nbytes for part in kept)
                if not kept:
                    del panes[end_ms]
        for gone, _ in self._gone.values():
            gone &= owned
