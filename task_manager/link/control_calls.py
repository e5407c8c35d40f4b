"""What a job on a task manager asks of, and tells, the control plane beside the heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import orjson
from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_result, wait_fixed

from task_manager.link.control_planes import ControlPlanes
from weir import threads
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import ConnectionLostError
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, handshake_to_proto, subtask_to_proto
from weir.types import SubtaskId

_RETRY_S = 0.2
_LOCATE_TIMEOUT_S = 10.0
_ACKNOWLEDGE_TIMEOUT_S = 10.0
_DIRECTORY_TIMEOUT_S = 2.0
#: Of a call; ValueError: the connection was closed, since the process ends, which threads may notice later.
_CALL_ERRORS = (grpc.RpcError, ValueError)


@dataclass(frozen=True, slots=True)
class MadePart:
    """A part of a checkpoint, or why there is none."""

    subtask: SubtaskId
    #: 0: the last part of a subtask that has ended, which counts for every later checkpoint.
    checkpoint_id: int
    #: See ``weir.protocol.checkpoints.manifest``; empty: it could not be made.
    part_json: bytes
    #: One line; empty: it could be made.
    failure: str


class ControlCalls(Protocol):
    """Implemented by :class:`GrpcControlCalls`; methods may be called from any thread."""

    def locate(self, stage_index: int, groups: Sequence[int]) -> Mapping[int, str]:
        """Where the state of key groups is: address of the store of each.

        Raises:
            ConnectionLostError: the control plane does not answer.
        """

    def acknowledge(
        self,
        identity: JobIdentity,
        parts: Sequence[MadePart],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Deliver parts of one checkpoint, or say why there are none.

        Gives up as soon as it is not wanted any more.

        Raises:
            ConnectionLostError: the control plane does not answer.
        """


class GrpcControlCalls:
    """Implements :class:`ControlCalls`."""

    def __init__(
        self,
        config: TaskManagerConfig,
        control_planes: ControlPlanes,
        clock: Clock,
        is_stopped: Callable[[], bool],
        sleep: Callable[[float], None] = threads.sleep,
    ) -> None:
        """``control_planes``: whichever counts when a call is made; ``is_stopped``: the process ends, try no more."""
        self._config = config
        self._control_planes = control_planes
        self._clock = clock
        self._sleep = sleep
        self._is_stopped = is_stopped

    def locate(self, stage_index: int, groups: Sequence[int]) -> Mapping[int, str]:
        """Ask where the state of key groups is; called by subtasks when ``useCache`` is off.

        Raises:
            ConnectionLostError: the control plane does not answer.
        """
        request = control_pb2.LocateRequest(stage_index=stage_index, key_groups=groups)
        try:
            reply = self._control_planes.stub.Locate(request, timeout=_LOCATE_TIMEOUT_S)
        except _CALL_ERRORS as error:
            raise ConnectionLostError(
                f"the control plane at {self._control_planes.address} does not tell where state is: {_reason(error)}; "
                "with taskManager.useCache it need not be asked"
            ) from error
        return dict(zip(groups, reply.addresses, strict=True))

    def directory(self) -> dict[str, Any]:
        """What a task manager needs to take questions to running state.

        Raises:
            ConnectionLostError: the control plane does not answer.
        """
        try:
            reply = self._control_planes.stub.Directory(
                control_pb2.DirectoryRequest(), timeout=_DIRECTORY_TIMEOUT_S
            )
        except _CALL_ERRORS as error:
            raise ConnectionLostError(
                f"the control plane at {self._control_planes.address} does not answer: {_reason(error)}"
            ) from error
        found: dict[str, Any] = orjson.loads(reply.directory_json)
        return found

    def acknowledge(
        self,
        identity: JobIdentity,
        parts: Sequence[MadePart],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Deliver parts of a checkpoint; see ``control_calls``. A last part is sent until it is taken."""
        request, *others = map(_acknowledgement, parts)
        request.handshake.CopyFrom(handshake_to_proto(identity))
        request.others.extend(others)
        patience_s = self._config.reconnect_timeout_s if request.checkpoint_id == 0 else 0
        began_s = self._clock.monotonic_s()
        retrying = Retrying(
            retry=retry_if_exception_type(grpc.RpcError) | retry_if_result(lambda reply: not reply.taken),
            stop=lambda state: (
                self._is_stopped() or not is_wanted() or self._clock.monotonic_s() - began_s >= patience_s
            ),
            wait=wait_fixed(_RETRY_S),
            sleep=self._sleep,
            retry_error_callback=_outcome,
        )
        try:
            retrying(self._acknowledge, request)
        except _CALL_ERRORS as error:
            raise ConnectionLostError(
                f"the control plane at {self._control_planes.address} did not take the part of subtask "
                f"{', '.join(str(part.subtask) for part in parts)}: {_reason(error)}"
            ) from error

    def _acknowledge(
        self, request: control_pb2.AcknowledgeCheckpointRequest
    ) -> control_pb2.AcknowledgeCheckpointReply:
        # Another control plane may count with each try.
        return self._control_planes.acknowledge(request, _ACKNOWLEDGE_TIMEOUT_S)


def _acknowledgement(part: MadePart) -> control_pb2.AcknowledgeCheckpointRequest:
    return control_pb2.AcknowledgeCheckpointRequest(
        subtask=subtask_to_proto(part.subtask),
        checkpoint_id=part.checkpoint_id,
        part_json=part.part_json,
        failure=part.failure,
    )


def _reason(error: grpc.RpcError | ValueError) -> str:
    reason = error.details() if isinstance(error, grpc.RpcError) else error
    return str(reason)


def _outcome(state: RetryCallState) -> object:
    """Returns the result of the last attempt, or raises its error."""
    assert state.outcome is not None
    return state.outcome.result()
