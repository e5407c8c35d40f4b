"""The images from which a task manager takes the state of key groups that it gets at a restart. Pure.

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
    #: Rows that were under way to a stage's subtasks, and that waited for its steps, by stage now.
    rows: Mapping[int, tuple[FileRef, ...]] = field(default_factory=dict)
    #: Files of which a stage takes only the rows that waited for its steps: another one begins where theirs did.
    waiting: Mapping[int, tuple[FileRef, ...]] = field(default_factory=dict)


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
    homes = _stages_now(manifest, stages)
    images = {image.image_id: image for part in manifest.parts for image in part.images}
    subtasks = set(here)
    mine = {
        (stage, group)
        for stage, table in routing.items()
        for group, owner in enumerate(table.groups)
        if SubtaskId(stage, owner) in subtasks
    }
    places = {each: place for each, place in places_now(manifest, stages).items() if each in mine}
    operators: dict[str, dict[int, Json]] = {}
    rows: dict[int, list[FileRef]] = {}
    waiting: dict[int, list[FileRef]] = {}
    # A subtask that had ended may have had the index of one that had not, which keeps it.
    for part in sorted(manifest.parts, key=lambda part: part.finished):
        for name, value in part.operators.items():
            given = operators.setdefault(name, {})
            index = part.subtask.subtask_index
            given[-1 - len(given) if index in given else index] = value
        for position, now in enumerate(homes.get(part.subtask.stage_index, ())):
            (waiting if position else rows).setdefault(now, []).extend(part.rows)
    counts = Counter(place.image_id for place in places.values())
    main = images[min(counts, key=lambda image_id: (-counts[image_id], image_id))] if counts else None
    return RestorePlan(
        main,
        places,
        images,
        operators,
        {stage: tuple(files) for stage, files in rows.items() if files},
        {stage: tuple(files) for stage, files in waiting.items() if files},
    )


def images_of(manifest: Manifest, subtasks: Iterable[SubtaskId]) -> dict[str, StoreImage]:
    """The images, by id, with the state of subtasks as they were at a checkpoint; a standby of theirs keeps these."""
    wanted = set(subtasks)
    images = {image.image_id: image for part in manifest.parts for image in part.images}
    named = {
        image_id
        for part in manifest.parts
        if part.subtask in wanted
        for place in set(part.groups.values())
        for image_id in (place.image_id, *place.base_image_id.split("+"))
    }
    return {image_id: image for image_id, image in images.items() if image_id in named}


def places_now(manifest: Manifest, stages: Mapping[int, Sequence[str]]) -> dict[tuple[int, int], GroupPlace]:
    """Where the state of each key group is, by stage now and key group; a start asks before anything is touched.

    Args:
        manifest: the checkpoint to start from.
        stages: names of the steps of each stage now.

    Raises:
        CheckpointError: a stage has steps of several stages then, whose state of one key group is in several stores.
    """
    steps = {name for names in manifest.operator_names.values() for name in names}
    # Where no numbers of states are known, any step may have some.
    stateful = {name.partition("/")[0] for name in manifest.state_ids} or steps
    by_then: dict[int, dict[int, GroupPlace]] = {}
    # A subtask that had ended may have had the index of one that had not, which keeps it.
    for part in sorted(manifest.parts, key=lambda part: part.finished):
        by_then.setdefault(part.subtask.stage_index, {}).update(part.groups)
    found: dict[tuple[int, int], GroupPlace] = {}
    sources: dict[int, list[int]] = {}
    for then, homes in _stages_now(manifest, stages).items():
        for now in homes:
            if by_then.get(then) and stateful & set(manifest.operator_names[then]) & set(stages[now]):
                sources.setdefault(now, []).append(then)
    for now, thens in sources.items():
        for then in thens:
            for group, place in by_then[then].items():
                if found.setdefault((now, group), place) != place:
                    names = [
                        next(each for each in manifest.operator_names[stage] if each in stateful)
                        for stage in (thens[0], then)
                    ]
                    raise CheckpointError(
                        f"steps {names[0]!r} and {names[1]!r} run in one subtask now; in checkpoint "
                        f"{manifest.checkpoint_id} they did not, and the state of key group {group} is on two task "
                        f"managers: give {names[1]!r} the parallelism that it had"
                    )
    return found


def _stages_now(manifest: Manifest, stages: Mapping[int, Sequence[str]]) -> dict[int, tuple[int, ...]]:
    """Stage index then -> the stages now that have some of its steps, the one with the earliest of these first."""
    found = {}
    for then, names in manifest.operator_names.items():
        first = {
            stage: min(names.index(each) for each in now if each in names)
            for stage, now in stages.items()
            if set(names) & set(now)
        }
        if first:
            found[then] = tuple(sorted(first, key=lambda stage: (first[stage], stage)))
    return found
