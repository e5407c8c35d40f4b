"""The order in which steps of a job keep aggregates: see ``weir.protocol.checkpoints.aggregate_layout``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weir.errors import CheckpointError
from weir.plan.graph import LogicalGraph
from weir.protocol.checkpoints.aggregate_layout import (
    DROPPED,
    KEPT_ROWS,
    FittedLayout,
    Layout,
    fit_layout,
    named_layout,
)
from weir.protocol.checkpoints.manifest import Manifest
from weir.specs.window_parts import WindowPartSpec
from weir.specs.window_process import WindowProcessSpec, with_kept_rows
from weir.specs.windows import WindowAggregateSpec


def layouts_of(graph: LogicalGraph) -> dict[str, Layout]:
    """Return by step the aggregates of its state, in their order there."""
    by_name = {node.name: node for node in graph.nodes}
    found = {
        node.name: node.spec.stored_layout(by_name[item.producer].schema_of(item.output))
        for node in graph.nodes
        for item in node.inputs[:1]
    }
    return {step: layout for step, layout in found.items() if layout}


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
        has_own = graph.node(step).spec.has_own_cells
        fitted = fit_layout(step, stored, now, allow_dropped=allow_dropped, has_own_cells=has_own)
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


def _kept_rows(manifest: Manifest, step: str) -> bool:
    """Return whether the step's state has rows of windows."""
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
        keeps_rows = layout == (KEPT_ROWS,)
        laid_out = with_kept_rows(step, node.spec) if keeps_rows else node.spec.laid_out(layout)
        nodes[step] = replace(node, spec=laid_out)
        part = nodes[node.inputs[0].producer]
        if isinstance(part.spec, WindowPartSpec) and isinstance(laid_out, WindowAggregateSpec):
            # Of windows over all keys: its rows are accumulators.
            given = replace(part.spec, aggregates=laid_out.aggregates, own_cells_at=laid_out.own_cells_at)
            nodes[part.name] = replace(part, spec=given)
    return replace(
        graph, nodes=tuple(nodes[node.name] for node in graph.nodes), written=graph.written or graph
    )
