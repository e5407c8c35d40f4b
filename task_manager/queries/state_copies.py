"""Copies of what a subtask's tables have and its store has not yet; made in the subtask's thread, while rows wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np

from task_manager.subtasks.running import RunningSubtask
from weir.protocol.queries import QueryError
from weir.rows.records import WATERMARK_MIN_MS
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, split_rows
from weir.state.placement.ownership import GroupOwnership
from weir.state.tables.broadcast import BroadcastTable
from weir.state.tables.cells.accumulators import encode_rows
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.panes.window_table import WindowTable
from weir.state.tables.retained import RetainedTable
from weir.state.tables.table import StateTable
from weir.state.tables.values.packed_table import PackedTable
from weir.state.tables.values.value_table import ValueTable

#: Changed keys that are copied at most, since rows wait: 25 to 40 ns for a cell, 8 ms in all; others are objects,
#: 300 to 500 ns each, 20 ms in all.
COPIED_CELLS_MAX, COPIED_VALUES_MAX = 200_000, 40_000
#: State keys and values; None: deleted.
Entries = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True)
class StateCopy:
    """A copy of a state of one subtask."""

    #: Goes on; what its ``rearranged`` was when this was copied.
    table: StateTable
    rearranged: int
    #: By key group what is laid over the store; made when a group is first read.
    changes: Callable[[int], Entries]
    is_expired: Callable[[int], bool]
    #: Of versions, windows and sessions that are declared, by key group: what is before is not there any more.
    cuts_ms: Mapping[int, int] = field(default_factory=dict)
    #: Of aggregates in windows, by key group: up to where they have fired, and the last pane that is to be deleted.
    fired_ms: np.ndarray | None = None
    gone_ms: np.ndarray | None = None
    #: Of sessions, by key group, bool: entries are not over because of their last time.
    unmarked: np.ndarray | None = None


@dataclass(frozen=True)
class LivePart:
    """The key groups of one subtask."""

    subtask: int
    #: Owned when the copy was made: by key group the owner's epoch.
    epochs: Mapping[int, int]
    #: None: there was none yet.
    watermark_ms: int | None
    store: StateBackend
    ownership: GroupOwnership
    #: By their numbers; which of them the question names.
    states: Mapping[int, StateCopy]
    asked: int

    def to_json(self) -> dict[str, Any]:
        """What an answer says of the part."""
        groups = len(self.epochs)
        return {"subtask": self.subtask, "key_groups": groups, "watermark_ms": self.watermark_ms}


def copy_part(
    running: RunningSubtask, state_ids: Sequence[int], groups: int, of_group: int | None = None
) -> LivePart | None:
    """A part of what a subtask has now; in its thread, between two batches. None: it owns no such key group.

    Args:
        running: the subtask.
        state_ids: of all states that are read, that of the question first.
        groups: how many key groups there are.
        of_group: only this one is needed.

    Raises:
        QueryError: it cannot be asked now, or has too many changed keys.
    """
    state, store = running.group_state, running.store
    if state is None or store is None:
        return None
    ownership = state.backend.ownership
    wanted = range(groups) if of_group is None else (of_group,)
    found = ((group, ownership.epoch(group)) for group in wanted)
    epochs = {group: epoch for group, epoch in found if epoch is not None}
    tables = {table.state_id: table for table in running.chain.tables}
    first = tables.get(state_ids[0])
    if not epochs or (isinstance(first, BroadcastTable) and 0 in epochs and not first.is_whole):
        return None
    watermark_ms = running.subtask.progress.watermark_ms
    return LivePart(
        running.subtask.subtask.subtask_index,
        epochs,
        None if watermark_ms == WATERMARK_MIN_MS else watermark_ms,
        store,
        ownership,
        {number: _copied(tables.get(number), sorted(epochs), of_group) for number in state_ids},
        state_ids[0],
    )


def _copied(table: StateTable | None, groups: list[int], of_group: int | None) -> StateCopy:
    """A copy of one table: of a key group, or of all that are owned."""
    if not isinstance(table, BroadcastTable | CellTable | ValueTable):
        raise QueryError(503, "an owner of keys has not opened its state yet, or has ended: try again")
    copied = partial(StateCopy, table, table.rearranged)
    if isinstance(table, BroadcastTable):
        whole = table.entries() if len(table.items) <= COPIED_VALUES_MAX else _refuse(COPIED_VALUES_MAX)
        return copied(_by_group(whole), _never_expired)
    if isinstance(table, WindowTable):
        cells = table.unwritten_entries(COPIED_CELLS_MAX, of_group)
        changes = _CellChanges(*(cells or _refuse(COPIED_CELLS_MAX)))
        fired_ms, gone_ms = table.fired_and_gone()
        unmarked = table.unmarked.copy()
        return copied(changes, _never_expired, fired_ms=fired_ms, gone_ms=gone_ms, unmarked=unmarked)
    expiry = table.expiry
    if expiry is not None:
        expiry.look()
    is_expired = _never_expired if expiry is None else expiry.is_expired
    if isinstance(table, PackedTable):
        values = table.unwritten_values(groups, COPIED_VALUES_MAX)
        return copied(_by_group(_refuse(COPIED_VALUES_MAX) if values is None else values), is_expired)
    if isinstance(table, CellTable):
        cells = table.unwritten_entries(COPIED_CELLS_MAX, of_group)
        return copied(_CellChanges(*(cells or _refuse(COPIED_CELLS_MAX))), is_expired)
    entries = table.unwritten_entries(groups, COPIED_VALUES_MAX)
    changed = _by_group(_refuse(COPIED_VALUES_MAX) if entries is None else entries)
    if not isinstance(table, RetainedTable):
        return copied(changed, is_expired)
    table.read_clocks(groups)
    return copied(
        changed,
        is_expired,
        {group: table.cut_ms(table.clock(group), table.expiry.now_ms) for group in groups},
    )


def _never_expired(stamp: int) -> bool:
    return False


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

    def __call__(self, group: int) -> Entries:
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


def _by_group(entries: Sequence[tuple[bytes, bytes | None]]) -> Callable[[int], Entries]:
    found: dict[int, Entries] = {}
    for entry in entries:
        found.setdefault(int.from_bytes(entry[0][:2], "big"), []).append(entry)
    return lambda group: found.get(group, [])
