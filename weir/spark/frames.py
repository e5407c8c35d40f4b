"""Data frames of Spark, made of the description of a job: here Spark is called, and nothing is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.clock import Clock, wall_ms
from weir.plan.graph import Node
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS
from weir.rows.row_watermarks import RowWatermarks
from weir.rows.side_outputs import output_id
from weir.spark.arrow_maps import map_in_arrow
from weir.spark.bounds import bound_ms
from weir.spark.grouped import grouped, stream_grouped, watermarked
from weir.spark.native import (
    TIME_MS_MAX,
    Columns,
    Exploded,
    Group,
    Kept,
    PairJoin,
    Reading,
    Same,
    Timed,
    native_step,
)
from weir.spark.readers import CORRUPT_COLUMN, json_value
from weir.spark.tasks import NUMBER_COLUMN, ORDER_COLUMN, TaskSteps, run_task, wire_of
from weir.spark.translation import JobOnSpark, StepOnSpark, Way
from weir.spark.types import ddl, literal, quoted, wire_schema
from weir.specs import UserOperatorSpec
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.window_parts import WindowPartSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)
#: Steps besides those by key that mind the order of rows: they get all of them in one task.
_IN_ONE_TASK = (UserOperatorSpec,)


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
        self._spark, self._job, self._clock, self._put = spark, job, clock, put_aside
        self._steps = {step.node.name: step for step in job.steps}
        self._nodes = {step.node.name: step.node for step in job.steps}
        self._made: dict[str, DataFrame] = {}
        self._cached: list[DataFrame] = []
        #: By source what a batch of Spark has seen of its bad records.
        self.observed: dict[str, Observation] = {}
        self._streams = job.mode == "streaming"
        self._readers: dict[str, set[str]] = {}
        for node in self._nodes.values():
            for item in node.inputs:
                self._readers.setdefault(item.producer, set()).add(node.name)

    def close(self) -> None:
        """Forget rows that were kept for several readers."""
        for frame in self._cached:
            frame.unpersist()

    def output(self, step: str, side: str = "") -> DataFrame:
        """The rows of an output: user columns, the event time, and the place."""
        name = output_id(step, side)
        if name not in self._made:
            self._make(self._steps[step])
        return self._made[name]

    def inputs(self, node: Node) -> list[DataFrame]:
        """The rows of each input of a step."""
        return [self.output(item.producer, item.output) for item in node.inputs]

    def _make(self, step: StepOnSpark) -> None:
        node = step.node
        given = tuple(self._nodes[item.producer].schema_of(item.output) for item in node.inputs)
        if step.way is Way.TASKS:
            self._in_tasks(node, given)
            return
        description = native_step(node, given, self._job.mode)
        assert description is not None, "the translation has asked for it, too"
        self._made[node.name] = self._native(node, description, self.inputs(node))
        for side in node.side_outputs:
            # Sorted by time no row is late.
            self._made[output_id(node.name, side.name)] = self._none(side.schema)

    def _none(self, schema: pa.Schema) -> DataFrame:
        return self._spark.createDataFrame([], ddl(wire_of([schema])))

    def _native(self, node: Node, made: Any, frames: list[DataFrame]) -> DataFrame:
        match made:
            case Reading():
                return self._read(node, made)
            case Kept(predicate):
                return frames[0].where(predicate)
            case Columns(columns):
                return frames[0].selectExpr(
                    *(f"{text} AS {quoted(name)}" for name, text in columns), _TIME, _ORDER
                )
            case Exploded(column, keep_empty):
                call = "explode_outer" if keep_empty else "explode"
                texts = [
                    f"{call}({quoted(name)}) AS {quoted(name)}" if name == column else quoted(name)
                    for name in node.schema.names
                ]
                return frames[0].selectExpr(*texts, _TIME, _ORDER)
            case Timed():
                return self._timed(frames[0], made.time, made.future_ms_max)
            case Same():
                names = [quoted(name) for name in node.schema.names]
                first, *others = (frame.selectExpr(*names, _TIME, _ORDER) for frame in frames)
                for other in others:
                    first = first.unionAll(other)
                return first
            case Group():
                if self._streams:
                    bound = bound_ms(self._nodes, node.inputs[0].producer)
                    return stream_grouped(frames[0], made, node.schema, bound)
                return grouped(frames[0], made, node.schema)
            case PairJoin():
                if self._streams:
                    bounds = [bound_ms(self._nodes, item.producer) for item in node.inputs]
                    frames = [watermarked(frame, bound) for frame, bound in zip(frames, bounds, strict=True)]
                return _paired(frames, made, times=made.stream_times if self._streams else "")
        raise AssertionError(made)

    def _timed(self, frame: DataFrame, time: str, future_ms_max: int | None) -> DataFrame:
        names = [quoted(name) for name in frame.columns if name not in (EVENT_TIME_COLUMN, ORDER_COLUMN)]
        highest = self._highest_time(future_ms_max)
        timed = frame.selectExpr(*names, f"CAST({time} AS BIGINT) AS {_TIME}", _ORDER)
        return timed.where(f"{_TIME} IS NOT NULL AND {_TIME} BETWEEN {-TIME_MS_MAX}L AND {highest}L")

    def _read(self, node: Node, made: Reading) -> DataFrame:
        source = self._spark.readStream if self._streams else self._spark.read
        reader = source.format(made.format).options(**dict(made.options))
        if made.schema:
            reader = reader.schema(made.schema)
        frame = (
            reader.load(_folder(made.path) if self._streams else made.path) if made.path else reader.load()
        )
        if made.value:
            frame = frame.selectExpr("*", f"{json_value(made.value)} AS _value")
        numbered = self._job.needs_order and not self._streams
        order = "monotonically_increasing_id()" if numbered else "0L"
        # The text of a record that is not of the schema.
        corrupt = quoted(CORRUPT_COLUMN) if made.format == "json" else "CAST(NULL AS STRING)"
        corrupt = f"_value.{quoted(CORRUPT_COLUMN)}" if made.value else corrupt
        columns = [f"{text} AS {quoted(name)}" for name, text in made.columns]
        frame = frame.selectExpr(*columns, f"{order} AS {_ORDER}", f"{corrupt} AS _text")
        names = [quoted(name) for name in node.schema.names]
        time = f"{wall_ms(self._clock)}L" if made.time is None else f"CAST({made.time} AS BIGINT)"
        highest = self._highest_time(made.future_ms_max)
        frame = frame.selectExpr(*names, f"{time} AS {_TIME}", _ORDER, "_text")
        good = ["_text IS NULL", f"{_TIME} IS NOT NULL AND {_TIME} BETWEEN {-TIME_MS_MAX}L AND {highest}L"]
        good += [f"{quoted(name)} IS NOT NULL" for name in made.required]
        return self._without_bad(node, made, frame, " AND ".join(good)).drop("_text")

    def _without_bad(self, node: Node, made: Reading, frame: DataFrame, good: str) -> DataFrame:
        """The good records of a source; the others are counted, or fail the job."""
        if made.fails:
            told = literal(f"source {node.name!r}: a record does not fit its schema: ")
            error = f"raise_error(concat({told}, coalesce(_text, 'a value is missing, or its event time is bad')))"
            return frame.where(f"CASE WHEN {good} THEN TRUE ELSE {error} END")
        from pyspark.sql import Observation
        from pyspark.sql.functions import expr

        counted = expr(f"count_if(NOT ({good}))").alias("rows")
        first = expr("max(left(_text, 200))").alias("text")
        if self._streams:
            # The progress of each query tells it, under this name.
            return frame.observe(node.name, counted, first).where(good)
        seen = self.observed[node.name] = Observation(f"weir {node.name}")
        return frame.observe(seen, counted, first).where(good)

    def _highest_time(self, future_ms_max: int | None) -> int:
        return (
            TIME_MS_MAX if future_ms_max is None else min(TIME_MS_MAX, wall_ms(self._clock) + future_ms_max)
        )

    def _in_tasks(self, node: Node, given: tuple[pa.Schema, ...]) -> None:
        """Let Weir's operator run in the tasks, each with the rows of its keys in the order of event times."""
        frames = self.inputs(node)
        if isinstance(node.spec, WindowPartSpec) and node.spec.updates.early is not None:
            # Results before the end count single rows.
            node = replace(node, spec=replace(node.spec, rows_min=1 << 62))
        tables = {}
        if isinstance(node.spec, BroadcastProcessSpec):
            tables[1] = _table(frames[1], given[1])
        read = [
            side.name for side in node.side_outputs if output_id(node.name, side.name) in self._read_outputs()
        ]
        outputs = () if node.is_sink else ("", *read)
        bounds = tuple(bound_ms(self._nodes, item.producer) for item in node.inputs)
        counts = node.spec.row_watermarks is RowWatermarks.ALL
        highest = tuple(_highest_ms(frame) for frame in frames) if counts else ()
        steps = TaskSteps(node, given, bounds, outputs, self._job.max_parallelism, tables, highest)
        moving = [number for number in range(len(frames)) if number not in tables]
        rows = self._gathered(node, [frames[n] for n in moving], [given[n] for n in moving])
        made = map_in_arrow(rows, _Task(steps, self._put), ddl(steps.wire))
        if not self._streams and (len(outputs) > 1 or len(self._readers.get(node.name, ())) > 1):
            from pyspark import StorageLevel

            made = made.persist(StorageLevel.MEMORY_AND_DISK)
            self._cached.append(made)
        if len(outputs) < 2:
            self._made[node.name] = made
        for number, output in enumerate(outputs if len(outputs) > 1 else ()):
            inner = [f"`_{number}`.{quoted(name)}" for name in node.schema_of(output).names]
            chosen = made.where(f"{NUMBER_COLUMN} = {number}").selectExpr(*inner, _TIME, _ORDER)
            self._made[output_id(node.name, output)] = chosen
        for side in node.side_outputs:
            self._made.setdefault(output_id(node.name, side.name), self._none(side.schema))

    def _read_outputs(self) -> set[str]:
        return {item.output_id for node in self._nodes.values() for item in node.inputs}

    def _gathered(self, node: Node, frames: list[DataFrame], given: list[pa.Schema]) -> DataFrame:
        """The rows of all inputs, those of a key together, in the order of event times."""
        if not frames:
            # A source of Weir's own: one task reads.
            return self._spark.range(0, 1, 1, 1)
        keys = [list(node.spec.keys_of_input(number)) for number in range(len(frames))]
        if len(frames) > 1:
            return _sorted(_tagged(frames, given, keys))
        wire = wire_schema(given[0])
        rows = frames[0].selectExpr(
            *(
                f"CAST({quoted(f.name)} AS {ddl(pa.schema([f])).split(' ', 1)[1]}) AS {quoted(f.name)}"
                for f in wire
            ),
            _TIME,
            _ORDER,
        )
        if keys[0]:
            return _sorted(rows.repartition(*(rows[quoted(key)] for key in keys[0])))
        if isinstance(node.spec, _IN_ONE_TASK):
            return _sorted(rows.coalesce(1))
        return rows


