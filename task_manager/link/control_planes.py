"""The control planes that a task manager knows: one leads, and where it does not answer the next one is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from weir.config import TaskManagerConfig
from weir.errors import ConfigError, HandshakeError
from weir.rpc import control_pb2_grpc
from weir.rpc.wire import CONTROL_MESSAGE_BYTES_MAX, message_size_options, parse_address

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
    return grpc.insecure_channel(address, options=_OPTIONS)


class ControlPlanes:
    """Connects when asked. The main thread changes which one counts; others see it with their next call."""

    def __init__(self, addresses: Sequence[str], connect: Callable[[str], grpc.Channel] = _connect) -> None:
        """``addresses``: at least one; the first one counts until it does not answer."""
        self._addresses = list(addresses)
        self._connections = [connect(address) for address in addresses]
        self._stubs = [control_pb2_grpc.ControlPlaneStub(connection) for connection in self._connections]
        self._index = 0

    @property
    def stub(self) -> control_pb2_grpc.ControlPlaneStub:
        """The one that counts."""
        return self._stubs[self._index]

    @property
    def address(self) -> str:
        """Of the one that counts."""
        return self._addresses[self._index]

    @property
    def addresses(self) -> str:
        """All of them, for messages."""
        return " or ".join(self._addresses)

    def try_next(self) -> None:
        """The one that counts does not answer."""
        self._index = (self._index + 1) % len(self._addresses)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
