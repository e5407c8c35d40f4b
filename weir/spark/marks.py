"""Marks: how far event time has come in a stream of Spark, told among its rows.

Spark's own watermark comes a trigger late, and goes through no step of Weir's. So each task that reads a source, or
that gives rows their event times, ends with a mark: the highest event time of its rows. Marks pass steps without state
as rows do. Every key group of a step with state gets all of them, and ends the trigger with a mark: its watermark.

Used by ``frames`` on the driver and within Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.task_steps import ORDER_COLUMN, TaskSteps
from weir.spark.tasks import Told, run_task

#: Of a mark the step that makes it, of a row null; and the time, ms since 1970: of a source, or a step that assigns
#: event times, the highest one, of a step with state its watermark.
OF_COLUMN, MARK_COLUMN = "_mark_of", "_mark_ms"
#: The step that made it, and the time.
Mark: TypeAlias = tuple[str, int]
_FIELDS = (pa.field(OF_COLUMN, pa.string()), pa.field(MARK_COLUMN, pa.int64()))


def with_mark_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a stream in which there are marks, from those of its rows."""
    return pa.schema([*schema, *_FIELDS])


def apart(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Mark]]:
    """The rows of a batch, without the columns of marks, and its marks."""
    of, times = batch.column(OF_COLUMN), batch.column(MARK_COLUMN)
    rows = batch.drop_columns([OF_COLUMN, MARK_COLUMN])
    if of.null_count == len(of):
        return rows, []
    marked = pc.is_valid(of)
    marks = zip(of.filter(marked).to_pylist(), times.filter(marked).to_pylist(), strict=True)
    return rows.filter(pc.invert(marked)), list(marks)


def unmarked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the columns of marks; of one schema with those of :func:`batch_of`, in which rows have no values."""
    empty = [pa.nulls(batch.num_rows, field.type) for field in _FIELDS]
    fields = [field.with_nullable(True) for field in batch.schema]
    return pa.RecordBatch.from_arrays([*batch.columns, *empty], schema=pa.schema([*fields, *_FIELDS]))


def batch_of(marks: Sequence[Mark], schema: pa.Schema) -> pa.RecordBatch:
    """Marks among rows of a schema, without the columns of marks."""
    columns = [pa.nulls(len(marks), field.type) for field in schema]
    columns.append(pa.array([of for of, _ in marks], pa.string()))
    columns.append(pa.array([time_ms for _, time_ms in marks], pa.int64()))
    fields = [field.with_nullable(True) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*fields, *_FIELDS]))


@dataclass(frozen=True)
class Marking:
    """What Spark calls in each task that reads: numbers its rows, and ends with a mark.

    Attributes:
        step: the source, or the step that assigns event times.
    """

    step: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with their places, and the columns of marks."""
        place, highest_ms, schema = partition_number() << 33, None, None
        for batch in batches:
            if not batch.num_rows:
                continue
            schema, times = batch.schema, batch.column(EVENT_TIME_COLUMN)
            last_ms = pc.max(times).as_py()
            highest_ms = last_ms if highest_ms is None else max(highest_ms, last_ms)
            places = pa.array(np.arange(place, place + batch.num_rows))
            place += batch.num_rows
            index = schema.get_field_index(ORDER_COLUMN)
            yield unmarked(batch.set_column(index, ORDER_COLUMN, places))
        if schema is not None and highest_ms is not None:
            yield batch_of([(self.step, highest_ms)], schema)


@dataclass(frozen=True)
class MarkedTask:
    """What Spark calls in each task of a step without state that it has no equal of: marks pass it.

    Attributes:
        steps: what runs.
        tell: of rows that were put aside.
    """

    steps: TaskSteps
    tell: Told

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the step makes of the rows, and then the marks."""
        marks: list[Mark] = []

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                found, others = apart(batch)
                marks.extend(others)
                if found.num_rows:
                    yield found

        for made in run_task(self.steps, partition_number(), rows(), self.tell):
            yield unmarked(made)
        if marks:
            yield batch_of(marks, self.steps.wire)


def partition_number() -> int:
    """The number of the task's partition; 0 outside of tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
