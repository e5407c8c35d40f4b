"""Specs of operators that keep nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.rows.changes import CHANGE_COLUMN, check_keeps_changes
from weir.rows.row_watermarks import RowWatermarks
from weir.specs.base import OperatorSpec, SideOutput
from weir.specs.conditions import Condition, condition_of
from weir.specs.expression_checks import (
    check_predicate,
    copies,
    expression_columns,
    with_columns_written,
    with_fields,
    written_columns,
)
from weir.spelling import did_you_mean

if TYPE_CHECKING:
    from weir.author.operator import Operator


@dataclass(frozen=True)
class FilterSpec(OperatorSpec):
    """Keep the rows for which a boolean Polars expression is true (null counts as false)."""

    kind: ClassVar[str] = "filter"
    keeps_columns: ClassVar[bool] = True
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.expressions:make_filter"
    predicate: pl.Expr
    #: Parts of the predicate that the step behind it needs, too, as new columns, and the predicate over them
    #: (``weir.plan.rules.sharing``).
    shared: tuple[pl.Expr, ...] = field(default=(), metadata={"derived": True})
    over_shared: pl.Expr | None = field(default=None, metadata={"derived": True})

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's with what is shared; see :class:`OperatorSpec`."""
        check_predicate(step, self.predicate, inputs[0])
        schema = super().output_schema(step, inputs)
        return with_fields(schema, with_columns_written(step, self.shared, schema)) if self.shared else schema

    @override
    def demanded(self, schema: pa.Schema) -> Condition | None:
        return condition_of(self.predicate, schema)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What the predicate reads, and what is wanted; see :class:`OperatorSpec`."""
        own = {each.meta.output_name() for each in self.shared}
        return (wanted - own) | expression_columns([self.predicate], schema)


@dataclass(frozen=True)
class WithColumnsSpec(OperatorSpec):
    """Add or replace columns by named Polars expressions."""

    kind: ClassVar[str] = "with_columns"
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.expressions:WithColumnsOperator"
    expressions: tuple[pl.Expr, ...]

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's with what the expressions write; see :class:`OperatorSpec`."""
        written = with_columns_written(step, self.expressions, inputs[0])
        made = with_fields(inputs[0], written)
        check_keeps_changes(step, inputs[0], [name for name in made.names if name not in written])
        return made

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What the expressions read, and what is wanted; see :class:`OperatorSpec`.

        A column that is replaced counts as wanted, too: it keeps its place among the others.
        """
        return wanted.intersection(schema.names) | expression_columns(self.expressions, schema)

    @override
    def written_columns(self, step: str, schema: pa.Schema) -> dict[str, pa.DataType]:
        return written_columns(step, self.expressions, schema)

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return the columns that are not replaced, and their copies; see :class:`OperatorSpec`."""
        return names.difference(self.written_columns("", schema)) | copies(self.expressions, names)


@dataclass(frozen=True)
class SelectSpec(OperatorSpec):
    """Keep some columns, in the order given; an expression computes a new one."""

    kind: ClassVar[str] = "select"
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.expressions:SelectOperator"
    columns: tuple[str | pl.Expr, ...]

    @property
    def expressions(self) -> tuple[pl.Expr, ...]:
        """Return the expressions of the columns that are computed."""
        return tuple(item for item in self.columns if isinstance(item, pl.Expr))

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The chosen columns; see :class:`OperatorSpec`."""
        schema = inputs[0]
        if not self.columns:
            raise GraphError(f"step {step!r}: select needs at least one column, after the name of the step")
        fields: list[pa.Field] = []
        for item in self.columns:
            if isinstance(item, pl.Expr):
                written = written_columns(step, (item,), schema)
                fields += [pa.field(name, dtype) for name, dtype in written.items()]
            elif item not in schema.names:
                known = schema.names
                raise GraphError(
                    f"step {step!r}: there is no column {item!r}{did_you_mean(str(item), known)}"
                )
            else:
                fields.append(schema.field(item))
        names = [field.name for field in fields]
        if not names:
            raise GraphError(
                f"step {step!r}: {self.columns[0]} chooses no column; there are {', '.join(schema.names)}"
            )
        for name in names:
            if names.count(name) > 1:
                raise GraphError(f"step {step!r}: column {name!r} is there twice")
        check_keeps_changes(step, schema, [item for item in self.columns if isinstance(item, str)])
        return pa.schema(fields)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """The chosen columns that are wanted, and what expressions read; see :class:`OperatorSpec`."""
        plain = frozenset(item for item in self.giving(wanted).columns if isinstance(item, str))
        return plain | expression_columns(self.expressions, schema)

    def giving(self, wanted: frozenset[str]) -> SelectSpec:
        """Return the step without chosen columns that nobody reads; see :class:`OperatorSpec`. Computed ones stay."""
        kept = [
            item
            for item in self.columns
            if not isinstance(item, str) or item in wanted or item == CHANGE_COLUMN
        ]
        kept = kept or list(self.columns[:1])
        return self if len(kept) == len(self.columns) else replace(self, columns=tuple(kept))

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return the columns that are chosen, and their copies; see :class:`OperatorSpec`."""
        plain = frozenset(item for item in self.columns if isinstance(item, str))
        return names & plain | copies(self.expressions, names)


