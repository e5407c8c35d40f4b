"""What a checkpoint is: one manifest that names everything a job needs to go on. Pure data and its JSON form.

Written by the control plane when every subtask has delivered its part; read by both processes at a recovery.
The layout of the checkpoint store is ``weir.checkpoints.checkpoint_store``'s business. See docs/design/0002.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weir.errors import CheckpointError, StateError
from weir.protocol.checkpoints.aggregate_layout import Layout, layouts_from_json, layouts_to_json
from weir.protocol.checkpoints.horizons import Horizon, horizons_from_json, horizons_to_json
from weir.protocol.job.event_counts import NO_EVENTS, EventCounts
from weir.protocol.routing import RoutingTable
from weir.types import SubtaskId

#: Grows with every change that older code cannot read. 2: files have digests, and so has the manifest.
FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)

#: A value that JSON can hold.
Json = Any


#: Of each input of a step: names of the sources whose rows come there.
Origins = tuple[tuple[str, ...], ...]
#: Of each input of a step: what the changes that come there meet (``weir.plan.change_conditions``).
Conditions = tuple[tuple[str, ...], ...]
#: Of each input of a step: by column what it is computed of (``weir.plan.computed_columns``).
Computed = tuple[Mapping[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file in the checkpoint store; it never changes once it is there."""

    #: Path below the store's root.
    path: str
    size_bytes: int
    #: Of its content (``weir.checkpoints.digests``); "": an older version of Weir wrote none.
    digest: str = ""


@dataclass(frozen=True)
class StoreImage:
    """A state store as it was at one moment: the files from which it can be opened again."""

    #: Unique in the job's life.
    image_id: str
    #: Name in the store's directory -> where the file is.
    files: Mapping[str, FileRef]
    #: The run (``weir.protocol.database_run``) of a database, of which this has only the changes that are not applied;
    #: "": all state is here.
    database: str = ""


@dataclass(frozen=True)
class GroupPlace:
    """Where the state of one key group is."""

    #: Image that holds it; what is in it counts.
    image_id: str
    #: Image with what ``image_id`` has not got yet, for a group that was on its way; "" if there is none. Several,
    #: joined by "+", each with what those before it have not got, if the job was restarted before the group was here.
    base_image_id: str = ""
    #: Keys (hexadecimal) that are in the base but were deleted since.
    tombstones: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubtaskPart:
    """A subtask's part of a checkpoint."""

    subtask: SubtaskId
    #: Where the state of each key group is that the subtask owned; empty in stages without key groups.
    groups: Mapping[int, GroupPlace] = field(default_factory=dict)
    #: The images that ``groups`` names.
    images: tuple[StoreImage, ...] = ()
    #: Rows (Arrow IPC) that were under way to the subtask: they come before everything else after a restart.
    rows: tuple[FileRef, ...] = ()
    #: By name of an operator: what its ``snapshot`` returned. Source positions and sink transactions are here.
    operators: Mapping[str, Json] = field(default_factory=dict)
    #: Bytes that were written to the checkpoint store for this part.
    new_bytes: int = 0
    #: The subtask had reached the end of its input.
    finished: bool = False
    #: In the last part of a subtask that has ended: the last checkpoint whose barrier it passed on; the part counts
    #: for later ones only, because it has more rows in it than those before that barrier.
    passed_checkpoint_id: int = 0
    #: Records that it had taken and sent on in its deployment, at its barrier.
    counts: EventCounts = NO_EVENTS


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint or savepoint."""

    checkpoint_id: int
    job_name: str
    #: Digest of the logical graph that it was made with.
    fingerprint: str
    #: The deployment that made it.
    generation: int
    created_ms: int
    #: Epoch µs at which the job started, schedules of paced sources count from there; 0: it has not started yet.
    job_start_us: int
    max_parallelism: int
    #: Subtask indices of each stage, by stage index.
    stages: Mapping[int, tuple[int, ...]]
    routing: Mapping[int, RoutingTable]
    parts: tuple[SubtaskPart, ...]
    #: By stage index: names of the stage's operators, in order.
    operator_names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    #: The number of each state in the stores' keys: by ``step``, or by ``step/state`` where states are declared.
    state_ids: Mapping[str, int] = field(default_factory=dict)
    #: By step: the aggregates that its state has, in their order there. Older versions wrote none.
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    #: By step: how far back its states reach, of a job that was changed.
    horizons: Mapping[str, tuple[Horizon, ...]] = field(default_factory=dict)
    #: By step with several inputs. Older versions wrote none.
    origins: Mapping[str, Origins] = field(default_factory=dict)
    #: By step that takes a changelog. Older versions wrote none.
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    #: The same, of what makes its rows of those of the changelog: a digest of each such step, and its name.
    makers: Mapping[str, Conditions] = field(default_factory=dict)
    #: By keyed step of a job with texts of SQL. Older versions wrote none.
    computed: Mapping[str, Computed] = field(default_factory=dict)
    is_savepoint: bool = False
    #: What this checkpoint covers, and what the one covered from which its deployment began.
    events: EventCounts = NO_EVENTS
    events_before: EventCounts = NO_EVENTS
    #: By step: rows too late that were counted by subtasks which a rescale ended, and which no part tells of.
    late: Mapping[str, int] = field(default_factory=dict)

    @property
    def paths(self) -> set[str]:
        """Paths of all files that this checkpoint needs: images, and rows that barriers overtook."""
        return {file.path for file in self.files()}

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, each counted once."""
        files = {file.path: file.size_bytes for file in self.files()}
        return sum(files.values())

    def files(self) -> Iterator[FileRef]:
        """Yield all files that this checkpoint needs; one that several parts need comes several times."""
        for part in self.parts:
            yield from part.rows
            for image in part.images:
                yield from image.files.values()


