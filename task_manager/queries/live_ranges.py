"""Many keys as their owners have them: what the stores have not yet is copied between two batches, the rest is read.

The subtask's thread does the copying only. Stores are read and merged afterwards, by the thread
of the question: what is written to a store meanwhile is newer. So no key is older than the moment of the copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from task_manager.subtasks.running import RunningSubtask
from weir.operators.queries.reading import PaneBounds, scanned_bounds
from weir.protocol.queries import QueryError
from weir.records import WATERMARK_MIN_MS
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, split_rows
from weir.state.placement.ownership import GroupOwnership
from weir.state.tables.accumulators import encode_rows
from weir.state.tables.cells import CellTable
from weir.state.tables.overlay import overlaid
from weir.state.tables.retained import RetainedTable
from weir.state.tables.values import ValueTable
from weir.state.tables.window_table import WindowTable

#: Changed keys that are copied at most, since rows wait: 25 to 40 ns for a cell, 8 ms in all; others are objects,
#: 300 to 500 ns each, 20 ms in all.
COPIED_CELLS_MAX, COPIED_VALUES_MAX = 200_000, 40_000
_Entries = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True)
class LivePart:
    """The key groups of one subtask."""

    subtask: int
    #: Owned when the copy was made.
    groups: frozenset[int]
    #: None: there was none yet.
    watermark_ms: int | None
    store: StateBackend
    ownership: GroupOwnership
    #: By key group what is laid over the store; made when a group is first read.
    changes: Callable[[int], _Entries]
    is_expired: Callable[[int], bool]
    #: Of versions, windows and sessions that are declared, by key group: what is before is not there any more.
    cuts_ms: Mapping[int, int] = field(default_factory=dict)
    #: Of aggregates in windows, by key group: up to where they have fired, and the last pane that is to be deleted.
    fired_ms: np.ndarray | None = None
    gone_ms: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """What an answer says of the part."""
        groups = len(self.groups)
        return {"subtask": self.subtask, "key_groups": groups, "watermark_ms": self.watermark_ms}


class LiveRange:
    """Implements ``weir.operators.queries.reading.RangeReading`` over parts with different key groups."""

    def __init__(self, parts: Sequence[LivePart]) -> None:
        self._parts = {group: part for part in parts for group in part.groups}
        self._is_expired = parts[0].is_expired
        #: By key group: what is laid over the store, in order.
        self._changes: dict[int, _Entries] = {}

    @property
    def groups(self) -> list[int]:
        """All key groups that are here, ascending."""
        return sorted(self._parts)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See ``RangeReading``."""
        group = int.from_bytes(start[:2], "big")
        part = self._parts[group]
        changes = self._changes.get(group)
        if changes is None:
            changes = self._changes[group] = sorted(part.changes(group), key=itemgetter(0))
        first, last = (bisect_left(changes, bound, key=itemgetter(0)) for bound in (start, stop))
        within = changes[first:last][::-1] if reverse else changes[first:last]
        yield from overlaid(part.store.scan_for_question(start, stop, reverse=reverse), within, reverse)

    def cut_ms(self, group: int, state_id: int, retention_ms: int) -> int:
        """See ``RangeReading``."""
        return self._parts[group].cuts_ms[group]

    def pane_bounds(self, group: int, state_id: int, cell_count: int) -> PaneBounds | None:
        """See ``RangeReading``."""
        part = self._parts[group]
        assert part.fired_ms is not None, "the state is one of windows"
        assert part.gone_ms is not None, "the state is one of windows"
        found = scanned_bounds(self, group, state_id, int(part.fired_ms[group]))
        if found is None or found.last_ms <= part.gone_ms[group]:
            return None
        return replace(found, first_ms=max(found.first_ms, int(part.gone_ms[group]) + 1))

    def is_expired(self, stamp: int) -> bool:
        """See ``RangeReading``."""
        return self._is_expired(stamp)

    def check_owned(self) -> None:
        """Refuse what was read while a group went to another owner.

        Raises:
            QueryError: one has gone.
        """
        gone = [group for group, part in self._parts.items() if not part.ownership.owns(group)]
        if gone:
            raise QueryError(503, f"key group {gone[0]} went to another owner meanwhile: try again")


