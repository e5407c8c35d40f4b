"""A trigger of a stream for one key group of a step with state: what came is brought into the order of time.

The step goes on from where Spark's state says it was, takes the rows of the trigger in the order of event times, and
sees time come as far as the marks say. So it says what a run says that reads the rows of each trigger in that order.
Runs within Spark's tasks.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from weir.clock import SystemClock
from weir.errors import StateError
from weir.local.deployment import Deployment
from weir.local.raising import told
from weir.operators.step_errors import StepError
from weir.operators.subtask_times import TaskTimes
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    int64_column,
    with_system_columns,
)
from weir.spark.marks import Mark
from weir.spark.packed import INPUT, MARK_MS, OF, ROWS, from_bytes
from weir.spark.task_graph import Leaving, Places, TaskGraph
from weir.spark.task_steps import ORDER_COLUMN, Upstream
from weir.spark.tasks import CHUNK_ROWS, Told, tell_rejects
from weir.spark.types import cast_batch
from weir.specs.broadcast import BroadcastProcessSpec
from weir.state.api import StateBackend

_VERSION = 1


@dataclass
class Position:
    """Where a key group is between two triggers, beside its keyed state.

    Attributes:
        checkpoint_id: number of its triggers.
        operators: what the subtasks of steps told at the end of the last one.
        marks: by input and step, how far the marks had come.
    """

    checkpoint_id: int = 0
    operators: dict[str, dict[int, Any]] = field(default_factory=dict)
    marks: dict[int, dict[str, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text that Spark keeps."""
        told_now = {"operators": self.operators, "marks": self.marks}
        return json.dumps({"version": _VERSION, "checkpoint_id": self.checkpoint_id, **told_now})

    @classmethod
    def of_json(cls, text: str) -> Position:
        """What :meth:`to_json` returned.

        Raises:
            StateError: another version of Weir wrote it.
        """
        found = json.loads(text)
        if found["version"] != _VERSION:
            raise StateError(
                f"the checkpoints of this stream are of version {found['version']}, this is Weir with {_VERSION}; go "
                "on with the version of Weir that made them, or name another folder with --checkpoints"
            )
        indexed = {
            step: {int(index): value for index, value in of.items()}
            for step, of in found["operators"].items()
        }
        marks = {int(number): dict(of) for number, of in found["marks"].items()}
        return cls(found["checkpoint_id"], indexed, marks)

    def take(self, number: int, upstream: Iterable[Upstream], marks: Sequence[Mark]) -> int:
        """Note the marks of an input in a trigger; returns its watermark, ms."""
        known = self.marks.setdefault(number, {})
        lowest_ms = WATERMARK_MAX_MS
        for step in upstream:
            own = [time_ms for of, time_ms in marks if of == step.step]
            if own:
                # Tasks that read may be apart; a step with state is where the last of its key groups is.
                came_ms = min(own) if step.bound_ms is None else max(own)
                known[step.step] = max(came_ms, known.get(step.step, WATERMARK_MIN_MS))
            time_ms = known.get(step.step, WATERMARK_MIN_MS)
            has_come = time_ms != WATERMARK_MIN_MS
            lowest_ms = min(lowest_ms, time_ms - (step.bound_ms or 0) if has_come else WATERMARK_MIN_MS)
        return lowest_ms


