"""From a spec to its runtime logic.

Modules are loaded by name when they are needed, so that a subtask without keyed state loads neither compiled
kernels nor a store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weir.errors import GraphError
from weir.operators.base import Operator, SourceReader
from weir.specs import (
    BlackholeSpec,
    BusySpec,
    FilterSpec,
    FlatMapSpec,
    JsonLinesSinkSpec,
    JsonLinesSpec,
    KeyedAggregateSpec,
    KeyedProcessSpec,
    LatencySinkSpec,
    MapBatchesSpec,
    MapSpec,
    OperatorSpec,
    ParquetSinkSpec,
    ParquetSpec,
    PassThroughSpec,
    PrintSpec,
    SourceSpec,
    UnionSpec,
    UserOperatorSpec,
    UserSinkSpec,
    UserSourceSpec,
    WithColumnsSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir.graph import PhysicalGraph

#: Spec class -> "module:class" of the reader; its constructor takes the spec.
READERS: Mapping[type[SourceSpec], str] = {
    JsonLinesSpec: "weir.operators.sources.json_lines:JsonLinesReader",
    UserSourceSpec: "weir.operators.sources.user_source:create_user_reader",
    ParquetSpec: "weir.operators.sources.parquet:ParquetReader",
}

#: Spec class -> "module:class" of the operator; called with the spec, it makes one.
OPERATORS: Mapping[type[OperatorSpec], str] = {
    FilterSpec: "weir.operators.stateless.expressions:FilterOperator",
    WithColumnsSpec: "weir.operators.stateless.expressions:WithColumnsOperator",
    MapBatchesSpec: "weir.operators.stateless.functions:MapBatchesOperator",
    MapSpec: "weir.operators.stateless.functions:MapOperator",
    FlatMapSpec: "weir.operators.stateless.functions:FlatMapOperator",
    UnionSpec: "weir.operators.stateless.expressions:PassThroughOperator",
    PassThroughSpec: "weir.operators.stateless.expressions:PassThroughOperator",
    BusySpec: "weir.operators.stateless.busy:BusyOperator",
    KeyedAggregateSpec: "weir.operators.keyed.running_aggregates:KeyedAggregateOperator",
    KeyedProcessSpec: "weir.operators.keyed.keyed_process:KeyedProcessOperator",
    UserOperatorSpec: "weir.operators.user_operator:create_user_operator",
    BlackholeSpec: "weir.operators.sinks.trial_sinks:BlackholeSink",
    PrintSpec: "weir.operators.sinks.trial_sinks:PrintSink",
    JsonLinesSinkSpec: "weir.operators.sinks.json_lines_sink:JsonLinesSink",
    ParquetSinkSpec: "weir.operators.sinks.parquet_sink:ParquetSink",
    UserSinkSpec: "weir.operators.sinks.two_phase:create_user_sink",
    LatencySinkSpec: "weir.operators.sinks.latency_sink:LatencySink",
}


def create_operator(spec: OperatorSpec) -> Operator:
    """The runtime logic of any step but a source; called by a subtask for each of its steps.

    Raises:
        GraphError: there is no runtime for this spec.
    """
    operator = _create(OPERATORS.get(type(spec)), spec)
    assert isinstance(operator, Operator)
    return operator


def create_reader(spec: SourceSpec) -> SourceReader:
    """The reader of a source; called by a subtask of a source stage.

    Raises:
        GraphError: there is no reader for this spec.
    """
    reader = _create(READERS.get(type(spec)) or spec.reader or None, spec)
    assert isinstance(reader, SourceReader)
    return reader


def preload_operators(graph: PhysicalGraph) -> None:
    """Load the modules of every step of a job, so that a subtask that is added later starts at once."""
    for stage in graph.stages:
        for node in stage.nodes:
            if not node.is_source:
                _load(OPERATORS.get(type(node.spec)), node.spec)


def _create(location: str | None, spec: OperatorSpec) -> Any:
    return _load(location, spec)(spec)


def _load(location: str | None, spec: OperatorSpec) -> Any:
    if location is None:
        raise GraphError(f"{type(spec).__name__} has no runtime in weir.operators.registry; add one there")
    module, _, name = location.partition(":")
    return getattr(importlib.import_module(module), name)
