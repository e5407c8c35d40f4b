"""The spec of aggregates over a changelog: results that rows enter and leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from weir.errors import GraphError
from weir.rows.changes import CHANGE_COLUMN, changelog_schema
from weir.specs.aggregate_functions import PERCENTILES, aggregated_columns, decimal_mend
from weir.specs.keyed import Aggregate, VersionedSpec, aggregate_schema

if TYPE_CHECKING:
    from weir.specs.windows import WindowAggregate

#: Functions from which a value can be taken away again: of windows, and of keys.
RETRACTABLE = ("count", "sum", "mean", "min", "max")
RETRACTABLE_OF_KEYS = (*RETRACTABLE, "quantile", *PERCENTILES)


@dataclass(frozen=True)
class ChangelogAggregateSpec(VersionedSpec):
    """Aggregates of the rows of each key that are there now, as a changelog of one row per key."""

    kind: ClassVar[str] = "changelog_aggregate"
    runtime: ClassVar[str] = "weir.operators.keyed.changelog_aggregates:ChangelogAggregateOperator"
    takes_changes: ClassVar[bool] = True
    asked_by: ClassVar[str] = "weir.operators.queries.formats:totals_format"
    aggregates: tuple[Aggregate, ...]

    @property
    def state_names(self) -> tuple[str, ...]:
        """The accumulators of each key."""
        return ("totals",)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Key columns, one column for each aggregate, ``_change``; see :class:`OperatorSpec`."""
        schema = inputs[0]
        if not self.aggregates:
            raise GraphError(f"step {step!r}: give at least one aggregate, such as n=weir.count()")
        check_retractable(step, self.aggregates, RETRACTABLE_OF_KEYS)
        for aggregate in self.aggregates:
            _refuse_decimals(step, aggregate, schema)
        keys = [schema.field(name) for name in self.key_columns]
        # Of the input's columns only the keys are in the result: names of the others may be taken.
        found = [
            field.with_name(aggregate.output)
            for aggregate in self.aggregates
            for field in list(
                aggregate_schema(
                    step, (replace(aggregate, output=f"{aggregate.output} "),), schema, of_changelog=True
                )
            )[len(schema) :]
        ]
        return changelog_schema(step, [*keys, *found])

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, what is aggregated, and how rows change the input's table; see :class:`OperatorSpec`."""
        return frozenset({*self.key_columns, CHANGE_COLUMN}) | aggregated_columns(self.aggregates, schema)


def check_retractable(
    step: str, aggregates: Iterable[Aggregate | WindowAggregate], known: Sequence[str] = RETRACTABLE
) -> None:
    """Refuse functions from which no value can be taken away.

    Raises:
        GraphError: names all that are such.
    """
    others = [each for each in aggregates if each.function not in known]
    if others:
        outputs = ", ".join(each.output for each in others)
        functions = ", ".join(dict.fromkeys(each.function for each in others))
        raise GraphError(
            f"step {step!r}: {outputs}: {functions} cannot take rows back, and the input is a changelog (it has column "
            f"{CHANGE_COLUMN!r}); over one there are {', '.join(known)}"
        )


def _refuse_decimals(step: str, aggregate: Aggregate, schema: pa.Schema) -> None:
    """Sums and values of a key are kept in 8 bytes each."""
    column = aggregate.column
    is_known = column is not None and column in schema.names
    if aggregate.function != "count" and is_known and pa.types.is_decimal(schema.field(column).type):
        dtype = schema.field(column).type
        raise GraphError(
            f"step {step!r}: {aggregate.function} over {column!r}: the column is {dtype}, and the input a changelog; "
            f"{decimal_mend(column, dtype)}"
        )
