"""Specs of operators that keep state by key."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.states import DeclaredState, State
from weir.author.timer_hooks import EVENT_TIMERS
from weir.errors import GraphError
from weir.protocol.checkpoints.aggregate_layout import Layout
from weir.protocol.checkpoints.horizons import Horizon
from weir.rows.records import SYSTEM_COLUMNS
from weir.rows.row_watermarks import RowWatermarks
from weir.specs.aggregate_functions import (
    AggregateFunction,
    adds_up,
    aggregate_parts,
    aggregate_type,
    aggregated_columns,
    in_order,
)
from weir.specs.base import OperatorSpec, SideOutput
from weir.specs.expression_checks import check_predicate
from weir.specs.stored_order import in_layout, layout_of

if TYPE_CHECKING:
    from weir.author.keyed_process import KeyedHooks

#: When a keyed aggregation emits: one row per input row, or the last row of each key of a batch.
EmitMode = Literal["per_event", "per_batch"]


@dataclass(frozen=True)
class KeyedSpec(OperatorSpec):
    """Base of keyed operators: rows come in partitioned by ``key_columns``."""

    keeps_keys: ClassVar[bool] = True
    #: A row that leaves is made of rows of its own key: those of other keys have no part in it.
    is_by_key: ClassVar[bool] = False
    key_columns: tuple[str, ...]

    @property
    def waits_for_event_time(self) -> bool:
        """Windows, joins, timers; see :class:`OperatorSpec`."""
        return True

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Key columns, or all; see :class:`OperatorSpec`."""
        kept = names.intersection(self.key_columns) if self.keeps_keys else frozenset()
        return names if self.keeps_columns else kept

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Key columns, where other keys have no part; see :class:`OperatorSpec`."""
        return self.passed_on(names.intersection(self.key_columns), schema) if self.is_by_key else frozenset()

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("",)

    @override
    def keys_of_input(self, index: int) -> tuple[str, ...]:
        return self.key_columns


@dataclass(frozen=True)
class VersionedSpec(KeyedSpec):
    """Base of keyed operators that tell what a batch has changed: of several versions of a key in it the last one."""

    #: They tell every version instead, as if each row came alone: a step after them needs that.
    every_version: bool = field(default=False, kw_only=True, metadata={"derived": True})


@dataclass(frozen=True)
class Aggregate:
    """An accumulator: ``function`` over ``column`` (None for count), written to column ``output``."""

    output: str
    function: AggregateFunction
    column: str | None = None
    condition: pl.Expr | None = field(default=None, metadata={"came_later": True})
    parameters: tuple[float, ...] = field(default=(), metadata={"came_later": True})


@dataclass(frozen=True)
class KeyedAggregateSpec(VersionedSpec):
    """Running aggregates per key, kept in keyed state."""

    kind: ClassVar[str] = "keyed_aggregate"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.keyed.running_aggregates:KeyedAggregateOperator"
    asked_by: ClassVar[str] = "weir.operators.queries.formats:aggregate_format"
    combiner: ClassVar[str] = "weir.operators.keyed.hot_rows:HotRows"
    is_by_key: ClassVar[bool] = True
    #: In the order in which state has them; those of the function "dropped" have no column.
    aggregates: tuple[Aggregate, ...]
    emit: EmitMode = "per_event"
    #: Names of their columns, in order; (): as the aggregates are.
    shown: tuple[str, ...] = field(default=(), metadata={"derived": True})

    @override
    def combines(self, schema: pa.Schema) -> bool:
        # After each row there is a result of its own. After a batch there is one for each key, as of its last row.
        return self.tells_batches and all(adds_up(aggregate, schema) for aggregate in self.aggregates)

    @property
    def tells_batches(self) -> bool:
        """Return whether only the last row of each key of a batch leaves."""
        return self.emit == "per_batch" and not self.every_version

    @property
    def results(self) -> tuple[Aggregate, ...]:
        """The aggregates that have columns, in the order of these."""
        return in_order(self.aggregates, self.shown)

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("", *(part.name for part in aggregate_parts(self.aggregates)))

    @property
    def asked_names(self) -> tuple[str, ...]:
        """The aggregates; see :class:`OperatorSpec`."""
        return tuple(aggregate.output for aggregate in self.aggregates)

    @override
    def stored_layout(self, given: pa.Schema) -> Layout:
        return layout_of(self.aggregates, given)

    @override
    def laid_out(self, layout: Layout) -> KeyedAggregateSpec:
        shown = tuple(each.output for each in self.results)
        return replace(self, aggregates=in_layout(self.aggregates, layout, Aggregate), shown=shown)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns followed by one for each aggregate; see :class:`OperatorSpec`."""
        return aggregate_schema(step, self.results, inputs[0])

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, what is aggregated, and what is wanted; see :class:`OperatorSpec`."""
        return (
            wanted.intersection(schema.names)
            | {*self.key_columns}
            | aggregated_columns(self.aggregates, schema)
        )

    @property
    def waits_for_event_time(self) -> bool:
        """Not; see :class:`OperatorSpec`."""
        return False


@dataclass(frozen=True)
class ExpiringSpec(KeyedSpec):
    """Base of keyed operators whose states may expire: they know since when."""

    #: How far back its states reach, of a job that was changed.
    horizons: tuple[Horizon, ...] = field(default=(), kw_only=True, metadata={"derived": True})


@dataclass(frozen=True)
class KeyedProcessSpec(ExpiringSpec):
    """A user's keyed operator: ``factory()`` makes a ``weir.KeyedProcess`` per subtask."""

    kind: ClassVar[str] = "keyed_process"
    takes_changes: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.keyed.process_operator:KeyedProcessOperator"
    asked_by: ClassVar[str] = "weir.operators.queries.formats:process_format"
    factory_kind: ClassVar[str] = "a class (or a function without arguments) that makes a weir.KeyedProcess"
    factory: Callable[[], KeyedHooks]
    schema: pa.Schema
    #: By name.
    states: tuple[DeclaredState, ...] = field(default=(), metadata={"came_later": True})
    #: The key columns as they come in, if it has timers: their keys are read from the store.
    key_schema: pa.Schema | None = field(default=None, metadata={"came_later": True})
    side_outputs: tuple[SideOutput, ...] = field(default=(), metadata={"came_later": True})
    #: See :meth:`OperatorSpec.chosen_time_order`.
    in_time_order: bool | None = field(default=None, metadata={"came_later": True})

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return True

    @property
    @override
    def chosen_time_order(self) -> bool | None:
        return self.in_time_order

    @property
    def needs_time_order(self) -> bool:
        """Timers by event time fire between rows; see :class:`OperatorSpec`."""
        return self._has_event_timers

    @property
    def _has_event_timers(self) -> bool:
        return any(state.name == EVENT_TIMERS for state in self.states)

    @property
    def has_timers(self) -> bool:
        """Return whether its class has something to be called when a timer fires."""
        return self.key_schema is not None

    @property
    def row_watermarks(self) -> RowWatermarks:
        """Return what rows meet between them: timers by event time fire, and values expire, between any two."""
        reaches_back = any(each.time == "event" for each in self.horizons)
        minds_time = (
            self._has_event_timers
            or self.in_time_order
            or reaches_back
            or _expires(self.factory, self.states)
        )
        return RowWatermarks.ALL if minds_time else RowWatermarks.NONE

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of the states that the author declared, and of timers."""
        return tuple(state.name for state in self.states)

    @property
    @override
    def renamed_states(self) -> dict[str, str]:
        return {state.name: state.renamed_from for state in self.states if state.renamed_from}

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """What the author declared; see :class:`OperatorSpec`."""
        return self.schema

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """What the author declared; see :class:`OperatorSpec`."""
        return self.side_outputs


def _expires(factory: Callable[[], object], states: tuple[DeclaredState, ...]) -> bool:
    """Whether a process may have a state with a TTL by event time: of a class it is known, of a function it is not."""
    made: object = factory
    while isinstance(made, functools.partial):
        made = made.func
    if not isinstance(made, type):
        return bool(states)
    declared = (value for base in made.__mro__ for value in vars(base).values())
    ttls = (value.ttl for value in declared if isinstance(value, State))
    return any(ttl is not None and ttl.time == "event" for ttl in ttls)


def aggregate_schema(
    step: str, aggregates: tuple[Aggregate, ...], schema: pa.Schema, *, of_changelog: bool = False
) -> pa.Schema:
    """The input's columns followed by one column per aggregate, in order.

    ``of_changelog``: as for :func:`aggregate_type`.

    Raises:
        GraphError: no aggregate, an unknown or non-numeric column, or an output name that is taken.
    """
    if not aggregates:
        raise GraphError(f"step {step!r}: give at least one aggregate, such as n=weir.count()")
    fields = list(schema)
    taken = {*schema.names, *SYSTEM_COLUMNS}
    for aggregate in aggregates:
        if aggregate.output in taken:
            raise GraphError(
                f"step {step!r}: output column {aggregate.output!r} exists already; choose another name"
            )
        taken.add(aggregate.output)
        if aggregate.function == "quantile" and not of_changelog:
            raise GraphError(
                f"step {step!r}: {aggregate.output}: a quantile goes only with windows and changelogs: "
                "key_by(...).window(weir.tumbling('1h')).aggregate(...)"
            )
        if aggregate.condition is not None:
            check_predicate(f"{step}: where of {aggregate.output}", aggregate.condition, schema)
        dtype = aggregate_type(step, aggregate.function, aggregate.column, schema, of_changelog=of_changelog)
        fields.append(pa.field(aggregate.output, dtype))
    return pa.schema(fields)
