"""Leases through their ports: who gets one, and who hears of their ends."""

import asyncio

import pytest

from control_plane.background import LoopBackground
from control_plane.link.leases import Leases
from control_plane.link.task_managers import TaskManagers
from weir.errors import HandshakeError
from weir.rpc import control_pb2
from weir.rpc.wire import PROTOCOL_VERSION
from weir.testing import ManualClock

LEASE_MS = 1_000


class TaskManager:
    """Answers who it is, and whether anything listens."""

    def __init__(self, incarnation):
        self.incarnation, self.is_closed, self.has_gone, self.held = incarnation, False, False, None

    def may_order(self, secret):
        pass

    async def status(self):
        return control_pb2.StatusReply(incarnation=self.incarnation)

    async def is_gone(self):
        return self.has_gone

    async def close(self):
        if self.held is not None:
            await self.held.wait()
        self.is_closed = True


class Run:
    """Leases of task managers at one address."""

    def __init__(self):
        self.clock, self.background = ManualClock(), LoopBackground()
        self.task_managers = TaskManagers(LEASE_MS)
        self.lost, self.made, self.incarnation = [], [], "one"
        #: How many processes are known to have died.
        self.deaths = 0
        self.leases = Leases(
            self.task_managers,
            self.clock,
            self.background,
            self.connect,
            left=lambda name: "",
            lost=lambda member, cause: self.lost.append((member.incarnation_id, cause)),
            died=self.died,
        )

    def died(self):
        self.deaths += 1

    def connect(self, address):
        self.made.append(TaskManager(self.incarnation))
        return self.made[-1]

    async def register(self, incarnation):
        await self.leases.register(
            control_pb2.RegisterRequest(
                protocol_version=PROTOCOL_VERSION, address="h:1", incarnation=incarnation, operator_quota=2
            )
        )


def test_an_address_that_leads_to_somebody_else_gets_no_lease():
    async def run():
        here = Run()
        with pytest.raises(HandshakeError, match="another task manager than the one that registered"):
            await here.register("two")
        assert not here.task_managers.clients
        assert here.made[0].is_closed

    asyncio.run(run())


def test_silence_ends_a_lease_and_a_pause_of_this_process_does_not():
    async def run():
        here = Run()
        await here.register("one")
        here.clock.advance_ms(900)
        # All of it was this process asleep: nobody was silent.
        here.leases.expire()
        for _ in range(4):
            here.clock.advance_ms(200)
            here.leases.expire()
        assert not here.lost
        here.clock.advance_ms(200)
        here.leases.expire()
        assert here.lost == [("one", "no heartbeat for 1000 ms")]
        assert not here.leases.renew("h:1", "one")
        await here.background.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_dead", [True, False])
def test_of_a_silent_process_it_is_asked_whether_it_is_dead(is_dead):
    """A stopped one, or one out of reach, is an outage; what ends processes again and again is none."""

    async def run():
        here = Run()
        await here.register("one")
        connect = here.connect

        def look(address):
            made = connect(address)
            made.has_gone = is_dead
            return made

        here.leases._connect = look
        for _ in range(5):
            here.clock.advance_ms(250)
            here.leases.expire()
        assert here.lost == [("one", "no heartbeat for 1000 ms")]
        while len(here.made) < 2 or not here.made[1].is_closed:
            await asyncio.sleep(0)
        assert here.deaths == is_dead
        await here.background.close()

    asyncio.run(run())


def test_a_second_process_at_the_address_ends_the_lease_of_the_first():
    async def run():
        here = Run()
        await here.register("one")
        here.incarnation = "two"
        await here.register("two")
        await asyncio.sleep(0)
        assert here.lost == [("one", "another process registered at its address")]
        assert here.made[0].is_closed
        assert here.task_managers.client("h:1") is here.made[1]

    asyncio.run(run())


def test_an_address_where_nothing_listens_ends_the_lease_at_once():
    async def run():
        here = Run()
        await here.register("one")
        await here.leases.drop_gone()
        assert not here.lost
        here.made[0].has_gone = True
        await here.leases.drop_gone()
        assert here.lost == [("one", "nothing listens at its address")]
        assert here.deaths == 1
        await here.background.close()

    asyncio.run(run())


def test_a_registration_that_is_repeated_keeps_the_connection():
    """Its first reply was lost; a deployment may be under way on the connection."""

    async def run():
        here = Run()
        await here.register("one")
        await here.register("one")
        await asyncio.sleep(0)
        assert not here.lost
        assert here.task_managers.client("h:1") is here.made[0]
        assert [made.is_closed for made in here.made] == [False, True]
        await here.background.close()

    asyncio.run(run())


def test_nobody_can_leave_between_a_registration_and_its_consequences():
    """A take-over would count on a task manager that has gone."""

    async def run():
        here = Run()
        await here.register("one")
        held = here.made[0].held = asyncio.Event()
        here.incarnation = "two"
        registering = asyncio.create_task(here.register("two"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert registering.done()
        held.set()
        await here.background.close()

    asyncio.run(run())
