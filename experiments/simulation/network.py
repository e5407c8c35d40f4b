"""Channels between simulated task managers: ordered, with credits, broken by a crash or a cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa

from experiments.simulation.connection import Connection
from experiments.simulation.world import Process
from task_manager.exchange.channels import Channel, ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Delivery, Inbox, no_release
from task_manager.exchange.pace import Gathering
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.state.state_client import GrpcStateClient
from weir import threads
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.rows.late_column import TextRoom
from weir.rows.records import Element, batch_bytes
from weir.rpc.wire import JobIdentity
from weir.state.placement.remote import RemoteStateClient
from weir.subtask_names import NameOf, numbered
from weir.types import ChannelId

if TYPE_CHECKING:
    from experiments.simulation.task_manager import TaskManager

#: Of a consumer's task manager, to take a channel.
_ACCEPT_TIMEOUT_S = 15.0
#: How long after them rows come once more, where nobody looks whose they are.
_AGAIN_MS_MAX = 200.0


class SimulatedNetwork(PeerNetwork):
    """The other task managers of a job, as one reaches them; connections and rows go over the simulated network."""

    def __init__(
        self,
        source: TaskManager,
        identity: JobIdentity,
        address: str,
        config: TaskManagerConfig,
        clock: Clock,
        find_local_inbox: Callable[[ChannelId], Inbox],
        name_of: NameOf = numbered,
    ) -> None:
        """Made at a deployment; ``source`` is the process."""
        super().__init__(identity, address, config, clock, find_local_inbox, name_of)
        # What the machine's processor does must not decide anything here: every other seed has a process that is
        # always busy, so that rows travel in waves.
        cores = 0.5 if source.world.is_busy else 0.0
        self.gathering = Gathering(clock.monotonic_s, lambda: cores * clock.monotonic_s())
        self._source = source
        self._job, self._own, self._limits = identity, address, config
        self._now, self._find = clock, find_local_inbox
        self._channels: list[SimulatedChannel] = []
        self._opened: dict[str, Connection] = {}

    def open_channel(self, channel: ChannelId, sender: Inbox, location: str) -> Channel:
        """See ``PeerNetwork``."""
        config = self._limits
        limits = ChannelLimits(config.operator_buffer_size, config.channel_buffer_bytes, config.in_flight_ms)
        gate = CreditGate(limits, sender, self._now)
        if location == self._own:
            return LocalChannel(gate, self._find(channel), channel)
        target = self._source.world.processes.get(location)
        opened = SimulatedChannel(self, self._source, target, self._job, channel, gate)
        self._channels.append(opened)
        opened.wait_accepted()
        return opened

    def connection(self, location: str) -> grpc.Channel:
        """See ``PeerNetwork``."""
        if location not in self._opened:
            self._opened[location] = Connection(self._source, location)
        return self._opened[location]

    def state_client(self, stage_index: int, address: str, epochs: Mapping[int, int]) -> RemoteStateClient:
        """See ``PeerNetwork``."""
        return GrpcStateClient(self.connection(address), address, self._job, stage_index, epochs, self._now)

    def close(self) -> None:
        """See ``PeerNetwork``."""
        closed = ConnectionLostError("the job has ended")
        for channel in self._channels:
            channel.fail(closed)
        for connection in self._opened.values():
            connection.close()


class SimulatedChannel:
    """The sending end of a channel; implements ``Channel``."""

    def __init__(
        self,
        link: object,
        source: TaskManager,
        target: Process | None,
        identity: JobIdentity,
        channel: ChannelId,
        gate: CreditGate,
    ) -> None:
        """``link``: what is sent for the same one to the same process keeps its order."""
        self.gate = gate
        self.is_remote = True
        self.shares_memory = False
        self.batch_bytes_max: int | None = None
        self._link, self._source, self._target = link, source, target
        self._identity, self._channel = identity, channel
        self._answered = threads.event()
        self._unsent: list[Element] = []
        #: Where it ends; set at the other side.
        self._inbox: Inbox | None = None
        if target is not None:
            target.on_crash.append(self._broken)

    def wait_accepted(self) -> None:
        """Bring the handshake there.

        Raises:
            ConnectionLostError: nobody answers.
            HandshakeError: it was refused.
        """
        self._send(self._accept)
        if not self._answered.wait(_ACCEPT_TIMEOUT_S):
            raise ConnectionLostError(f"{self._channel} was not accepted")
        self.gate.check()

    def send(self, element: Element, size_bytes: int | None = None) -> None:
        """See ``Channel``."""
        if isinstance(element, pa.RecordBatch):
            self.gate.take(element.num_rows, batch_bytes(element) if size_bytes is None else size_bytes)
        else:
            self.gate.check()
        self._unsent.append(element)

    def room_for_texts(self, rows: pa.RecordBatch, place: int, size_bytes: int) -> TextRoom | None:
        """None: no memory is shared."""
        return None

    def flush(self) -> None:
        """See ``Channel``; nothing goes before."""
        unsent, self._unsent = self._unsent, []
        for element in unsent:
            self._send(self._arrive, element)

    def close(self) -> None:
        """See ``Channel``."""
        self.flush()

    def fail(self, error: WeirError) -> None:
        """The channel is of no use any more."""
        self.gate.fail(error)
        self._answered.set()

    def _send(self, call: Callable[..., None], *args: object) -> None:
        world, target = self._source.world, self._target
        if target is None or not world.stream(self._source, target, self._link, call, *args):
            self._broken()

    def _broken(self) -> None:
        if self._source.is_alive:
            self.fail(ConnectionLostError(f"channel {self._channel} broke"))

    # --- at the consumer's task manager ---

    def _accept(self) -> None:
        try:
            self._inbox = self._find_inbox()
        except HandshakeError as error:
            self._answer(self.fail, HandshakeError(str(error)))
        else:
            self._answer(self._answered.set)

    def _find_inbox(self) -> Inbox:
        slot = self._there.slot
        if self._source.world.broken == "channel" and slot.runtime is not None:
            # Rows of any deployment are taken.
            return slot.find_inbox(slot.runtime.identity, self._channel)
        return slot.find_inbox(self._identity, self._channel)

    def _arrive(self, element: Element) -> None:
        inbox = self._inbox
        if self._source.world.broken == "channel":
            with contextlib.suppress(HandshakeError):
                inbox = self._find_inbox()
            if isinstance(element, pa.RecordBatch):
                self._there.later(
                    self._source.world.rng.random() * _AGAIN_MS_MAX, self._arrive_again, element
                )
        if inbox is None:
            return
        release = no_release
        if isinstance(element, pa.RecordBatch):

            def release() -> None:
                self._answer(self.gate.release, 1, inbox.busy_share)

        inbox.put(Delivery(self._channel, element, release))

    def _arrive_again(self, batch: pa.RecordBatch) -> None:
        """A sender that has not heard of the next deployment sends rows of its own once more."""
        runtime = self._there.slot.runtime
        if runtime is not None and runtime.identity != self._identity:
            with contextlib.suppress(HandshakeError):
                self._find_inbox().put(Delivery(self._channel, batch, no_release))

    @property
    def _there(self) -> TaskManager:
        from experiments.simulation.task_manager import TaskManager

        assert isinstance(self._target, TaskManager)
        return self._target

    def _answer(self, call: Callable[..., None], *args: object) -> None:
        if not self._source.world.stream(self._there, self._source, self._link, call, *args):
            self._source.later(0.0, self._broken)
