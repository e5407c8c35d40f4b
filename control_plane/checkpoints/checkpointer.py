"""Drives checkpoints: feeds reports to the checkpoint machine, carries out its actions, keeps the checkpoint store.

What reads or writes the store happens in a thread. See docs/design/0002.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

import orjson

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
from weir.protocol.event_counts import covered
from weir.protocol.job import JobState
from weir.protocol.manifest import Manifest, SubtaskPart, part_from_json
from weir.redaction import redacted, redacted_text
from weir.rpc import control_pb2
from weir.rpc.wire import (
    failure_kind_from_proto,
    handshake_from_proto,
    handshake_to_proto,
    subtask_from_proto,
    subtask_to_proto,
)
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: A task manager that does not confirm the end of a checkpoint is asked again after so long, while it is registered.
_ASK_AGAIN_S = 0.2
#: While there is nothing new to put into a checkpoint, one is made after so many intervals, or after so many ms.
_CALM_INTERVALS, _CALM_INTERVAL_MS_MAX = 5, 10_000
#: What is told of a sink that could not deliver; anything else is a mistake in its code.
_DELIVERY_KINDS = {FailureKind.OUTAGE: "outage", FailureKind.PERMANENT: "refused"}


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
        #: Checkpoints, without savepoints, that failed since the last one that did not.
        self._failed_in_a_row = 0
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
            self._tell_end(record)
        for action in actions:
            match action:
                case model.Trigger():
                    self._background.spawn(self._trigger(action))
                case model.Commit():
                    self._background.spawn(self._commit(action, self._manifest(action)))
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

    def _tell_end(self, record: model.CheckpointRecord) -> None:
        """A savepoint that comes to nothing was asked for by somebody; failed checkpoints are told of less and less."""
        number, path, cause = record.checkpoint_id, redacted_text(record.path), redacted_text(record.cause)
        is_complete = record.state is model.CheckpointState.COMPLETE
        if path and is_complete:
            log.info("savepoint %s is complete (checkpoint %d)", path, number)
        elif path:
            log.warning("savepoint %s was not made (checkpoint %d): %s", path, number, cause)
        if is_complete:
            self._failed_in_a_row = 0
        elif record.state is model.CheckpointState.FAILED and not path:
            self._failed_in_a_row += 1
            if str(self._failed_in_a_row).strip("0") == "1":
                row = f" ({self._failed_in_a_row} in a row)" if self._failed_in_a_row > 1 else ""
                log.warning("checkpoint %d failed%s: %s", number, row, cause)

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

        async def tell(name: str, sources: list[SubtaskId]) -> None:
            request = control_pb2.TriggerCheckpointRequest(
                handshake=handshake_to_proto(identity),
                checkpoint_id=action.checkpoint_id,
                subtasks=[subtask_to_proto(source) for source in sources],
                holds=action.holds,
            )
            try:
                # Sources that have ended need no answer: their last parts are on their way.
                await self._task_managers.client(name).trigger_checkpoint(request)
            except WeirError as error:
                cause = f"the sources could not be told: {error}"
                self.handle(model.PartDeclined(identity.generation, action.checkpoint_id, sources[0], cause))

        await asyncio.gather(*(tell(name, sources) for name, sources in by_task_manager.items()))

    def _manifest(self, action: model.Commit) -> Manifest:
        job = self._job
        graph = job.graph
        return Manifest(
            checkpoint_id=action.checkpoint_id,
            job_name=graph.logical.name,
            fingerprint=job.identity.fingerprint,
            generation=action.generation,
            created_ms=wall_ms(self._clock),
            job_start_us=job.started_us or 0,
            max_parallelism=graph.logical.max_parallelism,
            stages={stage.index: tuple(stage.subtask_indices) for stage in graph.stages},
            routing=dict(job.routing_tables),
            parts=action.parts,
            operator_names={stage.index: tuple(node.name for node in stage.nodes) for stage in graph.stages},
            state_ids=job.state_ids,
            is_savepoint=bool(action.path),
            events=covered(
                job.events_before,
                action.parts,
                action.settled,
                frozenset(stage.index for stage in graph.stages if stage.is_source),
                frozenset(stage.index for stage in graph.stages if any(node.is_sink for node in stage.nodes)),
            ),
            events_before=job.events_before,
        )

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

        async def tell(name: str) -> list[model.DeliveryFailure] | None:
            """What it could not deliver; None: it does not answer, or refuses."""
            request = control_pb2.EndCheckpointRequest(
                handshake=handshake_to_proto(identity),
                checkpoint_id=action.checkpoint_id,
                committed=action.committed,
                ended=[subtask_to_proto(subtask) for subtask in ended.get(name, ())],
                waits=action.stops,
            )
            # Inputs wait for a checkpoint that was given up, so everybody must hear of its end.
            while identity == self._job.identity:
                try:
                    reply = await self._task_managers.client(name).end_checkpoint(request)
                except WeirError as error:
                    if not error.retryable or not self._task_managers.is_registered(name):
                        log.warning("the end of checkpoint %d was not told: %s", action.checkpoint_id, error)
                        return None
                    await self._background.sleep(_ASK_AGAIN_S)
                else:
                    return [
                        model.DeliveryFailure(
                            name,
                            subtask_from_proto(failure.subtask),
                            failure.cause,
                            failure_kind_from_proto(failure.failure_kind),
                        )
                        for failure in reply.failures
                    ]
            return None

        told = await asyncio.gather(*(tell(name) for name in action.task_managers))
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
            self._tell_of(failures)

    def _tell_of(self, failures: Iterable[model.DeliveryFailure]) -> None:
        """Sinks did not deliver; the machine has decided when they try again, if they do."""
        due_ms = self.machine.next_due_ms
        for failure in failures:
            again = (
                f"; again in {max(0, due_ms - self._now_ms)} ms"
                if due_ms is not None and self._job.state is JobState.FINISHING
                else ""
            )
            log.warning(
                "%s: subtask %s could not deliver what it had received: %s%s",
                _DELIVERY_KINDS.get(failure.kind, "mistake"),
                failure.subtask,
                failure.cause,
                again,
            )
