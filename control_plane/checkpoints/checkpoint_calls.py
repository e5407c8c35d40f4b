"""What task managers are told of a checkpoint: that it begins, and how it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background
from weir.errors import WeirError
from weir.protocol.checkpoints import checkpoint_model as model
from weir.rpc import control_pb2
from weir.rpc.wire import (
    JobIdentity,
    failure_kind_from_proto,
    handshake_to_proto,
    subtask_from_proto,
    subtask_to_proto,
)
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: A task manager that does not confirm the end of a checkpoint is asked again after so long, while it is registered.
_ASK_AGAIN_S = 0.2


class CheckpointCalls:
    """The calls for a job's checkpoints; called in the event loop."""

    def __init__(self, job: RunningJob, task_managers: TaskManagers, background: Background) -> None:
        """``background`` waits before a call is repeated."""
        self._job = job
        self._task_managers = task_managers
        self._background = background

    async def trigger(
        self,
        action: model.Trigger,
        identity: JobIdentity,
        by_task_manager: Mapping[str, Sequence[SubtaskId]],
        declined: Callable[[SubtaskId, str], None],
    ) -> None:
        """Let sources send a barrier; ``declined`` is called with a subtask that could not be told, and the cause."""
        others = frozenset(action.others)

        async def tell(name: str, subtasks: Sequence[SubtaskId]) -> None:
            request = control_pb2.TriggerCheckpointRequest(
                handshake=handshake_to_proto(identity),
                checkpoint_id=action.checkpoint_id,
                subtasks=[subtask_to_proto(subtask) for subtask in subtasks if subtask not in others],
                holds=action.holds,
                others=[subtask_to_proto(subtask) for subtask in subtasks if subtask in others],
            )
            try:
                # Sources that have ended need no answer: their last parts are on their way.
                await self._task_managers.client(name).trigger_checkpoint(request)
            except WeirError as error:
                declined(subtasks[0], f"task manager {name} could not be told: {error}")

        await asyncio.gather(*(tell(name, subtasks) for name, subtasks in by_task_manager.items()))

    async def tell_end(
        self, action: model.NotifyEnd, ended: Mapping[str, Sequence[SubtaskId]]
    ) -> list[list[model.DeliveryFailure] | None]:
        """Tell that a checkpoint is over, until every task manager has heard it or is gone.

        Args:
            action: which, and whom to tell.
            ended: by task manager: subtasks that have ended and whose last parts it holds.

        Returns:
            For each of ``action.task_managers`` what it could not deliver; None: it does not answer, or refuses.
        """
        identity = self._job.identity

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

        return await asyncio.gather(*(tell(name) for name in action.task_managers))