def _sorted(frame: DataFrame) -> DataFrame:
    return frame.sortWithinPartitions(EVENT_TIME_COLUMN, ORDER_COLUMN)


def _tagged(frames: list[DataFrame], given: list[pa.Schema], keys: list[list[str]]) -> DataFrame:
    """The rows of several inputs in one frame, those of a key together."""
    wires = [wire_schema(schema) for schema in given]
    structs = [ddl(pa.schema([pa.field("x", pa.struct(list(wire)))])).split(" ", 1)[1] for wire in wires]
    tagged, count = [], max(map(len, keys))
    for number, (frame, schema) in enumerate(zip(frames, given, strict=True)):
        inner = ", ".join(f"{literal(name)}, {quoted(name)}" for name in schema.names)
        columns = [f"{number} AS {NUMBER_COLUMN}"]
        for place, struct in enumerate(structs):
            value = f"named_struct({inner})" if place == number else "NULL"
            columns.append(f"CAST({value} AS {struct}) AS `_{place}`")
        columns += [f"{quoted(key)} AS `_key_{place}`" for place, key in enumerate(keys[number])]
        tagged.append(frame.selectExpr(*columns, _TIME, _ORDER))
    first, *others = tagged
    for other in others:
        first = first.unionAll(other)
    if not count:
        return first.coalesce(1)
    names = [f"_key_{place}" for place in range(count)]
    return first.repartition(*names).drop(*names)


