"""Which broker leads a partition, asked of any broker that answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import grpc

from weir import threads
from weir.clock import Clock
from weir.errors import ConfigError, ConnectionLostError, WeirError
from weir.rpc import channels, log_pb2, log_pb2_grpc
from weir.rpc.log_wire import LOG_MESSAGE_BYTES_MAX
from weir.rpc.wire import parse_address
from weir.security.roles import Role

_OPTIONS = [
    ("grpc.max_send_message_length", LOG_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", LOG_MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
    # A producer's streams must not share what a peer's flow control lets through with another producer's.
    ("grpc.use_local_subchannel_pool", 1),
]
_ASK_TIMEOUT_S = 0.5
_RETRY_S = 0.05


class Cluster:
    """Connections of one client. Safe for several threads."""

    def __init__(self, brokers: str) -> None:
        """``brokers``: ``host:port``, or several with commas; one that answers is enough.

        Raises:
            HandshakeError: one is not of this form.
        """
        given = [str(parse_address(text.strip())) for text in brokers.split(",")]
        #: Of the whole cluster, once one has told them; those given first.
        self._addresses: Sequence[str] = given
        #: As the client was told.
        self.given = given
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._turn = 0

    def channel(self, address: str) -> grpc.Channel:
        """Return the connection to a broker, which is made when it is first used."""
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = channels.connect(address, Role.LOG_BROKER, _OPTIONS)
            return channel

    def leader(self, topic: str, partition: int) -> str:
        """Ask the next broker who leads a partition; ask again after an error. Blocks for half a second at most.

        Raises:
            ConnectionLostError: it does not answer, or nobody leads at the moment.
            ConfigError: it knows no such topic or partition.
        """
        reply = self._ask(topic)
        if not 0 <= partition < len(reply.partitions):
            raise ConfigError(
                f"topic {topic} has partitions 0 to {len(reply.partitions) - 1}, no {partition}"
            )
        for each in reply.partitions:
            if each.name.partition == partition and each.leader_address:
                leader: str = each.leader_address
                return leader
        raise ConnectionLostError(f"partition {topic}/{partition}: nobody leads at the moment")

    def partition_count(self, topic: str) -> int:
        """Ask the next broker how many partitions a topic has; blocks and raises as :meth:`leader`."""
        return len(self._ask(topic).partitions)

    def _ask(self, topic: str) -> log_pb2.MetadataReply:
        address = self._addresses[self._turn % len(self._addresses)]
        self._turn += 1
        stub = log_pb2_grpc.LogBrokerStub(self.channel(address))
        try:
            reply: log_pb2.MetadataReply = stub.Metadata(
                log_pb2.MetadataRequest(topic=topic), timeout=_ASK_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise ConnectionLostError(
                f"the log broker at {address} does not answer: {error.details()}; start it, or name another one"
            ) from error
        told = [each.address for each in reply.brokers]
        self._addresses = [*self.given, *(each for each in told if each not in self.given)]
        if reply.brokers and not reply.partitions:
            raise ConfigError(f"the log at {address} has no topic {topic}; run: weir log create {topic}")
        if not reply.partitions:
            raise ConnectionLostError(f"the log broker at {address} has not heard of topic {topic} yet")
        return reply

    def await_leader(self, topic: str, partition: int, timeout_s: float, clock: Clock) -> str:
        """Ask until somebody leads; closes all connections if it raises.

        Raises:
            ConnectionLostError: no broker has answered, or nobody has led the partition, within ``timeout_s``.
            ConfigError: there is no such topic or partition.
        """
        until_s = clock.monotonic_s() + timeout_s
        while True:
            try:
                return self.leader(topic, partition)
            except ConnectionLostError:
                if clock.monotonic_s() > until_s:
                    self.close()
                    raise
                threads.sleep(_RETRY_S)
            except WeirError:
                self.close()
                raise

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
