"""Data frames of steps that run by Weir within Spark's tasks, in a batch: the rows of each key come sorted by time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.plan.graph import Node
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS
from weir.spark.marks import partition_number
from weir.spark.task_steps import NUMBER_COLUMN, ORDER_COLUMN, TaskSteps
from weir.spark.tasks import Told, run_task
from weir.spark.types import ddl, literal, quoted, wire_schema
from weir.specs import UserOperatorSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)
#: Steps besides those by key that mind the order of rows: they get all of them in one task.
_IN_ONE_TASK = (UserOperatorSpec,)


@dataclass(frozen=True)
class Task:
    """What Spark calls in each task; it is sent there.

    Attributes:
        steps: what runs.
        tell: of rows that were put aside.
    """

    steps: TaskSteps
    tell: Told

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the steps make of a partition."""
        return run_task(self.steps, partition_number(), batches, self.tell)


def gathered(spark: SparkSession, node: Node, frames: list[DataFrame], given: list[pa.Schema]) -> DataFrame:
    """The rows of all inputs, those of a key together, in the order of event times."""
    if not frames:
        # A source of Weir's own: one task reads.
        return spark.range(0, 1, 1, 1)
    keys = [list(node.spec.keys_of_input(number)) for number in range(len(frames))]
    if len(frames) > 1:
        return _sorted(_tagged(frames, given, keys))
    rows = on_wire(frames[0], given[0])
    if keys[0]:
        return _sorted(rows.repartition(*(rows[quoted(key)] for key in keys[0])))
    if isinstance(node.spec, _IN_ONE_TASK):
        return _sorted(rows.coalesce(1))
    return rows


def on_wire(frame: DataFrame, schema: pa.Schema, *others: str) -> DataFrame:
    """The rows with user columns as they travel, the event time, the place, and other columns."""
    columns = (
        f"CAST({quoted(field.name)} AS {_type(field)}) AS {quoted(field.name)}"
        for field in wire_schema(schema)
    )
    return frame.selectExpr(*columns, _TIME, _ORDER, *others)


def _type(field: pa.Field) -> str:
    return ddl(pa.schema([field.with_name("x")])).removeprefix("`x` ")


def _sorted(frame: DataFrame) -> DataFrame:
    return frame.sortWithinPartitions(EVENT_TIME_COLUMN, ORDER_COLUMN)


def _tagged(frames: list[DataFrame], given: list[pa.Schema], keys: list[list[str]]) -> DataFrame:
    """The rows of several inputs in one frame, those of a key together."""
    structs = [_type(pa.field("x", pa.struct(list(wire_schema(schema))))) for schema in given]
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


def highest_ms(rows: DataFrame, inputs: int) -> tuple[int, ...]:
    """Return the highest event time of each input in all rows of :func:`gathered`.

    A task whose keys have none so late sees time come so far all the same.
    """
    of = NUMBER_COLUMN if inputs > 1 else "0"
    found = rows.selectExpr(f"{of} AS number", f"{_TIME} AS time").groupBy("number").max("time").collect()
    known = {int(number): int(time) for number, time in found}
    return tuple(known.get(number, WATERMARK_MIN_MS) for number in range(inputs))


def divided(made: DataFrame, node: Node, outputs: Sequence[str], *others: str) -> dict[str, DataFrame]:
    """The rows of each output of a step that has several; ``others``: columns that are kept, besides."""
    found = {}
    for number, output in enumerate(outputs):
        inner = [f"`_{number}`.{quoted(name)} AS {quoted(name)}" for name in node.schema_of(output).names]
        kept = " OR ".join([f"{NUMBER_COLUMN} = {number}", *(f"{name} IS NOT NULL" for name in others)])
        found[output] = made.where(kept).selectExpr(*inner, _TIME, _ORDER, *others)
    return found


def table(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """Return all rows of a frame in the order of event times, with these."""
    found = frame.orderBy(EVENT_TIME_COLUMN, ORDER_COLUMN).toArrow()
    columns = [found.column(field.name).cast(field.type) for field in schema]
    times = found.column(EVENT_TIME_COLUMN).cast(pa.int64())
    fields = [*schema, pa.field(EVENT_TIME_COLUMN, pa.int64())]
    return pa.Table.from_arrays([*columns, times], schema=pa.schema(fields))
