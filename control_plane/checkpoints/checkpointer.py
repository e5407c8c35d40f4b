"""Drives checkpoints: feeds reports to the checkpoint machine, carries out its actions, keeps the checkpoint store.

What reads or writes the store happens in a thread. See docs/design/0002.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

import orjson

from control_plane.checkpoints.checkpoint_calls import CheckpointCalls
from control_plane.checkpoints.checkpoint_log import CheckpointLog
from control_plane.checkpoints.new_manifest import new_manifest
from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.checkpoints.savepoint_paths import SavepointPathError, savepoint_uri
from control_plane.checkpoints.savepoint_place import refused_place
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import NOT_ON_RECORD, Background, ManifestStore, Record, TellJob
from control_plane.web.views import CheckpointView
from weir.clock import Clock, monotonic_ms, wall_ms
from weir.config import ControlPlaneConfig
from weir.errors import CheckpointError, FailureKind, InvalidTransitionError, SupersededError, WeirError
from weir.protocol import checkpoint_model as model
from weir.protocol import job as job_machine
from weir.protocol.checkpoint import CheckpointMachine
from weir.protocol.job import JobState
from weir.protocol.manifest import Manifest, SubtaskPart, part_from_json
from weir.redaction import redacted, redacted_text
from weir.rpc import control_pb2
from weir.rpc.wire import (
    handshake_from_proto,
    subtask_from_proto,
)
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: While there is nothing new to put into a checkpoint, one is made after so many intervals, or after so many ms.
_CALM_INTERVALS, _CALM_INTERVAL_MS_MAX = 5, 10_000


class ConfirmedRecord(Record, Protocol):
    """What another control plane needs to take over; it also says which checkpoint counts."""

    async def confirm(self) -> bool:
        """Write down which checkpoint counts; False: that is not certain. Does not return if another one leads."""
        ...


class Checkpointer:
    """One per job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        store: ManifestStore | None,
        latest: RestorePoint | None,
        next_id: int,
        record: ConfirmedRecord,
        *,
        tell_job: TellJob,
        progressed: Callable[[], None],
        superseded: Callable[[], None],
    ) -> None:
        """No checkpoint is made yet.

        Args:
            job: the job.
            config: section ``controlPlane``.
            clock: time of checkpoints.
            background: writes to the store, and calls task managers.
            task_managers: that are there.
            store: where manifests go; None: there are no checkpoints.
            latest: what the first deployment begins with.
            next_id: number of the first checkpoint.
            record: of the job; it says which checkpoint counts.
            tell_job: takes in that the last manifest is there, and failures.
            progressed: called with every complete checkpoint.
            superseded: called when another control plane has committed a checkpoint of the job.
        """
        self._job = job
        self._config = config
        self._clock = clock
        self._background = background
        self._task_managers = task_managers
        self._store = store
        self._record = record
        self._tell_job = tell_job
        self._progressed = progressed
        self._superseded = superseded
        #: What a restart begins with.
        self.latest = latest
        self.machine = CheckpointMachine(
            model.CheckpointSettings(
                interval_ms=config.checkpoint_interval_ms if store is not None else 0,
                calm_interval_ms=min(config.checkpoint_interval_ms * _CALM_INTERVALS, _CALM_INTERVAL_MS_MAX),
                pause_ms=config.checkpoint_pause_ms,
                timeout_ms=config.checkpoint_timeout_ms,
                failures_max=config.checkpoint_failures_max,
                deliveries_max=config.restart_attempts,
                delivery_delay_ms=config.restart_delay_ms,
                delivery_delay_ms_max=config.restart_delay_ms_max,
            ),
            next_id,
        )
        self._log = CheckpointLog()
        self._calls = CheckpointCalls(job, task_managers, background)
        #: Subtasks that have ended and whose last parts are in a checkpoint, until they have delivered.
        self._ended: dict[int, list[SubtaskId]] = {}
        #: Monotonic ms of the timers' next look, and of the next tick that is on its way; 0: there are no timers yet.
        self._look_ms = self._tick_ms = 0

    @property
    def is_enabled(self) -> bool:
        """Whether there is a checkpoint store."""
        return self._store is not None

    @property
    def latest_id(self) -> int | None:
        """The checkpoint that a restart begins with."""
        return None if self.latest is None else self.latest.manifest.checkpoint_id

    @property
    def last_id(self) -> int:
        """The highest number that a checkpoint has had."""
        return self.machine.next_id - 1

    @property
    def is_settled(self) -> bool:
        """Whether no manifest is being written."""
        return self.machine.is_settled

    @property
    def is_anything_unsettled(self) -> bool:
        """Whether a retired subtask has something to deliver."""
        return self.machine.is_anything_unsettled

    def unsettled_at(self, task_manager: str) -> bool:
        """Whether subtasks that ended there have something to deliver."""
        return bool(self.machine.unsettled_at(task_manager))

    def restore_point(self) -> control_pb2.Restore | None:
        """What a deployment now begins with."""
        if self.latest is None:
            return None
        return control_pb2.Restore(
            checkpoint_uri=self.latest.uri, job_id=self.latest.job_id, manifest_path=self.latest.path
        )

    # --- requests and reports --------------------------------------------------------------------------------

    def request(
        self, path: str = "", *, stops_job: bool = False, redeploys_job: bool = False
    ) -> model.CheckpointRecord | model.CheckpointRefusal:
        """Make a checkpoint now, or a savepoint at ``path`` below a root; the record changes as it goes on.

        ``stops_job``: the job stops when the savepoint is complete, and delivers nothing that it does not cover.
        ``redeploys_job``: it is deployed anew then.
        """
        if self._store is None:
            return model.CheckpointRefusal("there is no checkpoint store: set controlPlane.checkpoint_uri")
        if path:
            try:
                path = savepoint_uri(path, self._config.savepoint_roots)
            except SavepointPathError as error:
                return model.CheckpointRefusal(str(error), is_forbidden=True)
        refused = path and refused_place(path, self._job.graph.logical, self._config.checkpoint_uri)
        if refused:
            return model.CheckpointRefusal(redacted_text(refused))
        result = self.machine.request(path, self._now_ms, stops_job=stops_job, redeploys_job=redeploys_job)
        if isinstance(result, model.CheckpointRefusal):
            return replace(result, message=redacted_text(result.message))
        record, actions = result
        self._carry_out_all(actions)
        return record

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

    def view(self, record: model.CheckpointRecord) -> CheckpointView:
        """A checkpoint for people, with times of the wall clock."""
        offset_ms = wall_ms(self._clock) - self._now_ms
        facts = record.to_dict()
        for name in ("created_ms", "started_ms", "ended_ms"):
            time_ms = facts[name]
            facts[name] = time_ms + offset_ms if isinstance(time_ms, int) else None
        return CheckpointView.model_validate(redacted(facts))

    def acknowledged(
        self, request: control_pb2.AcknowledgeCheckpointRequest
    ) -> control_pb2.AcknowledgeCheckpointReply:
        """Parts of subtasks are in the store, or could not be made.

        Raises:
            HandshakeError: it speaks another protocol version.
        """
        identity = handshake_from_proto(request.handshake)
        if identity.job_id != self._job.identity.job_id:
            return control_pb2.AcknowledgeCheckpointReply(taken=False)
        if request.checkpoint_id == 0 and self.machine.awaits_generation(identity.generation):
            # A job that is being taken over: its last parts are wanted in a moment.
            return control_pb2.AcknowledgeCheckpointReply(taken=False)
        for one in (request, *request.others):
            self._take_part(identity.generation, one)
        return control_pb2.AcknowledgeCheckpointReply(taken=True)

    def _take_part(self, generation: int, request: control_pb2.AcknowledgeCheckpointRequest) -> None:
        subtask = subtask_from_proto(request.subtask)
        failure = request.failure
        part: SubtaskPart | None = None
        if not failure:
            try:
                part = part_from_json(orjson.loads(request.part_json))
            except (CheckpointError, orjson.JSONDecodeError) as error:
                failure = str(error)
        if part is None:
            self.handle(model.PartDeclined(generation, request.checkpoint_id, subtask, failure))
        else:
            self.handle(model.PartDelivered(generation, request.checkpoint_id, part))

    def rows_came(self) -> None:
        """A subtask has reported more records than before."""
        if self.machine.minds_news:
            self.handle(model.RowsCame())

    def tick(self) -> None:
        """Time has passed; called by the timers."""
        self.handle(model.Tick())

    def wake_within(self, seconds: float) -> None:
        """The timers look again after this time at the latest; what is due before wakes this object by itself."""
        self._look_ms = self._tick_ms = self._now_ms + int(seconds * 1000)
        self._plan_tick()

    def _plan_tick(self) -> None:
        due_ms = self.machine.next_due_ms
        # What is due by now has been looked at, and waits for another event.
        if due_ms is not None and self._now_ms < due_ms < self._tick_ms:
            self._tick_ms = due_ms
            self._background.spawn(self._tick_at(due_ms))

    async def _tick_at(self, due_ms: int) -> None:
        await self._background.sleep(max(due_ms - self._now_ms, 0) / 1e3)
        if self._tick_ms == due_ms:
            self._tick_ms = self._look_ms
        self.tick()

    def handle(self, event: model.CheckpointEvent) -> None:
        """Feed one event to the machine and carry out what follows."""
        try:
            actions = self.machine.handle(event, self._now_ms)
        except InvalidTransitionError as error:
            log.error("ignored: %s", error)
            return
        self._carry_out_all(actions)
        self._plan_tick()

    @property
    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    # --- actions ---------------------------------------------------------------------------------------------

    def _carry_out_all(self, actions: Iterable[model.CheckpointAction]) -> None:
        for record in self.machine.take_ended():
            self._log.ended(record)
        for action in actions:
            match action:
                case model.Trigger():
                    self._background.spawn(self._trigger(action))
                case model.Commit():
                    self._background.spawn(
                        self._commit(action, new_manifest(self._job, action, wall_ms(self._clock)))
                    )
                case model.NotifyEnd():
                    self._background.spawn(self._notify_end(action))
                case model.FinalDone():
                    self._tell_job(job_machine.FinalCommitted())
                case model.StopJob(checkpoint_id, path):
                    log.info(
                        "the job stops with savepoint %s (checkpoint %d)", redacted_text(path), checkpoint_id
                    )
                    self._tell_job(job_machine.CancelRequested(stopped=True))
                case model.RedeployJob(checkpoint_id):
                    log.info("the job is deployed anew from checkpoint %d", checkpoint_id)
                    self._tell_job(job_machine.RestartRequested("a source has other subtasks"))
                case model.FailJob(cause, kind):
                    if kind is FailureKind.PERMANENT and self._store is not None:
                        cause += "; start the job again to deliver it: the last checkpoint is kept"
                    self._tell_job(job_machine.FailRequested(cause, kind))

    async def _trigger(self, action: model.Trigger) -> None:
        by_task_manager = self._task_managers.by_task_manager(action.sources, self._job.machine.placement)
        identity = self._job.identity
        # Another control plane that takes over must use other numbers.
        is_saved = await self._record.saved() or self._record.has_begun
        if self.machine.in_flight != action.checkpoint_id:
            # It was given up meanwhile, and everybody has been told.
            return
        if not is_saved:
            first = min(action.sources)
            self.handle(model.PartDeclined(identity.generation, action.checkpoint_id, first, NOT_ON_RECORD))
            return

        def declined(source: SubtaskId, cause: str) -> None:
            self.handle(model.PartDeclined(identity.generation, action.checkpoint_id, source, cause))

        await self._calls.trigger(action, identity, by_task_manager, declined)

    async def _commit(self, action: model.Commit, manifest: Manifest) -> None:
        checkpoint_id = action.checkpoint_id
        if self._store is None:
            # Nothing is kept: sinks deliver when the job has ended.
            self._ended[checkpoint_id] = [part.subtask for part in action.parts if part.finished]
            self.handle(model.Committed(checkpoint_id))
            return
        # As for a trigger; the last checkpoint has none.
        if not self._record.has_begun and not await self._record.saved():
            self.handle(model.CommitFailed(checkpoint_id, NOT_ON_RECORD))
            return
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
            return
        except WeirError as error:
            self.handle(model.CommitFailed(checkpoint_id, str(error)))
            return
        before = self.latest
        self.latest = RestorePoint(self._config.checkpoint_uri, self._job.identity.job_id, path, manifest)
        # Only then sinks may deliver: a control plane that takes over must begin with this checkpoint.
        if not await self._record.confirm():
            self.latest = before
            self.handle(model.CommitFailed(checkpoint_id, "the record of the job could not be written"))
            return
        # Whoever is told of an earlier one has been named already.
        self._ended = {checkpoint_id: [part.subtask for part in action.parts if part.finished]}
        log.debug("checkpoint %d is complete", checkpoint_id)
        self._progressed()
        self.handle(model.Committed(checkpoint_id, manifest.size_bytes))
        await self._expire()

    async def _expire(self) -> None:
        assert self._store is not None
        try:
            await self._background.in_thread(
                partial(self._store.expire, self._config.checkpoints_retained, self.machine.in_flight)
            )
        except WeirError as error:
            log.warning("old checkpoints were not removed: %s", error)

    async def _notify_end(self, action: model.NotifyEnd) -> None:
        identity = self._job.identity
        ended: dict[str, list[SubtaskId]] = {}
        for subtask in self._ended.get(action.checkpoint_id, ()):
            # Retired ones are no part of the job any more, but they deliver too.
            ended.setdefault(self.machine.place(subtask) or "", []).append(subtask)

        told = await self._calls.tell_end(action, ended)
        if action.committed and identity == self._job.identity:
            unreached = [
                name for name, answer in zip(action.task_managers, told, strict=True) if answer is None
            ]
            failures = [failure for answer in told for failure in answer or ()]
            if not unreached and not failures:
                self._ended.pop(action.checkpoint_id, None)
            had_unsettled = self.is_anything_unsettled
            self.handle(model.EndNotified(action.checkpoint_id, tuple(unreached), tuple(failures)))
            if had_unsettled and not self.is_anything_unsettled:
                # From now on the job can be taken over as it is.
                self._record.save()
            again_ms = None
            if self.machine.next_due_ms is not None and self._job.state is JobState.FINISHING:
                again_ms = max(0, self.machine.next_due_ms - self._now_ms)
            self._log.undelivered(failures, again_ms)
