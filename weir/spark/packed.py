"""Rows on their way to a step with state in a stream of Spark, and from it: packed as Arrow, by key group.

Spark hands the rows of a key to Python one by one. So what it sees are few rows, each with many rows of a key group
within it; the key group is what Spark keeps state of. Runs within Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.keys.hashing import hash_keys, key_bytes, key_groups
from weir.spark.marks import Mark, apart, batch_of, unmarked
from weir.spark.types import cast_batch

#: Key groups of a step in a stream: so many tasks work on it at most, and each trigger calls each of them.
KEY_GROUPS_MAX = 16
GROUP, INPUT, OF, MARK_MS, ROWS = "_group", "_input", "_of", "_mark_ms", "_rows"
#: What comes to a step: rows of one input and key group, or a mark.
COMING = "`_group` INT, `_input` INT, `_of` STRING, `_mark_ms` BIGINT, `_rows` BINARY"
_COMING = pa.schema(
    [
        (GROUP, pa.int32()),
        (INPUT, pa.int32()),
        (OF, pa.string()),
        (MARK_MS, pa.int64()),
        (ROWS, pa.binary()),
    ]
)
#: What leaves it: rows, or the watermark of a key group.
LEAVING = "`_mark_ms` BIGINT, `_rows` BINARY"


def groups_of(max_parallelism: int) -> int:
    """How many key groups a step has in a stream: of a job always the same, for its checkpoints."""
    return min(max_parallelism, KEY_GROUPS_MAX)


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_bytes(packed: bytes) -> list[pa.RecordBatch]:
    """The rows of :func:`to_bytes`."""
    with pa.ipc.open_stream(packed) as reader:
        return list(reader)


@dataclass(frozen=True)
class Packing:
    """What Spark calls in each task in front of a step with state.

    Attributes:
        number: the input of the step.
        keys: its key columns; (): all rows go to one key group.
        schema: user columns of the input, by whose types keys are hashed.
        groups: number of key groups.
        to_all: every key group gets all rows.
    """

    number: int
    keys: tuple[str, ...]
    schema: pa.Schema
    groups: int
    to_all: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows and marks of a partition in the form ``COMING``."""
        marks: list[Mark] = []
        for batch in batches:
            rows, found = apart(batch)
            marks += found
            if rows.num_rows:
                yield self._packed(rows)
        if marks:
            # Of one step the highest of this task; where key groups made them, all are needed to know the lowest.
            yield self._to_all(marks)

    def _packed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.to_all or not self.keys:
            chosen = [(group, rows) for group in range(self.groups if self.to_all else 1)]
        else:
            chosen = list(self._divided(rows))
        packed = {id(part): to_bytes(part) for _, part in chosen}
        found = [(group, packed[id(part)]) for group, part in chosen]
        count = len(found)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([group for group, _ in found], pa.int32()),
                pa.array([self.number] * count, pa.int32()),
                pa.nulls(count, pa.string()),
                pa.nulls(count, pa.int64()),
                pa.array([part for _, part in found], pa.binary()),
            ],
            schema=_COMING,
        )

    def _divided(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        typed = cast_batch(rows.select(self.schema.names), self.schema)
        groups = key_groups(hash_keys(key_bytes(typed, self.keys)), self.groups)
        order = np.argsort(groups, kind="stable")
        whole, found = rows.take(pa.array(order)), groups[order]
        starts = np.flatnonzero(np.r_[True, found[1:] != found[:-1]])
        for start, stop in zip(starts, [*starts[1:], len(found)], strict=True):
            yield int(found[start]), whole.slice(start, stop - start)

    def _to_all(self, marks: list[Mark]) -> pa.RecordBatch:
        count = len(marks)
        groups = np.repeat(np.arange(self.groups, dtype=np.int32), count)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(groups),
                pa.array([self.number] * len(groups), pa.int32()),
                pa.array([of for of, _ in marks] * self.groups, pa.string()),
                pa.array([time_ms for _, time_ms in marks] * self.groups, pa.int64()),
                pa.nulls(len(groups), pa.binary()),
            ],
            schema=_COMING,
        )


@dataclass(frozen=True)
class Unpacking:
    """What Spark calls in each task behind a step with state.

    Attributes:
        step: its name.
        wire: columns of the rows, without those of marks.
    """

    step: str
    wire: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows and marks that are packed in ``LEAVING``."""
        for batch in batches:
            rows: list[pa.RecordBatch] = []
            marks: list[Mark] = []
            for mark_ms, packed in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                if mark_ms is not None:
                    marks.append((self.step, mark_ms))
                else:
                    rows += from_bytes(packed.as_buffer())
            if rows:
                whole = pa.Table.from_batches(rows, self.wire).combine_chunks()
                yield from map(unmarked, whole.to_batches())
            if marks:
                yield batch_of(marks, self.wire)
