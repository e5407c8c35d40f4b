"""The other task managers of a job, as this one reaches them: one connection and one link of channels for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

import grpc

from task_manager.connections import connect
from task_manager.exchange.channels import Channel, ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Inbox
from task_manager.exchange.pace import Gathering
from task_manager.exchange.peer_link import PeerLink
from task_manager.state.state_client import GrpcStateClient
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import ConnectionLostError
from weir.rpc.wire import JobIdentity, message_size_options
from weir.state.placement.remote import RemoteStateClient
from weir.subtask_names import NameOf, numbered
from weir.types import ChannelId

Stub = TypeVar("Stub")


class PeerNetwork:
    """The network of a deployed job; any thread may call it."""

    def __init__(
        self,
        identity: JobIdentity,
        address: str,
        config: TaskManagerConfig,
        clock: Clock,
        find_local_inbox: Callable[[ChannelId], Inbox],
        name_of: NameOf = numbered,
    ) -> None:
        """``address`` is this task manager's: channels to it go to an inbox that ``find_local_inbox`` returns.

        ``name_of``: what subtasks are called in errors.
        """
        self._name_of = name_of
        self._identity = identity
        self._address = address
        self._config = config
        self._clock = clock
        self._find_local_inbox = find_local_inbox
        #: How long rows and messages gather while the process is busy.
        self.gathering = Gathering(clock.monotonic_s)
        self._connections: dict[str, grpc.Channel] = {}
        self._links: dict[str, PeerLink] = {}
        #: Guards both, and that no stub is made of a connection that was closed: gRPC (1.85) ends the process then.
        self._lock = threading.RLock()
        self._is_closed = False

    def open_channel(self, channel: ChannelId, sender: Inbox, location: str) -> Channel:
        """Open a channel; a remote one is accepted when this returns.

        Raises:
            ConnectionLostError, HandshakeError: the consumer's task manager does not take it.
        """
        limits = ChannelLimits(
            self._config.operator_buffer_size, self._config.channel_buffer_bytes, self._config.in_flight_ms
        )
        gate = CreditGate(limits, sender, self._clock)
        if location == self._address:
            return LocalChannel(gate, self._find_local_inbox(channel), channel)
        remote = self._link(location).open(channel, gate, self._config.message_bytes_max)
        remote.wait_accepted()
        return remote

    def stub(self, location: str, make: Callable[[grpc.Channel], Stub]) -> Stub:
        """What ``make`` returns for the connection to another task manager: a stub of gRPC, or what has one.

        Raises:
            ConnectionLostError: the job has ended here.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionLostError(f"the connection to task manager {location} is closed")
            return make(self.connection(location))

    def connection(self, location: str) -> grpc.Channel:
        """Returns the connection to another task manager; called by :meth:`stub` only."""
        if location not in self._connections:
            options = message_size_options(self._config.message_bytes_max)
            self._connections[location] = connect(location, options)
        return self._connections[location]

    def state_client(self, stage_index: int, address: str, epochs: Mapping[int, int]) -> RemoteStateClient:
        """Returns access to the store of another task manager, with an owner's epochs.

        Raises:
            ConnectionLostError: the job has ended here.
        """

        def make(connection: grpc.Channel) -> RemoteStateClient:
            return GrpcStateClient(connection, address, self._identity, stage_index, epochs, self._clock)

        return self.stub(address, make)

    def close(self) -> None:
        """Close all links and connections; safe to call twice."""
        with self._lock:
            self._is_closed = True
            links, connections = list(self._links.values()), list(self._connections.values())
        for link in links:
            link.close()
        for connection in connections:
            connection.close()

    def _link(self, location: str) -> PeerLink:
        """What all channels to another task manager go through."""

        def make(connection: grpc.Channel) -> PeerLink:
            return PeerLink(connection, location, self._identity, self._clock, self._name_of)

        with self._lock:
            if location not in self._links or self._links[location].is_broken:
                self._links[location] = self.stub(location, make)
            return self._links[location]
