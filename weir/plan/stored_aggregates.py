"""In which order the steps of a job keep their aggregates: see ``weir.protocol.checkpoints.aggregate_layout``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from weir.errors import CheckpointError
from weir.plan.graph import LogicalGraph, Node
from weir.protocol.checkpoints.aggregate_layout import (
    DROPPED,
    KEPT_ROWS,
    OWN_CELLS,
    FittedLayout,
    Layout,
    StoredAggregate,
    fit_layout,
    named_layout,
)
from weir.protocol.checkpoints.manifest import Manifest
from weir.specs.aggregate_functions import (
    AnyAggregate,
    stored_cells,
    stored_function,
    stored_number,
)
from weir.specs.canonical import canonical_expression
from weir.specs.keyed import Aggregate, KeyedAggregateSpec
from weir.specs.window_parts import WindowPartSpec
from weir.specs.window_process import KeptTextsSpec, WindowProcessSpec, with_kept_rows
from weir.specs.windows import WindowAggregate, WindowAggregateSpec

#: Of an aggregate that was dropped.
_NOTHING: Final = "dropped"


def layouts_of(graph: LogicalGraph) -> dict[str, Layout]:
    """By step: the aggregates of its state, in their order there."""
    by_name = {node.name: node for node in graph.nodes}
    found: dict[str, Layout] = {}
    for node in graph.nodes:
        spec = node.spec
        if isinstance(spec, KeyedAggregateSpec):
            schema = by_name[node.inputs[0].producer].schema_of(node.inputs[0].output)
        elif type(spec) is WindowAggregateSpec:
            schema = spec.input_schema
        elif isinstance(spec, KeptTextsSpec):
            found[node.name] = (KEPT_ROWS,)
            continue
        else:
            continue
        layout = [_stored(each, schema) for each in spec.aggregates]
        if isinstance(spec, WindowAggregateSpec) and spec.own_cells_at is not None:
            layout.insert(spec.own_cells_at, OWN_CELLS)
        found[node.name] = tuple(layout)
    return found


def _stored(aggregate: AnyAggregate, schema: pa.Schema) -> StoredAggregate:
    condition = "" if aggregate.condition is None else canonical_expression(aggregate.condition)
    return StoredAggregate(
        aggregate.output,
        stored_function(aggregate),
        aggregate.column,
        stored_number(schema, aggregate),
        condition,
        stored_cells(schema, aggregate),
    )


def fitted_layouts(
    graph: LogicalGraph, manifest: Manifest, *, allow_dropped: bool
) -> dict[str, FittedLayout]:
    """Fit the aggregates of a job, as it was written, to those of a checkpoint of an earlier one.

    Raises:
        CheckpointError: a step has aggregates that do not fit; the message has both forms.
    """
    found = {}
    for step, now in layouts_of(graph).items():
        stored = manifest.layouts.get(step)
        if stored == (KEPT_ROWS,) or _kept_rows(manifest, step):
            spec = graph.node(step).spec
            if isinstance(spec, WindowAggregateSpec) and spec.of_rows is not None:
                found[step] = FittedLayout((KEPT_ROWS,))
            # Else the step finds out, and says so.
            continue
        if stored is None:
            # Of before names were kept; what does not fit the step finds out, and says so.
            codecs = _codecs(manifest, step)
            stored = named_layout(codecs, now) if codecs else ()
            if stored is None:
                continue
        if not stored:
            continue
        spec = graph.node(step).spec
        fitted = fit_layout(
            step, stored, now, allow_dropped=allow_dropped, has_own_cells=_has_own_cells(spec)
        )
        _check_shared(step, stored, fitted)
        found[step] = fitted
    return found


def _check_shared(step: str, stored: Layout, fitted: FittedLayout) -> None:
    """Aggregates that share entries cannot be joined or left: the bits of an entry go by how many share it."""
    before, after = _sharing(stored), _sharing(fitted.layout)
    for shared, names in before.items():
        if after.get(shared, names) != names:
            then, now = (" and ".join(listed) for listed in (names, after[shared]))
            raise CheckpointError(
                f"step {step!r}: aggregates of one column share their state: that of {shared[0]} over {shared[1]!r} is "
                f"of {then} in the checkpoint, and of {now} in the job; add and take out all that share it together, "
                "or give the step another name if it may begin with empty state"
            )


def _sharing(layout: Layout) -> dict[tuple[str | None, ...], list[str]]:
    """Names of aggregates that share entries, by what they share."""
    found: dict[tuple[str | None, ...], list[str]] = {}
    for each in layout:
        if each.output != DROPPED and each.function.startswith("count_distinct"):
            found.setdefault((each.function, each.column), []).append(each.output)
        elif each.output != DROPPED and each.function.startswith("quantile"):
            found.setdefault((each.function, each.column, each.condition), []).append(each.output)
    return found


def _has_own_cells(spec: object) -> bool:
    """Whether a step has cells besides those of its aggregates."""
    if not isinstance(spec, WindowAggregateSpec):
        return False
    return spec.window.kind in ("session", "global") or spec.updates.keeps_told


def _kept_rows(manifest: Manifest, step: str) -> bool:
    """Whether the step's state has rows of windows."""
    kept = [part.operators.get(step) for part in manifest.parts]
    return any(isinstance(value, dict) and value.get("kind") == WindowProcessSpec.kind for value in kept)


