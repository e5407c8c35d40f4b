"""The control planes that a task manager knows: one leads, and where it does not answer the next one is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from task_manager.link.frequent_calls import FrequentCalls
from weir.config import TaskManagerConfig
from weir.errors import ConfigError, HandshakeError
from weir.rpc import channels, control_pb2, control_pb2_grpc
from weir.rpc.frequent_calls import FrequentCall, Message
from weir.rpc.wire import CONTROL_MESSAGE_BYTES_MAX, message_size_options, parse_address
from weir.security.roles import Role
from weir.types import Address

Reply = TypeVar("Reply", bound=Message)

_OPTIONS = (
    *message_size_options(CONTROL_MESSAGE_BYTES_MAX),
    # A control plane that is a moment behind must not cost the default of a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # So long may one attempt take, on a busy machine; one that is refused ends at once.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
)


def control_plane_addresses(config: TaskManagerConfig) -> list[str]:
    """``cp_host:cp_port`` and what ``control_planes`` adds, each once.

    Raises:
        ConfigError: one of ``control_planes`` is no address.
    """
    for text in config.control_planes:
        try:
            parse_address(text)
        except HandshakeError as error:
            raise ConfigError(f"taskManager.control_planes: {error}") from error
    return list(dict.fromkeys([f"{config.cp_host}:{config.cp_port}", *config.control_planes]))


def _connect(address: str) -> grpc.Channel:
    return channels.connect(address, Role.CONTROL_PLANE, _OPTIONS)


class ControlPlanes:
    """Connects when asked. The main thread changes which one counts; others see it with their next call."""

    def __init__(self, addresses: Sequence[str], connect: Callable[[str], grpc.Channel] = _connect) -> None:
        """``addresses``: at least one; the first one counts until it does not answer."""
        self._addresses = list(addresses)
        self._connections = [connect(address) for address in addresses]
        self._stubs = [control_pb2_grpc.ControlPlaneStub(connection) for connection in self._connections]
        self._index = 0
        #: Calls that come often, to the control plane that counts; None: all go over gRPC.
        self._frequent: FrequentCalls | None = None

    def registered(self, reply: control_pb2.RegisterReply) -> None:
        """The control plane that counts has taken this task manager, and says how it takes calls that come often."""
        self._drop_frequent()
        reached = self.address
        port = reply.frequent_calls_port
        # Something between the two that forwards a port knows nothing of others; and who cuts it, cuts all.
        if port and reached.rpartition(":")[2] == str(reply.grpc_port):
            place = Address(parse_address(reached).host, port)
            self._frequent = FrequentCalls(place, reply.frequent_calls_greeting)

    def heartbeat(
        self, request: control_pb2.HeartbeatRequest, timeout_s: float
    ) -> control_pb2.HeartbeatReply:
        """Renew the lease.

        Raises:
            grpc.RpcError: nobody answers.
        """
        reply = self._call(FrequentCall.HEARTBEAT, request, control_pb2.HeartbeatReply, timeout_s)
        return self.stub.Heartbeat(request, timeout=timeout_s) if reply is None else reply

    def acknowledge(
        self, request: control_pb2.AcknowledgeCheckpointRequest, timeout_s: float
    ) -> control_pb2.AcknowledgeCheckpointReply:
        """Deliver parts of a checkpoint.

        Raises:
            grpc.RpcError: nobody answers, or they are refused.
        """
        call, kind = FrequentCall.ACKNOWLEDGE_CHECKPOINT, control_pb2.AcknowledgeCheckpointReply
        reply = self._call(call, request, kind, timeout_s)
        return self.stub.AcknowledgeCheckpoint(request, timeout=timeout_s) if reply is None else reply

    def _call(
        self, call: FrequentCall, request: Message, kind: type[Reply], timeout_s: float
    ) -> Reply | None:
        frequent = self._frequent
        return None if frequent is None else frequent.call(call, request, kind, timeout_s)

    def _drop_frequent(self) -> None:
        frequent, self._frequent = self._frequent, None
        if frequent is not None:
            frequent.close()

    @property
    def stub(self) -> control_pb2_grpc.ControlPlaneStub:
        """The service of the control plane that counts."""
        return self._stubs[self._index]

    @property
    def address(self) -> str:
        """The address of the control plane that counts."""
        return self._addresses[self._index]

    @property
    def addresses(self) -> str:
        """The addresses of all control planes, for messages."""
        return " or ".join(self._addresses)

    def try_next(self) -> None:
        """The one that counts does not answer."""
        self._drop_frequent()
        self._index = (self._index + 1) % len(self._addresses)

    def close(self) -> None:
        """Close all connections."""
        self._drop_frequent()
        for connection in self._connections:
            connection.close()
