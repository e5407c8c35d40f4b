"""Spec of values over rows of a key before a row, in the order of event time: LAG, running sums, sums of so many rows.

The input is never updated. A row leaves when the watermark has passed its time: no earlier row comes any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.key_checks import check_key_columns
from weir.specs.keyed import KeyedSpec
from weir.specs.row_order import OrderColumn, check_row_order
from weir.spelling import did_you_mean

OverFunction = Literal["lag", "count", "sum", "mean", "min", "max"]
OverFrame = Literal["rows", "range"]
#: Rows that frames and LAG may reach back: a key's rows are one value in the store.
PRECEDING_ROWS_MAX = 10_000
#: Of rows that wait for their time.
WAITING_STATE = "_waiting"
#: Of rows that later ones look back at, and running values.
BEFORE_STATE = "before"


@dataclass(frozen=True)
class OverColumn:
    """A column that the step adds.

    Attributes:
        output: its name.
        function: what it computes.
        column: of which column; None: of rows, with "count".
        frame: which rows count: "rows", so many before the row; "range", those whose time is so much before its own,
            and all that are equal to it in the order. Of "lag" always "rows".
        preceding: how many rows, or how much time in the unit of ``OverSpec.time``; of "lag" which row before. None:
            all.
    """

    output: str
    function: OverFunction
    column: str | None
    frame: OverFrame = "rows"
    preceding: int | None = None

    @property
    def is_unbounded(self) -> bool:
        """Return whether all rows before count."""
        return self.preceding is None

    def type_in(self, step: str, schema: pa.Schema) -> pa.DataType:
        """The type of its values over columns of ``schema``.

        Raises:
            GraphError: there is no such column, or its type does not go with the function.
        """
        if self.function == "count" and self.column is None:
            return pa.int64()
        if self.column not in schema.names:
            near = did_you_mean(str(self.column), schema.names)
            raise GraphError(f"step {step!r}: there is no column {self.column!r}{near}")
        dtype = schema.field(self.column).type
        if self.function == "count":
            return pa.int64()
        if self.function == "lag":
            return dtype
        is_number = pa.types.is_integer(dtype) or pa.types.is_floating(dtype)
        takes_times = self.function in ("min", "max") and pa.types.is_temporal(dtype)
        if not (is_number or takes_times) or pa.types.is_interval(dtype):
            what = "numbers, dates and times" if self.function in ("min", "max") else "integers and floats"
            raise GraphError(
                f"step {step!r}: {self.function} over column {self.column!r}, which is {dtype}; over rows before a "
                f"row it takes {what}: cast the column"
            )
        if self.function == "mean":
            return pa.float64()
        if takes_times:
            return dtype
        return pa.int64() if pa.types.is_integer(dtype) else pa.float64()


@dataclass(frozen=True)
class OverSpec(KeyedSpec):
    """Add columns over the rows of each key before a row, in the order of event time and of further columns."""

    kind: ClassVar[str] = "over_rows"
    keeps_columns: ClassVar[bool] = True
    is_by_key: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.keyed.over_rows:OverOperator"
    asked_by: ClassVar[str] = "weir.operators.queries.rows:over_format"
    columns: tuple[OverColumn, ...]
    #: Rows of one event time go by these; of equal ones the one that came first goes first.
    order: tuple[OrderColumn, ...] = ()
    #: A column that is the event time in finer units, of which "range" is; None: the event time, in ms.
    time: str | None = None

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return True

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return (BEFORE_STATE, WAITING_STATE)

    @property
    def goes_by_event_time(self) -> bool:
        """Rows leave in its order; see :class:`OperatorSpec`."""
        return True

    @property
    @override
    def time_words(self) -> str | None:
        return "rows before"

    @property
    def looked_at(self) -> tuple[str, ...]:
        """Columns that later rows look back at: of rows that the state keeps, they come first."""
        names = (each.column for each in self.columns if not each.is_unbounded)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def running(self) -> tuple[OverColumn, ...]:
        """Return the columns over all rows before: each kept row has its number and how many values it is of."""
        return tuple(each for each in self.columns if each.is_unbounded)

    def kept_types(self, schema: pa.Schema) -> list[pa.DataType]:
        """Types of the columns of rows that the state keeps, the last of which is their time.

        Args:
            schema: user columns of the output.
        """
        types = [schema.field(name).type for name in self.looked_at]
        for each in self.running:
            is_float = each.column is not None and pa.types.is_floating(schema.field(each.column).type)
            types += [pa.float64() if is_float and each.function != "count" else pa.int64(), pa.int64()]
        return [*types, pa.int64()]

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns, and those that are added; see :class:`OperatorSpec`."""
        schema = inputs[0]
        check_key_columns(step, self.key_columns, schema)
        check_row_order(step, self.order, schema)
        if not self.columns:
            raise GraphError(f"step {step!r}: give at least one column")
        if self.time is not None and self.time not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no column {self.time!r}{did_you_mean(self.time, schema.names)}"
            )
        fields, taken = list(schema), {*schema.names, *SYSTEM_COLUMNS}
        for each in self.columns:
            if each.output in taken:
                raise GraphError(
                    f"step {step!r}: output column {each.output!r} exists already; choose another name"
                )
            taken.add(each.output)
            if each.preceding is not None and each.frame == "rows" and each.preceding > PRECEDING_ROWS_MAX:
                raise GraphError(
                    f"step {step!r}: {each.output!r} reaches back {each.preceding:,} rows; at most "
                    f"{PRECEDING_ROWS_MAX:,}"
                )
            dtype = each.type_in(step, schema)
            fields.append(pa.field(each.output, dtype, nullable=each.function != "count"))
        return pa.schema(fields)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, the order, what is computed over, and what is wanted; see :class:`OperatorSpec`."""
        read = {each.column for each in self.columns if each.column is not None}
        read |= set() if self.time is None else {self.time}
        return (
            wanted.intersection(schema.names)
            | {*self.key_columns, *(each.name for each in self.order)}
            | read
        )
