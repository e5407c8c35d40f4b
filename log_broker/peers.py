"""Connections to other brokers, by address; one each."""

from __future__ import annotations

from typing import Any

import grpc.aio

from weir.rpc import channels, log_pb2, log_pb2_grpc
from weir.rpc.log_wire import LOG_MESSAGE_BYTES_MAX, REPLICATE, as_it_is
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
