"""Drives checkpoints: feeds reports to the checkpoint machine, carries out its actions, keeps the checkpoint store.

What reads or writes the store happens in a thread. See docs/design/0002.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import orjson

from control_plane.checkpoints.checkpoint_calls import CheckpointCalls
from control_plane.checkpoints.checkpoint_keeping import CheckpointKeeping, ConfirmedRecord
from control_plane.checkpoints.checkpoint_log import CheckpointLog
from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.checkpoints.savepoint_paths import SavepointPathError, savepoint_uri
from control_plane.checkpoints.savepoint_place import refused_place
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import NOT_ON_RECORD, Background, ManifestStore, TellJob
from control_plane.web.views import CheckpointView
from weir.clock import Clock, monotonic_ms, wall_ms
from weir.config import ControlPlaneConfig
from weir.errors import CheckpointError, FailureKind, InvalidTransitionError
from weir.protocol.checkpoints import checkpoint_model as model
from weir.protocol.checkpoints.checkpoint import CheckpointMachine
from weir.protocol.checkpoints.manifest import Manifest, SubtaskPart, part_from_json
from weir.protocol.job import job_machine
from weir.protocol.job.job_machine import JobState
from weir.redaction import redacted, redacted_text
from weir.rpc import control_pb2
from weir.rpc.wire import (
    handshake_from_proto,
    subtask_from_proto,
)
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: A checkpoint that has waited so long is told of in ``/status``.
_WAITS_LONG_MS = 1000
#: While there is nothing new to put into a checkpoint, one is made after so many intervals, or after so many ms.
_CALM_INTERVALS, _CALM_INTERVAL_MS_MAX = 5, 10_000


class Checkpointer:
    """The checkpointer of a job; all methods are called in the event loop."""

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
        self._record = record
        self._tell_job = tell_job
        self._progressed = progressed
        #: Those that are complete.
        self.kept = CheckpointKeeping(job, config, background, store, latest, record, superseded)
        self.machine = CheckpointMachine(
            model.CheckpointSettings(
                interval_ms=config.checkpoint_interval_ms if self.kept.is_enabled else 0,
                calm_interval_ms=min(config.checkpoint_interval_ms * _CALM_INTERVALS, _CALM_INTERVAL_MS_MAX),
                pause_ms=config.checkpoint_pause_ms,
                timeout_ms=config.checkpoint_timeout_ms,
                failures_max=config.checkpoint_failures_max,
                deliveries_max=config.restart_attempts,
                delivery_delay_ms=config.restart_delay_ms,
                delivery_delay_ms_max=config.restart_delay_ms_max,
            ),
            next_id,
            job.graph.name_of,
        )
        self._log = CheckpointLog(job.graph.name_of)
        self._calls = CheckpointCalls(job, task_managers, background)
        #: Called with each checkpoint that has ended.
        self.listeners: list[Callable[[model.CheckpointRecord], None]] = []
        #: Subtasks that have ended and whose last parts are in a checkpoint, until they have delivered.
        self._ended: dict[int, list[SubtaskId]] = {}
        #: Monotonic ms of the timers' next look, and of the next tick that is on its way; 0: there are no timers yet.
        self._look_ms = self._tick_ms = 0

    @property
    def is_enabled(self) -> bool:
        """Return whether there is a checkpoint store."""
        return self.kept.is_enabled

    @property
    def latest(self) -> RestorePoint | None:
        """What a restart begins with."""
        return self.kept.latest

    @property
    def latest_id(self) -> int | None:
        """The checkpoint that a restart begins with."""
        return None if self.latest is None else self.latest.manifest.checkpoint_id

    @property
    def relinkable_id(self) -> int | None:
        """The checkpoint whose files stay until another one is complete, or 0: there is none.

        None while a manifest is being written, with which files may expire.
        """
        return (self.latest_id or 0) if self.is_settled else None

    @property
    def last_id(self) -> int:
        """The highest number that a checkpoint has had."""
        return self.machine.next_id - 1

    @property
    def is_settled(self) -> bool:
        """Return whether no manifest is being written."""
        return self.machine.is_settled

    @property
    def is_anything_unsettled(self) -> bool:
        """Return whether a retired subtask has something to deliver."""
        return self.machine.is_anything_unsettled

    def unsettled_at(self, task_manager: str) -> bool:
        """Return whether subtasks that ended there have something to deliver."""
        return bool(self.machine.unsettled_at(task_manager))

    def restore_point(self) -> control_pb2.Restore | None:
        """What a deployment now begins with."""
        return self.kept.restore_point()

    # --- requests and reports --------------------------------------------------------------------------------

    def request(
        self, path: str = "", *, stops_job: bool = False, redeploys_job: bool = False
    ) -> model.CheckpointRecord | model.CheckpointRefusal:
        """Make a checkpoint now, or a savepoint at ``path`` below a root; the record changes as it goes on.

        ``stops_job``: the job stops when the savepoint is complete, and delivers nothing that it does not cover.
        ``redeploys_job``: it is deployed anew then.
        """
        if not self.kept.is_enabled:
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

    @property
    def waits_for(self) -> str:
        """What the checkpoint that is being made waits for; empty: there is none, or not for long yet."""
        return self.machine.waits_for_text(self._now_ms, _WAITS_LONG_MS)

    def view(self, record: model.CheckpointRecord) -> CheckpointView:
        """A checkpoint for people, with times of the wall clock."""
        offset_ms = wall_ms(self._clock) - self._now_ms
        facts = record.to_dict()
        for name in ("created_ms", "started_ms", "ended_ms"):
            time_ms = facts[name]
            facts[name] = time_ms + offset_ms if isinstance(time_ms, int) else None
        facts["slowest"] = "" if record.slowest is None else self._job.graph.name_of(record.slowest)
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
            for listener in self.listeners:
                listener(record)
        for action in actions:
            match action:
                case model.Trigger():
                    self._background.spawn(self._trigger(action))
                case model.Commit():
                    manifest = self._job.manifest(action, wall_ms(self._clock))
                    self._background.spawn(self._commit(action, manifest))
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
                    if kind is FailureKind.PERMANENT and self.kept.is_enabled:
                        cause += "; start the job again to deliver it: the last checkpoint is kept"
                    self._tell_job(job_machine.FailRequested(cause, kind))

    async def _trigger(self, action: model.Trigger) -> None:
        told = (*action.sources, *action.others)
        by_task_manager = self._task_managers.by_task_manager(told, self._job.machine.placement)
        identity = self._job.identity
        # Another control plane that takes over must use other numbers.
        is_saved = await self._record.saved() or self._record.has_begun
        if self.machine.in_flight != action.checkpoint_id:
            # It was given up meanwhile, and everybody has been told.
            return
        if not is_saved:
            first = told[0]
            self.handle(model.PartDeclined(identity.generation, action.checkpoint_id, first, NOT_ON_RECORD))
            return

        def declined(source: SubtaskId, cause: str) -> None:
            self.handle(model.PartDeclined(identity.generation, action.checkpoint_id, source, cause))

        await self._calls.trigger(action, identity, by_task_manager, declined)

    async def _commit(self, action: model.Commit, manifest: Manifest) -> None:
        checkpoint_id = action.checkpoint_id
        if not self.kept.is_enabled:
            # Nothing is kept: sinks deliver when the job has ended.
            self._ended[checkpoint_id] = [part.subtask for part in action.parts if part.finished]
            self.handle(model.Committed(checkpoint_id))
            return
        failure = await self.kept.complete(action, manifest)
        if failure is None:
            return
        if failure:
            self.handle(model.CommitFailed(checkpoint_id, failure))
            return
        # Whoever is told of an earlier one has been named already.
        self._ended = {checkpoint_id: [part.subtask for part in action.parts if part.finished]}
        log.debug("checkpoint %d is complete", checkpoint_id)
        self._progressed()
        self.handle(model.Committed(checkpoint_id, manifest.size_bytes))
        await self.kept.expire(self.machine.in_flight)

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
