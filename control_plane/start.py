"""What a control plane process begins with: a new job, a savepoint, or a job that an earlier process left running."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import replace

from control_plane.job_record import JobRecord
from control_plane.recovery import StartPoint
from control_plane.restore_point import RestorePoint
from weir.checkpoints.store import CheckpointStore, manifest_path
from weir.errors import CheckpointError
from weir.graph import Exchange, LogicalGraph, physical_graph
from weir.protocol.savepoint import StageNow, fit_savepoint

log = logging.getLogger("control_plane")

#: An earlier control plane may have begun so many checkpoints that it did not complete; subtasks remember the numbers.
_ID_STRIDE = 10_000


def new_job_id(graph: LogicalGraph) -> str:
    """Unique over all starts of all jobs."""
    return f"{graph.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start_or_take_over(
    graph: LogicalGraph, uri: str, record: JobRecord | None
) -> tuple[StartPoint, CheckpointStore | None]:
    """Begin a job, or go on with the one that an earlier control plane left running.

    Args:
        graph: the job.
        uri: ``controlPlane.checkpoint_uri``; "": no checkpoints, and nothing can be taken over.
        record: what the earlier control plane saved last, if it did.

    Raises:
        CheckpointError: the checkpoint store cannot be used.
    """
    if record is None or record.is_over or record.fingerprint != graph.fingerprint or not uri:
        if record is not None and not record.is_over:
            log.warning("job %s was left running and is given up: this is another job", record.job_id)
        job_id = new_job_id(graph)
        return StartPoint(job_id), CheckpointStore.open(uri, job_id) if uri else None
    store = CheckpointStore.open(uri, record.job_id)
    manifest = store.latest()
    point = None
    if manifest is not None:
        point = RestorePoint(uri, record.job_id, manifest_path(manifest.checkpoint_id), manifest)
    next_id = _ID_STRIDE + (0 if manifest is None else manifest.checkpoint_id)
    return StartPoint(record.job_id, point, record.generation, next_id, record), store


def start_from_savepoint(
    graph: LogicalGraph, uri: str, path: str, *, allow_dropped: bool
) -> tuple[StartPoint, CheckpointStore]:
    """Bring a savepoint into the job's checkpoint store and fit it to the job.

    Args:
        graph: the job.
        uri: ``controlPlane.checkpoint_uri``.
        path: the savepoint: a directory, or a URI that ``pyarrow.fs`` understands.
        allow_dropped: as ``--allow-dropped-state``.

    Raises:
        CheckpointError: there is no savepoint, it does not fit, or there is no checkpoint store.
    """
    if not uri:
        raise CheckpointError(
            "a job can start from a savepoint only with a checkpoint store: set checkpoint_uri"
        )
    job_id = new_job_id(graph)
    store = CheckpointStore.open(uri, job_id)
    savepoint = CheckpointStore.open_savepoint(path)
    found = savepoint.latest()
    if found is None:
        raise CheckpointError(
            f"there is no savepoint at {savepoint.location}; name the path that POST /savepoint gave"
        )
    stages = {
        stage.index: StageNow(
            [node.name for node in stage.nodes],
            stage.parallelism,
            any(edge.exchange is Exchange.HASH for edge in stage.inputs),
        )
        for stage in physical_graph(graph).stages
    }
    fitted = fit_savepoint(
        found, graph.fingerprint, stages, graph.max_parallelism, allow_dropped=allow_dropped
    )
    imported = replace(store.import_savepoint(savepoint, fitted, 1), job_name=graph.name)
    written = store.write_manifest(imported)
    point = RestorePoint(uri, job_id, written, imported)
    return StartPoint(job_id, point, imported.generation + 1, 2), store
