"""Connections to other brokers, by address; one each."""

from __future__ import annotations

from typing import Any

import grpc.aio

from weir.rpc import channels, log_pb2, log_pb2_grpc
from weir.rpc.log_wire import LOG_MESSAGE_BYTES_MAX, REPLICATE, as_it_is
from weir.rpc.wire import parse_address
from weir.security.roles import Role

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", LOG_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", LOG_MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A peer that was cut off, and not closed, is noticed.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class Controllers:
    """Addresses of the controllers, of which one leads; the others answer nobody."""

    def __init__(self, addresses: str) -> None:
        """``addresses``: ``host:port``, or several with commas.

        Raises:
            HandshakeError: one is not of this form.
        """
        self._addresses = [str(parse_address(text.strip())) for text in addresses.split(",")]

    @property
    def current(self) -> str:
        """The one that led last, as far as this process knows."""
        return self._addresses[0]

    @property
    def are_several(self) -> bool:
        """Return whether there is another one to ask."""
        return len(self._addresses) > 1

    def turn(self) -> None:
        """Let another one be the current one, since that one does not answer."""
        self._addresses.append(self._addresses.pop(0))


class Peers:
    """Holds the channels of one process."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = channels.connect_async(
                address, Role.LOG_BROKER, CHANNEL_OPTIONS
            )
        return channel

    def broker(self, address: str) -> log_pb2_grpc.LogBrokerStub:
        """Return what calls a broker."""
        return log_pb2_grpc.LogBrokerStub(self._channel(address))

    def replicate(self, address: str) -> Any:
        """Begin a stream to a follower; messages go as bytes."""
        return self._channel(address).stream_stream(
            REPLICATE,
            request_serializer=as_it_is,
            response_deserializer=log_pb2.ReplicateReply.FromString,
        )(None)

    def controller(self, address: str) -> log_pb2_grpc.LogControllerStub:
        """Return what calls the controller."""
        return log_pb2_grpc.LogControllerStub(self._channel(address))

    async def close(self) -> None:
        """Close all."""
        for channel in self._channels.values():
            await channel.close(None)
