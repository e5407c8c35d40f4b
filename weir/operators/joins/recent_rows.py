"""Rows of an inner join within bounds: they are in memory, and in blocks of bytes where a checkpoint needs them.

To find, match and rewrite a key's entry in a store takes microseconds, to file a row in arrays a tenth. So these joins
hold their rows in memory as long as there is room. The state ``_recent`` (:class:`weir.state.tables.held.HeldTable`)
gets those that it does not have yet, many in one value, when a checkpoint is noted and before key groups leave; rows
that can match no more by then are never written. Rows for which there is no room lie in entries by key (``kept_rows``).

The state key of a block is the prefix of its key group, its side (1 byte) and a number (8 bytes, big endian), by which
the blocks of a group and side are in the order in which their rows came. Its value is ``01``, the version, and rows
(``recent_kernels``). A block that is small gets the next rows, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir import key_kernels
from weir import keys as weir_keys
from weir.errors import StateMismatchError
from weir.operators.joins import recent_kernels as kernels
from weir.operators.joins.held_rows import HeldRows, HeldSide
from weir.records import WATERMARK_MIN_MS
from weir.state.tables.held import HeldTable

_VERSION = b"\x01"
#: A block with fewer bytes gets more rows.
_SMALL_BYTES = 4_096
#: So many rows of a side are written without waiting for a checkpoint, or rows would wait long for it.
_UNWRITTEN_MAX = 65_536
#: What is known of a block occupies.
_BLOCK_BYTES = 300


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
        table.held_by(self)

    @property
    def has_room(self) -> bool:
        """Whether more rows may be held."""
        held_bytes = sum(side.bytes for side in self._sides) + len(self._blocks) * _BLOCK_BYTES
        return held_bytes < self._table.held_bytes_max

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
        given: list[Any] = [*new.columns(), *other.rows().columns(), *other.index(), is_point]
        left_off = np.array([0, -1], dtype=np.int64)
        while left_off[0] < len(new):
            new_found, found = np.empty(pairs_max, dtype=np.int64), np.empty(pairs_max, dtype=np.int64)
            first, first_held = left_off.tolist()
            arguments = [*given, first, first_held, new_found, found, left_off]
            count = kernels.match(*arguments)
            if count:
                yield new_found[:count], found[:count]

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
        """See :class:`weir.state.tables.held.Holder`."""
        puts: list[tuple[bytes, bytes]] = []
        blocks: dict[bytes, _Written] = {}
        opened: dict[tuple[int, int], bytes] = {}
        for side, held in enumerate(self._sides):
            if held.written == len(held):
                continue
            rows = held.rows()
            fresh = held.written + np.flatnonzero(rows.until[held.written :] >= self._watermark_ms)
            for group, value, until in _by_group(rows, fresh, self._max_parallelism):
                key, before = self._place(side, group, len(opened))
                opened[side, group] = key
                if before is not None:
                    until = max(until, self._blocks[key].until)
                puts.append((key, (_VERSION if before is None else before) + value))
                blocks[key] = _Written(len(puts[-1][1]), until)
        if puts:
            self._table.write_stored(puts, ())
        for key, block in blocks.items():
            self._know(key, block)
        self._open |= opened
        self._next_number += len(opened)
        for held in self._sides:
            held.written = len(held)

    def _place(self, side: int, group: int, number: int) -> tuple[bytes, bytes | None]:
        """Where the next rows of a key group go: the state key of a block, and its value if it has some already."""
        key = self._open.get((side, group))
        if key is not None and self._blocks[key].bytes < _SMALL_BYTES:
            value = self._table.get_stored([key])[0]
            if value is not None:
                return key, value
        number += self._next_number
        return self._table.key_prefix(group) + bytes([side]) + number.to_bytes(8, "big"), None

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
        for key, value in self._table.take_new():
            side, number = key[-9], int.from_bytes(key[-8:], "big")
            self._next_number = max(self._next_number, number + 1)
            rows = decoded_block(value)
            if self.has_room:
                held = self._sides[side]
                held.put(rows)
                held.written = len(held)
                self._know(key, _Written(len(value), int(rows.until.max(initial=-(2**63)))))
            else:
                yield side, rows
                self._table.write_stored((), [key])

    def leave(self, groups: frozenset[int]) -> None:
        """See :class:`weir.state.tables.held.Holder`."""
        self._left |= groups

    def _let_go(self) -> None:
        """Forget the key groups that have left, all in one go."""
        if not self._left:
            return
        for held in self._sides:
            own = weir_keys.key_groups(held.rows().hashes, self._max_parallelism)
            held.keep(np.flatnonzero(~np.isin(own, sorted(self._left))))
        prefixes = {group.to_bytes(2, "big") for group in self._left}
        self._blocks = {key: block for key, block in self._blocks.items() if key[:2] not in prefixes}
        self._leaving = [(block.until, key) for key, block in self._blocks.items()]
        heapq.heapify(self._leaving)
        self._open = {place: key for place, key in self._open.items() if key in self._blocks}
        self._left.clear()


def _by_group(rows: HeldRows, chosen: np.ndarray, groups: int) -> Iterator[tuple[int, bytes, int]]:
    """Some of these rows by key group: the group, their bytes, and the last time at which one can match."""
    own = weir_keys.key_groups(rows.hashes[chosen], groups)
    order = np.argsort(own, kind="stable")
    chosen, own = chosen[order], own[order]
    _, keys, key_offsets, times, lower, until = rows.columns()
    lengths = np.diff(key_offsets)[chosen] + np.diff(rows.offsets)[chosen] + kernels.HEAD_BYTES
    offsets = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.encode_rows(chosen, keys, key_offsets, times, lower, until, rows.data, rows.offsets, offsets, out)
    starts = np.flatnonzero(np.diff(own.astype(np.int64), prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(chosen)], strict=True):
        value = out[offsets[start] : offsets[stop]].tobytes()
        yield int(own[start]), value, int(until[chosen[start:stop]].max())


def decoded_block(value: bytes) -> HeldRows:
    """The rows of a block.

    Raises:
        StateMismatchError: it is of another version, or cut off.
    """
    if value[:1] != _VERSION:
        raise StateMismatchError(
            f"a block of rows of a join has format version {value[:1].hex()}, this program reads {_VERSION.hex()}"
        )
    data = np.frombuffer(value, dtype=np.uint8)[1:]
    most = len(data) // kernels.HEAD_BYTES
    starts, key_lengths = np.empty(most + 1, dtype=np.int64), np.empty(most, dtype=np.int64)
    times, lower, until = (np.empty(most, dtype=np.int64) for _ in range(3))
    count = kernels.decode_rows(data, starts, key_lengths, times, lower, until)
    if count < 0:
        raise StateMismatchError("a block of rows of a join is cut off or is something else")
    key_starts = starts[:count] + kernels.HEAD_BYTES
    column_starts = key_starts + key_lengths[:count]
    keys = weir_keys.KeyColumn(*_gathered(data, key_starts, key_lengths[:count]))
    columns = _gathered(data, column_starts, starts[1 : count + 1] - column_starts)
    hashes = weir_keys.hash_keys(keys)
    return HeldRows(hashes, keys, times[:count], lower[:count], until[:count], *columns)


def _gathered(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that begin at these places, one after the other, and where each is then."""
    offsets = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    key_kernels.gather_bytes(data, starts, offsets, out)
    return out, offsets
