"""Specs of steps that rename columns, or make a row of each element of a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from weir.errors import GraphError
from weir.rows.changes import check_keeps_changes
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.base import OperatorSpec
from weir.specs.expression_checks import check_is_name
from weir.spelling import did_you_mean


@dataclass(frozen=True)
class RenameSpec(OperatorSpec):
    """Give columns other names."""

    kind: ClassVar[str] = "rename"
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.columns:RenameOperator"
    #: Name before, name after.
    names: tuple[tuple[str, str], ...]

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's under other names, those that are there; see :class:`OperatorSpec`."""
        schema = inputs[0]
        new = dict(self.names)
        fields = [field.with_name(new.get(field.name, field.name)) for field in schema]
        names = [field.name for field in fields]
        check_keeps_changes(step, schema, names)
        for name in names:
            if names.count(name) > 1 or name in SYSTEM_COLUMNS:
                raise GraphError(f"step {step!r}: output column {name!r} exists already; choose another name")
        return pa.schema(fields)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What is wanted, under its name before; see :class:`OperatorSpec`."""
        new = dict(self.names)
        return frozenset(name for name in schema.names if new.get(name, name) in wanted)

    def written_columns(self, step: str, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the columns that get another name; see :class:`OperatorSpec`."""
        return {name: schema.field(name).type for name, _ in self.names if name in schema.names}

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return all columns, under their names after; see :class:`OperatorSpec`."""
        new = dict(self.names)
        return frozenset(new.get(name, name) for name in names)


def check_rename(step: str | None, names: Mapping[str, str], schema: pa.Schema) -> None:
    """Refuse names that are not there; called when the step is written down.

    Raises:
        GraphError: names the step and the column.
    """
    if not isinstance(names, Mapping):
        raise GraphError(
            f'step {step!r}: rename takes a mapping such as {{"old": "new"}}, got {type(names).__name__}'
        )
    if not names:
        raise GraphError(f'step {step!r}: rename needs at least one column, such as {{"old": "new"}}')
    for old, new in names.items():
        if old not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no column {old!r}{did_you_mean(str(old), schema.names)}"
            )
        if not isinstance(new, str) or not new:
            raise GraphError(f"step {step!r}: {old!r} becomes {new!r}; a column's name is a non-empty string")


def remaining_columns(step: str | None, dropped: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    """The columns that are left without some; called when the step is written down.

    Raises:
        GraphError: one of them is not there, or none is left.
    """
    for name in dropped:
        check_is_name(f"step {step!r}: drop", name)
        if name not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no column {name!r}{did_you_mean(str(name), schema.names)}"
            )
    left = tuple(name for name in schema.names if name not in dropped)
    if not dropped or not left:
        what = (
            "no column is left" if dropped else "drop needs at least one column, after the name of the step"
        )
        raise GraphError(f"step {step!r}: {what}")
    return left


@dataclass(frozen=True)
class ExplodeSpec(OperatorSpec):
    """Make a row of each element of a column of lists."""

    kind: ClassVar[str] = "explode"
    is_by_row: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.columns:ExplodeOperator"
    column: str
    #: A row whose list is empty or null is kept, with null in the column.
    keep_empty: bool = False

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's, with the elements' type; see :class:`OperatorSpec`."""
        schema = inputs[0]
        check_is_name(f"step {step!r}: explode", self.column)
        if self.column not in schema.names:
            known = did_you_mean(str(self.column), schema.names)
            raise GraphError(f"step {step!r}: there is no column {self.column!r}{known}")
        position = schema.get_field_index(self.column)
        dtype = schema.field(position).type
        if not (
            pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)
        ):
            raise GraphError(f"step {step!r}: column {self.column!r} is {dtype}; only lists can be exploded")
        element = dtype.value_field
        nullable = element.nullable or self.keep_empty
        return schema.set(position, pa.field(self.column, element.type, nullable=nullable))

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What is wanted, and the lists, which say how many rows there are; see :class:`OperatorSpec`."""
        return wanted | {self.column}

    def written_columns(self, step: str, schema: pa.Schema) -> dict[str, pa.DataType]:
        """The exploded one; see :class:`OperatorSpec`."""
        made = self.output_schema(step, (schema,))
        return {self.column: made.field(self.column).type}

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return all columns but the exploded one; see :class:`OperatorSpec`."""
        return names - {self.column}
