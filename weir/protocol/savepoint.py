"""Fits a savepoint to the job that is to start from it: other parallelism, added and removed steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir.errors import CheckpointError
from weir.protocol.manifest import Manifest
from weir.protocol.routing import RoutingTable, initial_table


@dataclass(frozen=True)
class StageNow:
    """A stage of the job that is to start."""

    #: Names of its steps, in order.
    steps: Sequence[str]
    parallelism: int
    has_groups: bool


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
    here = {step for stage in stages.values() for step in stage.steps}
    held = {name for part in manifest.parts for name in part.operators} | set(manifest.state_ids)
    dropped = sorted(held - here)
    if dropped and not allow_dropped:
        raise CheckpointError(
            f"the savepoint holds state of steps that the job has not got: {', '.join(dropped)}; give them back their "
            "names, or let their state go with --allow-dropped-state"
        )
    routing = {}
    for index, stage in stages.items():
        if stage.has_groups:
            routing[index] = _table(index, stage.parallelism, manifest)
    return replace(
        manifest,
        fingerprint=fingerprint,
        stages={index: tuple(range(stage.parallelism)) for index, stage in stages.items()},
        routing=routing,
        state_ids={name: number for name, number in manifest.state_ids.items() if name in here},
    )


def _table(stage_index: int, parallelism: int, manifest: Manifest) -> RoutingTable:
    """The savepoint's own table where it fits, so that state stays together; else a new one."""
    table = manifest.routing.get(stage_index)
    if table is not None and table.subtasks == tuple(range(parallelism)):
        return table
    return initial_table(stage_index, parallelism, manifest.max_parallelism)
