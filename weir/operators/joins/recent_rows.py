"""Rows of an inner join within bounds: they are in memory, and in blocks of bytes where a checkpoint needs them.

To find, match and rewrite a key's entry in a store takes microseconds, to file a row in arrays a tenth. So these joins
hold their rows in memory as long as there is room. The state ``_recent`` (:class:`weir.state.tables.held.HeldTable`)
gets those that it does not have yet, many in one value, when a checkpoint is noted and before key groups leave; rows
that can match no more by then are never written. Rows for which there is no room lie in entries by key (``kept_rows``).

The state key of a block is the prefix of its key group, its side (1 byte) and a number (8 bytes, big endian), by which
the blocks of a group and side are in the order in which their rows came. Its value is of ``held_blocks``. A block that
is small gets the next rows, too.

Where memory is nearly used up, the side that has more in it *moves out*: its new rows go to the entries by key at once,
and those that are held follow, a key group at a time. So there is room for the rows of the other side, which mostly
stay for a shorter time: an order may wait for hours for steps each of which can go at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir.keys import hashing as weir_keys
from weir.operators.joins import recent_kernels as kernels
from weir.operators.joins.held_blocks import VERSION, decoded_blocks, rows_by_group, side_of_block
from weir.operators.joins.held_rows import DEAD_MS, HeldRows, HeldSide
from weir.rows.records import WATERMARK_MIN_MS
from weir.state.tables.held import HeldTable

#: A block with fewer bytes gets more rows.
_SMALL_BYTES = 4_096
#: So many rows of a side are written without waiting for a checkpoint, or rows would wait long for it.
_UNWRITTEN_MAX = 65_536
#: What is known of a block occupies.
_BLOCK_BYTES = 300
#: With more than this share of its bound in memory a side moves out.
_MOVE_OUT = 0.75


@dataclass(slots=True)
class _Written:
    """A block that the table has."""

    bytes: int
    #: The last time at which one of its rows can match.
    until: int


class RecentRows:
    """The rows of both sides that one subtask holds.

    Its methods raise ``StateError`` where the store cannot be read or written.
    """

    def __init__(self, table: HeldTable, max_parallelism: int) -> None:
        self._table = table
        self._max_parallelism = max_parallelism
        self._sides = (HeldSide(), HeldSide())
        self._blocks: dict[bytes, _Written] = {}
        #: When blocks can go: ``until`` and state key of each, and of some that have gone or got more rows.
        self._leaving: list[tuple[int, bytes]] = []
        #: By side and key group the block that gets the next rows.
        self._open: dict[tuple[int, int], bytes] = {}
        self._next_number = 0
        self._watermark_ms = WATERMARK_MIN_MS
        #: Key groups that have a new owner; their rows match nothing that comes.
        self._left: set[int] = set()
        #: The side that moves out, or has.
        self._out: int | None = None
        table.held_by(self)

    @property
    def has_room(self) -> bool:
        """Return whether more rows may be held."""
        return self._bytes < self._table.held_bytes_max

    @property
    def _bytes(self) -> int:
        return sum(side.bytes for side in self._sides) + len(self._blocks) * _BLOCK_BYTES

    def holds(self, side: int) -> bool:
        """Return whether new rows of a side are to be held; else they go to the entries by key."""
        if self._out is None and self._bytes > _MOVE_OUT * self._table.held_bytes_max:
            self._out = 0 if self._sides[0].bytes > self._sides[1].bytes else 1
        return side != self._out and self.has_room

    def hold_all(self) -> None:
        """There are no entries by key: from now on both sides are held again, as long as there is room."""
        if self._out is not None and not len(self._sides[self._out]):
            self._out = None

    def move_out(self) -> tuple[int, HeldRows] | None:
        """Let go of a key group's rows of the side that moves out, if it has some; returns the side and the rows."""
        held = None if self._out is None else self._sides[self._out]
        if held is None or self._out is None:
            return None
        self._let_go()
        rows = held.rows()
        if len(held) == held.dead:
            return None
        alive = np.flatnonzero((rows.until >= self._watermark_ms) & (rows.until > DEAD_MS))
        if not len(alive):
            return None
        groups = weir_keys.key_groups(rows.hashes, self._max_parallelism)
        group = int(groups[alive[0]])
        own = alive[groups[alive] == group]
        taken = rows.chosen(own)
        held.kill(own)
        prefix = self._table.key_prefix(group) + bytes([self._out])
        gone = [key for key in self._blocks if key.startswith(prefix)]
        for key in gone:
            del self._blocks[key]
        self._open.pop((self._out, group), None)
        if gone:
            self._table.rearranged += 1
            self._table.write_stored((), gone)
        return self._out, taken

    def hold(self, side: int, rows: HeldRows) -> None:
        """Hold more rows of a side."""
        held = self._sides[side]
        held.put(rows)
        if len(held) - held.written > _UNWRITTEN_MAX:
            self.settle()

    def rows(self, side: int) -> HeldRows | None:
        """What is held of a side, until it changes; None: nothing."""
        held = self._sides[side]
        return held.rows() if len(held) else None

    def match(
        self, side: int, new: HeldRows, *, is_point: bool, pairs_max: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of new rows of a side with rows that are held of the other one, at most so many at a time.

        Args:
            side: that of the new rows.
            new: their columns are not looked at.
            is_point: the new rows have intervals, those that are held have times.
            pairs_max: pairs at a time.

        Yields:
            Numbers of new rows, ascending, and of those that are held, as they came; int64.
        """
        other = self._sides[1 - side]
        if not len(other):
            return
        given: list[Any] = [*new.key_columns(), new.numbers(), *other.to_match(), is_point]
        left_off = np.array([0, -1], dtype=np.int64)
        while left_off[0] < len(new):
            found = np.empty((2, pairs_max), dtype=np.int64)
            first, first_held = left_off.tolist()
            arguments = [*given, first, first_held, found, left_off]
            count = kernels.match(*arguments)
            if count:
                yield found[0, :count], found[1, :count]

    def drop(self, watermark_ms: int) -> None:
        """Let go of rows that can match no more, of some a little later, and of blocks without others."""
        self._let_go()
        self._watermark_ms = max(watermark_ms, self._watermark_ms)
        for held in self._sides:
            held.drop(self._watermark_ms)
        gone = []
        while self._leaving and self._leaving[0][0] < self._watermark_ms:
            until, key = heapq.heappop(self._leaving)
            if key in self._blocks and self._blocks[key].until == until:
                del self._blocks[key]
                gone.append(key)
        if gone:
            self._open = {place: key for place, key in self._open.items() if key in self._blocks}
            self._table.write_stored((), gone)

    # --- the table ---

    def settle(self) -> None:
        """Write what was held only, as :class:`weir.state.tables.held.Holder` asks."""
        fresh = [part for side in range(2) for part in self._fresh(side)]
        open_keys = [self._open.get(part[:2]) for part in fresh]
        small = [key for key in open_keys if key is not None and self._blocks[key].bytes < _SMALL_BYTES]
        before = dict(zip(small, self._table.get_stored(small), strict=True)) if small else {}
        puts: list[tuple[bytes, bytes]] = []
        for (side, group, rows, _), open_key in zip(fresh, open_keys, strict=True):
            value = None if open_key is None else before.get(open_key)
            if open_key is not None and value is not None:
                puts.append((open_key, value + rows))
                continue
            number = (self._next_number + len(puts)).to_bytes(8, "big")
            puts.append((self._table.key_prefix(group) + bytes([side]) + number, VERSION + rows))
        if puts:
            self._table.write_stored(puts, ())
        for (side, group, _, until), (key, value) in zip(fresh, puts, strict=True):
            known = self._blocks.get(key)
            self._know(key, _Written(len(value), until if known is None else max(until, known.until)))
            self._open[side, group] = key
        self._next_number += len(puts)
        for held in self._sides:
            held.written = len(held)

    def _fresh(self, side: int) -> Iterator[tuple[int, int, bytes, int]]:
        """What is not written of a side: side, key group, bytes of rows, and the last time at which one can match."""
        held = self._sides[side]
        if held.written < len(held):
            rows = held.rows()
            until = rows.until[held.written :]
            fresh = held.written + np.flatnonzero((until >= self._watermark_ms) & (until > DEAD_MS))
            for group, value, until_ms in rows_by_group(rows, fresh, self._max_parallelism):
                yield side, group, value, until_ms

    def _know(self, key: bytes, block: _Written) -> None:
        known = self._blocks.get(key)
        self._blocks[key] = block
        if known is None or known.until != block.until:
            heapq.heappush(self._leaving, (block.until, key))

    def take_new(self) -> Iterator[tuple[int, HeldRows]]:
        """Take the rows of key groups that have come: hold them, or yield side and rows for which there is no room.

        Raises:
            StateMismatchError: a block is of another version, or cut off.
        """
        if not self._table.has_new_groups:
            return
        self._let_go()
        # What is held is written, so that it stays so from the first row to the last.
        self.settle()
        came: tuple[list[tuple[bytes, bytes]], ...] = ([], [])
        for key, value in self._table.take_new():
            came[side_of_block(key)].append((key, value))
            self._next_number = max(self._next_number, int.from_bytes(key[-8:], "big") + 1)
        for side, blocks in enumerate(came):
            # As rows and columns these bytes take a little more.
            room_bytes = self._table.held_bytes_max - self._bytes
            ends = np.cumsum([len(value) for _, value in blocks])
            fit = int(np.searchsorted(ends, room_bytes, side="right"))
            if fit:
                self._hold_blocks(side, blocks[:fit])
            if blocks[fit:]:
                yield side, decoded_blocks([value for _, value in blocks[fit:]])[0]
                self._table.write_stored((), [key for key, _ in blocks[fit:]])

    def _hold_blocks(self, side: int, blocks: Sequence[tuple[bytes, bytes]]) -> None:
        """Hold the rows of blocks that the table has, in their order."""
        rows, firsts = decoded_blocks([value for _, value in blocks])
        held = self._sides[side]
        held.put(rows)
        held.written = len(held)
        for (key, value), start, stop in zip(blocks, firsts[:-1], firsts[1:], strict=True):
            self._know(key, _Written(len(value), int(rows.until[start:stop].max(initial=DEAD_MS))))

    def written(self, groups: Collection[int]) -> dict[bytes, int]:
        """Return the sizes of what is written, by key, as :class:`weir.state.tables.held.Holder` asks."""
        wanted = {group.to_bytes(2, "big") for group in groups}
        return {key: block.bytes for key, block in self._blocks.items() if key[:2] in wanted}

    def leave(self, groups: frozenset[int]) -> None:
        """Note that key groups leave, as :class:`weir.state.tables.held.Holder` asks."""
        self._left |= groups

    def _let_go(self) -> None:
        """Forget the key groups that have left, all in one go."""
        if not self._left:
            return
        for held in self._sides:
            own = weir_keys.key_groups(held.rows().hashes, self._max_parallelism)
            held.kill(np.flatnonzero(np.isin(own, sorted(self._left)) & (held.rows().until > DEAD_MS)))
        prefixes = {group.to_bytes(2, "big") for group in self._left}
        self._blocks = {key: block for key, block in self._blocks.items() if key[:2] not in prefixes}
        self._leaving = [(block.until, key) for key, block in self._blocks.items()]
        heapq.heapify(self._leaving)
        self._open = {place: key for place, key in self._open.items() if key in self._blocks}
        self._left.clear()
