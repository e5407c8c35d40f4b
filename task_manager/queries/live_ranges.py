"""Many keys as their owners have them: what the stores have not yet is copied between two batches, the rest is read.

The subtask's thread does the copying only (50 ns a changed key). Stores are read and merged afterwards, by the thread
of the question: what is written to a store meanwhile is newer. So no key is older than the moment of the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from task_manager.subtasks.running import RunningSubtask
from weir.protocol.queries import QueryError
from weir.records import WATERMARK_MIN_MS
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, split_rows
from weir.state.placement.ownership import GroupOwnership
from weir.state.tables.accumulators import encode_rows
from weir.state.tables.cells import CellTable
from weir.state.tables.expiry import UNDATED
from weir.state.tables.overlay import overlaid
from weir.state.tables.values import ValueTable

#: Changed keys that are copied at most: the subtask's rows wait for it, 10 ms.
COPIED_KEYS_MAX = 200_000
_Entries = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True)
class LivePart:
    """The key groups of one subtask."""

    subtask: int
    #: Owned when the copy was made.
    groups: frozenset[int]
    #: None: there was none yet.
    watermark_ms: int | None
    backend: StateBackend
    ownership: GroupOwnership
    #: By key group what is laid over the store; made when a group is first read.
    changes: Callable[[int], _Entries]
    is_expired: Callable[[int], bool]

    def to_json(self) -> dict[str, Any]:
        """What an answer says of the part."""
        return {
            "subtask": self.subtask, "key_groups": len(self.groups), "watermark_ms": self.watermark_ms
        }  # fmt: skip


class LiveRange:
    """Implements ``weir.operators.queries.reading.StateReading`` over parts with different key groups."""

    watermark_ms = UNDATED

    def __init__(self, parts: Sequence[LivePart]) -> None:
        self._parts = {group: part for part in parts for group in part.groups}
        self._is_expired = parts[0].is_expired

    @property
    def groups(self) -> list[int]:
        """All key groups that are here, ascending."""
        return sorted(self._parts)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``StateReading``; ranges do not need it."""
        raise NotImplementedError

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See ``StateReading``."""
        group = int.from_bytes(start[:2], "big")
        part = self._parts[group]
        within = sorted((entry for entry in part.changes(group) if start <= entry[0] < stop), reverse=reverse)
        yield from overlaid(part.backend.scan(start, stop, reverse=reverse), within, reverse)

    def is_expired(self, stamp: int) -> bool:
        """See ``StateReading``."""
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
    state = running.group_state
    if state is None:
        return None
    ownership = state.backend.ownership
    owned = frozenset(group for group in range(groups) if ownership.owns(group))
    if not owned:
        return None
    table = next((table for table in running.chain.tables if table.state_id == state_id), None)
    changes: Callable[[int], _Entries] | None = None
    if type(table) is CellTable:
        cells = table.unwritten_entries(COPIED_KEYS_MAX)
        changes = None if cells is None else _CellChanges(*cells)
    elif isinstance(table, ValueTable):
        entries = table.unwritten_entries(owned, COPIED_KEYS_MAX)
        changes = None if entries is None else _by_group(entries)
    else:
        raise QueryError(503, "an owner of keys has not opened its state yet, or has ended: try again")
    if changes is None:
        raise QueryError(
            413,
            f"more than {COPIED_KEYS_MAX:,} keys have changed since they were written down, for whose copy rows would "
            "wait: ask with consistency=checkpoint",
        )
    expiry = table.expiry
    if expiry is not None:
        expiry.look()
    watermark_ms = running.subtask.progress.watermark_ms
    return LivePart(
        running.subtask.subtask.subtask_index,
        owned,
        None if watermark_ms == WATERMARK_MIN_MS else watermark_ms,
        state.backend,
        ownership,
        changes,
        (lambda stamp: False) if expiry is None else expiry.is_expired,
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
