"""Runs a whole job on Spark: ``weir run JOB --runner spark``, and tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.clock import SystemClock
from weir.plan.graph import LogicalGraph, Node
from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.delta_files import DeltaWrites
from weir.spark.frames import Frames, Put
from weir.spark.native import native_step
from weir.spark.outputs import write
from weir.spark.put_aside import Counts, Teller, accumulator, count_bad, of_tasks
from weir.spark.queries import Collected, PutAside, Queries, SinkQuery
from weir.spark.session import spark_failures
from weir.spark.stateful import STATE_SETTINGS
from weir.spark.streams import updates_results
from weir.spark.translation import JobOnSpark, Way, job_on_spark
from weir.spark.writers import Writing
from weir.specs import CollectSpec, DeltaSinkSpec
from weir.specs.kafka import KafkaSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings of the session without which expressions would mean something else.
_SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    # Else a TIMESTAMPTZ lies in files as nanoseconds without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows of the past are not moved to another calendar.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}


@dataclass(frozen=True)
class SparkResult:
    """What a run on Spark told.

    Attributes:
        collected: rows of steps that end in ``weir.Collect()``, with their event times.
        put_aside: by step, reasons and how many rows were put aside for each.
    """

    collected: Mapping[str, pa.Table]
    put_aside: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def run_batch(spark: SparkSession, graph: LogicalGraph) -> SparkResult:
    """Run a job over inputs that end, sink by sink.

    Args:
        spark: a session; the job runs in one of its own beside it.
        graph: the job as it was written.

    Raises:
        GraphError: a step does not run on Spark.
        SparkFailedError: Spark gave up.
    """
    job = job_on_spark(graph)
    job.check()
    session = own_session(spark)
    aside = accumulator(session)
    with spark_failures(), _frames(session, job, aside) as frames:
        collected = {}
        for step in job.steps:
            node = step.node
            if not node.is_sink:
                continue
            frames.count_for(node.name)
            [rows] = frames.inputs(node)
            names = [*node.schema.names, EVENT_TIME_COLUMN]
            if isinstance(node.spec, CollectSpec):
                collected[node.name] = rows.select(*(f"`{name}`" for name in names)).toArrow()
            elif isinstance(node.spec, DeltaSinkSpec):
                writes = DeltaWrites.of(node, node.spec, job.name)
                writes.create()
                writes.batch(rows)
            elif step.way is Way.TASKS:
                frames.output(node.name).write.format("noop").mode("overwrite").save()
            else:
                given = (rows_schema(job, node.inputs[0].producer, node.inputs[0].output),)
                made = native_step(node, given, job.mode)
                assert isinstance(made, Writing), "it is a sink"
                write(rows, made, node.schema)
        bad: Counts = {}
        for source, seen in frames.sources.seen.items():
            count_bad(bad, source, seen)
    return SparkResult(collected, of_tasks(aside) | bad)


def rows_schema(job: JobOnSpark, step: str, side: str) -> pa.Schema:
    """User columns of an output."""
    return next(each.node for each in job.steps if each.node.name == step).schema_of(side)


def own_session(spark: SparkSession, more: Mapping[str, str] | None = None) -> SparkSession:
    """A session beside another one, with the settings that jobs need, and ``more``."""
    session = spark.newSession()
    for name, value in {**_SETTINGS, **(more or {})}.items():
        session.conf.set(name, value)
    return session


@contextmanager
def _frames(session: SparkSession, job: JobOnSpark, aside: Any) -> Iterator[Frames]:
    frames = Frames(session, job, SystemClock(), Put(Teller(aside)))
    try:
        yield frames
    finally:
        frames.close()


def run_stream(
    spark: SparkSession,
    graph: LogicalGraph,
    checkpoints: str,
    collect: Collected | None = None,
    put_aside: PutAside | None = None,
) -> None:
    """Follow the sources of a job, one query for each sink; returns when all have ended.

    Where no source is followed, all that is there is read, and the queries end: windows that the watermark has not
    passed then are not told. When a query fails, or the process is interrupted, all queries are stopped.

    Args:
        spark: a session; the job runs in one of its own beside it.
        graph: the job as it was written.
        checkpoints: folder or URI where Spark keeps those of each sink.
        collect: is called with the rows of each trigger of steps that end in ``weir.Collect()``, for tests.
        put_aside: is called with :attr:`SparkResult.put_aside` so far, now and then and at the end.

    Raises:
        GraphError: a step does not run on Spark.
        SparkFailedError: Spark gave up.
    """
    job = job_on_spark(graph, "streaming")
    job.check()
    session = own_session(spark, STATE_SETTINGS if job.keeps_state else {})
    ends = not any(_is_followed(step.node) for step in job.steps)
    nodes = [step.node for step in job.steps]
    aside = accumulator(session)
    with spark_failures(), _frames(session, job, aside) as frames:
        queries = Queries(aside, put_aside)
        try:
            for step in job.steps:
                if step.node.is_sink:
                    updates = not job.keeps_state and updates_results(nodes, step.node)
                    place = f"{checkpoints}/{step.node.name}"
                    queries.add(SinkQuery(step, job.name, frames, place, updates, ends, collect))
            queries.until_all_ended()
        finally:
            queries.stop()


def _is_followed(node: Node) -> bool:
    spec = node.spec
    return bool(getattr(spec, "follow", False)) or (isinstance(spec, KafkaSpec) and not spec.bounded)