class GroupTrigger:
    """Called once.

    Args:
        graph: the step.
        upstream: of each input whose marks come.
        store: its keyed state.
        position: where it is; moves on.
        tell: of rows that were put aside.
    """

    def __init__(
        self,
        graph: TaskGraph,
        upstream: Sequence[Sequence[Upstream]],
        store: StateBackend,
        position: Position,
        tell: Told,
    ) -> None:
        self._graph, self._upstream, self._store, self._tell = graph, upstream, store, tell
        self.position = position
        #: Of what leaves, after the trigger.
        self.watermark_ms = WATERMARK_MIN_MS

    def run(self, group: int, coming: Iterable[Any]) -> list[pa.RecordBatch]:
        """Take the rows of ``weir.spark.packed.COMING``; returns batches of :attr:`TaskSteps.wire`.

        Raises:
            WeirError: a step failed; the message names it.
        """
        steps, position = self._graph.steps, self.position
        parts, marks = _taken(coming, len(steps.inputs))
        places = Places.of(steps)
        for number, reader in enumerate(places.readers):
            mark_ms = position.take(number, self._upstream[number], marks[number])
            is_known = mark_ms != WATERMARK_MIN_MS
            reader.highest_ms = mark_ms + steps.bounds_ms[number] if is_known else WATERMARK_MIN_MS
        with tempfile.TemporaryDirectory(prefix="weir-spark-") as scratch:
            deployment = self._graph.deployed(
                places,
                self._store,
                Path(scratch),
                self._restored,
                position.checkpoint_id,
                keeps_positions=True,
            )
            try:
                deployment.open()
                _feed(deployment, places, self._sorted(parts), _comes_first(self._graph))
                position.checkpoint_id += 1
                deployment.snapshot(position.checkpoint_id)
                deployment.commit(position.checkpoint_id)
                self._note(deployment)
                tell_rejects(deployment, self._tell)
            except StepError as error:
                shown = told(error)
                raise shown from shown.__cause__
            finally:
                deployment.close()
            return list(Leaving(steps, places.outlets, group).taken())

    def _restored(self, step: str) -> Mapping[int, Any]:
        return self.position.operators.get(step, {})

    def _note(self, deployment: Deployment) -> None:
        """Keep what the subtasks told, and how far what leaves has come."""
        operators: dict[str, dict[int, Any]] = {}
        for of, told_now in deployment.snapshots.items():
            for step, value in told_now.items():
                operators.setdefault(step, {})[of.subtask_index] = value
        self.position.operators = operators
        for subtask in deployment.subtasks:
            stage = self._graph.graph.stage(subtask.subtask.stage_index)
            if any(node.name == self._graph.steps.node.name for node in stage.nodes):
                times = subtask.times
                self.watermark_ms = times.left_ms if isinstance(times, TaskTimes) else times.time_ms

    def _sorted(self, parts: Sequence[Sequence[pa.RecordBatch]]) -> list[pa.Table | None]:
        """The rows of each input, in the order of time, and of the types that the step knows them by."""
        times = [pa.field(name, pa.int64(), nullable=False) for name in (EVENT_TIME_COLUMN, ORDER_COLUMN)]
        order = [(name, "ascending") for name in (EVENT_TIME_COLUMN, ORDER_COLUMN)]
        found: list[pa.Table | None] = []
        for part, schema in zip(parts, self._graph.steps.inputs, strict=True):
            typed = [cast_batch(batch, pa.schema([*schema, *times])) for batch in part]
            found.append(pa.Table.from_batches(typed).sort_by(order) if typed else None)
        return found


def _comes_first(graph: TaskGraph) -> tuple[int, ...]:
    """Inputs whose rows come before those of others: rules."""
    return (1,) if isinstance(graph.steps.node.spec, BroadcastProcessSpec) else ()


def _taken(coming: Iterable[Any], inputs: int) -> tuple[list[list[pa.RecordBatch]], list[list[Mark]]]:
    """Return the rows and the marks of each input."""
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(inputs)]
    marks: list[list[Mark]] = [[] for _ in range(inputs)]
    for row in coming:
        number, of = row[INPUT], row[OF]
        if of is None:
            parts[number] += from_bytes(bytes(row[ROWS]))
        else:
            marks[number].append((of, row[MARK_MS]))
    return parts, marks


def _feed(
    deployment: Deployment, places: Places, tables: Sequence[pa.Table | None], first: Sequence[int]
) -> None:
    """Process the rows of all inputs in the order of time, and let time come as far as it has."""
    inputs = range(len(tables))
    for chosen in ([n for n in inputs if n in first], [n for n in inputs if n not in first]):
        for parts, last_ms in _chunks({number: tables[number] for number in chosen}):
            for number in chosen:
                places.readers[number].give(parts.get(number, []), last_ms)
            while any(reader.queue for reader in places.readers):
                deployment.round()
    for reader in places.readers:
        reader.give([], WATERMARK_MAX_MS)
    while deployment.round()[0]:
        pass
    deployment.settle()


def _chunks(
    tables: Mapping[int, pa.Table | None],
) -> Iterator[tuple[dict[int, list[pa.RecordBatch]], int]]:
    """Yield the rows of each chunk by input, with both time columns, and the event time of its last row."""
    given = [(number, table) for number, table in tables.items() if table is not None]
    if not given:
        return
    now_us = SystemClock().now_us()
    times = np.concatenate([table.column(EVENT_TIME_COLUMN).to_numpy() for _, table in given])
    of = np.repeat(np.arange(len(given)), [table.num_rows for _, table in given])
    order, taken = np.argsort(times, kind="stable"), [0] * len(given)
    for start in range(0, len(order), CHUNK_ROWS):
        chosen = order[start : start + CHUNK_ROWS]
        counts = np.bincount(of[chosen], minlength=len(given)).tolist()
        parts: dict[int, list[pa.RecordBatch]] = {}
        for place, (number, table) in enumerate(given):
            rows = table.slice(taken[place], counts[place]).combine_chunks().to_batches()
            taken[place] += counts[place]
            parts[number] = [_timed(batch, now_us) for batch in rows if batch.num_rows]
        yield parts, int(times[chosen[-1]])


def _timed(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Rows as operators get them, of rows as they are sorted here."""
    names = [name for name in batch.schema.names if name not in (EVENT_TIME_COLUMN, ORDER_COLUMN)]
    times = np.ascontiguousarray(int64_column(batch, EVENT_TIME_COLUMN))
    return with_system_columns(batch.select(names), times, now_us)
