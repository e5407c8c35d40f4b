"""States with a TTL where subtasks are not equally far: sweeps, restarts and another parallelism change nothing."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from tests.equal import processes
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.keys import hashing as weir_keys
from weir.operators.keyed.deduplicate import DeduplicateOperator, deduplicated_state
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.rows import row_watermarks
from weir.rows.records import WATERMARK_MAX_MS, watermarks_of
from weir.rows.row_watermarks import RowWatermarks
from weir.specs import DeduplicateSpec, KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

GROUPS = 8
BOUND_MS = 500
KEYS = pa.schema({"k": pa.int64()})
SAID = pa.schema([*KEYS, ("n", "int64"), ("at_ms", "int64"), ("text", "string")])


class Expiring(processes.Expiring):
    """A timer that is due when values expire, beside those of the class."""

    def process(self, key, row, context):
        yield from super().process(key, row, context)
        context.timers.register(context.event_time_ms + 4_000)


class Process:
    """One kind of process."""

    def __init__(self, kind):
        self.kind = kind
        self.states = process_states("step", kind)

    def make(self):
        return KeyedProcessOperator(KeyedProcessSpec(("k",), self.kind, SAID, self.states, KEYS))


class Deduplicate:
    spec = DeduplicateSpec(("k",), within_ms=3_000)
    states = (deduplicated_state(spec),)

    def make(self):
        return DeduplicateOperator(self.spec)


KINDS = {
    "expiring": Process(Expiring),
    "histories": Process(processes.Histories),
    "deduplicate": Deduplicate(),
}


class Subtask:
    """An operator over the store that all subtasks use, with some of the key groups."""

    def __init__(self, step, backend, groups, index, restored):
        self.tables = StateTables(backend, 1 << 20, GROUPS, groups)
        self.operator = step.make()
        ids = {state.name: number for number, state in enumerate(step.states, 1)}
        self.operator.open(
            OperatorContext(
                "job",
                "step",
                1,
                index,
                1,
                GROUPS,
                tables=self.tables.of("step", ids),
                restored=restored,
                row_watermarks=RowWatermarks.ALL,
                schema=rows_of([(0, 0, 0)]).schema,
            )
        )


def rows_of(rows):
    """Rows of a key, a value and an event time, as an operator gets them."""
    keys, values, times = (pa.array(column, pa.int64()) for column in zip(*rows, strict=True))
    batch = pa.record_batch({"k": keys, "v": values, "to": times})
    return weir.with_times(batch, times.to_numpy(), 0)


def made_rows(rng, count):
    """Rows of one split, some of them late, with the watermark as of each."""
    time_ms, rows = 0, []
    for number in range(count):
        time_ms += rng.choice((0, 10, 200, 1_500))
        rows.append((rng.randrange(12), number, max(time_ms - rng.choice((0, 0, 300, 2_500)), 0)))
    batch = rows_of(rows)
    times_ms = batch["_event_time_ms"].to_numpy()
    highest_ms = np.maximum.accumulate(times_ms)
    column = row_watermarks.of_split(times_ms, highest_ms, BOUND_MS, WATERMARK_MAX_MS, RowWatermarks.ALL)
    return row_watermarks.with_column(batch, column)


def told(outputs, said):
    for made in outputs:
        for row in made.to_pylist():
            said[row["k"]].append({name: value for name, value in row.items() if name[0] != "_"})


def take(subtask, batch, said):
    """Rows in turn, cut as a chain cuts batches: the operator is told the watermark before."""
    _, as_of_ms = row_watermarks.as_of(batch, watermarks_of(batch))
    size = 1 if isinstance(subtask.operator, DeduplicateOperator) else len(batch)
    for row in range(0, len(batch), size):
        told(subtask.operator.on_watermark(int(as_of_ms[row])), said)
        told(subtask.operator.process(batch.slice(row, size)), said)


def run(kind, batch, rng=None):
    """What each key says; ``rng``: of subtasks that are not equally far, in random batches, swept and started again."""
    step, backend, said = KINDS[kind], MemoryBackend(), defaultdict(list)
    hashes = weir_keys.hash_keys(weir_keys.key_bytes(batch, ("k",)))
    groups = weir_keys.key_groups(hashes, GROUPS)
    column = watermarks_of(batch)
    _, as_of_ms = row_watermarks.as_of(batch, column)
    left = {group: np.flatnonzero(groups == group).tolist() for group in range(GROUPS)}
    count, restored, subtasks = 1, {}, []

    def owned(index):
        return [group for group in range(GROUPS) if group % count == index]

    def start():
        subtasks[:] = [Subtask(step, backend, owned(index), index, restored) for index in range(count)]

    start()
    if rng is None:
        take(subtasks[0], batch, said)
    while rng is not None and any(left.values()):
        index = rng.randrange(count)
        subtask = subtasks[index]
        match rng.randrange(5):
            case 0 | 1:
                rows = sorted(row for group in owned(index) for row in left[group])[: rng.choice((1, 3, 20))]
                if not rows:
                    continue
                take(subtask, batch.take(pa.array(rows)), said)
                for group in owned(index):
                    left[group] = [row for row in left[group] if row not in rows]
            case 2:
                # Of what is still to come nothing is behind the watermark.
                rest = [row for group in owned(index) for row in left[group]]
                if rest and min(rest):
                    told(subtask.operator.on_watermark(int(as_of_ms[min(rest) - 1])), said)
            case 3:
                subtask.tables.flush()
                for _ in range(rng.randrange(4)):
                    subtask.tables.sweeps.step(1.0)
            case 4 if rng.random() < 0.3:
                for each in subtasks:
                    each.tables.flush()
                snapshots = [each.operator.snapshot(1) for each in subtasks]
                restored = {at: json.loads(json.dumps(part)) for at, part in enumerate(snapshots)}
                count = rng.choice((1, 2, 2, 3))
                start()
    for subtask in subtasks:
        told(subtask.operator.finish(), said)
    return dict(said)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(cases(6)))
def test_what_each_key_says_does_not_depend_on_how_far_others_are(kind, seed):
    rng = random.Random(seed)
    batch = made_rows(rng, 150)
    expected = run(kind, batch)
    for _ in range(4):
        assert run(kind, batch, rng) == expected
