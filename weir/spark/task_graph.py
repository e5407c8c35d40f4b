"""The operators of one step of Weir, as a task manager runs them, between rows that Spark brings and takes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from weir.author.operator import NEVER_US, Json, OperatorContext, Poll, SourceReader
from weir.author.watermarks import WatermarkStrategy
from weir.clock import SystemClock
from weir.local.collected import Collection
from weir.local.deployment import Deployment, no_state
from weir.local.job_parts import JobParts
from weir.local.preparing import initial_routing, local_settings
from weir.plan.graph import Exchange, Input, LogicalGraph, Node, PhysicalGraph
from weir.plan.rules.projection import without_unread_columns
from weir.plan.stages import physical_graph
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MAX_MS, WATERMARK_MIN_MS, int64_column
from weir.spark.task_steps import TaskSteps
from weir.spark.types import wire_schema, wire_type
from weir.specs import CollectSpec, UserSourceSpec
from weir.state.api import StateBackend

#: No input ever counts as idle: Spark may take long to bring the next rows.
_NEVER_IDLE_MS = 1 << 50


@dataclass(frozen=True)
class Places:
    """Where the rows of one deployment come in and leave."""

    readers: Sequence[SortedReader]
    outlets: Sequence[Outlet]

    @classmethod
    def of(cls, steps: TaskSteps) -> Places:
        """Empty ones."""
        return cls([SortedReader() for _ in steps.inputs], [Outlet(each) for each in steps.output_schemas])


@dataclass(frozen=True)
class TaskGraph:
    """The step between sources and ends; it is deployed anew for each partition, or trigger."""

    steps: TaskSteps

    @cached_property
    def graph(self) -> PhysicalGraph:
        """The job of this one step."""
        graph = _graph(self.steps)
        return physical_graph(graph, [node.name for node in graph.nodes], (without_unread_columns,))

    @cached_property
    def state_ids(self) -> dict[str, int]:
        """Numbers of the step's states, by ``step`` or ``step/state``."""
        return self.graph.logical.state_ids({})

    def deployed(
        self,
        places: Places,
        store: StateBackend,
        scratch: Path,
        restored: Callable[[str], Mapping[int, Json]] = no_state,
        restored_id: int = 0,
        *,
        keeps_positions: bool = False,
    ) -> Deployment:
        """Deploy it; nothing is open yet. The arguments are those of :class:`weir.local.deployment.Deployment`."""
        parts = JobParts(
            graph=self.graph,
            settings=local_settings(),
            clock=SystemClock(),
            state_ids=self.state_ids,
            collections={f"_out_{number}": outlet for number, outlet in enumerate(places.outlets)},
            dead_letters=scratch / "letters",
            readers={f"_in_{number}": _always(reader) for number, reader in enumerate(places.readers)},
        )
        started_us = SystemClock().now_us()
        return Deployment(
            parts,
            initial_routing(self.graph),
            store,
            1,
            started_us,
            restored,
            restored_id,
            keeps_positions=keeps_positions,
        )


def _always(reader: SortedReader) -> Callable[[int], SourceReader]:
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


class SortedReader(SourceReader):
    """Rows of one input as they are handed over, each as of its own time."""

    def __init__(self) -> None:
        self.queue: list[pa.RecordBatch] = []
        self.ended = False
        #: Time does not pass this, whatever rows have come.
        self.highest_ms = WATERMARK_MAX_MS
        self._time_ms = WATERMARK_MIN_MS
        self._reached_ms = WATERMARK_MIN_MS

    def give(self, batches: list[pa.RecordBatch], reached_ms: int) -> None:
        """Rows to be read, and how far time has come after them, here and in the other inputs."""
        self.queue += batches
        self._reached_ms = reached_ms

    def open(self, context: OperatorContext) -> None:
        """Take from the context how the watermark follows, and how far time had come."""
        self._bound_ms, self._wanted = context.grace_period_ms, context.row_watermarks
        restored = context.restored.get(context.subtask_index)
        if isinstance(restored, dict):
            self._time_ms = int(restored["time_ms"])

    def snapshot(self) -> Json:
        """How far time has come; all rows were read."""
        return {"time_ms": self._time_ms}

    def poll(self, rows_max: int) -> Poll:
        """The next rows; those of a chunk are read before the next chunk comes."""
        if not self.queue:
            if self.ended:
                return Poll(finished=True)
            self._time_ms = max(self._time_ms, min(self._reached_ms, self.highest_ms))
            return Poll(event_time_ms_max=self._time_ms, next_poll_us=NEVER_US)
        batch = self.queue[0].slice(0, rows_max)
        left = self.queue[0].slice(rows_max)
        self.queue[:1] = [left] if left.num_rows else []
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        highest_ms = np.minimum(np.maximum.accumulate(times_ms), self.highest_ms)
        highest_ms = np.maximum(highest_ms, self._time_ms)
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


class Leaving:
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
