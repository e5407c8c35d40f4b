"""A join without processes: two subtasks over one store, rows and watermarks by hand, and what must come of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

import weir
from weir.author.operator import OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.joins import row_chunks
from weir.operators.registry import create_operator
from weir.rows.records import with_times
from weir.rows.side_outputs import SideRows
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing.manual_clock import ManualClock

GROUPS = 4
SEAL_BYTES = row_chunks.SEAL_BYTES
CACHE_BYTES = 1 << 16
LEFT = {"k": weir.Nullable(int), "l": int, "lo": weir.Nullable(int), "hi": weir.Nullable(int)}
RIGHT = {"key": weir.Nullable(int), "r": weir.Nullable(str)}
THIRD = {"id": weir.Nullable(int), "t": int}
#: By stream, its columns and its key.
STREAMS = {"left": (LEFT, "k"), "right": (RIGHT, "key"), "third": (THIRD, "id")}


def join_node(method="join", **arguments):
    """The step of a join of two streams, of ``join_all`` of three, and their schemas."""
    flow = weir.Dataflow("joins", max_parallelism=GROUPS)
    streams = [
        flow.source(name, weir.JsonLines("/absent", schema=schema)).key_by(key)
        for name, (schema, key) in STREAMS.items()
        if method == "join_all" or name != "third"
    ]
    joined = getattr(streams[0], method)("j", *streams[1:], **arguments)
    return joined.node, [stream.schema for stream in streams]


class TwoSubtasks:
    """Key groups are of one of two operators, and may move; both have the watermarks that they are told."""

    def __init__(self, batch_size=5, seal_bytes=SEAL_BYTES, cache_bytes=CACHE_BYTES, **arguments):
        row_chunks.SEAL_BYTES = seal_bytes
        self.node, self.schemas = join_node(**arguments)
        self.batch_size, self.cache_bytes = batch_size, cache_bytes
        self.store = MemoryBackend()
        self.owner = [group % 2 for group in range(GROUPS)]
        self.rows = []
        #: Side outputs of late rows, and how many came at a time.
        self.late = []
        self.input_watermarks = [-(2**63)] * len(self.schemas)
        self.restored = {}
        #: Key groups of which the other subtask has a copy of what is cached.
        self.copied = set()
        self.open()

    def open(self):
        """Open the operators with what is in the store and restored."""
        self.operators, self.tables = [], []
        for index in range(2):
            owned = [group for group in range(GROUPS) if self.owner[group] == index]
            tables = StateTables(self.store, self.cache_bytes, GROUPS, owned)
            numbers = {name: number for number, name in enumerate(self.node.spec.state_names)}
            operator = create_operator(self.node.spec)
            operator.open(
                OperatorContext(
                    *("job", "j", 0, index, 2),
                    max_parallelism=GROUPS,
                    batch_size=self.batch_size,
                    tables=tables.of("j", numbers),
                    restored=self.restored,
                    schema=self.node.schema,
                    clock=ManualClock(),
                )
            )
            self.operators.append(operator)
            self.tables.append(tables)

    def take(self, side, rows):
        """Rows as tuples of the side's columns and the event time."""
        schema = self.schemas[side]
        plain = pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, row, strict=False)) for row in rows], schema=schema
        )
        batch = with_times(plain, np.array([row[-1] for row in rows], dtype=np.int64), 7)
        keys = weir_keys.key_bytes(batch, self.node.spec.keys_of_input(side))
        groups = weir_keys.key_groups(weir_keys.hash_keys(keys), GROUPS)
        for index, operator in enumerate(self.operators):
            own = batch.filter(pa.array([self.owner[group] == index for group in groups]))
            if own.num_rows:
                self._told(operator.process_input(side, own))

    def watermark(self, side, time_ms):
        before = min(self.input_watermarks)
        self.input_watermarks[side] = time_ms
        self._tell_watermarks(before)

    def _tell_watermarks(self, before):
        for operator in self.operators:
            for side, time_ms in enumerate(self.input_watermarks):
                operator.on_input_watermark(side, time_ms)
            if min(self.input_watermarks) > before:
                self._told(operator.on_watermark(min(self.input_watermarks)))

    def copy(self, group, bytes_max):
        """What is cached of a group goes ahead, or what has changed since it did."""
        old, new = (self.tables[index] for index in (self.owner[group], 1 - self.owner[group]))
        for table, other in zip(old, new, strict=True):
            table.flush_groups([group])
            if group in self.copied and group in table.good_copies([group]):
                tell(other, table.copy_changes([group]), group)
            else:
                other.clear_groups([group])
                tell(other, table.copy_groups([group], 1000, bytes_max), group)
        self.copied.add(group)

    def hand_over(self, group):
        before = self.owner[group]
        self.owner[group] = 1 - before
        is_good = all(group in table.good_copies([group]) for table in self.tables[before])
        for table, other in zip(self.tables[before], self.tables[1 - before], strict=True):
            if group in self.copied and is_good:
                tell(other, table.changes_since_copy([group]), group)
                tell(other, table.notes_at_handover([group]), group)
                other.keep_copies([group])
        self.copied.discard(group)
        for table in self.tables[before]:
            table.release_groups([group])
        for table in self.tables[1 - before]:
            table.adopt_groups([group])

    def capture(self):
        for tables in self.tables:
            for capture in tables.capture():
                capture.write()

    def restart(self):
        self.copied.clear()
        for index, (operator, tables) in enumerate(zip(self.operators, self.tables, strict=True)):
            tables.flush()
            self.restored[index] = operator.snapshot(1)
            operator.close()
        self.open()
        self._tell_watermarks(-(2**63))

    def finish(self):
        for operator, tables in zip(self.operators, self.tables, strict=True):
            self._told(operator.finish())
            tables.flush()
            operator.close()
        return self.rows

    @property
    def late_rows(self):
        return sum(operator.late_rows for operator in self.operators)

    def kept_entries(self):
        """What is in the store, without the places of timers."""
        names = self.node.spec.state_names
        numbers = [names.index(name) for name in ("rows", "_recent") if name in names]
        return [key for key, _ in self.store.scan() if int.from_bytes(key[2:4], "big") in numbers]

    def _told(self, batches):
        for batch in batches:
            if isinstance(batch, SideRows):
                self.late.append((batch.output, batch.rows.num_rows))
                continue
            assert batch.schema.names == [*self.node.schema.names, "_event_time_ms", "_ingest_time_us"]
            assert 0 < batch.num_rows <= max(self.batch_size, 8)
            batch.validate(full=True)
            names = batch.schema.names[:-1]
            self.rows += [tuple(row[name] for name in names) for row in batch.to_pylist()]


