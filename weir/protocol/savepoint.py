"""Fits a savepoint to the job that is to start from it: other parallelism, added and removed steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir.errors import CheckpointError
from weir.protocol.input_times import is_times_key
from weir.protocol.manifest import Manifest
from weir.protocol.routing import RoutingTable, initial_table


@dataclass(frozen=True)
class StageNow:
    """A stage of the job that is to start."""

    #: Names of its steps, in order.
    steps: Sequence[str]
    parallelism: int
    has_groups: bool
    #: What the states of its steps are called in the job: ``step``, or ``step/state``.
    states: Sequence[str]


def fit_savepoint(
    manifest: Manifest,
    fingerprint: str,
    stages: Mapping[int, StageNow],
    max_parallelism: int,
    *,
    allow_dropped: bool = False,
) -> Manifest:
    """The manifest with the subtasks and routing tables of the job now; its parts stay as they are.

    Steps are matched by name. ``operator_names`` go on to say which steps the parts' stages had.

    Args:
        manifest: of the savepoint.
        fingerprint: of the job now.
        stages: of the job now, by index.
        max_parallelism: of the job now.
        allow_dropped: steps of the savepoint that the job has not got any more lose what they held.

    Raises:
        CheckpointError: another number of key groups; steps with state are gone and that is not allowed.
    """
    if max_parallelism != manifest.max_parallelism:
        raise CheckpointError(
            f"the savepoint has {manifest.max_parallelism} key groups, the job has {max_parallelism}: set "
            f"controlPlane.max_parallelism to {manifest.max_parallelism}"
        )
    _check_dropped(manifest, stages, allow_dropped=allow_dropped)
    routing = {}
    for index, stage in stages.items():
        if stage.has_groups:
            routing[index] = _table(index, stage.parallelism, manifest)
    return replace(
        manifest,
        fingerprint=fingerprint,
        stages={index: tuple(range(stage.parallelism)) for index, stage in stages.items()},
        routing=routing,
    )


def _check_dropped(manifest: Manifest, stages: Mapping[int, StageNow], *, allow_dropped: bool) -> None:
    steps = {step for stage in stages.values() for step in stage.steps}
    states = {state for stage in stages.values() for state in stage.states}
    held = {name for part in manifest.parts for name in part.operators if not is_times_key(name)}
    gone = {name for name in held if name not in steps} | {
        name for name in manifest.state_ids if name not in states and name.partition("/")[0] not in steps
    }
    if gone and not allow_dropped:
        raise CheckpointError(
            "the savepoint holds state of steps that the job has not got: "
            f"{', '.join(sorted({name.partition('/')[0] for name in gone}))}; give them back their names, or let their "
            "state go with --allow-dropped-state"
        )
    dropped = sorted(set(manifest.state_ids) - states)
    if dropped and not allow_dropped:
        named = [name if "/" in name else f"{name} (without a name)" for name in dropped]
        raise CheckpointError(
            f"the savepoint holds states that the job's steps do not declare: {', '.join(named)}; declare them again "
            "under these names, or let them go with --allow-dropped-state"
        )


def _table(stage_index: int, parallelism: int, manifest: Manifest) -> RoutingTable:
    """The savepoint's own table where it fits, so that state stays together; else a new one."""
    table = manifest.routing.get(stage_index)
    if table is not None and table.subtasks == tuple(range(parallelism)):
        return table
    return initial_table(stage_index, parallelism, manifest.max_parallelism)
