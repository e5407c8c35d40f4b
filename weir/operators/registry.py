"""The way from a spec to its runtime logic.

Modules are loaded by name when they are needed, so that a subtask without keyed state loads neither compiled
kernels nor a store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weir.author.operator import Operator, SourceReader
from weir.errors import GraphError
from weir.specs import OperatorSpec, SourceSpec

if TYPE_CHECKING:
    from weir.keys.division import HotRowCombiner
    from weir.plan.graph import PhysicalGraph


def create_operator(spec: OperatorSpec) -> Operator:
    """The runtime logic of any step but a source; called by a subtask for each of its steps.

    Raises:
        GraphError: there is no runtime for this spec.
    """
    operator = _create(spec)
    assert isinstance(operator, Operator)
    return operator


def create_reader(spec: SourceSpec) -> SourceReader:
    """The reader of a source; called by a subtask of a source stage.

    Raises:
        GraphError: there is no reader for this spec.
    """
    reader = _create(spec)
    assert isinstance(reader, SourceReader)
    return reader


def create_combiner(spec: OperatorSpec) -> HotRowCombiner:
    """Return what adds up rows of hot keys before they are sent to a step; called by a subtask that sends them."""
    made: HotRowCombiner = loaded(spec.combiner)(spec)
    return made


def preload_operators(graph: PhysicalGraph) -> None:
    """Load the modules of every step of a job, so that a subtask that is added later starts at once."""
    for stage in graph.stages:
        for node in stage.nodes:
            if not node.is_source:
                _load(node.spec)


def runtimes_of(graph: PhysicalGraph) -> list[str]:
    """Return what runs the steps of a job, as ``module:name``."""
    return [node.spec.runtime for stage in graph.stages for node in stage.nodes]


def _create(spec: OperatorSpec) -> Any:
    return _load(spec)(spec)


def _load(spec: OperatorSpec) -> Any:
    if not spec.runtime:
        raise GraphError(f"{type(spec).__name__} names no class in `runtime` that would run it")
    return loaded(spec.runtime)


def loaded(place: str) -> Any:
    """Return what a spec names as ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
