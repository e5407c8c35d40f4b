"""Steps of Weir within a task of Spark: the operators of a task manager, fed with a partition in the order of time.

Runs in Spark's Python processes. The rows of a partition come sorted by event time; the watermark follows them at the
distance that the job's source has, so that no row is late and timers are due between the same rows as elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.operator import NEVER_US, OperatorContext, Poll, SourceReader
from weir.author.watermarks import WatermarkStrategy
from weir.clock import SystemClock
from weir.local.collected import Collection
from weir.local.deployment import Deployment, JobParts, no_state
from weir.local.preparing import initial_routing, local_settings
from weir.local.raising import told
from weir.local.state import open_store
from weir.operators.step_errors import StepError
from weir.plan.graph import Exchange, Input, LogicalGraph, Node
from weir.plan.rules.projection import without_unread_columns
from weir.plan.stages import physical_graph
from weir.rows import row_watermarks
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    int64_column,
    with_system_columns,
)
from weir.spark.types import cast_batch, wire_schema, wire_type
from weir.specs import CollectSpec, UserSourceSpec
from weir.state.api import StateBackend

#: Columns of the rows that several inputs, or outputs, share: which of them a row is of, and by number its columns.
NUMBER_COLUMN = "_number"
#: The place of a row among those of its event time.
ORDER_COLUMN = "_order"
#: No input ever counts as idle: Spark may take long to bring the next rows.
_NEVER_IDLE_MS = 1 << 50
#: Rows that a task takes at a time, however many Spark hands over: the rows of all inputs in them are merged.
_CHUNK_ROWS = 16_384

#: Told of the step, the reason and the number of rows that were put aside.
Told = Callable[[str, str, int], None]


@dataclass(frozen=True)
class TaskSteps:
    """What runs in each task.

    Attributes:
        node: the step; its inputs are replaced by sources.
        inputs: user columns of each input; none: the step is a source, which reads as on a task manager.
        bounds_ms: how far the watermark stays behind the rows of each input.
        outputs: of the step's outputs those that are wanted: "" for its own, else the name of a side output.
        max_parallelism: number of key groups of the job.
        tables: rows of inputs that every task gets whole, by the position of the input.
        highest_ms: of each input the highest event time in all tasks, for steps to which time counts; (): of others.
    """

    node: Node
    inputs: tuple[pa.Schema, ...]
    bounds_ms: tuple[int, ...]
    outputs: tuple[str, ...]
    max_parallelism: int
    tables: Mapping[int, pa.Table]
    highest_ms: tuple[int, ...] = ()

    @property
    def output_schemas(self) -> list[pa.Schema]:
        """User columns of each output."""
        return [self.node.schema_of(output) for output in self.outputs]

    @property
    def wire(self) -> pa.Schema:
        """The columns that leave a task; see :func:`wire_of`."""
        return wire_of(self.output_schemas)


def wire_of(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns in which rows of these columns travel to and from tasks.

    Of one alone its own; of several a number and a struct for each. Then the event time, and the place.
    """
    if len(schemas) == 1:
        fields = list(wire_schema(schemas[0]))
    else:
        structs = [pa.struct(list(wire_schema(schema))) for schema in schemas]
        fields = [pa.field(NUMBER_COLUMN, pa.int32())]
        fields += [pa.field(f"_{number}", kind) for number, kind in enumerate(structs)]
    return pa.schema([*fields, pa.field(EVENT_TIME_COLUMN, pa.int64()), pa.field(ORDER_COLUMN, pa.int64())])


