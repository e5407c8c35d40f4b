"""Gives task managers leases, renews them and ends them; tells of every lease that ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background, Connect
from weir.clock import Clock, monotonic_ms
from weir.errors import HandshakeError, WeirError
from weir.protocol.job.membership import HeartbeatAnswer, Member
from weir.rpc import control_pb2
from weir.rpc.wire import check_protocol_version, parse_address
from weir.types import is_wildcard

log = logging.getLogger("control_plane")

#: The timers come more often; so a shorter time without them is no pause.
_PAUSE_MS_MIN = 500


class Leases:
    """The leases of a job's task managers; all methods are called in the event loop."""

    def __init__(
        self,
        task_managers: TaskManagers,
        clock: Clock,
        background: Background,
        connect: Connect,
        *,
        left: Callable[[str], str],
        lost: Callable[[Member, str], None],
        died: Callable[[], None],
    ) -> None:
        """Nobody has a lease yet.

        Args:
            task_managers: those that hold a lease; this object adds and removes them.
            clock: time of leases.
            background: closes connections.
            connect: makes the connection to a task manager.
            left: told first of a task manager whose lease ends; returns why it was not empty, if it wanted to be.
            lost: told of every lease that ends, with the cause.
            died: told of leases whose process has ended without a word; perhaps a moment after ``lost``.
        """
        self._task_managers = task_managers
        self._clock = clock
        self._background = background
        self._connect = connect
        self._left = left
        self._lost = lost
        self._died = died
        self._awake_ms = self._now_ms

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
        client = self._connect(request.address)
        client.may_order(request.orders_secret)
        try:
            status = await client.status()
            if status.incarnation != request.incarnation:
                raise HandshakeError(
                    f"{address} leads to another task manager than the one that registered: use an address that is "
                    "unique and reachable from the control plane (taskManager.advertised_host)"
                )
            now_ms = self._now_ms
            registration = self._task_managers.membership.register(
                address, request.incarnation, request.operator_quota, now_ms
            )
        except WeirError:
            await client.close()
            raise
        clients = self._task_managers.clients
        if request.address in clients and registration.replaced is None:
            # The reply to its first registration was lost; it may have been told since what to run.
            self._background.spawn(client.close())
            return
        # Whoever knows of the registration must not wait before all do: the task manager may leave meanwhile.
        old, clients[request.address] = clients.get(request.address), client
        if registration.replaced is not None:
            self._left(registration.replaced.name)
            self._died()
            self._lost(registration.replaced, "another process registered at its address")
        if old is not None:
            self._background.spawn(old.close())
        log.info("task manager %s registered, %d slots", address, request.operator_quota)

    def renew(self, address: str, incarnation: str) -> bool:
        """A heartbeat came; False if its lease is gone.

        Raises:
            HandshakeError: the address has another form than ``host:port``.
        """
        self._forgive_own_pause()
        membership = self._task_managers.membership
        before_ms = membership.lease_ms
        answer = membership.heartbeat(parse_address(address), incarnation, self._now_ms)
        if membership.lease_ms > before_ms:
            log.warning(
                "task manager %s was taken for dead and is only slow, again without a checkpoint in between: "
                "leases last %d ms from now on",
                address,
                membership.lease_ms,
            )
        return answer is HeartbeatAnswer.RENEWED

    def progressed(self) -> None:
        """A checkpoint is complete: leases that were made longer may become shorter again."""
        self._task_managers.membership.length.progressed(self._now_ms)

    def deregister(self, request: control_pb2.DeregisterRequest) -> None:
        """End a lease."""
        member = self._task_managers.membership.deregister(
            parse_address(request.address), request.incarnation
        )
        if member is not None:
            log.info("task manager %s left", member.name)
            why = self._left(member.name)
            self._forget(member)
            self._lost(member, f"it was stopped and left{f'; it was not empty: {why}' if why else ''}")

    def expire(self) -> None:
        """Give up task managers that have been silent for too long; called once per heartbeat interval."""
        self._forgive_own_pause()
        for member in self._task_managers.membership.expire(self._now_ms):
            silent_ms = self._task_managers.membership.lease_ms
            log.warning("task manager %s is lost: silent for %d ms", member.name, silent_ms)
            self._left(member.name)
            self._forget(member)
            self._background.spawn(self._look_whether_died(member.name))
            self._lost(member, f"no heartbeat for {silent_ms} ms")

    async def _look_whether_died(self, name: str) -> None:
        """A process that was silent may be stopped, out of reach, or dead."""
        client = self._connect(name)
        try:
            if await client.is_gone():
                self._died()
        finally:
            await client.close()

    async def drop_gone(self) -> None:
        """Give up task managers at whose address nothing listens any more, before their leases end."""
        clients = dict(self._task_managers.clients)
        gone = await asyncio.gather(*(client.is_gone() for client in clients.values()))
        for (name, client), is_gone in zip(clients.items(), gone, strict=True):
            member = self._task_managers.membership.get(parse_address(name))
            if is_gone and member is not None and self._task_managers.clients.get(name) is client:
                log.warning("task manager %s is lost: nothing listens at its address", name)
                self._task_managers.membership.deregister(member.address, member.incarnation_id)
                self._left(name)
                self._forget(member)
                self._died()
                self._lost(member, "nothing listens at its address")

    @property
    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    def _forgive_own_pause(self) -> None:
        """Nobody was silent while this process slept (SIGSTOP, a suspended machine): leases begin anew."""
        now_ms = self._now_ms
        paused_ms, self._awake_ms = now_ms - self._awake_ms, now_ms
        if paused_ms > max(self._task_managers.membership.lease_ms / 2, _PAUSE_MS_MIN):
            log.warning("this process was stopped for %d ms; leases begin anew", paused_ms)
            self._task_managers.membership.renew_all(now_ms)

    def _forget(self, member: Member) -> None:
        """Close the connection to a task manager whose lease has ended."""
        client = self._task_managers.clients.pop(member.name, None)
        self._task_managers.waits_for.pop(member.name, None)
        self._task_managers.use.pop(member.name, None)
        self._task_managers.state_files.pop(member.name, None)
        self._task_managers.disks.forget(member.name)
        if client is not None:
            self._background.spawn(client.close())
