"""Rows that wait until a step may process them: in memory, and in a state where a checkpoint or a move needs them.

The state ``_held`` (:class:`weir.state.tables.held.HeldTable`) has blocks of rows of one key group, in the order of
their numbers: 8 bytes, big-endian, after the state key's prefix. A block is a byte, its version, and a stream of Arrow
IPC. Where it matters what the watermark is as of each row, there is a column ``_held_as_of_ms``: rows of several key
groups leave in its order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.keys import hashing as weir_keys
from weir.rows.records import KEY_HASH_COLUMN, batch_bytes
from weir.state.tables.held import HeldTable

_NUMBER_BYTES = 8
_VERSION = b"\x01"
_AS_OF_COLUMN = "_held_as_of_ms"


class HeldRows:
    """Rows that one subtask holds. Its methods raise ``StateError`` where the store cannot be read or written."""

    def __init__(self, table: HeldTable, max_parallelism: int) -> None:
        self._table = table
        self._max_parallelism = max_parallelism
        #: As they came; the first ``_written`` are in the table.
        self._batches: list[pa.RecordBatch] = []
        self._written = 0
        #: State keys of blocks, and their bytes.
        self._blocks: dict[bytes, int] = {}
        self._next_number = 0
        #: Key groups that have a new owner.
        self._left: set[int] = set()
        #: Whether they are in the order in which they leave.
        self._is_ordered = True
        self.size_bytes = 0
        table.held_by(self)

    def __bool__(self) -> bool:
        """Return whether there are rows."""
        self._take_new()
        return bool(self._batches)

    def put(self, batch: pa.RecordBatch, as_of_ms: np.ndarray | None) -> None:
        """Hold more rows, with all columns.

        Args:
            batch: with the hashes of keys.
            as_of_ms: the watermark as of each row, int64, shape (rows,); None: it does not matter.
        """
        # Those that came with their key groups are earlier.
        self._take_new()
        self._add(batch if as_of_ms is None else batch.append_column(_AS_OF_COLUMN, pa.array(as_of_ms)))

    def take(self, rows_max: int | None = None) -> pa.RecordBatch | None:
        """Return the first rows, as they came, which are held no more; None: there are none.

        Args:
            rows_max: at most so many; None: all that have one form.
        """
        self._take_new()
        self._let_go()
        if not self._is_ordered:
            self._batches = [self._in_order(batch) for batch in self._joined(self._batches)]
            self._is_ordered = True
        # What is left is written anew, where anybody looks.
        self._table.write_stored((), list(self._blocks))
        self._blocks, self._written = {}, 0
        if not self._batches:
            self.size_bytes = 0
            return None
        first = self._batches.pop(0)
        if rows_max is not None and first.num_rows > rows_max:
            self._batches.insert(0, first.slice(rows_max))
            first = first.slice(0, rows_max)
        self.size_bytes = sum(map(batch_bytes, self._batches))
        index = first.schema.get_field_index(_AS_OF_COLUMN)
        return first if index < 0 else first.remove_column(index)

    def _add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._is_ordered = False
        self.size_bytes += batch_bytes(batch)

    def _take_new(self) -> None:
        """Hold the rows of key groups that have come."""
        if not self._table.has_new_groups:
            return
        # What the table has of the others stays a beginning of what is held.
        self.settle()
        for key, value in self._table.take_new():
            self._blocks[key] = len(value)
            self._next_number = max(self._next_number, int.from_bytes(key[-_NUMBER_BYTES:], "big") + 1)
            for batch in read_block(value):
                self._add(batch)
        self._written = len(self._batches)

    def _groups(self, batch: pa.RecordBatch) -> np.ndarray:
        hashes = batch.column(KEY_HASH_COLUMN).to_numpy(zero_copy_only=True)
        return weir_keys.key_groups(hashes, self._max_parallelism)

    @staticmethod
    def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, neighbours of one form together."""
        first = 0
        for index in range(1, len(batches) + 1):
            if index == len(batches) or not batches[index].schema.equals(batches[first].schema):
                yield pa.concat_batches(batches[first:index])
                first = index

    def _in_order(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the order in which time went on; those of a key group stay in order."""
        index = batch.schema.get_field_index(_AS_OF_COLUMN)
        if index < 0:
            return batch
        as_of_ms = batch.column(index).to_numpy(zero_copy_only=True).copy()
        groups = self._groups(batch)
        for group in np.unique(groups):
            own = groups == group
            as_of_ms[own] = np.maximum.accumulate(as_of_ms[own])
        ordered = batch.set_column(index, _AS_OF_COLUMN, pa.array(as_of_ms))
        return ordered.take(pa.array(np.argsort(as_of_ms, kind="stable")))

    def _let_go(self) -> None:
        """Forget the key groups that have left, all in one go."""
        if not self._left:
            return
        left = np.array(sorted(self._left))
        self._left.clear()
        kept = [batch.filter(pa.array(~np.isin(self._groups(batch), left))) for batch in self._batches]
        self._written -= sum(not batch.num_rows for batch in kept[: self._written])
        self._batches = [batch for batch in kept if batch.num_rows]
        self.size_bytes = sum(map(batch_bytes, self._batches))
        gone = {group.to_bytes(2, "big") for group in left.tolist()}
        self._blocks = {key: size for key, size in self._blocks.items() if key[:2] not in gone}

    # --- called by the table ---

    def settle(self) -> None:
        """Write what was held only, as :class:`weir.state.tables.held.Holder` asks."""
        self._let_go()
        puts: list[tuple[bytes, bytes]] = []
        for batch in self._joined(self._batches[self._written :]):
            groups = self._groups(batch)
            order = np.argsort(groups, kind="stable")
            found, firsts = np.unique(groups[order], return_index=True)
            for group, rows in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
                number = (self._next_number + len(puts)).to_bytes(_NUMBER_BYTES, "big")
                puts.append((self._table.key_prefix(group) + number, block_of(batch.take(pa.array(rows)))))
        self._next_number += len(puts)
        self._blocks.update((key, len(value)) for key, value in puts)
        self._written = len(self._batches)
        if puts:
            self._table.write_stored(puts, ())

    def written(self, groups: Collection[int]) -> dict[bytes, int]:
        """Return the sizes of what is written, by key, as :class:`weir.state.tables.held.Holder` asks."""
        wanted = {group.to_bytes(2, "big") for group in groups}
        return {key: size for key, size in self._blocks.items() if key[:2] in wanted}

    def leave(self, groups: frozenset[int]) -> None:
        """Note that key groups leave, as :class:`weir.state.tables.held.Holder` asks."""
        self._left |= groups


def block_of(batch: pa.RecordBatch) -> bytes:
    """The bytes of a block."""
    sink = pa.BufferOutputStream()
    sink.write(_VERSION)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def read_block(value: bytes) -> list[pa.RecordBatch]:
    """The rows of a block.

    Raises:
        StateMismatchError: it is of another version, or cut off.
    """
    if value[:1] != _VERSION:
        raise StateMismatchError(
            f"the checkpoint has rows that wait in blocks of version {value[:1].hex() or 'none'}; this version of "
            f"Weir reads {_VERSION.hex()}: start without the checkpoint, or with the Weir that made it"
        )
    try:
        return list(pa.ipc.open_stream(value[1:]))
    except pa.ArrowException as error:
        raise StateMismatchError(f"rows that wait cannot be read from the checkpoint: {error}") from error
