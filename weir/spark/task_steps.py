"""What runs within Spark's tasks, and the columns in which rows travel to and from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.plan.graph import Node
from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.types import wire_schema

#: Columns of the rows that several inputs, or outputs, share: which of them a row is of, and by number its columns.
NUMBER_COLUMN = "_number"
#: The place of a row among those of its event time.
ORDER_COLUMN = "_order"


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


@dataclass(frozen=True)
class Upstream:
    """A step whose marks say how far time has come in an input.

    Attributes:
        step: its name.
        bound_ms: how far the watermark stays behind its marks; None: it has state, and its marks are watermarks.
    """

    step: str
    bound_ms: int | None


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
