"""Commands of the control plane and calls of other task managers: messages in, calls of the job's parts, answers."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

import grpc

from task_manager.job_slot import JobSlot
from task_manager.rescale.cached_wire import entries_of
from task_manager.services.profile_wire import DURATION_S_MAX, profile_to_proto
from task_manager.topology import topology_from_proto
from weir.errors import (
    FailureKind,
    HandshakeError,
    StateError,
    WeirError,
    kind_of,
)
from weir.operators.step_errors import StepError
from weir.process.log_tail import LOG_TAIL
from weir.protocol.rescale.cache_copy import CopyArrived
from weir.protocol.rescale.relink import RelinkOffer
from weir.protocol.rescale.rescale_owner import HandoverReceived
from weir.protocol.routing import GroupMove
from weir.questions.link import QuestionPlace
from weir.redaction import redacted_text
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.access import ORDERS_KEY, Gate
from weir.rpc.frequent_calls import FrequentCall, Handler
from weir.rpc.wire import (
    GROUP_MAX,
    PROTOCOL_VERSION,
    failure_kind_to_proto,
    handshake_from_proto,
    refusal_metadata,
    subtask_from_proto,
    subtask_to_proto,
)

log = logging.getLogger(__name__)


class ControlService(control_pb2_grpc.TaskManagerServicer):
    """Called by gRPC's threads."""

    def __init__(
        self,
        slot: JobSlot,
        operator_quota: int,
        questions: Callable[[], QuestionPlace] = QuestionPlace,
        gate: Gate | None = None,
    ) -> None:
        """Called once for each process.

        Args:
            slot: of the job.
            operator_quota: subtasks that may run here.
            questions: where they are taken.
            gate: knows the control plane by which this process is known; None: every caller is (in simulations).
        """
        self._gate = gate
        self._slot = slot
        self._questions = questions
        self._operator_quota = operator_quota
        #: Held while a profile is made.
        self._profiling = threading.Lock()

    @property
    def frequent_calls(self) -> Mapping[FrequentCall, Handler]:
        """The handlers of calls that come without gRPC, in threads of the question server."""
        trigger, end = control_pb2.TriggerCheckpointRequest, control_pb2.EndCheckpointRequest
        return {
            FrequentCall.TRIGGER_CHECKPOINT: lambda content: self._trigger_checkpoint(
                trigger.FromString(content)
            ),
            FrequentCall.END_CHECKPOINT: lambda content: self._end_checkpoint(end.FromString(content)),
        }

    def Status(
        self, request: control_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> control_pb2.StatusReply:
        """Who this is and what runs here."""
        runtime = self._slot.runtime
        # Whoever begins a connection with a greeting is not asked for more.
        place = self._questions() if self._is_own(context) else QuestionPlace()
        return control_pb2.StatusReply(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._slot.incarnation,
            operator_quota=self._operator_quota,
            subtasks=self._slot.reports(),
            job_id=runtime.identity.job_id if runtime else "",
            generation=runtime.identity.generation if runtime else 0,
            question_port=place.port,
            question_greeting=place.greeting,
            question_http_address=place.http_address,
            frequent_calls_greeting=place.calls_greeting,
        )

    def _is_own(self, context: grpc.ServicerContext) -> bool:
        """Whether this process has registered at the caller."""
        if self._gate is None or self._gate.identity.trusts_all:
            return True
        return any(
            key == ORDERS_KEY and self._gate.gives_orders(value)
            for key, value in context.invocation_metadata()
        )

    def Deploy(
        self, request: control_pb2.DeployRequest, context: grpc.ServicerContext
    ) -> control_pb2.DeployReply:
        """Create subtasks; the first call for a job loads it and opens the store."""
        with self._slot.deploying(), _errors_to(context):
            runtime = self._slot.runtime_for(request)
            runtime.deploy(
                [subtask_from_proto(subtask) for subtask in request.subtasks],
                topology_from_proto(runtime.graph, request.stages, request.locations, request.routing_tables),
            )
        return control_pb2.DeployReply()

    def Start(
        self, request: control_pb2.StartRequest, context: grpc.ServicerContext
    ) -> control_pb2.StartReply:
        """Every subtask of the job is ready: sources begin."""
        with self._slot.deploying(), _errors_to(context):
            runtime = self._slot.current(handshake_from_proto(request.handshake))
            runtime.begin(request.job_start_us)
        return control_pb2.StartReply()

    def Cancel(
        self, request: control_pb2.CancelRequest, context: grpc.ServicerContext
    ) -> control_pb2.CancelReply:
        """Stop a job's subtasks; a job that is not here is no error, so that the call can be repeated."""
        runtime = self._slot.runtime
        if (
            runtime is not None
            and runtime.identity.job_id == request.job_id
            # A late order must not stop a newer deployment.
            and runtime.identity.generation <= request.generation
        ):
            if request.subtasks or request.lost_producers:
                runtime.cancel_subtasks([subtask_from_proto(subtask) for subtask in request.subtasks])
                runtime.end_channels_of([subtask_from_proto(item) for item in request.lost_producers])
            else:
                runtime.cancel()
        return control_pb2.CancelReply()

    def PrepareRescale(
        self, request: control_pb2.PrepareRescaleRequest, context: grpc.ServicerContext
    ) -> control_pb2.PrepareRescaleReply:
        """Tell owners here what will move."""
        subtasks = [subtask_from_proto(subtask) for subtask in request.subtasks]
        moves = tuple(
            GroupMove(move.key_group, move.source_subtask_index, move.target_subtask_index)
            for move in request.moves
        )
        locations = {subtask_from_proto(item.subtask): item.address for item in request.locations}
        version, checkpoint_id = request.routing_version, request.relink_checkpoint_id
        with _errors_to(context):
            rescaling = self._slot.current(handshake_from_proto(request.handshake)).rescaling
            if request.only_opens:
                rescaling.open_images(subtasks, version, checkpoint_id, moves, locations)
                return control_pb2.PrepareRescaleReply()
            ended = rescaling.prepare(
                subtasks, version, moves, list(request.retiring), locations, checkpoint_id
            )
        return control_pb2.PrepareRescaleReply(ended=[subtask_to_proto(subtask) for subtask in ended])

    def Reroute(
        self, request: control_pb2.RerouteRequest, context: grpc.ServicerContext
    ) -> control_pb2.RerouteReply:
        """Switch upstream subtasks here."""
        with _errors_to(context):
            runtime = self._slot.current(handshake_from_proto(request.handshake))
            runtime.reroute(
                [subtask_from_proto(subtask) for subtask in request.upstream],
                [subtask_from_proto(subtask) for subtask in request.owners],
                request.stage_index,
                request.routing_version,
                topology_from_proto(runtime.graph, request.stages, request.locations, request.routing_tables),
                list(request.retiring),
            )
        return control_pb2.RerouteReply()

    def HandOver(
        self, request: control_pb2.HandOverRequest, context: grpc.ServicerContext
    ) -> control_pb2.HandOverReply:
        """Take key groups over from another task manager."""
        with _errors_to(context):
            self._slot.current(handshake_from_proto(request.handshake)).rescaling.receive(
                subtask_from_proto(request.target),
                HandoverReceived(request.routing_version, _groups_of(request.groups), request.state_location),
                request.bytes_shipped,
                _offer_of(request),
            )
        return control_pb2.HandOverReply()

    def TakeCopy(
        self, request: control_pb2.TakeCopyRequest, context: grpc.ServicerContext
    ) -> control_pb2.TakeCopyReply:
        """Take what the old owner of key groups had cached."""
        with _errors_to(context):
            self._slot.current(handshake_from_proto(request.handshake)).rescaling.take_copy(
                subtask_from_proto(request.target),
                CopyArrived(
                    request.routing_version,
                    _groups_of(request.groups),
                    at_handover=request.at_handover,
                    anew=request.anew,
                    complete=request.complete,
                ),
                entries_of(request),
            )
        return control_pb2.TakeCopyReply()

    def AbortRescale(
        self, request: control_pb2.AbortRescaleRequest, context: grpc.ServicerContext
    ) -> control_pb2.AbortRescaleReply:
        """Take a rescale back."""
        with _errors_to(context):
            self._slot.current(handshake_from_proto(request.handshake)).rescaling.abort(
                [subtask_from_proto(subtask) for subtask in request.owners], request.routing_version
            )
        return control_pb2.AbortRescaleReply()

    def TriggerCheckpoint(
        self, request: control_pb2.TriggerCheckpointRequest, context: grpc.ServicerContext
    ) -> control_pb2.TriggerCheckpointReply:
        """Let sources here send a barrier."""
        with _errors_to(context):
            return self._trigger_checkpoint(request)
        raise AssertionError("an error ends the call")

    def _trigger_checkpoint(
        self, request: control_pb2.TriggerCheckpointRequest
    ) -> control_pb2.TriggerCheckpointReply:
        ended = self._slot.current(handshake_from_proto(request.handshake)).trigger_checkpoint(
            request.checkpoint_id,
            [subtask_from_proto(subtask) for subtask in request.subtasks],
            [subtask_from_proto(subtask) for subtask in request.others],
            holds=request.holds,
        )
        return control_pb2.TriggerCheckpointReply(ended=[subtask_to_proto(subtask) for subtask in ended])

    def EndCheckpoint(
        self, request: control_pb2.EndCheckpointRequest, context: grpc.ServicerContext
    ) -> control_pb2.EndCheckpointReply:
        """A checkpoint is complete, or was given up."""
        with _errors_to(context):
            return self._end_checkpoint(request)
        raise AssertionError("an error ends the call")

    def _end_checkpoint(self, request: control_pb2.EndCheckpointRequest) -> control_pb2.EndCheckpointReply:
        failures = self._slot.current(handshake_from_proto(request.handshake)).end_checkpoint(
            request.checkpoint_id,
            [subtask_from_proto(subtask) for subtask in request.ended],
            committed=request.committed,
            waits=request.waits,
        )
        return control_pb2.EndCheckpointReply(
            failures=[
                control_pb2.DeliveryFailure(
                    subtask=subtask_to_proto(subtask), cause=cause, failure_kind=failure_kind_to_proto(kind)
                )
                for subtask, (cause, kind) in failures.items()
            ]
        )

    def TakeImage(
        self, request: control_pb2.TakeImageRequest, context: grpc.ServicerContext
    ) -> control_pb2.TakeImageReply:
        """Note the store here for an owner elsewhere."""
        with _errors_to(context):
            checkpoints = self._slot.current(handshake_from_proto(request.handshake)).checkpoints
            return control_pb2.TakeImageReply(image_id=checkpoints.take_for_peer(request.checkpoint_id))

    def CollectImage(
        self, request: control_pb2.CollectImageRequest, context: grpc.ServicerContext
    ) -> control_pb2.CollectImageReply:
        """Wait until an image is published."""
        with _errors_to(context):
            checkpoints = self._slot.current(handshake_from_proto(request.handshake)).checkpoints
            image_json, new_bytes = checkpoints.collect_for_peer(request.image_id)
        return control_pb2.CollectImageReply(image_json=image_json, new_bytes=new_bytes)

    def PullState(
        self, request: control_pb2.PullStateRequest, context: grpc.ServicerContext
    ) -> control_pb2.PullStateReply:
        """Let owners here fetch their state from a store that is to go away."""
        with _errors_to(context):
            rescaling = self._slot.current(handshake_from_proto(request.handshake)).rescaling
            return control_pb2.PullStateReply(groups_left=rescaling.pull(request.address))

    def Profile(
        self, request: control_pb2.ProfileRequest, context: grpc.ServicerContext
    ) -> control_pb2.ProfileReply:
        """Look for some seconds where threads are; one call at a time."""
        with _errors_to(context):
            runtime = self._slot.current(handshake_from_proto(request.handshake))
            if not self._profiling.acquire(blocking=False):
                raise HandshakeError("a profile is being made already: ask again when it is done")
            try:
                duration_s = min(request.duration_ms / 1000, DURATION_S_MAX)
                return profile_to_proto(runtime.profile(request.stage_index, duration_s, context.is_active))
            finally:
                self._profiling.release()
        raise AssertionError("an error ends the call")

    def LogTail(
        self, request: control_pb2.LogTailRequest, context: grpc.ServicerContext
    ) -> control_pb2.LogTailReply:
        """What this process has logged of late."""
        entries = LOG_TAIL.last(request.entries_max)
        return control_pb2.LogTailReply(
            entries=[entry.text for entry in entries],
            audit_places=[place for place, entry in enumerate(entries) if entry.is_audit],
        )


def _groups_of(groups: Collection[control_pb2.OwnedGroup]) -> dict[int, int]:
    """Owner epoch by key group.

    Raises:
        HandshakeError: there can be no such group.
    """
    highest = max((item.key_group for item in groups), default=0)
    if highest > GROUP_MAX:
        raise HandshakeError(
            f"key group {highest} cannot be: they are numbered from 0 to {GROUP_MAX} at most"
        )
    return {item.key_group: item.owner_epoch for item in groups}


@contextlib.contextmanager
def _errors_to(context: grpc.ServicerContext) -> Iterator[None]:
    """Send our errors to the caller as one line each."""
    try:
        yield
    except WeirError as error:
        _refuse(context, kind_of(error), str(error))
    except StepError as error:
        _refuse(context, error.kind, str(error))
    except OSError as error:
        # Not every one passes: a directory may be in the way.
        ours = StateError(f"{error.filename or 'a file'}: {error.strerror or error}")
        ours.__cause__ = error
        _refuse(context, kind_of(ours), str(ours))
    except (ValueError, KeyError, OverflowError) as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, redacted_text(f"malformed request: {error}"))
    except Exception as error:
        log.exception("a call of the control plane failed")
        _refuse(context, kind_of(error), f"{type(error).__name__}: {error}")


def _refuse(context: grpc.ServicerContext, kind: FailureKind, cause: str) -> None:
    context.set_trailing_metadata(refusal_metadata(kind))
    # The control plane does not know what is a secret in this process's own settings.
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, redacted_text(cause))


def _offer_of(request: control_pb2.HandOverRequest) -> RelinkOffer | None:
    """What an old owner says of groups that can be relinked; None: nothing.

    Raises:
        HandshakeError: it names a key of another group.
    """
    if not request.relink_checkpoint_id:
        return None
    groups = {item.key_group.to_bytes(2, "big") for item in request.groups}
    if any(key[:2] not in groups for key in request.deleted_keys):
        raise HandshakeError("a deleted key of a handover is in none of its key groups")
    return RelinkOffer(request.relink_checkpoint_id, tuple(request.deleted_keys))
