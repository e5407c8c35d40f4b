"""What a job makes of a savepoint: used by starts in one process and on several, and by ``weir plan``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weir.plan.change_conditions import check_conditions
from weir.plan.computed_columns import check_computed
from weir.plan.fingerprints import fingerprint_of
from weir.plan.graph import Exchange, LogicalGraph
from weir.plan.input_origins import check_origins
from weir.plan.stages import physical_graph
from weir.plan.state_horizons import fitted_horizons, with_horizons
from weir.plan.step_names import RenamedColumn
from weir.plan.stored_aggregates import fitted_layouts, layouts_of, with_layouts
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.checkpoints.restore_plan import places_now
from weir.protocol.checkpoints.savepoint import StageNow, fit_savepoint, renamed
from weir.specs.event_times import AssignEventTimeSpec


def fitted_to(
    graph: LogicalGraph, manifest: Manifest, *, allow_dropped: bool
) -> tuple[LogicalGraph, Manifest]:
    """Fit a savepoint to the job that is to start from it.

    Args:
        graph: the job as it was written.
        manifest: of the savepoint, or of a checkpoint of another job.
        allow_dropped: what the job has no more may go.

    Returns:
        The job, whose steps keep their aggregates as the savepoint has them and reach back as far, and the
        manifest of the job.

    Raises:
        CheckpointError: they do not fit; the message says what, and the mend.
    """
    manifest = with_names_of(graph, manifest)
    check_origins(graph, manifest)
    check_conditions(graph, manifest)
    check_computed(graph, manifest)
    layouts = {
        step: fitted.layout
        for step, fitted in fitted_layouts(graph, manifest, allow_dropped=allow_dropped).items()
    }
    horizons = fitted_horizons(graph, manifest)
    laid_out = with_horizons(with_layouts(graph, layouts), horizons)
    stages = {
        stage.index: StageNow(
            [node.name for node in stage.nodes],
            stage.parallelism,
            any(edge.exchange is Exchange.HASH for edge in stage.inputs),
            stage.states,
            [node.name for node in stage.nodes if isinstance(node.spec, AssignEventTimeSpec)],
        )
        for stage in physical_graph(laid_out).stages
    }
    fitted = fit_savepoint(
        manifest, fingerprint_of(graph), stages, graph.max_parallelism, allow_dropped=allow_dropped
    )
    # What a start finds out only when task managers restore.
    places_now(fitted, {index: stage.steps for index, stage in stages.items()})
    return laid_out, replace(fitted, layouts=layouts, horizons=horizons)


def with_names_of(graph: LogicalGraph, manifest: Manifest) -> Manifest:
    """The manifest with the names that the job has now for what says how it was called.

    Raises:
        CheckpointError: two steps, or two aggregates of one, say that they were the same one.
    """
    return renamed(
        manifest, graph.renamed, _renamed_states(graph), renamed_keys(graph), _renamed_aggregates(graph)
    )


def renamed_keys(graph: LogicalGraph) -> dict[str, dict[str, str]]:
    """Return by step the names of key columns then by names now, of those that say what they were called."""
    return _renamed_columns({node.name: node.spec.keys_of_input(0) for node in graph.nodes})


def _renamed_aggregates(graph: LogicalGraph) -> dict[str, dict[str, str]]:
    """Return by step the names of aggregates then by names now, of those that say what they were called."""
    return _renamed_columns(
        {step: tuple(each.output for each in layout) for step, layout in layouts_of(graph).items()}
    )


def _renamed_columns(columns: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, str]]:
    found = {
        step: {str(each): each.renamed_from for each in listed if isinstance(each, RenamedColumn)}
        for step, listed in columns.items()
    }
    return {step: names for step, names in found.items() if names}


def _renamed_states(graph: LogicalGraph) -> dict[str, str]:
    """``step/state`` then by ``step/state`` now, of the states that say what they were called."""
    return {
        f"{node.name}/{now}": f"{node.name}/{then}"
        for node in graph.nodes
        for now, then in node.spec.renamed_states.items()
    }
