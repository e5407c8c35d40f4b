"""Spec of the join with an external store, one request for each key."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from weir.errors import GraphError
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.base import OperatorSpec
from weir.specs.expression_checks import check_is_name
from weir.spelling import did_you_mean

#: ``await function(*key)`` returns a dict of the declared columns, or None: there is nothing for this key.
LookupFunction = Callable[..., Awaitable[Mapping[str, Any] | None]]
LookupType = Literal["left", "inner"]
IN_FLIGHT_MAX = 10_000


@dataclass(frozen=True)
class LookupSpec(OperatorSpec):
    """Add columns that an asynchronous function finds for the values of some others."""

    kind: ClassVar[str] = "lookup"
    keeps_columns: ClassVar[bool] = True
    is_by_row: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.joins.lookup_operator:LookupOperator"
    function: LookupFunction
    on: tuple[str, ...]
    schema: pa.Schema
    how: LookupType
    in_flight_max: int
    timeout_ms: int
    #: Keys whose result is remembered; 0: none is.
    cache_rows: int
    cache_ttl_ms: int

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns followed by those that are found; these are nullable in a left join."""
        (schema,) = inputs
        return pa.schema([*schema, *self._fields(step, schema)])

    def written_columns(self, step: str, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the columns that are found."""
        return {found.name: found.type for found in self._fields(step, schema)}

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """The keys, and what is wanted."""
        return wanted.intersection(schema.names) | {*self.on}

    def _fields(self, step: str, schema: pa.Schema) -> list[pa.Field]:
        _check(step, self, schema)
        return [found.with_nullable(found.nullable or self.how == "left") for found in self.schema]


def _check(step: str, spec: LookupSpec, schema: pa.Schema) -> None:
    """Refuse what cannot be looked up.

    Raises:
        GraphError: one line that names the step and the mend.
    """
    if not spec.on:
        raise GraphError(f"step {step!r}: lookup needs at least one column: on=...")
    for name in spec.on:
        check_is_name(f"step {step!r}: on", name)
        if name not in schema.names:
            raise GraphError(f"step {step!r}: there is no column {name!r}{did_you_mean(name, schema.names)}")
    for name in spec.schema.names:
        if name in schema.names or name in SYSTEM_COLUMNS:
            raise GraphError(
                f"step {step!r}: column {name!r} of the lookup is there already; give it another name in the schema "
                "and in what the function returns"
            )
    if spec.how not in ("left", "inner"):
        raise GraphError(f"step {step!r}: how is {spec.how!r}; it is left or inner")
    for what, value, least, most in (
        ("in_flight_max", spec.in_flight_max, 1, IN_FLIGHT_MAX),
        ("cache_rows", spec.cache_rows, 0, 100_000_000),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise GraphError(
                f"step {step!r}: {what} is {value!r}; it must be a whole number from {least} to {most:,}"
            )
    target = spec.function
    while hasattr(target, "func"):
        target = target.func
    if not callable(target) or (inspect.isfunction(target) and not inspect.iscoroutinefunction(target)):
        raise GraphError(f"step {step!r}: lookup takes an async function: async def find(key): ...")
