"""What the state ``_in_order`` has of rows that wait for their time, for checkpoints and moves of key groups.

The state (:class:`weir.state.tables.held.HeldTable`) has of each key group entries with numbers: 8 bytes, big-endian,
after the state key's prefix. An entry is a byte, its kind and version, and

====  =========================================================================================================
0x01  a stream of Arrow IPC: rows, with the watermark of their channel as of each (``_as_of_ms``), and the order in
      which they came (``_order_number``)
0x02  two numbers, 8 bytes each, big-endian: rows as of at most the first one have left, if their order is below
      the second one
====  =========================================================================================================

A group has one entry of the second kind at most. It stands where rows of a block have left, and others have not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.keys import hashing as weir_keys
from weir.operators.keyed.held_rows import block_of, read_block
from weir.rows.records import KEY_HASH_COLUMN, WATERMARK_MIN_MS
from weir.rows.row_watermarks import AS_OF_COLUMN
from weir.state.tables.held import HeldTable

NUMBER_COLUMN = "_order_number"
_NUMBER_BYTES = 8
_GROUP_BYTES = 2
_MARK = b"\x02"
_MARK_NUMBERS = struct.Struct(">qq")


class _Block(NamedTuple):
    """An entry with rows."""

    size_bytes: int
    lowest_ms: int
    highest_ms: int


class OrderBlocks:
    """The :class:`weir.state.tables.held.Holder` of the rows of a subtask that wait for their time."""

    def __init__(
        self,
        table: HeldTable,
        max_parallelism: int,
        waiting: Callable[[], list[pa.RecordBatch]],
        keep: Callable[[list[pa.RecordBatch]], None],
    ) -> None:
        """``waiting`` returns the rows that wait now; ``keep`` is told which of these stay when key groups leave."""
        self._table = table
        self._max_parallelism = max_parallelism
        self._waiting = waiting
        self._keep = keep
        self._next_number = 0
        #: Rows from this one on are in no block.
        self._written = 0
        self._next_entry = 0
        self._blocks: dict[bytes, _Block] = {}
        #: By key group, what says which rows of its blocks have left: its key.
        self._marks: dict[int, bytes] = {}
        #: Rows as of at most this have left, whose order is below the other.
        self.released_ms = WATERMARK_MIN_MS
        self._released_number = 0
        self._is_marked = True
        #: Entries that are to go with the next that are written.
        self._gone: list[bytes] = []
        #: Key groups that have a new owner.
        self._left: set[int] = set()
        table.held_by(self)

    def numbers(self, count: int) -> np.ndarray:
        """Where rows that come now stand among all; int64, shape (count,)."""
        first = self._next_number
        self._next_number += count
        return np.arange(first, self._next_number)

    def released(self, until_ms: int) -> None:
        """Note that all rows have left that are as of at most this."""
        self.released_ms = max(self.released_ms, until_ms)
        self._released_number, self._is_marked = self._next_number, False

    def take_new(self) -> list[pa.RecordBatch]:
        """Rows of key groups that have come since the last call, in the order in which they came.

        Raises:
            StateMismatchError: they are of another version, or cut off.
        """
        self._let_go()
        if not self._table.has_new_groups:
            return []
        # What the table has of the others stays a beginning of what is held.
        self.settle()
        by_group: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in self._table.take_new():
            by_group.setdefault(_group_of(key), []).append((key, value))
            self._next_entry = max(self._next_entry, int.from_bytes(key[-_NUMBER_BYTES:], "big") + 1)
            # They are written anew, with numbers of this subtask.
            self._gone.append(key)
        return [rows for entries in by_group.values() for rows in self._read(entries)]

    def _read(self, entries: list[tuple[bytes, bytes]]) -> list[pa.RecordBatch]:
        until_ms, number = WATERMARK_MIN_MS, 0
        for _, value in entries:
            if value[:1] == _MARK:
                until_ms, number = read_mark(value)
        found = [batch for _, value in entries if value[:1] != _MARK for batch in read_block(value)]
        left = []
        for batch in found:
            numbers = batch.column(NUMBER_COLUMN).to_numpy(zero_copy_only=True)
            stays = (batch.column(AS_OF_COLUMN).to_numpy(zero_copy_only=True) > until_ms) | (
                numbers >= number
            )
            batch, numbers = batch.filter(pa.array(stays)), numbers[stays]
            if batch.num_rows:
                # In the order in which they came.
                batch = batch.take(pa.array(np.argsort(numbers, kind="stable")))
                index = batch.schema.get_field_index(NUMBER_COLUMN)
                left.append(batch.set_column(index, NUMBER_COLUMN, pa.array(self.numbers(batch.num_rows))))
        return left

    def _groups(self, batch: pa.RecordBatch) -> np.ndarray:
        return weir_keys.key_groups(batch.column(KEY_HASH_COLUMN).to_numpy(), self._max_parallelism)

    def _let_go(self) -> None:
        """Forget the key groups that have left."""
        if not self._left:
            return
        left = np.array(sorted(self._left))
        self._left.clear()
        kept = (batch.filter(pa.array(~np.isin(self._groups(batch), left))) for batch in self._waiting())
        self._keep([batch for batch in kept if batch.num_rows])
        gone = set(left.tolist())
        self._blocks = {key: block for key, block in self._blocks.items() if _group_of(key) not in gone}
        self._marks = {group: key for group, key in self._marks.items() if group not in gone}
        self._gone = [key for key in self._gone if _group_of(key) not in gone]

    # --- called by the table ---

    def settle(self) -> None:
        """Implements :class:`weir.state.tables.held.Holder`."""
        self._let_go()
        puts: list[tuple[bytes, bytes]] = []
        gone, self._gone = self._gone, []
        if not self._is_marked:
            over = [key for key, block in self._blocks.items() if block.highest_ms <= self.released_ms]
            for key in over:
                del self._blocks[key]
            gone += over + self._marks_now(puts)
            self._is_marked = True
        if self._written < self._next_number:
            for batch in self._waiting():
                numbers = batch.column(NUMBER_COLUMN).to_numpy(zero_copy_only=True)
                new = numbers >= self._written
                if new.any():
                    self._write(batch if new.all() else batch.filter(pa.array(new)), puts)
            self._written = self._next_number
        if puts or gone:
            self._table.write_stored(puts, gone)

    def _marks_now(self, puts: list[tuple[bytes, bytes]]) -> list[bytes]:
        """Say of which groups some rows of a block have left; returns the keys of what said so before."""
        begun = {_group_of(key) for key, block in self._blocks.items() if block.lowest_ms <= self.released_ms}
        gone, self._marks = list(self._marks.values()), {}
        value = _MARK + _MARK_NUMBERS.pack(self.released_ms, self._released_number)
        for group in sorted(begun):
            self._marks[group] = self._next_key(group)
            puts.append((self._marks[group], value))
        return gone

    def _write(self, batch: pa.RecordBatch, puts: list[tuple[bytes, bytes]]) -> None:
        groups = self._groups(batch)
        order = np.argsort(groups, kind="stable")
        found, firsts = np.unique(groups[order], return_index=True)
        as_of_ms = batch.column(AS_OF_COLUMN).to_numpy(zero_copy_only=True)
        for group, rows in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            key, value = self._next_key(group), block_of(batch.take(pa.array(rows)))
            self._blocks[key] = _Block(len(value), int(as_of_ms[rows].min()), int(as_of_ms[rows].max()))
            puts.append((key, value))

    def _next_key(self, group: int) -> bytes:
        self._next_entry += 1
        return self._table.key_prefix(group) + (self._next_entry - 1).to_bytes(_NUMBER_BYTES, "big")

    def written(self, groups: Collection[int]) -> dict[bytes, int]:
        """Implements :class:`weir.state.tables.held.Holder`."""
        found = {key: block.size_bytes for key, block in self._blocks.items() if _group_of(key) in groups}
        size_bytes = len(_MARK) + _MARK_NUMBERS.size
        return found | {key: size_bytes for group, key in self._marks.items() if group in groups}

    def leave(self, groups: frozenset[int]) -> None:
        """Implements :class:`weir.state.tables.held.Holder`."""
        self._left |= groups


def _group_of(key: bytes) -> int:
    return int.from_bytes(key[:_GROUP_BYTES], "big")


def read_mark(value: bytes) -> tuple[int, int]:
    """The two numbers of an entry of the second kind.

    Raises:
        StateMismatchError: it is cut off.
    """
    if len(value) != len(_MARK) + _MARK_NUMBERS.size:
        raise StateMismatchError(
            "what says which rows that waited have left cannot be read from the checkpoint"
        )
    until_ms, number = _MARK_NUMBERS.unpack(value[len(_MARK) :])
    return until_ms, number
