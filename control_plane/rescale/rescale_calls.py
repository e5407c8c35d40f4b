"""What a rescale tells task managers, each of them about its own subtasks; what they answer comes back as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from control_plane.job import requests
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import NOT_ON_RECORD, Background, Record
from weir.errors import ConnectionLostError
from weir.protocol.rescale import rescale_model as model
from weir.protocol.rescale.rescale_coordinator import RescaleMachine
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, handshake_to_proto, subtask_from_proto, subtask_to_proto
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: A task manager that did not take an order to stop is told again after so long, while it is registered.
_ASK_AGAIN_S = 0.2
#: How often, and after how long, it is asked whether a manifest is written now.
_MANIFEST_LOOKS, _MANIFEST_LOOK_S = 50, 0.02
#: Tells one task manager something about some of its subtasks.
_Tell = Callable[[str, list[SubtaskId]], Awaitable[None]]


class RescaleCalls:
    """Used by ``Rescaler``; methods run in the event loop, as tasks of their own."""

    def __init__(
        self,
        job: RunningJob,
        background: Background,
        task_managers: TaskManagers,
        record: Record,
        identities: Mapping[int, JobIdentity],
        handle: Callable[[RescaleMachine, model.RescaleEvent], None],
        fail: Callable[[RescaleMachine, str], None],
        relinks_to: Callable[[], int | None] = int,
    ) -> None:
        """Say nothing yet.

        Args:
            job: the job.
            background: waits.
            task_managers: that are there.
            record: of the job.
            identities: the deployment that each rescale, by id, belongs to; grows meanwhile.
            handle: takes an event of a rescale in.
            fail: ends the job because of a rescale, with the cause.
            relinks_to: returns the checkpoint whose images new owners may open; 0: none; None: it is about to change.
        """
        self._job = job
        self._background = background
        self._task_managers = task_managers
        self._record = record
        self._identities = identities
        self._handle = handle
        self._fail = fail
        self._relinks_to = relinks_to

    async def _relinkable_id(self) -> int:
        """Wait a moment for a manifest that is being written, as often in an object store; none begins after it."""
        for _ in range(_MANIFEST_LOOKS):
            found = self._relinks_to()
            if found is not None:
                return found
            await self._background.sleep(_MANIFEST_LOOK_S)
        return 0

    async def prepare(self, rescale: RescaleMachine, action: model.SendPrepare) -> None:
        """Tell the owners of a stage which groups move; what they answer are events."""
        # That a rescale is under way is on record before anybody hears of it.
        if not await self._record.saved():
            for subtask in action.to:
                self._handle(rescale, model.PrepareRefused(subtask, NOT_ON_RECORD))
            return
        # One for all owners: the old ones tell what has changed since.
        relink_checkpoint_id = await self._relinkable_id() if self._job.strategy.relinks else 0
        if rescale.phase is not model.RescalePhase.PREPARING:
            # It was taken back while this waited; images that are opened now would stay open until the next rescale.
            return
        moves = [
            control_pb2.GroupMove(
                key_group=move.group, source_subtask_index=move.source, target_subtask_index=move.target
            )
            for move in action.moves
        ]

        def request_of(
            subtasks: list[SubtaskId], *, only_opens: bool = False
        ) -> control_pb2.PrepareRescaleRequest:
            return control_pb2.PrepareRescaleRequest(
                handshake=handshake_to_proto(self._identities[rescale.rescale_id]),
                stage_index=rescale.plan.stage_index,
                routing_version=action.version,
                subtasks=[subtask_to_proto(subtask) for subtask in subtasks],
                moves=moves,
                retiring=[subtask.subtask_index for subtask in action.retiring],
                locations=requests.subtask_locations(self._job.machine.placement),
                relink_checkpoint_id=relink_checkpoint_id,
                only_opens=only_opens,
            )

        async def open_images(name: str, subtasks: list[SubtaskId]) -> None:
            nonlocal relink_checkpoint_id
            try:
                await self._task_managers.client(name).prepare_rescale(request_of(subtasks, only_opens=True))
            except Exception as error:
                # If it still comes to it, it deletes what old owners would have sent by then. So nobody relinks; a task
                # manager that is lost is noticed otherwise.
                log.info("task manager %s cannot open images of a checkpoint: %s", name, error)
                relink_checkpoint_id = 0

        async def tell(name: str, subtasks: list[SubtaskId]) -> None:
            try:
                reply = await self._task_managers.client(name).prepare_rescale(request_of(subtasks))
            except Exception as error:
                for subtask in subtasks:
                    self._handle(rescale, model.PrepareRefused(subtask, str(error)))
                return
            ended = {subtask_from_proto(subtask) for subtask in reply.ended}
            for subtask in subtasks:
                if subtask in ended:
                    self._handle(
                        rescale, model.PrepareRefused(subtask, "it has reached the end of its stream")
                    )
                else:
                    self._handle(rescale, model.Prepared(subtask))

        if relink_checkpoint_id:
            targets = {move.target for move in action.moves}
            comes = [subtask for subtask in action.to if subtask.subtask_index in targets]
            await self._for_each_task_manager(comes, open_images)
            if rescale.phase is not model.RescalePhase.PREPARING:
                # It was taken back meanwhile, and owners have been told, or will be.
                return
        await self._for_each_task_manager(action.to, tell)

    async def reroute(
        self,
        rescale: RescaleMachine,
        upstream: Collection[SubtaskId],
        owners: Collection[SubtaskId],
        version: int,
    ) -> None:
        """Let upstream subtasks switch to the present subtasks of the stage, and tell the owners."""
        job = self._job
        # Another control plane that takes over must not count on the stage as it was.
        is_on_record = await self._record.saved()
        is_first_to_be_told = not rescale.plan.new and rescale.plan.table is None
        if is_first_to_be_told and not is_on_record:
            # Otherwise the record that was written before the first order says that a rescale is under way.
            self._fail(rescale, NOT_ON_RECORD)
            return

        async def tell(name: str, subtasks: list[SubtaskId]) -> None:
            request = control_pb2.RerouteRequest(
                handshake=handshake_to_proto(self._identities[rescale.rescale_id]),
                stage_index=rescale.plan.stage_index,
                routing_version=version,
                retiring=[subtask.subtask_index for subtask in rescale.plan.retiring],
                stages=requests.stage_subtasks(job.graph),
                locations=requests.subtask_locations(job.machine.placement),
                routing_tables=requests.routing_tables(job.routing_tables.values()),
                upstream=[subtask_to_proto(subtask) for subtask in subtasks if subtask in upstream],
                owners=[subtask_to_proto(subtask) for subtask in subtasks if subtask in owners],
            )
            try:
                await self._task_managers.client(name).reroute(request)
            except Exception as error:
                self._fail(rescale, f"task manager {name} could not switch: {error}")
                return
            for subtask in subtasks:
                if subtask in upstream:
                    self._handle(rescale, model.Rerouted(subtask))

        await self._for_each_task_manager([*upstream, *owners], tell)

    async def abort(self, rescale: RescaleMachine, owners: Collection[SubtaskId], version: int) -> None:
        """Let owners forget a plan that is taken back.

        Until they have heard it: one whose inputs have ended waits for that, and there may be no further rescale.
        """
        identity = self._identities[rescale.rescale_id]

        async def tell(name: str, subtasks: list[SubtaskId]) -> None:
            request = control_pb2.AbortRescaleRequest(
                handshake=handshake_to_proto(identity),
                stage_index=rescale.plan.stage_index,
                routing_version=version,
                owners=[subtask_to_proto(subtask) for subtask in subtasks],
            )
            is_first = True
            while self._job.identity == identity:
                try:
                    await self._task_managers.client(name).abort_rescale(request)
                except Exception as error:
                    if is_first:
                        log.warning("task manager %s did not take the abort of a rescale: %s", name, error)
                        is_first = False
                    # One that answers and refuses has another job, or none, by now.
                    is_out_of_reach = isinstance(error, ConnectionLostError)
                    if not is_out_of_reach or not self._task_managers.is_registered(name):
                        return
                    await self._background.sleep(_ASK_AGAIN_S)
                else:
                    return

        await self._for_each_task_manager(owners, tell)

    async def cancel(
        self, rescale: RescaleMachine, live: Collection[SubtaskId], lost: Collection[SubtaskId]
    ) -> None:
        """Stop new subtasks of a plan that is taken back; ``lost``: those that are gone by themselves."""
        identity = self._identities[rescale.rescale_id]
        gone = [subtask_to_proto(subtask) for subtask in lost]

        def is_over() -> bool:
            # The rescale ends, and checkpoints go on, only when live subtasks have; the consumers of a lost one
            # wait for the end of its channels, however early the rescale ends.
            return self._job.identity != identity if gone else rescale.phase.is_final

        async def tell(name: str, subtasks: list[SubtaskId]) -> None:
            request = control_pb2.CancelRequest(
                job_id=identity.job_id,
                generation=identity.generation,
                subtasks=[subtask_to_proto(subtask) for subtask in subtasks],
                lost_producers=gone,
            )
            is_first = True
            while not is_over():
                try:
                    await self._task_managers.client(name).cancel(request)
                except Exception as error:
                    if is_first:
                        log.warning("cannot tell task manager %s to stop new subtasks: %s", name, error)
                        is_first = False
                    if not self._task_managers.is_registered(name):
                        return
                    await self._background.sleep(_ASK_AGAIN_S)
                else:
                    return

        if gone:
            # Whoever consumes from a lost subtask: any task manager may.
            names = [member.name for member in self._task_managers.members()]
            placement = self._job.machine.placement
            await asyncio.gather(
                *(tell(name, [s for s in live if placement.get(s) == name]) for name in names)
            )
        else:
            await self._for_each_task_manager(live, tell)

    async def _for_each_task_manager(self, subtasks: Collection[SubtaskId], tell: _Tell) -> None:
        placement = self._job.machine.placement
        grouped: dict[str, list[SubtaskId]] = {}
        for subtask in subtasks:
            if subtask in placement:
                grouped.setdefault(placement[subtask], []).append(subtask)
        await asyncio.gather(*(tell(name, items) for name, items in grouped.items()))
