"""What a control plane process begins with: a new job, a savepoint, or a job that an earlier process left running."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.job.start_point import StartPoint
from control_plane.ports import ManifestStore
from control_plane.record.job_record import JobRecord
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import manifest_path
from weir.config import StateStrategy
from weir.dataflow.loading import LoadedJob
from weir.errors import ConfigError
from weir.plan.fingerprints import difference_of_fingerprint
from weir.plan.graph import LogicalGraph
from weir.plan.savepoint_fit import fitted_to
from weir.protocol.checkpoints.checkpoint_model import ID_STRIDE
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job.job_machine import JobState
from weir.redaction import redacted

log = logging.getLogger("control_plane")

#: The checkpoint store below a URI of the job with an id.
OpenStore = Callable[[str, str], ManifestStore]

#: Date, time and a random number.
_JOB_ID_SUFFIXES = 3


def new_job_id(graph: LogicalGraph) -> str:
    """Unique over all starts of all jobs."""
    # ``_JOB_ID_SUFFIXES`` parts after the name.
    return f"{graph.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start_or_take_over(
    job: LoadedJob,
    uri: str,
    record: JobRecord | None,
    *,
    starts_fresh: bool = False,
    open_store: OpenStore = CheckpointStore.open,
    name_job: Callable[[LogicalGraph], str] = new_job_id,
) -> tuple[StartPoint, ManifestStore | None]:
    """Begin a job, or go on with the one that an earlier control plane left running.

    Args:
        job: the job.
        uri: ``controlPlane.checkpoint_uri``; "": no checkpoints, and nothing can be taken over.
        record: what the earlier control plane saved last, if it did.
        starts_fresh: give up a job that was left running or failed, as ``--start-fresh``.
        open_store: opens the store of a job below a URI.
        name_job: makes the id of a new job.

    Raises:
        ConfigError: a job was left running that is not this one, or has other parameters.
        CheckpointError: the checkpoint store cannot be used.
    """
    graph = job.graph
    failed = None if record is None or starts_fresh else _after_failure(job, uri, record, open_store)
    if failed is not None:
        return failed
    if record is None or record.is_over or starts_fresh or not uri:
        give_up_left(record, "--start-fresh" if starts_fresh else "without checkpoints it cannot go on")
        job_id = name_job(graph)
        return StartPoint(job_id), open_store(uri, job_id) if uri else None
    return _take_over(job, uri, record, open_store)


def continue_left(
    job: LoadedJob, uri: str, record: JobRecord, open_store: OpenStore = CheckpointStore.open
) -> tuple[StartPoint, ManifestStore] | JobState:
    """Go on in the place of a control plane that has just died; unlike :func:`start_or_take_over`, never begin anew.

    Returns:
        What the job goes on with; or how it has ended, where that is on record.

    Raises:
        ConfigError: the job cannot go on without checkpoints, or its code has changed.
        CheckpointError: the checkpoint store cannot be used.
    """
    if record.is_over:
        return record.ended_as or (JobState.FAILED if record.has_failed else JobState.FINISHED)
    if not uri:
        raise ConfigError(
            f"job {record.job_id} cannot go on: it makes no checkpoints; set controlPlane.checkpoint_uri"
        )
    return _take_over(job, uri, record, open_store)


def _take_over(
    job: LoadedJob, uri: str, record: JobRecord, open_store: OpenStore
) -> tuple[StartPoint, ManifestStore]:
    store = open_store(uri, record.job_id)
    difference = difference_to_left(record, job.graph, job.parameters)
    if difference:
        raise ConfigError(
            f"job {record.job_id} was left running, but {difference}; start it as it was, or go on from its state "
            f"with --from-checkpoint {store.location} (or --from-savepoint PATH), or give it up with --start-fresh"
        )
    manifest = _manifest_that_counts(store, record)
    point = None
    if manifest is not None:
        point = RestorePoint(uri, record.job_id, manifest_path(manifest.checkpoint_id), manifest)
    return StartPoint(record.job_id, point, record.generation, _next_id(store, record), record), store


def _manifest_that_counts(store: ManifestStore, record: JobRecord) -> Manifest | None:
    """The checkpoint from which the job goes on.

    Where several control planes take turns, one that did not lead any more may have written another manifest, which
    nobody was told of: the record names the one that counts.
    """
    if record.checkpoint_id is None:
        return store.latest()
    if record.checkpoint_id == 0:
        return None
    return store.read_manifest(manifest_path(record.checkpoint_id))


def _next_id(store: ManifestStore, record: JobRecord) -> int:
    """A number for the next checkpoint that no earlier control plane can have used, complete or not."""
    return ID_STRIDE + max(record.first_checkpoint_id, store.newest_id())


def give_up_left(record: JobRecord | None, reason: str) -> None:
    """Tell in the log that a job which was left running does not go on."""
    if record is not None and not record.is_over:
        log.warning("job %s was left running and is given up: %s", record.job_id, reason)


def difference_to_left(record: JobRecord, graph: LogicalGraph, parameters: Mapping[str, object]) -> str:
    """What a job has that differs from the job that was left running, in words; empty if it is the same."""
    left_name = record.job_id.rsplit("-", _JOB_ID_SUFFIXES)[0]
    if left_name != graph.name:
        return f"this is another job ({graph.name})"
    before = record.parameters
    if before is not None and before != parameters:
        names = [*parameters, *(name for name in before if name not in parameters)]
        told = [
            f"{name} was {_told(before, name)} and is {_told(parameters, name)}"
            for name in names
            if (name in before, before.get(name)) != (name in parameters, parameters.get(name))
        ]
        return f"its parameters differ: {', '.join(told)}"
    known = "its code" if before is not None else "its code or a parameter"
    return difference_of_fingerprint(record.fingerprint, graph, f"{known} has changed")


def _told(parameters: Mapping[str, object], name: str) -> str:
    return repr(redacted(parameters)[name]) if name in parameters else "absent"


def _after_failure(
    job: LoadedJob, uri: str, record: JobRecord, open_store: OpenStore
) -> tuple[StartPoint, ManifestStore] | None:
    """Go on with a job that failed, from its latest checkpoint: sinks deliver what they had not.

    None: it did not fail, or has no checkpoint, or another job is started now; the log says so.
    """
    if not record.has_failed or not uri:
        return None
    store = open_store(uri, record.job_id)
    manifest = _manifest_that_counts(store, record)
    if manifest is None:
        return None
    difference = difference_to_left(record, job.graph, job.parameters)
    if difference:
        log.warning(
            "job %s failed and does not go on: %s; its checkpoints stay in %s (--from-checkpoint)",
            record.job_id,
            difference,
            store.location,
        )
        return None
    log.warning(
        "job %s failed and goes on from its checkpoint %d; to begin anew, use --start-fresh",
        record.job_id,
        manifest.checkpoint_id,
    )
    point = RestorePoint(uri, record.job_id, manifest_path(manifest.checkpoint_id), manifest)
    return StartPoint(record.job_id, point, record.generation + 1, _next_id(store, record)), store


def start_from_savepoint(
    graph: LogicalGraph, uri: str, path: str, *, allow_dropped: bool
) -> tuple[StartPoint, CheckpointStore]:
    """Bring a savepoint, or a checkpoint of another job, into the job's checkpoint store and fit it to the job.

    Args:
        graph: the job.
        uri: ``controlPlane.checkpoint_uri``.
        path: the savepoint, or a job's folder in a checkpoint store, or the manifest of one of its checkpoints: a path,
            or a URI that ``pyarrow.fs`` understands.
        allow_dropped: as ``--allow-dropped-state``.

    Raises:
        ConfigError: there is no savepoint or checkpoint there, or no checkpoint store is set.
        CheckpointError: it cannot be read, or does not fit.
    """
    if not uri:
        raise ConfigError(
            "a job can start from a savepoint or checkpoint only with a checkpoint store: set checkpoint_uri"
        )
    job_id = new_job_id(graph)
    store = CheckpointStore.open(uri, job_id)
    savepoint, manifest = CheckpointStore.open_checkpoint(path)
    found = savepoint.latest() if manifest is None else savepoint.read_manifest(manifest)
    if found is None:
        raise ConfigError(
            f"there is no savepoint or checkpoint at {savepoint.location}; name the path of POST /savepoint, or a "
            "job's folder in the checkpoint store"
        )
    log.info("the job starts from checkpoint %d at %s", found.checkpoint_id, savepoint.location)
    _, fitted = fitted_to(graph, found, allow_dropped=allow_dropped)
    # Without a start: that of the job is yet to come.
    imported = replace(store.import_savepoint(savepoint, fitted, 1), job_name=graph.name, job_start_us=0)
    written = store.write_manifest(imported)
    point = RestorePoint(uri, job_id, written, imported)
    return StartPoint(job_id, point, imported.generation + 1, 2, events_at_start=imported.events), store


def strategy_in_force(left: JobRecord | None, configured: StateStrategy) -> StateStrategy:
    """What becomes of state in rescales: a job that is taken over keeps what its task managers were told.

    Until it starts again; ``configured`` counts then, and for every other job.
    """
    if left is None or left.strategy is None:
        return configured
    if left.strategy != configured:
        log.warning(
            "job %s goes on with %s, as it was deployed; %s, as configured here, counts from its next restart on",
            left.job_id,
            left.strategy,
            configured,
        )
    return left.strategy
