"""Calls from the control plane to task managers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import grpc

from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.protocol.queries import TIMEOUT_S
from weir.questions.link import QuestionLink, QuestionPlace
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.access import ORDERS_KEY
from weir.rpc.channels import Metadata, connect_async
from weir.rpc.frequent_calls import FrequentCall, Message, call_frame, reply_from
from weir.rpc.wire import (
    CONTROL_MESSAGE_BYTES_MAX,
    check_protocol_version,
    message_size_options,
    parse_address,
    refusal_kind,
)
from weir.security.roles import Role

#: Loading a job and opening a store may take a while on a cold machine.
_DEPLOY_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 5.0
#: Sinks that have ended deliver meanwhile; what they write to may be slow.
_DELIVERY_TIMEOUT_S = 60.0
#: A process that is gone refuses the connection at once.
_GONE_TIMEOUT_S = 0.3
#: An upstream subtask switches when the batch in its hands is done, however long that takes; the lease of its
#: task manager tells whether it is still alive.
_REROUTE_TIMEOUT_S = 660.0
#: Owners begin to fetch; nobody waits for the state itself.
_PULL_TIMEOUT_S = 10.0
#: A task manager ends a question before that.
_QUERY_TIMEOUT_S = TIMEOUT_S + 2

Request = TypeVar("Request")
Reply = TypeVar("Reply")
FrequentReply = TypeVar("FrequentReply", bound=Message)


class TaskManagerClient:
    """Implements ``ports.TaskManagerCalls`` over gRPC; used from the control plane's event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._is_closed = False
        self._orders: Metadata = ()
        self._connection = connect_async(
            address,
            Role.TASK_MANAGER,
            [
                *message_size_options(CONTROL_MESSAGE_BYTES_MAX),
                ("grpc.enable_http_proxy", 0),
                # A process that comes back at the same address is not to wait for the connection of its predecessor,
                # nor for that one's back-off (up to two minutes).
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
                # So long may one attempt take, on a busy machine; one that is refused ends at once.
                ("grpc.min_reconnect_backoff_ms", int(_CALL_TIMEOUT_S * 1e3)),
            ],
            more=lambda: self._orders,
        )
        self._stub = control_pb2_grpc.TaskManagerStub(self._connection)
        #: As the latest answer to :meth:`status` says.
        self.question_place = QuestionPlace()
        self._questions: QuestionLink | None = None
        #: For calls that come often; None: not connected yet.
        self._calls: QuestionLink | None = None
        self._has_calls = True

    def may_order(self, secret: bytes) -> None:
        """The task manager has registered here, and told by which secret it takes orders."""
        self._orders = ((ORDERS_KEY, secret),)

    async def status(self) -> control_pb2.StatusReply:
        """Who is there.

        Raises:
            ConnectionLostError: nobody answers, or the connection was closed meanwhile.
            HandshakeError: it speaks another protocol version.
        """
        reply: control_pb2.StatusReply = await self._ask(
            self._stub.Status, control_pb2.StatusRequest(), _CALL_TIMEOUT_S
        )
        check_protocol_version(reply.protocol_version)
        self.question_place = QuestionPlace(
            reply.question_port,
            reply.question_greeting,
            reply.question_http_address,
            reply.frequent_calls_greeting,
        )
        return reply

    async def is_gone(self) -> bool:
        """Return whether nothing listens at the address any more; one that only does not answer in time is not gone."""
        try:
            await self._ask(self._stub.Status, control_pb2.StatusRequest(), _GONE_TIMEOUT_S)
        except WeirError as error:
            cause = error.__cause__
            return isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNAVAILABLE
        return False

    async def deploy(self, request: control_pb2.DeployRequest) -> None:
        """Create subtasks.

        Raises:
            ConnectionLostError: it does not answer, or the connection was closed meanwhile.
            HandshakeError: it refused; the message says why.
        """
        await self._ask(self._stub.Deploy, request, _DEPLOY_TIMEOUT_S)

    async def start(self, request: control_pb2.StartRequest) -> None:
        """Let the sources begin; raises like :meth:`deploy`."""
        await self._ask(self._stub.Start, request, _CALL_TIMEOUT_S)

    async def cancel(self, request: control_pb2.CancelRequest) -> None:
        """Stop a job's subtasks; raises like :meth:`deploy`."""
        await self._ask(self._stub.Cancel, request, _CALL_TIMEOUT_S)

    async def prepare_rescale(
        self, request: control_pb2.PrepareRescaleRequest
    ) -> control_pb2.PrepareRescaleReply:
        """Tell owners of a rescale; raises like :meth:`deploy`."""
        return await self._ask(self._stub.PrepareRescale, request, _CALL_TIMEOUT_S)

    async def reroute(self, request: control_pb2.RerouteRequest) -> None:
        """Switch upstream subtasks; raises like :meth:`deploy`."""
        await self._ask(self._stub.Reroute, request, _REROUTE_TIMEOUT_S)

    async def abort_rescale(self, request: control_pb2.AbortRescaleRequest) -> None:
        """Take a rescale back; raises like :meth:`deploy`."""
        await self._ask(self._stub.AbortRescale, request, _CALL_TIMEOUT_S)

    async def trigger_checkpoint(self, request: control_pb2.TriggerCheckpointRequest) -> None:
        """Let sources send a barrier; raises like :meth:`deploy`."""
        call, kind = FrequentCall.TRIGGER_CHECKPOINT, control_pb2.TriggerCheckpointReply
        if await self._call(call, request, kind, _CALL_TIMEOUT_S) is None:
            await self._ask(self._stub.TriggerCheckpoint, request, _CALL_TIMEOUT_S)

    async def end_checkpoint(
        self, request: control_pb2.EndCheckpointRequest
    ) -> control_pb2.EndCheckpointReply:
        """Tell that a checkpoint is over; raises like :meth:`deploy`."""
        call, kind = FrequentCall.END_CHECKPOINT, control_pb2.EndCheckpointReply
        reply = await self._call(call, request, kind, _DELIVERY_TIMEOUT_S)
        if reply is not None:
            return reply
        return await self._ask(self._stub.EndCheckpoint, request, _DELIVERY_TIMEOUT_S)

    async def pull_state(self, request: control_pb2.PullStateRequest) -> control_pb2.PullStateReply:
        """Let owners fetch their state from a store; raises like :meth:`deploy`."""
        return await self._ask(self._stub.PullState, request, _PULL_TIMEOUT_S)

    async def profile(self, request: control_pb2.ProfileRequest) -> control_pb2.ProfileReply:
        """Let it look where its threads are; raises like :meth:`deploy`."""
        timeout_s = _CALL_TIMEOUT_S + request.duration_ms / 1000
        return await self._ask(self._stub.Profile, request, timeout_s)

    async def log_tail(self, request: control_pb2.LogTailRequest) -> control_pb2.LogTailReply:
        """The last entries of its log; raises like :meth:`deploy`."""
        return await self._ask(self._stub.LogTail, request, _CALL_TIMEOUT_S)

    async def query(self, request: control_pb2.QueryRequest) -> control_pb2.QueryReply:
        """Ask a question; raises like :meth:`deploy`."""
        if self._questions is None:
            await self.status()
            place = self.question_place
            if not place.port:
                raise HandshakeError(f"task manager {self.address} takes no questions")
            self._questions = QuestionLink(parse_address(self.address).host, place.port, place.greeting)
        questions = self._questions
        try:
            return control_pb2.QueryReply.FromString(
                await questions.ask(request.SerializeToString(), _QUERY_TIMEOUT_S)
            )
        except ConnectionLostError as error:
            self._drop(questions)
            raise ConnectionLostError(f"task manager {self.address} does not answer: {error}") from error

    def begin_query(
        self, request: control_pb2.QueryRequest, done: Callable[[control_pb2.QueryReply | None], None]
    ) -> Callable[[], None] | None:
        """Begin a :meth:`query`, without waiting: ``done`` gets the reply, or None if there is none.

        Returns:
            What takes the question back, whereupon ``done`` is not called; None: it takes :meth:`query`.
        """
        questions = self._questions
        if questions is None:
            return None

        def answered(content: bytes | ConnectionLostError) -> None:
            if isinstance(content, bytes):
                done(control_pb2.QueryReply.FromString(content))
            else:
                self._drop(questions)
                done(None)

        return questions.begin(request.SerializeToString(), _QUERY_TIMEOUT_S, answered)

    def _drop(self, questions: QuestionLink) -> None:
        """Another process may be at the address by now."""
        if questions.is_connected:
            return
        questions.close()
        if self._questions is questions:
            self._questions = None

    async def close(self) -> None:
        """Free the connection; calls that wait for an answer raise ConnectionLostError."""
        self._is_closed = True
        if self._questions is not None:
            self._questions.close()
        if self._calls is not None:
            self._calls.close()
        await self._connection.close(None)

    async def _call(
        self, call: FrequentCall, request: Message, kind: type[FrequentReply], timeout_s: float
    ) -> FrequentReply | None:
        """A call without gRPC; None: it must be made over gRPC, because it is refused, or nobody takes it here.

        Raises:
            ConnectionLostError: as :meth:`deploy`.
        """
        place = self.question_place
        if self._is_closed or not self._has_calls or not (place.port and place.calls_greeting):
            return None
        if self._calls is None:
            self._calls = QuestionLink(parse_address(self.address).host, place.port, place.calls_greeting)
        calls, was_connected = self._calls, self._calls.is_connected
        try:
            return reply_from(kind, await calls.ask(call_frame(call, request), timeout_s))
        except ConnectionLostError as error:
            if self._is_closed:
                raise self._closed() from error
            if not was_connected and not calls.is_connected:
                # Perhaps a firewall lets other ports through only, which costs time with each try.
                self._has_calls = False
                return None
            raise ConnectionLostError(f"task manager {self.address} does not answer: {error}") from error

    async def _ask(
        self, call: grpc.aio.UnaryUnaryMultiCallable[Request, Reply], request: Request, timeout_s: float
    ) -> Reply:
        if self._is_closed:
            raise self._closed()
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._explain(error) from error
        except asyncio.CancelledError:
            # gRPC cancels what waits on a closed connection: that must not look as if the caller were to end.
            task = asyncio.current_task()
            if self._is_closed and (task is None or not task.cancelling()):
                raise self._closed() from None
            raise

    def _closed(self) -> ConnectionLostError:
        return ConnectionLostError(
            f"task manager {self.address}: the connection was closed, because it has left or is lost"
        )

    def _explain(self, error: grpc.aio.AioRpcError) -> WeirError:
        details = error.details() or f"gRPC status {error.code().name}"
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return ConnectionLostError(f"task manager {self.address} does not answer: {details}")
        refusal = HandshakeError(f"task manager {self.address}: {details}")
        refusal.failure_kind = refusal_kind(error.trailing_metadata())
        return refusal