def tell(table, entries, group):
    if entries is not None:
        assert table.take_copy(entries, [group])


def nested_loop(left, right, how, belongs, alone_time):
    """The result of a join of all rows, as a Counter of rows with their event times (of semi joins: without).

    Args:
        left: tuples (k, l, lo, hi, time).
        right: tuples (key, r, time).
        how: as of ``join``.
        belongs: whether a pair's times belong together.
        alone_time: event time of a row without a partner, by its side.
    """
    found = Counter()
    matched_left, matched_right = set(), set()
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            if a[0] is not None and a[0] == b[0] and belongs(a, b):
                matched_left.add(i)
                matched_right.add(j)
                if how not in ("semi", "anti"):
                    found[(*a[:4], b[1], max(a[-1], b[-1]))] += 1
    if how == "semi":
        return Counter(left[i][:4] for i in matched_left)
    if how == "anti":
        return Counter((*a[:4], alone_time(0, a)) for i, a in enumerate(left) if i not in matched_left)
    if how in ("left", "full"):
        found.update((*a[:4], None, alone_time(0, a)) for i, a in enumerate(left) if i not in matched_left)
    if how in ("right", "full"):
        found.update(
            (b[0], None, None, None, b[1], alone_time(1, b))
            for j, b in enumerate(right)
            if j not in matched_right
        )
    return found
