"""Task managers that are emptied, over the ports of a control plane in virtual time."""

import asyncio

import pytest

from tests.control_plane.cluster import COUNT, SOURCE, Cluster
from tests.control_plane.virtual import run, settle, until
from weir.errors import ConnectionLostError, HandshakeError
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_plan import RefusalKind
from weir.rpc import control_pb2
from weir.types import SubtaskId


async def running(clock, **settings):
    """A job of three subtasks on three task managers; returns the one that has no source and one that has."""
    here = Cluster(clock, min_task_managers=3, **settings)
    await here.running("h:1", "h:2", "h:3")
    source = here.holder(SubtaskId(SOURCE, 0))
    other = next(m for m in here.task_managers.values() if m is not source and m.states)
    return here, other, source


def test_subtasks_move_elsewhere_and_their_sinks_deliver_before_it_is_empty():
    async def test(clock):
        here, leaving, _ = await running(clock)
        drain = here.parts.drainer.request(leaving.address)
        assert here.parts.drainer.request(leaving.address) is drain
        assert here.parts.drainer.avoided == {leaving.address}
        await until(lambda: drain.state != "DRAINING")
        assert (drain.state, drain.cause, drain.rescales) == ("EMPTY", "", [1])
        assert leaving.address not in here.job.machine.placement.values()
        assert here.job.graph.stage(COUNT).parallelism == 2
        # A checkpoint was made for the last rows of the subtask that ended there.
        assert [r.committed for r in leaving.requests("end")][-1]
        assert not here.parts.checkpointer.is_anything_unsettled
        leaving.deregister()
        assert here.state is JobState.RUNNING
        assert here.parts.drainer.drains == {}
        await here.close()

    run(test)


def test_a_source_moves_with_all_that_is_there_by_a_checkpoint():
    async def test(clock):
        here, _, leaving = await running(clock)
        drain = here.parts.drainer.request(leaving.address)
        await until(lambda: drain.state != "DRAINING")
        assert (drain.state, drain.cause, drain.rescales) == ("EMPTY", "", [1])
        assert leaving.address not in here.job.machine.placement.values()
        assert (here.state, here.job.identity.generation) == (JobState.RUNNING, 2)
        assert here.job.graph.stage(SOURCE).subtask_indices == (0,)
        await here.close()

    run(test)


def test_a_source_stays_where_it_is_when_the_others_have_no_room():
    async def test(clock):
        here = Cluster(clock, min_task_managers=2)
        await here.running("h:1", "h:2", quota=2)
        drain = here.parts.drainer.request(here.holder(SubtaskId(SOURCE, 0)).address)
        await until(lambda: drain.state != "DRAINING")
        assert drain.state == "FAILED"
        assert "operator_quota" in drain.cause
        assert here.job.identity.generation == 1
        await here.close()

    run(test)


def test_what_cannot_be_drained_is_refused_with_the_reason():
    async def test(clock):
        here, _, source = await running(clock, checkpoint_uri="")
        refusal = here.parts.drainer.request(source.address)
        assert (refusal.kind, "sources move by a checkpoint" in refusal.message) == (RefusalKind.SOURCE, True)
        refusal = here.parts.drainer.request("h:9")
        assert refusal.message == "no task manager h:9 is registered; there are h:1, h:2, h:3"
        assert here.parts.drainer.drains == {}
        # One that asks to leave although it cannot be emptied leaves with the reason.
        request = control_pb2.DrainRequest(address=source.address, incarnation=source.incarnation, begin=True)
        reply = here.parts.reception.drain(request)
        assert reply.state == control_pb2.DRAIN_STATE_REFUSED
        source.deregister()
        assert "sources move by a checkpoint" in here.job.machine.cause
        await here.close()

    run(test)


def hold_state(here, leaving):
    """Owners elsewhere have groups whose state is at this task manager; returns one of them."""
    owner = next(
        s
        for s, name in here.job.machine.placement.items()
        if s.stage_index == COUNT and name != leaving.address
    )
    table = here.job.routing_tables[COUNT]
    groups = [group for group, index in enumerate(table.groups) if index == owner.subtask_index]
    here.job.locations.note(COUNT, groups, [leaving.address] * len(groups))
    return here.holder(owner)