def run_task(
    steps: TaskSteps, partition: int, batches: Iterable[pa.RecordBatch], tell: Told
) -> Iterator[pa.RecordBatch]:
    """Run the steps over a partition; yields batches of :attr:`TaskSteps.wire`.

    Args:
        steps: what to run.
        partition: its number, for the places of rows.
        batches: of :func:`wire_of` the inputs, in the order of event times; without inputs they do not matter.
        tell: of rows that were put aside.

    Raises:
        WeirError: a step failed; the message names it.
    """
    readers = [_SortedReader() for _ in steps.inputs]
    outlets = [Outlet(schema) for schema in steps.output_schemas]
    with tempfile.TemporaryDirectory(prefix="weir-spark-") as scratch:
        deployment, store = _deployed(steps, readers, outlets, Path(scratch))
        leaving = _Leaving(steps, outlets, partition)
        try:
            deployment.open()
            for number, table in steps.tables.items():
                readers[number].give(_timed(table.combine_chunks().to_batches()), WATERMARK_MAX_MS >> 1)
            for parts, last_ms in _chunks(steps, batches):
                for number, part in parts.items():
                    readers[number].give(part, last_ms)
                for number, reader in enumerate(readers):
                    if number not in parts and number not in steps.tables:
                        reader.give([], last_ms)
                while any(reader.queue for reader in readers):
                    deployment.round()
                yield from leaving.taken()
            for reader, highest_ms in zip(readers, steps.highest_ms, strict=False):
                reader.give([], highest_ms)
            if steps.highest_ms:
                deployment.round()
            for reader in readers:
                reader.ended = True
            while deployment.running_sources:
                deployment.round()
                yield from leaving.taken()
            deployment.settle()
            deployment.commit(0)
            yield from leaving.taken()
            for step, letters in deployment.dead_letters:
                if letters.first is not None:
                    tell(step, letters.first[2], letters.rejected)
        except StepError as error:
            shown = told(error)
            raise shown from shown.__cause__
        finally:
            deployment.close()
            store.close()