def _codecs(manifest: Manifest, step: str) -> list[list[list[str | None]]]:
    kept = [part.operators.get(step) for part in manifest.parts]
    codecs = [value.get("codec") for value in kept if isinstance(value, dict)]
    return [codec["aggregates"] for codec in codecs if isinstance(codec, dict) and "aggregates" in codec]


def with_layouts(graph: LogicalGraph, layouts: Mapping[str, Layout]) -> LogicalGraph:
    """The same job, whose steps keep their aggregates in the order of their state.

    Args:
        graph: as it was written.
        layouts: by step; steps that are not among them keep them as they are written.
    """
    own = layouts_of(graph)
    changed = {step: layout for step, layout in layouts.items() if step in own and layout != own[step]}
    if not changed:
        return graph
    nodes = {node.name: node for node in graph.nodes}
    for step, layout in changed.items():
        node = nodes[step]
        nodes[step] = _laid_out(node, layout)
        producer = nodes[node.inputs[0].producer]
        if isinstance(producer.spec, WindowPartSpec):
            # Of windows over all keys: its rows are accumulators.
            spec = nodes[step].spec
            assert isinstance(spec, WindowAggregateSpec)
            part = replace(producer.spec, aggregates=spec.aggregates, own_cells_at=spec.own_cells_at)
            nodes[producer.name] = replace(producer, spec=part)
    return replace(
        graph, nodes=tuple(nodes[node.name] for node in graph.nodes), written=graph.written or graph
    )


def _laid_out(node: Node, layout: Layout) -> Node:
    spec = node.spec
    assert isinstance(spec, KeyedAggregateSpec | WindowAggregateSpec)
    if layout == (KEPT_ROWS,):
        assert isinstance(spec, WindowAggregateSpec)
        return replace(node, spec=with_kept_rows(node.name, spec))
    shown = tuple(each.output for each in spec.results)
    if isinstance(spec, KeyedAggregateSpec):
        running = {each.output: each for each in spec.aggregates}
        kept = tuple(
            Aggregate(DROPPED, _NOTHING, parameters=(float(each.cells),))
            if each.output == DROPPED
            else running[each.output]
            for each in layout
        )
        return replace(node, spec=replace(spec, aggregates=kept, shown=shown))
    by_name = {each.output: each for each in spec.aggregates}
    own_cells_at = layout.index(OWN_CELLS) if OWN_CELLS in layout else None
    laid = tuple(
        WindowAggregate(DROPPED, _NOTHING, parameters=(float(each.cells),))
        if each.output == DROPPED
        else by_name[each.output]
        for each in layout
        if each != OWN_CELLS
    )
    return replace(node, spec=replace(spec, aggregates=laid, shown=shown, own_cells_at=own_cells_at))