async def without_subtasks(clock):
    """A job, and a task manager that joined after its deployment."""
    here = Cluster(clock)
    await here.running("h:1", "h:2")
    await here.join("h:3")
    return here, here.task_managers["h:3"]


def test_owners_fetch_what_is_in_its_store_before_it_is_empty():
    async def test(clock):
        here, leaving = await without_subtasks(clock)
        owner = hold_state(here, leaving)
        left = [5, 2, 0]

        async def pull(request):
            assert request.address == leaving.address
            return control_pb2.PullStateReply(groups_left=left.pop(0))

        owner.on["pull"] = pull
        drain = here.parts.drainer.request(leaving.address)
        await until(lambda: drain.groups_left == 5)
        assert (
            "key groups are still fetched from task manager h:3"
            in here.parts.rescaler.request(COUNT, 1).message
        )
        await until(lambda: drain.state == "EMPTY")
        assert (left, drain.groups_left, here.job.state_held_at("h:3")) == ([], 0, [])
        assert here.parts.drainer.busy() is None
        await here.close()

    run(test)


@pytest.mark.parametrize("restarts", [False, True])
def test_state_that_cannot_be_fetched_ends_the_drain_unless_the_job_starts_again(restarts):
    """After a restart from a checkpoint nothing is needed from its store."""

    async def test(clock):
        here, leaving = await without_subtasks(clock)
        owner = hold_state(here, leaving)

        async def pull(request):
            if restarts:
                owner.deregister()
                await asyncio.Event().wait()
            raise HandshakeError("the store is closed")

        owner.on["pull"] = pull
        drain = here.parts.drainer.request(leaving.address)
        await until(lambda: drain.state != "DRAINING")
        wanted = (
            ("EMPTY", "") if restarts else ("FAILED", "its state could not be fetched: the store is closed")
        )
        assert (drain.state, drain.cause) == wanted
        assert here.parts.drainer.avoided == ({leaving.address} if restarts else set())
        await here.close()

    run(test)


@pytest.mark.parametrize("has_room", [True, False])
def test_a_job_that_starts_again_goes_back_to_an_empty_task_manager_only_without_room_elsewhere(has_room):
    """It has been told that it can be stopped."""

    async def test(clock):
        here, leaving, source = await running(clock)
        drain = here.parts.drainer.request(leaving.address)
        await until(lambda: drain.state == "EMPTY")
        last = next(m for m in here.task_managers.values() if m not in (leaving, source))
        if not has_room:
            source.quota = 1
            await source.register()
        last.is_alive = False
        last.deregister()
        await until(lambda: here.state is JobState.RUNNING and here.job.identity.generation == 2)
        assert (leaving.address in here.job.machine.placement.values()) != has_room
        assert drain.state == ("EMPTY" if has_room else "FAILED")
        assert ("have no room for its subtasks" in drain.cause) != has_room
        await here.close()

    run(test)


def test_a_task_manager_that_leaves_too_early_says_how_far_its_drain_was():
    async def test(clock):
        here, leaving, _ = await running(clock)
        for member in here.task_managers.values():

            async def hang(request):
                await asyncio.Event().wait()

            member.on["prepare"] = hang
        drain = here.parts.drainer.request(leaving.address)
        await until(lambda: drain.rescales)
        leaving.deregister()
        assert "it was not empty: it did not wait for the end of its drain" in here.job.machine.restart_cause
        await settle()
        assert here.parts.drainer.drains == {}
        await here.close()

    run(test)


def test_a_deployment_that_is_refused_elsewhere_ends_the_drain():
    async def test(clock):
        here, leaving, _ = await running(clock)

        async def refuse(request):
            if request.subtasks:
                raise ConnectionLostError("the store cannot be opened")

        for member in here.task_managers.values():
            member.on["deploy"] = refuse
        drain = here.parts.drainer.request(leaving.address)
        await until(lambda: drain.state == "FAILED")
        assert "the store cannot be opened" in drain.cause
        assert here.state is JobState.RUNNING
        assert leaving.address in here.job.machine.placement.values()
        await here.close()

    run(test)
