"""The queries of a stream of Spark, one for each sink, from their start to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.delta_files import DeltaWrites
from weir.spark.frames import Frames
from weir.spark.native import native_step
from weir.spark.outputs import stream_writer, write
from weir.spark.put_aside import Counts, count_bad, of_farthest, of_tasks
from weir.spark.session import started_too_slowly
from weir.spark.translation import StepOnSpark, Way
from weir.spark.writers import Writing
from weir.specs import CollectSpec, DeltaSinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: By step, reasons and how many rows were put aside for each.
PutAside: TypeAlias = "Callable[[Mapping[str, Mapping[str, int]]], None]"
#: Step, and rows with their event times.
Collected: TypeAlias = "Callable[[str, pa.Table], None]"
#: How often the queries of a job are looked at.
_POLL_S = 0.25
#: How often a query is started anew because the machine was too busy for one of its processes.
_STARTS_MAX = 10


@dataclass(frozen=True)
class SinkQuery:
    """The query of one sink.

    Attributes:
        step: the sink.
        job: its name.
        frames: of the job.
        checkpoints: where the query keeps its own.
        updates: what comes to the sink is told again when it changes.
        ends: the query reads what is there.
        collect: is called with the rows of each trigger, if the sink is ``weir.Collect()``.
    """

    step: StepOnSpark
    job: str
    frames: Frames
    checkpoints: str
    updates: bool
    ends: bool
    collect: Collected | None

    def start(self) -> Any:
        """Start it."""
        node = self.step.node
        self.frames.count_for(node.name)
        if isinstance(node.spec, DeltaSinkSpec):
            [rows] = self.frames.inputs(node)
            writes = DeltaWrites.of(node, node.spec, self.job)
            writes.create()
            return self._started(rows.writeStream.foreachBatch(writes.trigger))
        if self.step.way is Way.TASKS:
            return self._started(self.frames.output(node.name).writeStream.format("noop"))
        [rows] = self.frames.inputs(node)
        if isinstance(node.spec, CollectSpec):
            names = [f"`{name}`" for name in (*node.schema.names, EVENT_TIME_COLUMN)]
            if (collect := self.collect) is None:
                # Rows that nobody takes must be made all the same: functions see them, and states are written.
                return self._started(rows.select(*names).writeStream.format("noop"))

            def give(batch: DataFrame, number: int) -> None:
                collect(node.name, batch.select(*names).toArrow())

            return self._started(rows.writeStream.foreachBatch(give))
        made = native_step(node, (node.schema,), "streaming")
        assert isinstance(made, Writing), "it is a sink"
        if made.format in ("print", "kafka") or self.updates:
            # Files take no updates: each trigger adds what has changed.
            return self._started(
                rows.writeStream.foreachBatch(lambda batch, number: write(batch, made, node.schema))
            )
        return self._started(stream_writer(rows, made, node.schema))

    def _started(self, writer: Any) -> Any:
        writer = writer.outputMode("update" if self.updates else "append")
        writer = writer.option("checkpointLocation", self.checkpoints)
        return (writer.trigger(availableNow=True) if self.ends else writer).start()


@dataclass
class Queries:
    """Waits for the queries of a job, and tells what they put aside.

    Attributes:
        aside: what tasks have put aside so far, as :func:`weir.spark.put_aside.accumulator` has it.
        put_aside: is told of that, and of bad records.
    """

    aside: Any
    put_aside: PutAside | None
    #: Of each sink, and its query that runs.
    running: list[tuple[SinkQuery, Any]] = field(default_factory=list)
    starts: int = 0
    #: Of each query the time of the latest trigger whose bad records are counted.
    counted: dict[str, str] = field(default_factory=dict)
    #: Of each query: by source, reasons and counts.
    bad_records: dict[str, Counts] = field(default_factory=dict)

    def add(self, sink: SinkQuery) -> None:
        """Start the query of a sink."""
        self.running.append((sink, sink.start()))

    def until_all_ended(self) -> None:
        """Return when no query runs any more; raises the failure of the first one that fails."""
        runs = True
        while runs:
            # A signal that comes while Python waits for an answer of the JVM would break their connection: so the
            # wait is here.
            time.sleep(_POLL_S)
            runs = False
            for place, (sink, query) in enumerate(self.running):
                if query.isActive:
                    runs = True
                elif self._starts_again(query):
                    self.running[place] = (sink, sink.start())
                    runs = True
            self._tell()

    def stop(self) -> None:
        """Stop all queries."""
        for _, query in self.running:
            query.stop()

    def _starts_again(self, query: Any) -> bool:
        """Whether a query that has ended is to be started again; raises what it failed with, else."""
        from pyspark.errors import PySparkException

        try:
            query.awaitTermination()
        except PySparkException as error:
            self.starts += 1
            if self.starts >= _STARTS_MAX or not started_too_slowly(error):
                raise
            return True
        return False

    def _tell(self) -> None:
        if self.put_aside is None:
            return
        for _, query in self.running:
            last = query.lastProgress
            if last is None or last.timestamp <= self.counted.get(query.id, ""):
                # Nothing new: the list of recent ones has a hundred.
                continue
            for progress in query.recentProgress:
                if progress.timestamp > self.counted.get(query.id, ""):
                    self.counted[query.id] = progress.timestamp
                    for source, seen in progress.observedMetrics.items():
                        count_bad(self.bad_records.setdefault(query.id, {}), source, seen.asDict())
        self.put_aside(of_tasks(self.aside) | of_farthest(self.bad_records.values()))