class _DeclaredSpec(OperatorSpec):
    """Base of steps whose author says which columns leave them."""

    takes_changes: ClassVar[bool] = True
    schema: pa.Schema

    @override
    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        return self.schema


@dataclass(frozen=True)
class MapBatchesSpec(_DeclaredSpec):
    """Call ``function(batch) -> batch``; both are record batches with the time columns."""

    kind: ClassVar[str] = "map_batches"
    runtime: ClassVar[str] = "weir.operators.stateless.functions:MapBatchesOperator"
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: pa.Schema
    #: The only columns of the input that the function reads: it hands all that it is given on as they are, and adds
    #: those that only ``schema`` has. None: it may read all.
    reads: frozenset[str] | None = field(default=None, metadata={"derived": True})
    adds: frozenset[str] = field(default=frozenset(), metadata={"derived": True})

    @override
    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        return self.schema if self.reads is None else self.schema_of(inputs[0].names)

    def schema_of(self, given: Collection[str]) -> pa.Schema:
        """Return the columns of the result for a function that hands on what it is given: these of the input."""
        return pa.schema(
            [column for column in self.schema if column.name in given or column.name in self.adds]
        )

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What the function reads, and what is wanted of the others."""
        if self.reads is None:
            return frozenset(schema.names)
        return self.reads | (wanted | {CHANGE_COLUMN}).intersection(schema.names)


@dataclass(frozen=True)
class MapSpec(_DeclaredSpec):
    """Call ``function(row: dict) -> dict`` once per record: the slow path."""

    kind: ClassVar[str] = "map"
    runtime: ClassVar[str] = "weir.operators.stateless.functions:MapOperator"
    function: Callable[[dict[str, Any]], dict[str, Any]]
    schema: pa.Schema


@dataclass(frozen=True)
class FlatMapSpec(_DeclaredSpec):
    """Call ``function(row: dict) -> iterable of dict`` once per record: the slow path."""

    kind: ClassVar[str] = "flat_map"
    runtime: ClassVar[str] = "weir.operators.stateless.functions:FlatMapOperator"
    function: Callable[[dict[str, Any]], Any]
    schema: pa.Schema


@dataclass(frozen=True)
class UnionSpec(OperatorSpec):
    """Merge inputs of the same schema; order is kept within each input."""

    kind: ClassVar[str] = "union"
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    takes_several_inputs: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.expressions:UnionOperator"

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return all columns, although rows of other inputs come beside; see :class:`OperatorSpec`."""
        return names

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What is wanted, at least one column; see :class:`OperatorSpec`."""
        # All inputs must give the same ones, also where only the number of rows counts.
        return wanted or frozenset(schema.names[:1])


@dataclass(frozen=True)
class PassThroughSpec(OperatorSpec):
    """Forward rows unchanged; the home of a bare ``key_by``, ``rebalance`` or ``broadcast``."""

    kind: ClassVar[str] = "pass_through"
    keeps_columns: ClassVar[bool] = True
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.expressions:PassThroughOperator"

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What is wanted; see :class:`OperatorSpec`."""
        return wanted


@dataclass(frozen=True)
class BusySpec(OperatorSpec):
    """Use ``load_ms`` of CPU per event outside the GIL, then forward the rows."""

    kind: ClassVar[str] = "busy"
    keeps_columns: ClassVar[bool] = True
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.busy:BusyOperator"
    load_ms: float

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What is wanted; see :class:`OperatorSpec`."""
        return wanted


@dataclass(frozen=True)
class UserOperatorSpec(_DeclaredSpec):
    """A user's operator without keyed state: ``factory()`` makes a ``weir.Operator`` per subtask."""

    kind: ClassVar[str] = "user_operator"
    runtime: ClassVar[str] = "weir.operators.user_operator:create_user_operator"
    factory_kind: ClassVar[str] = "a class (or a function without arguments) that makes a weir.Operator"
    factory: Callable[[], Operator]
    schema: pa.Schema
    side_outputs: tuple[SideOutput, ...] = field(default=(), metadata={"came_later": True})

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """What the author declared; see :class:`OperatorSpec`."""
        return self.side_outputs

    @property
    def waits_for_event_time(self) -> bool:
        """Perhaps: its author says what happens then; see :class:`OperatorSpec`."""
        return True

    @property
    def row_watermarks(self) -> RowWatermarks:
        """Return NONE: the author is told of watermarks between batches; see :class:`OperatorSpec`."""
        return RowWatermarks.NONE