def _highest_ms(frame: DataFrame) -> int:
    """The highest event time of all rows: a task whose keys have none so late sees time come so far all the same."""
    [row] = frame.selectExpr(f"max({_TIME}) AS highest").collect()
    return WATERMARK_MIN_MS if row.highest is None else int(row.highest)


def _folder(path: str) -> str:
    """The path as streams take it: of one file a pattern that only it has."""
    head, slash, name = path.rpartition("/")
    is_file = "." in name and "*" not in name
    return f"{head}{slash}{name[:-1]}[{name[-1]}]" if is_file else path


def _paired(frames: list[DataFrame], made: PairJoin, times: str) -> DataFrame:
    left, right = frames[0].alias("l"), frames[1].alias("r")
    from pyspark.sql.functions import expr

    condition = f"{made.condition} AND {times}" if times else made.condition
    joined = left.join(right, expr(condition), made.how)
    return joined.selectExpr(
        *(f"{text} AS {quoted(name)}" for name, text in made.columns),
        f"{made.time} AS {_TIME}",
        f"{made.order} AS {_ORDER}",
    )


def _table(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """Return all rows of a frame in the order of event times, with these."""
    found = frame.orderBy(EVENT_TIME_COLUMN, ORDER_COLUMN).toArrow()
    columns = [found.column(field.name).cast(field.type) for field in schema]
    times = found.column(EVENT_TIME_COLUMN).cast(pa.int64())
    fields = [*schema, pa.field(EVENT_TIME_COLUMN, pa.int64())]
    return pa.Table.from_arrays([*columns, times], schema=pa.schema(fields))


class _Task:
    """What Spark calls in each task; it is sent there."""

    def __init__(self, steps: TaskSteps, put: Put) -> None:
        self._steps, self._put = steps, put

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return run_task(self._steps, partition, batches, self._put.tell)
