"""Which task managers are there: leases, the connections to those that hold one, and how leases end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from control_plane.link.clients import TaskManagerClient
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.protocol.membership import HeartbeatAnswer, Member, Membership
from weir.rpc import control_pb2
from weir.rpc.wire import check_protocol_version, parse_address
from weir.types import is_wildcard

if TYPE_CHECKING:
    from control_plane.job.coordinator import Coordinator

log = logging.getLogger("control_plane")

#: The timers come more often; so a shorter time without them is no pause.
_PAUSE_MS_MIN = 500


class Leases:
    """One per job; all methods are called in the event loop. The coordinator hears of every lease that ends."""

    def __init__(self, coordinator: Coordinator, lease_timeout_ms: int) -> None:
        self._coordinator = coordinator
        self._lease_timeout_ms = lease_timeout_ms
        self.membership = Membership(lease_timeout_ms)
        #: Connections to the task managers that hold a lease.
        self.clients: dict[str, TaskManagerClient] = {}
        self._awake_ms = coordinator.now_ms()

    async def register(self, request: control_pb2.RegisterRequest) -> None:
        """Give a task manager a lease, after its own server has answered.

        Raises:
            HandshakeError: it speaks another protocol version, or its address is none or leads to another process.
            ConnectionLostError: nothing answers at its address.
            FencedError: its earlier lease has ended; it must come as a new incarnation.
        """
        check_protocol_version(request.protocol_version)
        address = parse_address(request.address)
        if is_wildcard(address.host):
            raise HandshakeError(f"nobody can connect to {address}: set taskManager.advertised_host")
        client = TaskManagerClient(request.address)
        try:
            status = await client.status()
            if status.incarnation != request.incarnation:
                raise HandshakeError(
                    f"{address} leads to another task manager than the one that registered: use an address that is "
                    "unique and reachable from the control plane (taskManager.advertised_host)"
                )
            now_ms = self._coordinator.now_ms()
            registration = self.membership.register(
                address, request.incarnation, request.operator_quota, now_ms
            )
        except WeirError:
            await client.close()
            raise
        old = self.clients.pop(request.address, None)
        if old is not None:
            await old.close()
        self.clients[request.address] = client
        if registration.replaced is not None:
            self._coordinator.drainer.left(registration.replaced.name)
            self._coordinator.lost(registration.replaced, "another process registered at its address")
        log.info("task manager %s registered, %d slots", address, request.operator_quota)

    def renew(self, address: str, incarnation: str) -> bool:
        """A heartbeat came; False if its lease is gone.

        Raises:
            HandshakeError: the address has another form than ``host:port``.
        """
        self._forgive_own_pause()
        now_ms = self._coordinator.now_ms()
        answer = self.membership.heartbeat(parse_address(address), incarnation, now_ms)
        return answer is HeartbeatAnswer.RENEWED

    def deregister(self, request: control_pb2.DeregisterRequest) -> None:
        """End a lease."""
        member = self.membership.deregister(parse_address(request.address), request.incarnation)
        if member is not None:
            log.info("task manager %s left", member.name)
            why = self._coordinator.drainer.left(member.name)
            self._forget(member)
            self._coordinator.lost(
                member, f"it was stopped and left{f'; it was not empty: {why}' if why else ''}"
            )

    def expire(self) -> None:
        """Give up task managers that have been silent for too long; called once per heartbeat interval."""
        self._forgive_own_pause()
        for member in self.membership.expire(self._coordinator.now_ms()):
            silent_ms = self._lease_timeout_ms
            log.warning("task manager %s is lost: silent for %d ms", member.name, silent_ms)
            self._coordinator.drainer.left(member.name)
            self._forget(member)
            self._coordinator.lost(member, f"no heartbeat for {silent_ms} ms")

    async def drop_gone(self) -> None:
        """Give up task managers at whose address nothing listens any more, before their leases end."""
        clients = dict(self.clients)
        gone = await asyncio.gather(*(client.is_gone() for client in clients.values()))
        for (name, client), is_gone in zip(clients.items(), gone, strict=True):
            member = self.membership.get(parse_address(name))
            if is_gone and member is not None and self.clients.get(name) is client:
                log.warning("task manager %s is lost: nothing listens at its address", name)
                self.membership.deregister(member.address, member.incarnation_id)
                self._coordinator.drainer.left(name)
                self._forget(member)
                self._coordinator.lost(member, "nothing listens at its address")

    def client(self, name: str) -> TaskManagerClient:
        """The connection to a registered task manager.

        Raises:
            ConnectionLostError: it has left.
        """
        if name not in self.clients:
            raise ConnectionLostError(f"task manager {name} is not registered any more")
        return self.clients[name]

    def is_registered(self, name: str) -> bool:
        """Whether a task manager holds a lease."""
        return name in self.clients

    async def close(self) -> None:
        """Free connections; called when the process ends."""
        for client in self.clients.values():
            await client.close()

    def _forgive_own_pause(self) -> None:
        """Nobody was silent while this process slept (SIGSTOP, a suspended machine): leases begin anew."""
        now_ms = self._coordinator.now_ms()
        paused_ms, self._awake_ms = now_ms - self._awake_ms, now_ms
        if paused_ms > max(self._lease_timeout_ms / 2, _PAUSE_MS_MIN):
            log.warning("this process was stopped for %d ms; leases begin anew", paused_ms)
            self.membership.renew_all(now_ms)

    def _forget(self, member: Member) -> None:
        """Close the connection to a task manager whose lease has ended."""
        client = self.clients.pop(member.name, None)
        if client is not None:
            self._coordinator.spawn(client.close())
