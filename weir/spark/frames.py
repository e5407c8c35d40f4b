"""Data frames of Spark, made of the description of a job: here Spark is called, and nothing is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from weir.clock import Clock, wall_ms
from weir.plan.graph import Node
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS
from weir.rows.row_watermarks import RowWatermarks
from weir.rows.side_outputs import output_id
from weir.spark.arrow_maps import map_in_arrow
from weir.spark.bounds import bound_ms
from weir.spark.grouped import grouped, stream_grouped
from weir.spark.kafka_offsets import range_frames
from weir.spark.kafka_ranges import RangesTask
from weir.spark.lines import LinesTask
from weir.spark.marks import MarkedTask, Marking, with_mark_columns
from weir.spark.native import Group, PairJoin, Reading, Timed, native_step
from weir.spark.put_aside import SINK_PROPERTY
from weir.spark.row_frames import MARKS, by_row, paired
from weir.spark.source_frames import SourceFrames
from weir.spark.stateful import with_state
from weir.spark.streams import has_state, spark_watermarks, upstream_of
from weir.spark.task_frames import Task, divided, gathered, highest_ms, on_wire, table
from weir.spark.task_steps import ORDER_COLUMN, TaskSteps, wire_of
from weir.spark.translation import JobOnSpark, StepOnSpark, Way
from weir.spark.types import ddl, quoted
from weir.spark.watermarks import watermarked, with_spark_times
from weir.specs import AssignEventTimeSpec, JsonLinesSpec, OperatorSpec
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.kafka import KafkaSpec
from weir.specs.window_parts import WindowPartSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)
#: Of steps without state in a stream: which rows are late is not theirs to say.
_NEVER_LATE_MS = 1 << 50
#: Windows that begin with the rows of a batch leave all of them as they came.
_ALL_ROWS = 1 << 62


@dataclass(frozen=True)
class Put:
    """What a job tells of rows that were put aside: see :class:`weir.spark.running.SparkResult`."""

    tell: Callable[[str, str, int], None]


class Frames:
    """The data frames of a job, made when they are asked for.

    Args:
        spark: the session.
        job: what to make frames of.
        clock: says which event times are too far ahead.
        put_aside: is told of rows that were put aside; it is sent to tasks.
    """

    def __init__(self, spark: SparkSession, job: JobOnSpark, clock: Clock, put_aside: Put) -> None:
        self._spark, self._job, self._put = spark, job, put_aside
        self._steps = {step.node.name: step for step in job.steps}
        self._nodes = {step.node.name: step.node for step in job.steps}
        self._made: dict[str, DataFrame] = {}
        self._cached: list[DataFrame] = []
        self._streams = job.mode == "streaming"
        #: What has been seen of bad records, and event times.
        self.sources = SourceFrames(spark, wall_ms(clock), in_stream=self._streams)
        #: Steps whose event times Spark's own watermarks follow, and at which distance, ms.
        self._watermarks = spark_watermarks(self._nodes) if self._streams and not job.keeps_state else {}
        self._readers: dict[str, set[str]] = {}
        for node in self._nodes.values():
            for item in node.inputs:
                self._readers.setdefault(item.output_id, set()).add(node.name)

    def count_for(self, sink: str) -> None:
        """Let what tasks put aside from now on count for this sink."""
        self._spark.sparkContext.setLocalProperty(SINK_PROPERTY, sink)

    def close(self) -> None:
        """Forget rows that were kept for several readers."""
        for frame in self._cached:
            frame.unpersist()

    def output(self, step: str, side: str = "") -> DataFrame:
        """The rows of an output: user columns, the event time, and the place; in some streams among marks."""
        name = output_id(step, side)
        if name not in self._made:
            self._make(self._steps[step])
        return self._made[name]

    def inputs(self, node: Node) -> list[DataFrame]:
        """The rows of each input of a step; those of a sink are without marks."""
        frames = [self.output(item.producer, item.output) for item in node.inputs]
        if self._job.keeps_state and node.is_sink:
            return [frame.where(f"{MARKS[0]} IS NULL").drop(*MARKS) for frame in frames]
        return frames

    def _make(self, step: StepOnSpark) -> None:
        node, keeps_state = step.node, self._job.keeps_state
        given = tuple(self._nodes[item.producer].schema_of(item.output) for item in node.inputs)
        if step.way is Way.TASKS:
            if keeps_state and has_state(node):
                self._with_state(node, given)
            else:
                self._in_tasks(node, given)
        else:
            description = native_step(node, given, self._job.mode)
            assert description is not None, "the translation has asked for it, too"
            self._made[node.name] = self._native(node, description, self.inputs(node))
        if node.name in self._watermarks:
            self._made[node.name] = watermarked(self._made[node.name], self._watermarks[node.name])
        for side in node.side_outputs:
            # Sorted by time no row is late.
            self._made.setdefault(output_id(node.name, side.name), self._none(side.schema))

    def _none(self, schema: pa.Schema) -> DataFrame:
        return self._spark.createDataFrame([], ddl(wire_of([schema])))

    def _native(self, node: Node, made: Any, frames: list[DataFrame]) -> DataFrame:
        match made:
            case Reading():
                read = self.sources.read(node, made, numbered=self._job.needs_order)
                return self._marked(node, read)
            case Timed():
                return self._marked(node, self._timed(node, frames[0], made))
            case Group() if self._streams:
                bound = bound_ms(self._nodes, node.inputs[0].producer)
                return stream_grouped(frames[0], made, node.schema, bound)
            case Group():
                return grouped(frames[0], made, node.schema)
            case PairJoin() if self._streams:
                bounds = [bound_ms(self._nodes, item.producer) for item in node.inputs]
                timed = [with_spark_times(frame, bound) for frame, bound in zip(frames, bounds, strict=True)]
                return paired(timed, made, made.stream_times)
            case PairJoin():
                return paired(frames, made, "")
        return by_row(frames, made, node.schema, marked=self._job.keeps_state)

    def _timed(self, node: Node, frame: DataFrame, made: Timed) -> DataFrame:
        hidden = (EVENT_TIME_COLUMN, ORDER_COLUMN, *MARKS)
        names = [quoted(name) for name in frame.columns if name not in hidden]
        if self._job.keeps_state:
            # The step has marks of its own.
            frame = frame.where(f"{MARKS[0]} IS NULL")
        timed = frame.selectExpr(*names, f"CAST({made.time} AS BIGINT) AS {_TIME}", _ORDER)
        return self.sources.with_good_times(node, timed, made.future_ms_max)

    def _marked(self, node: Node, frame: DataFrame) -> DataFrame:
        """The rows of a source, or with other event times than before, with the marks of this step."""
        if not self._job.keeps_state:
            return frame
        wire = wire_of([node.schema])
        return map_in_arrow(on_wire(frame, node.schema), Marking(node.name), ddl(with_mark_columns(wire)))

    def _in_tasks(self, node: Node, given: tuple[pa.Schema, ...]) -> None:
        """Let Weir's operator run in the tasks, each with the rows of its keys in the order of event times."""
        frames = self.inputs(node)
        if isinstance(node.spec, WindowPartSpec) and (self._streams or node.spec.updates.early is not None):
            # Results before the end count single rows, and which of them are late a later step says.
            node = replace(node, spec=replace(node.spec, rows_min=_ALL_ROWS))
        steps = self._task_steps(node, given)
        if (read := self._read(node.spec, steps)) is not None:
            self._made[node.name] = self._marked(node, read)
            return
        if self._job.keeps_state and frames and not node.is_sink:
            self._among_marks(node, replace(steps, bounds_ms=tuple(_NEVER_LATE_MS for _ in given)), frames[0])
            return
        if isinstance(node.spec, BroadcastProcessSpec):
            steps = replace(steps, tables={1: table(frames[1], given[1])})
        moving = [number for number in range(len(frames)) if number not in steps.tables]
        rows = gathered(self._spark, node, [frames[n] for n in moving], [given[n] for n in moving])
        if node.spec.row_watermarks is RowWatermarks.ALL and frames:
            rows = self._kept(rows)
            highest = dict(zip(moving, highest_ms(rows, len(moving)), strict=True))
            highest |= {number: _last_ms(rules) for number, rules in steps.tables.items()}
            steps = replace(steps, highest_ms=tuple(highest[number] for number in range(len(frames))))
        made = map_in_arrow(rows, Task(steps, self._put.tell), ddl(steps.wire))
        if not self._streams and (len(steps.outputs) > 1 or len(self._readers.get(node.name, ())) > 1):
            made = self._kept(made)
        self._divided(node, steps, made)

    def _read(self, spec: OperatorSpec, steps: TaskSteps) -> DataFrame | None:
        """The rows of a source whose lines, or offsets, come to Weir's reader in the tasks; None: it is none."""
        name, schema, tell = steps.node.name, ddl(steps.wire), self._put.tell
        if self._streams and isinstance(spec, JsonLinesSpec):
            return map_in_arrow(self.sources.lines(spec.path), LinesTask(steps, tell), schema)
        if isinstance(spec, KafkaSpec):
            places = range_frames(self._spark, name, spec, in_stream=self._streams)
            made = map_in_arrow(places, RangesTask(steps, tell), schema)
            is_kept = not self._streams and len(self._readers.get(name, ())) > 1
            return self._kept(made) if is_kept else made
        return None

    def _among_marks(self, node: Node, steps: TaskSteps, frame: DataFrame) -> None:
        """Let Weir's operator without state run in the tasks of a stream with marks."""
        [given], tell = steps.inputs, self._put.tell
        if isinstance(node.spec, AssignEventTimeSpec):
            # It has marks of its own.
            rows = on_wire(frame.where(f"{MARKS[0]} IS NULL"), given)
            made = self._marked(node, map_in_arrow(rows, Task(steps, tell), ddl(steps.wire)))
        else:
            schema = ddl(with_mark_columns(steps.wire))
            made = map_in_arrow(on_wire(frame, given, *MARKS), MarkedTask(steps, tell), schema)
        self._divided(node, steps, made)

    def _with_state(self, node: Node, given: tuple[pa.Schema, ...]) -> None:
        """Let Weir's operator run on the state that a stream of Spark keeps."""
        frames = [
            on_wire(frame, schema, *MARKS) for frame, schema in zip(self.inputs(node), given, strict=True)
        ]
        steps = replace(self._task_steps(node, given), max_parallelism=1)
        upstream = [upstream_of(self._nodes, item.producer) for item in node.inputs]
        made = with_state(frames, steps, upstream, self._job.max_parallelism, self._put.tell)
        self._divided(node, steps, made)

    def _task_steps(self, node: Node, given: tuple[pa.Schema, ...]) -> TaskSteps:
        read = [side.name for side in node.side_outputs if output_id(node.name, side.name) in self._readers]
        outputs = () if node.is_sink else ("", *read)
        bounds = tuple(bound_ms(self._nodes, item.producer) for item in node.inputs)
        return TaskSteps(node, given, bounds, outputs, self._job.max_parallelism, {})

    def _divided(self, node: Node, steps: TaskSteps, made: DataFrame) -> None:
        """Note the rows of each output of a step."""
        if len(steps.outputs) < 2:
            self._made[node.name] = made
            return
        # A mark has no number: it is of all outputs.
        others = MARKS if self._job.keeps_state else ()
        for output, frame in divided(made, node, steps.outputs, *others).items():
            self._made[output_id(node.name, output)] = frame

    def _kept(self, frame: DataFrame) -> DataFrame:
        """The rows of a batch, which are made once and read several times."""
        from pyspark import StorageLevel

        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(kept)
        return kept


def _last_ms(rows: pa.Table) -> int:
    last = pc.max(rows.column(EVENT_TIME_COLUMN)).as_py()
    return WATERMARK_MIN_MS if last is None else int(last)
