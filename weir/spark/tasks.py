"""Steps of Weir within a task of Spark: the operators of a task manager, fed with a partition in the order of time.

Runs in Spark's Python processes. The rows of a partition come sorted by event time; the watermark follows them at the
distance that the job's source has, so that no row is late and timers are due between the same rows as elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.clock import SystemClock
from weir.local.deployment import Deployment
from weir.local.raising import told
from weir.local.state import open_store
from weir.operators.step_errors import StepError
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MAX_MS, int64_column, with_system_columns
from weir.spark.task_graph import Leaving, Places, TaskGraph
from weir.spark.task_steps import NUMBER_COLUMN, TaskSteps
from weir.spark.types import cast_batch

#: Rows that a task takes at a time, however many Spark hands over: the rows of all inputs in them are merged.
CHUNK_ROWS = 16_384

#: How soon a source that had nothing is asked again.
_WAIT_S = 0.002

#: Told of the step, the reason and the number of rows that were put aside.
Told = Callable[[str, str, int], None]


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
    places = Places.of(steps)
    readers = places.readers
    with tempfile.TemporaryDirectory(prefix="weir-spark-") as scratch:
        # Of tasks with few keys it stays in memory, whatever the store.
        store = open_store(Path(scratch) / "state" if steps.node.is_keyed else None)
        deployment = TaskGraph(steps).deployed(places, store, Path(scratch))
        leaving = Leaving(steps, places.outlets, partition)
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
                progressed, _ = deployment.round()
                if not progressed:
                    # A source of Weir's own waits for records.
                    time.sleep(_WAIT_S)
                yield from leaving.taken()
            deployment.settle()
            deployment.commit(0)
            yield from leaving.taken()
            tell_rejects(deployment, tell)
        except StepError as error:
            shown = told(error)
            raise shown from shown.__cause__
        finally:
            deployment.close()
            store.close()


def tell_rejects(deployment: Deployment, tell: Told) -> None:
    """Tell of the rows that a deployment has put aside."""
    for step, letters in deployment.dead_letters:
        if letters.first is not None:
            tell(step, letters.first[2], letters.rejected)


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
        for start in range(0, whole.num_rows, CHUNK_ROWS):
            batch = whole.slice(start, CHUNK_ROWS)
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