def _timed(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Rows with their event times, with both time columns."""
    now_us = SystemClock().now_us()
    found = []
    for batch in batches:
        if batch.num_rows:
            names = [name for name in batch.schema.names if name != EVENT_TIME_COLUMN]
            times = int64_column(batch, EVENT_TIME_COLUMN)
            found.append(with_system_columns(batch.select(names), times, now_us))
    return found


def _chunks(
    steps: TaskSteps, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[dict[int, list[pa.RecordBatch]], int]]:
    """Yield the rows of each chunk by input, and the event time of the last row of the chunk."""
    if not steps.inputs:
        return
    now_us = SystemClock().now_us()
    for whole in batches:
        for start in range(0, whole.num_rows, _CHUNK_ROWS):
            batch = whole.slice(start, _CHUNK_ROWS)
            times = batch.column(EVENT_TIME_COLUMN).cast(pa.int64()).to_numpy(zero_copy_only=False)
            parts: dict[int, list[pa.RecordBatch]] = {}
            moving = [n for n in range(len(steps.inputs)) if n not in steps.tables]
            for place, number in enumerate(moving):
                rows, own = batch, times
                if len(moving) > 1:
                    chosen = pc.equal(batch.column(NUMBER_COLUMN), place)
                    rows, own = batch.filter(chosen), times[chosen.to_numpy(zero_copy_only=False)]
                    inner = rows.column(f"_{place}")
                    rows = pa.RecordBatch.from_arrays(inner.flatten(), names=[f.name for f in inner.type])
                if rows.num_rows:
                    cut = cast_batch(rows, steps.inputs[number])
                    parts[number] = [with_system_columns(cut, np.ascontiguousarray(own), now_us)]
            yield parts, int(times.max())


def _deployed(
    steps: TaskSteps, readers: Sequence[_SortedReader], outlets: Sequence[Outlet], scratch: Path
) -> tuple[Deployment, StateBackend]:
    graph = _graph(steps)
    collections = {f"_out_{number}": outlet for number, outlet in enumerate(outlets)}
    parts = JobParts(
        graph=physical_graph(graph, [node.name for node in graph.nodes], (without_unread_columns,)),
        settings=local_settings(),
        clock=SystemClock(),
        state_ids=graph.state_ids({}),
        collections=collections,
        dead_letters=scratch / "letters",
        readers={f"_in_{number}": _always(reader) for number, reader in enumerate(readers)},
    )
    # Of tasks with few keys it stays in memory, whatever the store.
    store = open_store(scratch / "state" if steps.node.is_keyed else None)
    routing = initial_routing(parts.graph)
    started_us = SystemClock().now_us()
    return Deployment(parts, routing, store, 1, started_us, no_state, keeps_positions=False), store


def _always(reader: _SortedReader) -> Callable[[int], SourceReader]:
    return lambda subtask_index: reader


def _graph(steps: TaskSteps) -> LogicalGraph:
    """The step between sources and ends."""
    node, nodes, inputs = steps.node, [], []
    for number, (schema, bound_ms) in enumerate(zip(steps.inputs, steps.bounds_ms, strict=True)):
        strategy = WatermarkStrategy(bound_ms, idle_timeout_ms=_NEVER_IDLE_MS, future_ms_max=None)
        spec = UserSourceSpec(schema, watermark=strategy)
        nodes.append(Node(f"_in_{number}", spec, (), 1, schema))
        item, keys = node.inputs[number], tuple(node.spec.keys_of_input(number))
        if keys:
            # Also where the rows of a key are together from the steps before.
            item = replace(item, exchange=Exchange.HASH, key_columns=keys)
        inputs.append(replace(item, producer=f"_in_{number}", output="", columns=tuple(schema.names)))
    step = replace(node, inputs=tuple(inputs), parallelism=1)
    nodes.append(step)
    for number, output in enumerate(steps.outputs):
        end = Input(node.name, output=output)
        nodes.append(Node(f"_out_{number}", CollectSpec(), (end,), 1, node.schema_of(output)))
    return LogicalGraph(node.name, tuple(nodes), steps.max_parallelism)


class _SortedReader(SourceReader):
    """Rows of one input as they are handed over, each as of its own time."""

    def __init__(self) -> None:
        self.queue: list[pa.RecordBatch] = []
        self.ended = False
        self._time_ms = WATERMARK_MIN_MS
        self._reached_ms = WATERMARK_MIN_MS

    def give(self, batches: list[pa.RecordBatch], reached_ms: int) -> None:
        """Rows to be read, and how far time has come after them, here and in the other inputs."""
        self.queue += batches
        self._reached_ms = reached_ms

    def open(self, context: OperatorContext) -> None:
        """Take from the context how the watermark follows."""
        self._bound_ms, self._wanted = context.grace_period_ms, context.row_watermarks

    def poll(self, rows_max: int) -> Poll:
        """The next rows; those of a chunk are read before the next chunk comes."""
        if not self.queue:
            if self.ended:
                return Poll(finished=True)
            self._time_ms = max(self._time_ms, self._reached_ms)
            return Poll(event_time_ms_max=self._time_ms, next_poll_us=NEVER_US)
        batch = self.queue[0].slice(0, rows_max)
        left = self.queue[0].slice(rows_max)
        self.queue[:1] = [left] if left.num_rows else []
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        highest_ms = np.maximum(np.maximum.accumulate(times_ms), self._time_ms)
        self._time_ms = int(highest_ms[-1])
        column = row_watermarks.of_split(times_ms, highest_ms, self._bound_ms, WATERMARK_MAX_MS, self._wanted)
        batch = batch if column is None else row_watermarks.with_column(batch, column)
        return Poll(batch=batch, event_time_ms_max=self._time_ms)


class Outlet(Collection):
    """Rows of one output until they are taken."""

    def taken(self) -> list[pa.RecordBatch]:
        """What has come since it was last called."""
        found, self._batches = [batch for _, batch in self._batches], []
        return found


class _Leaving:
    """Brings what leaves a task into the form in which rows travel."""

    def __init__(self, steps: TaskSteps, outlets: Sequence[Outlet], partition: int) -> None:
        self._steps, self._outlets = steps, outlets
        self._wire = steps.wire
        # As Spark's own numbers of rows: 2^33 of each partition.
        self._next = partition << 33

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The rows of all outputs that have come."""
        for number, outlet in enumerate(self._outlets):
            for batch in outlet.taken():
                if batch.num_rows:
                    yield self._wired(number, batch, outlet.schema)

    def _wired(self, number: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        rows = batch.num_rows
        columns = [batch.column(field.name).cast(wire_type(field.type)) for field in schema]
        if len(self._outlets) > 1:
            inner = pa.StructArray.from_arrays(columns, fields=list(wire_schema(schema)))
            columns = [pa.repeat(pa.scalar(number, pa.int32()), rows)]
            for place in range(len(self._outlets)):
                kind = self._wire.field(place + 1).type
                columns.append(inner if place == number else pa.nulls(rows, kind))
        columns.append(batch.column(EVENT_TIME_COLUMN))
        columns.append(pa.array(np.arange(self._next, self._next + rows)))
        self._next += rows
        return pa.RecordBatch.from_arrays(columns, schema=self._wire)