def copy_part(running: RunningSubtask, state_id: int, groups: int) -> LivePart | None:
    """A part of what a subtask has now; in its thread, between two batches. None: it owns no key group.

    Raises:
        QueryError: it cannot be asked now, or has too many changed keys.
    """
    state, store = running.group_state, running.store
    if state is None or store is None:
        return None
    ownership = state.backend.ownership
    owned = frozenset(group for group in range(groups) if ownership.owns(group))
    if not owned:
        return None
    table = next((table for table in running.chain.tables if table.state_id == state_id), None)
    changes: Callable[[int], _Entries]
    cuts_ms: dict[int, int] = {}
    fired_ms: np.ndarray | None = None
    gone_ms: np.ndarray | None = None
    if isinstance(table, WindowTable):
        cells = table.unwritten_entries(COPIED_CELLS_MAX)
        changes = _CellChanges(*(cells or _refuse(COPIED_CELLS_MAX)))
        fired_ms, gone_ms = table.fired_and_gone()
    elif type(table) is CellTable:
        cells = table.unwritten_entries(COPIED_CELLS_MAX)
        changes = _CellChanges(*(cells or _refuse(COPIED_CELLS_MAX)))
    elif isinstance(table, ValueTable):
        entries = table.unwritten_entries(owned, COPIED_VALUES_MAX)
        changes = _by_group(_refuse(COPIED_VALUES_MAX) if entries is None else entries)
        if isinstance(table, RetainedTable):
            table.read_clocks(owned)
    else:
        raise QueryError(503, "an owner of keys has not opened its state yet, or has ended: try again")
    expiry = table.expiry
    if expiry is not None:
        expiry.look()
    if isinstance(table, RetainedTable):
        cuts_ms = {group: table.cut_ms(table.clock(group)) for group in owned}
    watermark_ms = running.subtask.progress.watermark_ms
    return LivePart(
        running.subtask.subtask.subtask_index,
        owned,
        None if watermark_ms == WATERMARK_MIN_MS else watermark_ms,
        store,
        ownership,
        changes,
        (lambda stamp: False) if expiry is None else expiry.is_expired,
        cuts_ms,
        fired_ms,
        gone_ms,
    )


def _refuse(keys_max: int) -> NoReturn:
    raise QueryError(
        413,
        f"more than {keys_max:,} keys have changed since they were written down, for whose copy rows would wait: "
        "ask with consistency=checkpoint",
    )


class _CellChanges:
    """Cells that were copied, by key group; what is not asked for is not made into objects."""

    def __init__(self, keys: PackedKeys, cells: np.ndarray, presence: np.ndarray) -> None:
        self._keys, self._cells, self._presence = keys, cells, presence
        self._order: np.ndarray | None = None
        self._starts = np.zeros(0, dtype=np.int64)

    def __call__(self, group: int) -> _Entries:
        if self._order is None:
            self._order = np.argsort(self._keys.groups, kind="stable")
            self._starts = np.searchsorted(self._keys.groups[self._order], np.arange(1 << 16))
        first = int(self._starts[group])
        last = int(self._starts[group + 1]) if group + 1 < len(self._starts) else len(self._order)
        at = self._order[first:last]
        if not len(at):
            return []
        rows = split_rows(encode_rows(self._cells[at], self._presence[at]))
        return list(zip(self._keys.take(at).to_list(), rows, strict=True))


def _by_group(entries: _Entries) -> Callable[[int], _Entries]:
    found: dict[int, _Entries] = {}
    for entry in entries:
        found.setdefault(int.from_bytes(entry[0][:2], "big"), []).append(entry)
    return lambda group: found.get(group, [])
