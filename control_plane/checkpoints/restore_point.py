"""Where a checkpoint is that a job can start from."""

from __future__ import annotations

from dataclasses import dataclass

from weir.protocol.checkpoints.manifest import Manifest


@dataclass(frozen=True)
class RestorePoint:
    """A manifest and where task managers find it and its files."""

    #: ``controlPlane.checkpoint_uri``, and the job's folder below it.
    uri: str
    job_id: str
    #: Path of the manifest below the store's root.
    path: str
    manifest: Manifest