def _file_to_json(file: FileRef) -> Json:
    return [file.path, file.size_bytes, *([file.digest] if file.digest else [])]


def _file_from_json(value: Json) -> FileRef:
    path, size_bytes, *digest = value
    file = FileRef(path, size_bytes, *digest)
    if not (isinstance(path, str) and isinstance(size_bytes, int) and isinstance(file.digest, str)):
        raise TypeError(f"{value!r} is no file")
    return file


def image_to_json(image: StoreImage) -> Json:
    """The image as JSON values."""
    return {
        "id": image.image_id,
        "files": {name: _file_to_json(file) for name, file in image.files.items()},
        **({"database": image.database} if image.database else {}),
    }


def image_from_json(value: Json) -> StoreImage:
    """Read an image.

    Raises:
        CheckpointError: it has another form.
    """
    try:
        files = {name: _file_from_json(file) for name, file in value["files"].items()}
        return StoreImage(value["id"], files, str(value.get("database", "")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"a state image is damaged: {type(error).__name__}: {error}") from error


def part_to_json(part: SubtaskPart) -> Json:
    """The part as JSON values: what a task manager sends when it acknowledges a checkpoint."""
    places: dict[tuple[str, str], list[int]] = {}
    for group, place in sorted(part.groups.items()):
        places.setdefault((place.image_id, place.base_image_id), []).append(group)
    return {
        "stage": part.subtask.stage_index,
        "subtask": part.subtask.subtask_index,
        "groups": [
            {"image": image_id, "base": base_id, "groups": groups}
            for (image_id, base_id), groups in places.items()
        ],
        "tombstones": {
            str(g): list(place.tombstones) for g, place in part.groups.items() if place.tombstones
        },
        "images": [image_to_json(image) for image in part.images],
        "rows": [_file_to_json(file) for file in part.rows],
        "operators": dict(part.operators),
        "new_bytes": part.new_bytes,
        "finished": part.finished,
        "passed": part.passed_checkpoint_id,
        "counts": _counts_to_json(part.counts),
    }


def part_from_json(value: Json) -> SubtaskPart:
    """Read a part.

    Raises:
        CheckpointError: it has another form.
    """
    try:
        tombstones = {int(group): tuple(keys) for group, keys in value["tombstones"].items()}
        groups: dict[int, GroupPlace] = {}
        for item in value["groups"]:
            # One object for all: a part may have thousands of groups, and hardly ever one with tombstones.
            place = GroupPlace(item["image"], item["base"])
            groups.update(dict.fromkeys(item["groups"], place))
        for group, keys in tombstones.items():
            if group in groups:
                groups[group] = replace(groups[group], tombstones=keys)
        images = tuple(image_from_json(item) for item in value["images"])
        return SubtaskPart(
            SubtaskId(value["stage"], value["subtask"]),
            groups,
            images,
            tuple(_file_from_json(file) for file in value["rows"]),
            dict(value["operators"]),
            value["new_bytes"],
            value["finished"],
            value.get("passed", 0),
            _counts_from_json(value.get("counts")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"a part of a checkpoint is damaged: {type(error).__name__}: {error}"
        ) from error


def _counts_to_json(counts: EventCounts) -> Json:
    return [counts.events_in, counts.events_out]


def _counts_from_json(value: Json) -> EventCounts:
    """Older versions wrote none."""
    events_in, events_out = value or (0, 0)
    return EventCounts(int(events_in), int(events_out))


def manifest_to_json(manifest: Manifest) -> Json:
    """The manifest as JSON values."""
    return {
        "format_version": FORMAT_VERSION,
        "checkpoint_id": manifest.checkpoint_id,
        "job_name": manifest.job_name,
        "fingerprint": manifest.fingerprint,
        "generation": manifest.generation,
        "created_ms": manifest.created_ms,
        "job_start_us": manifest.job_start_us,
        "max_parallelism": manifest.max_parallelism,
        "stages": {str(stage): list(indices) for stage, indices in manifest.stages.items()},
        "routing": {str(stage): table.to_dict() for stage, table in manifest.routing.items()},
        "operator_names": {str(stage): list(names) for stage, names in manifest.operator_names.items()},
        "state_ids": dict(manifest.state_ids),
        "layouts": layouts_to_json(manifest.layouts),
        **({"horizons": horizons_to_json(manifest.horizons)} if manifest.horizons else {}),
        **({"origins": dict(manifest.origins)} if manifest.origins else {}),
        **({"conditions": dict(manifest.conditions)} if manifest.conditions else {}),
        **({"makers": dict(manifest.makers)} if manifest.makers else {}),
        **({"computed": dict(manifest.computed)} if manifest.computed else {}),
        "is_savepoint": manifest.is_savepoint,
        "events": _counts_to_json(manifest.events),
        "events_before": _counts_to_json(manifest.events_before),
        **({"late": dict(manifest.late)} if manifest.late else {}),
        "parts": [part_to_json(part) for part in manifest.parts],
    }


def _by_input(value: Json) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {step: tuple(tuple(texts) for texts in inputs) for step, inputs in value.items()}


def manifest_from_json(value: Json) -> Manifest:
    """Read a manifest.

    Raises:
        CheckpointError: it has another form, or a newer version of Weir wrote it.
    """
    try:
        version = value["format_version"]
        if version not in _READ_VERSIONS:
            raise CheckpointError(
                f"the manifest has format version {version}; this version of Weir reads {FORMAT_VERSION}: "
                "use the version of Weir that wrote it"
            )
        return Manifest(
            checkpoint_id=value["checkpoint_id"],
            job_name=value["job_name"],
            fingerprint=value["fingerprint"],
            generation=value["generation"],
            created_ms=value["created_ms"],
            job_start_us=value["job_start_us"],
            max_parallelism=value["max_parallelism"],
            stages={int(stage): tuple(indices) for stage, indices in value["stages"].items()},
            routing={
                # Earlier versions of Weir wrote the stage as the key only.
                int(stage): RoutingTable.from_dict(table, int(stage))
                for stage, table in value["routing"].items()
            },
            parts=tuple(part_from_json(part) for part in value["parts"]),
            operator_names={int(stage): tuple(names) for stage, names in value["operator_names"].items()},
            state_ids=dict(value["state_ids"]),
            layouts=layouts_from_json(value.get("layouts")),
            horizons=horizons_from_json(value.get("horizons")),
            origins=_by_input(value.get("origins", {})),
            conditions=_by_input(value.get("conditions", {})),
            makers=_by_input(value.get("makers", {})),
            computed={
                step: tuple({name: tuple(texts) for name, texts in each.items()} for each in inputs)
                for step, inputs in value.get("computed", {}).items()
            },
            is_savepoint=value["is_savepoint"],
            events=_counts_from_json(value.get("events")),
            events_before=_counts_from_json(value.get("events_before")),
            late={step: int(rows) for step, rows in value.get("late", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, StateError) as error:
        raise CheckpointError(f"the manifest is damaged: {type(error).__name__}: {error}") from error
