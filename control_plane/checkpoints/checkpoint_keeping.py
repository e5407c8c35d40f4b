"""Completes checkpoints in the store, and knows the one that a restart begins with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.job.running_job import RunningJob
from control_plane.ports import NOT_ON_RECORD, Background, ManifestStore, Record
from weir.config import ControlPlaneConfig
from weir.errors import SupersededError, WeirError
from weir.protocol.checkpoints import checkpoint_model as model
from weir.protocol.checkpoints.manifest import Manifest
from weir.redaction import redacted_text
from weir.rpc import control_pb2

log = logging.getLogger("control_plane")


class ConfirmedRecord(Record, Protocol):
    """The record from which another control plane takes over; it also says which checkpoint counts."""

    async def confirm(self) -> bool:
        """Write down which checkpoint counts; False: that is not certain. Does not return if another one leads."""


class CheckpointKeeping:
    """The keeping of a job's checkpoints, for its ``Checkpointer``; all methods are called in the event loop.

    Args:
        job: the job.
        config: section ``controlPlane``.
        background: writes to the store.
        store: where manifests go; None: there are no checkpoints.
        latest: what the first deployment begins with.
        record: of the job; it says which checkpoint counts.
        superseded: called when another control plane has committed a checkpoint of the job.
    """

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        background: Background,
        store: ManifestStore | None,
        latest: RestorePoint | None,
        record: ConfirmedRecord,
        superseded: Callable[[], None],
    ) -> None:
        self._job = job
        self._config = config
        self._background = background
        self._store = store
        self._record = record
        self._superseded = superseded
        #: What a restart begins with.
        self.latest = latest

    @property
    def is_enabled(self) -> bool:
        """Return whether there is a checkpoint store."""
        return self._store is not None

    @property
    def latest_place(self) -> str:
        """Path or URI of the latest checkpoint's manifest; empty: there is none."""
        if self.latest is None:
            return ""
        uri, mark, options = self.latest.uri.partition("?")
        return redacted_text(f"{uri.rstrip('/')}/{self.latest.job_id}/{self.latest.path}{mark}{options}")

    def restore_point(self) -> control_pb2.Restore | None:
        """What a deployment now begins with."""
        if self.latest is None:
            return None
        return control_pb2.Restore(
            checkpoint_uri=self.latest.uri, job_id=self.latest.job_id, manifest_path=self.latest.path
        )

    async def complete(self, action: model.Commit, manifest: Manifest) -> str | None:
        """Write the manifest of a checkpoint, and a savepoint's copy of everything; it is the latest from then on.

        Returns:
            Why it could not be done; empty: it is complete; None: another control plane has the job.
        """
        assert self._store is not None
        # As for a trigger; the last checkpoint has none.
        if not self._record.has_begun and not await self._record.saved():
            return NOT_ON_RECORD
        try:
            if action.path:
                await self._background.in_thread(partial(self._store.copy_savepoint, manifest, action.path))
            # A savepoint is a checkpoint too: sinks deliver what belongs to it.
            kept = replace(manifest, is_savepoint=False)
            path = await self._background.in_thread(partial(self._store.write_manifest, kept))
        except SupersededError as error:
            # Whatever this process decides from now on, the job is the other one's.
            self._superseded()
            log.error("%s", error)
            return None
        except WeirError as error:
            return str(error)
        before = self.latest
        self.latest = RestorePoint(self._config.checkpoint_uri, self._job.identity.job_id, path, manifest)
        # Only then sinks may deliver: a control plane that takes over must begin with this checkpoint.
        if not await self._record.confirm():
            self.latest = before
            return "the record of the job could not be written"
        return ""

    async def expire(self, in_flight: int | None) -> None:
        """Remove old checkpoints, but nothing of the one that is being made."""
        assert self._store is not None
        try:
            await self._background.in_thread(
                partial(self._store.expire, self._config.checkpoints_retained, in_flight)
            )
        except WeirError as error:
            log.warning("old checkpoints were not removed: %s", error)

    async def remove(self) -> None:
        """The job has ended as it should: its checkpoints are of no use any more; savepoints stay."""
        if self._store is not None:
            try:
                await self._background.in_thread(self._store.remove)
            except WeirError as error:
                log.warning("the job's checkpoints were not removed: %s", error)

    def tell_retained(self) -> None:
        """The job was cancelled or has failed: its checkpoints stay, so that it can be started from the latest one."""
        if self._store is not None and self.latest is not None:
            log.info(
                "checkpoint %d stays at %s: go on from it with --from-checkpoint, or remove that folder",
                self.latest.manifest.checkpoint_id,
                self._store.location,
            )
