"""What the filters of a job demand that every row of a source comes to: the source may pass over what cannot meet it.

Filters stay steps of the job. Pure; see ``weir.plan.rules.projection``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from weir.specs import (
    BusySpec,
    DeduplicateSpec,
    FilterSpec,
    JoinSpec,
    KeyedAggregateSpec,
    OperatorSpec,
    PassThroughSpec,
    SelectSpec,
    TopSpec,
    UnionSpec,
    WithColumnsSpec,
)
from weir.specs.columns import ExplodeSpec, RenameSpec
from weir.specs.conditions import Condition, condition_of, renamed
from weir.specs.joins import AsOfJoinSpec
from weir.specs.lookups import LookupSpec
from weir.specs.window_parts import WindowPartSpec
from weir.specs.windows import WindowAggregateSpec

if TYPE_CHECKING:
    from weir.plan.graph import Node

#: By column of a source, what its values are called now.
_Names: TypeAlias = Mapping[str, frozenset[str]]
#: Steps that look at one row at a time.
_BY_ROW = (
    BusySpec,
    ExplodeSpec,
    FilterSpec,
    LookupSpec,
    PassThroughSpec,
    RenameSpec,
    SelectSpec,
    UnionSpec,
    WithColumnsSpec,
)
#: Steps that make of the rows of a key what those of other keys have no part in.
_BY_KEY = (DeduplicateSpec, KeyedAggregateSpec, TopSpec, WindowAggregateSpec, WindowPartSpec)


def conditions(source: Node, nodes: Sequence[Node], whole: Collection[str]) -> list[Condition]:
    """What the filters demand that every row of a source comes to, about its own columns.

    Args:
        source: the step.
        nodes: of the job, in topological order.
        whole: steps whose whole output is looked at from outside.
    """
    found: list[Condition] = []
    names: _Names = {name: frozenset([name]) for name in source.schema.names}
    at = source
    while at.name not in whole and any(names.values()):
        reads = [
            (node, position)
            for node in nodes
            for position, item in enumerate(node.inputs)
            if item.producer == at.name
        ]
        if len(reads) != 1:
            break
        [(node, position)] = reads
        if node.inputs[position].output:
            break
        if isinstance(node.spec, FilterSpec):
            condition = condition_of(node.spec.predicate, at.schema)
            own = {now: name for name, called in names.items() for now in called}
            kept = None if condition is None else renamed(condition, own)
            found += [] if kept is None else [kept]
        names = {
            name: carried(node.spec, position, called, at.schema) if called else called
            for name, called in names.items()
        }
        at = node
    return found


def carried(spec: OperatorSpec, position: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
    """What these columns of an input are called after a step, if a filter there may drop the input's rows by them.

    That is so if a row that leaves is made only of rows of the input that have its values.
    """
    if isinstance(spec, UnionSpec):
        return names
    if isinstance(spec, _BY_ROW):
        return spec.passed_on(names, schema)
    if type(spec) in _BY_KEY and isinstance(spec, _BY_KEY):
        return spec.passed_on(names.intersection(spec.key_columns), schema)
    if type(spec) in (JoinSpec, AsOfJoinSpec) and isinstance(spec, JoinSpec):
        return _after_join(spec, position, names)
    return frozenset()


def _after_join(spec: JoinSpec, position: int, names: frozenset[str]) -> frozenset[str]:
    """Keys of both sides; other columns of a side whose rows leave alone or in pairs, never to fill a gap."""
    keys = zip(spec.keys_of_input(position), spec.key_columns, strict=True)
    found = {output for name, output in keys if name in names}
    is_free = spec.how in (
        ("inner", "left", "semi", "anti") if position == 0 else ("inner", "right")
    ) and not (position and isinstance(spec, AsOfJoinSpec))
    if is_free:
        found |= {output for name, output in spec.columns_of_input(position) if name in names}
    return frozenset(found)
