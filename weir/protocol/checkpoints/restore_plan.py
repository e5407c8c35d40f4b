"""From which images a task manager takes the state of the key groups that it gets at a restart. Pure.

Steps are matched by name, so that a job that was changed finds the state of the steps that it kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import FileRef, GroupPlace, Json, Manifest, StoreImage
from weir.protocol.routing import RoutingTable
from weir.types import SubtaskId


@dataclass(frozen=True)
class RestorePlan:
    """What one task manager restores."""

    #: The image that is opened as the store here; None: the store begins empty.
    main: StoreImage | None = None
    #: Where the state of each group is that the subtasks here own, by stage now and key group.
    places: Mapping[tuple[int, int], GroupPlace] = field(default_factory=dict)
    #: All images of the manifest, by id.
    images: Mapping[str, StoreImage] = field(default_factory=dict)
    #: By name of a step: what its subtasks told it, by their index then; retired ones have negative numbers.
    operators: Mapping[str, Mapping[int, Json]] = field(default_factory=dict)
    #: Rows that were under way to a stage's subtasks, by stage now.
    rows: Mapping[int, tuple[FileRef, ...]] = field(default_factory=dict)


def restore_plan(
    manifest: Manifest,
    stages: Mapping[int, Sequence[str]],
    routing: Mapping[int, RoutingTable],
    here: Iterable[SubtaskId],
) -> RestorePlan:
    """What the task manager restores that runs the subtasks ``here``.

    Args:
        manifest: the checkpoint to start from.
        stages: names of the steps of each stage now.
        routing: of each stage now that has key groups.
        here: the subtasks that run here.

    Raises:
        CheckpointError: the number of key groups is another one.
    """
    for table in routing.values():
        if len(table.groups) != manifest.max_parallelism:
            raise CheckpointError(
                f"checkpoint {manifest.checkpoint_id} has {manifest.max_parallelism} key groups, the job now has "
                f"{len(table.groups)}: set controlPlane.max_parallelism to {manifest.max_parallelism}"
            )
    stage_now = _stages_now(manifest, stages)
    images = {image.image_id: image for part in manifest.parts for image in part.images}
    subtasks = set(here)
    mine = {
        (stage, group)
        for stage, table in routing.items()
        for group, owner in enumerate(table.groups)
        if SubtaskId(stage, owner) in subtasks
    }
    places: dict[tuple[int, int], GroupPlace] = {}
    operators: dict[str, dict[int, Json]] = {}
    rows: dict[int, list[FileRef]] = {}
    # A subtask that had ended may have had the index of one that had not, which keeps it.
    for part in sorted(manifest.parts, key=lambda part: part.finished):
        now = stage_now.get(part.subtask.stage_index)
        for name, value in part.operators.items():
            given = operators.setdefault(name, {})
            index = part.subtask.subtask_index
            given[-1 - len(given) if index in given else index] = value
        if now is None:
            continue
        rows.setdefault(now, []).extend(part.rows)
        for group, place in part.groups.items():
            if (now, group) in mine:
                places[now, group] = place
    counts = Counter(place.image_id for place in places.values())
    main = images[min(counts, key=lambda image_id: (-counts[image_id], image_id))] if counts else None
    return RestorePlan(
        main, places, images, operators, {stage: tuple(files) for stage, files in rows.items() if files}
    )


def _stages_now(manifest: Manifest, stages: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """Stage index then -> the stage now that has most of its steps."""
    found = {}
    for then, names in manifest.operator_names.items():
        shared = {stage: len(set(names) & set(now)) for stage, now in stages.items()}
        best = max(shared, key=lambda stage: (shared[stage], -stage), default=None)
        if best is not None and shared[best]:
            found[then] = best
    return found
