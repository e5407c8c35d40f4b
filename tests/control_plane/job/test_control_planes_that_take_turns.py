"""A second control plane takes over what the first one left, both of real parts in virtual time."""

import asyncio

import pytest

from tests.control_plane.cluster import COUNT, SOURCE, Cluster, no_space
from tests.control_plane.virtual import run, settle, until
from weir.errors import HandshakeError
from weir.protocol.job.job_machine import JobState
from weir.rpc import control_pb2
from weir.rpc.wire import subtask_from_proto
from weir.types import SubtaskId


async def left_running(clock, **settings):
    """A job that its control plane left with one complete checkpoint."""
    first = Cluster(clock, **settings)
    await first.running("h:1", "h:2")
    first.parts.checkpointer.request()
    await until(lambda: first.parts.checkpointer.latest_id == 1)
    return first


def successor(clock, first, **settings):
    second = Cluster(clock, record=first.register.data, store=first.store, **settings)
    second.adopt(first)
    return second


def triggers(here):
    return [r.checkpoint_id for member in here.task_managers.values() for r in member.requests("trigger")]


def test_a_job_goes_on_as_it_is_and_no_number_of_a_checkpoint_is_used_twice():
    """Subtasks remember the number of a checkpoint that was begun and never completed."""

    async def test(clock):
        first = await left_running(clock)
        for member in first.task_managers.values():
            member.ack = False
        first.parts.checkpointer.request()
        await until(lambda: triggers(first) == [1, 2])
        await first.close()
        second = successor(clock, first)
        for member in second.task_managers.values():
            member.ack = True
        await second.running("h:1", "h:2")
        assert second.job.identity.generation == 1
        # Sources may hold for a stop that the first one began: another checkpoint comes at once.
        await until(lambda: len(triggers(second)) == 3)
        await until(lambda: second.parts.checkpointer.latest_id > 2)
        assert triggers(second)[-1] > 2
        await second.close()
        # Two that complete nothing, one after the other: the record says where each began.
        for member in second.task_managers.values():
            member.ack = False
        third = successor(clock, second)
        await third.running("h:1", "h:2")
        await until(lambda: len(triggers(third)) == 4)
        await third.close()
        fourth = successor(clock, third)
        await fourth.running("h:1", "h:2")
        await until(lambda: len(triggers(fourth)) == 5)
        numbers = triggers(fourth)
        assert numbers == sorted(set(numbers))
        await fourth.close()

    run(test)


def test_the_job_has_begun_when_it_began():
    """Paced sources go by that time after the next failure, and the last line counts from it."""

    async def test(clock):
        first = await left_running(clock)
        began_us = first.job.started_us
        await first.close()
        await asyncio.sleep(30)
        second = successor(clock, first)
        await second.running("h:1", "h:2")
        assert second.job.started_us == began_us
        second.parts.checkpointer.request()
        await until(lambda: second.parts.checkpointer.latest_id > 1)
        manifest = second.parts.checkpointer.kept.latest.manifest
        assert manifest.job_start_us == began_us
        await second.close()

    run(test)


def test_no_generation_is_used_twice():
    """The first control plane deployed the job anew, and was gone before its record said so."""

    async def test(clock):
        first = await left_running(clock)
        stale = first.register.data
        origin = SubtaskId(SOURCE, 0)
        first.holder(origin).fail(origin, "1 / 0", failed_step="rows")
        await until(lambda: first.job.identity.generation == 2 and first.state is JobState.RUNNING)
        await first.close()
        first.register.data = stale
        second = successor(clock, first)
        await second.join("h:1", "h:2")
        await until(lambda: second.state is JobState.RUNNING)
        assert second.job.identity.generation == 3
        assert second.job.restarts == 1
        assert {
            r.restore.manifest_path for m in second.task_managers.values() for r in m.requests("deploy")[-1:]
        } == {"manifests/000000000001.json"}
        await second.close()

    run(test)


def test_nobody_hears_of_a_generation_that_is_not_on_record():
    async def test(clock):
        here = await left_running(clock)
        here.background.may_save.clear()
        origin = SubtaskId(SOURCE, 0)
        here.holder(origin).fail(origin, "1 / 0", failed_step="rows")
        await until(lambda: here.job.identity.generation == 2)
        await asyncio.sleep(5)
        generations = [
            r.handshake.generation
            for member in here.task_managers.values()
            for r in member.requests("deploy")
        ]
        assert set(generations) == {1}
        here.background.may_save.set()
        await until(lambda: here.state is JobState.RUNNING)
        assert here.register.record.generation == 2
        await here.close()

    run(test)


def test_new_subtasks_of_a_rescale_that_is_taken_back_stop_although_the_order_came_before_them():
    """They would run for ever, and checkpoints would wait for the end of the rescale."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        deployed = asyncio.Event()

        async def slowly(request):
            if request.subtasks:
                await deployed.wait()

        async def ended(request):
            return control_pb2.PrepareRescaleReply(ended=request.subtasks)

        rescale = here.parts.rescaler.request(COUNT, 4)
        new = [SubtaskId(COUNT, 2), SubtaskId(COUNT, 3)]
        slow = here.holder(new[0])
        slow.on["deploy"] = slowly
        await until(lambda: slow.requests("deploy")[-1].subtasks)
        other = here.holder(new[1])
        assert other is not slow
        other.fail(new[1], "no room", failed_step="count")
        other.heartbeat()
        await until(lambda: slow.requests("cancel"))
        deployed.set()
        await until(lambda: rescale.phase.is_final)
        assert (rescale.phase.value, here.state) == ("ABORTED", JobState.RUNNING)
        await settle()
        # A checkpoint is complete without them.
        here.parts.checkpointer.request()
        await until(lambda: here.parts.checkpointer.latest_id == 1)
        assert new[0] not in slow.states or slow.states[new[0]] == "CANCELED"
        await here.close()

    run(test)


def test_a_new_subtask_that_its_task_manager_stops_takes_the_rescale_back():
    """Its task manager was told to stop the job, or is about to leave: nothing comes from the subtask any more."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        deployed = asyncio.Event()

        async def slowly(request):
            if request.subtasks:
                await deployed.wait()

        rescale = here.parts.rescaler.request(COUNT, 4)
        new = [SubtaskId(COUNT, 2), SubtaskId(COUNT, 3)]
        slow = here.holder(new[0])
        slow.on["deploy"] = slowly
        other = here.holder(new[1])
        assert other is not slow
        await until(lambda: new[1] in other.states)
        other.states[new[1]] = "CANCELED"
        other.heartbeat()
        assert rescale.phase.value == "ABORTING"
        deployed.set()
        await until(lambda: rescale.phase.is_final)
        assert (rescale.phase.value, here.state) == ("ABORTED", JobState.RUNNING)
        assert (
            rescale.cause
            == f"steps 'count -> out', subtask {new[1].subtask_index} is lost: its task manager stopped it"
        )
        here.parts.checkpointer.request()
        await until(lambda: here.parts.checkpointer.latest_id == 1)
        await here.close()

    run(test)


@pytest.mark.parametrize("target", [1, 3])
def test_a_rescale_that_cannot_be_put_on_record_is_taken_back_before_anybody_hears_of_it(target):
    """The record says that the job can be taken over as it was: its successor would not know the new subtasks."""

    async def test(clock):
        here = Cluster(clock)
        members = await here.running("h:1", "h:2")
        before = here.register.data
        here.register.error = no_space()
        rescale = here.parts.rescaler.request(COUNT, target)
        await until(lambda: rescale.phase.is_final)
        assert rescale.phase.value == "ABORTED"
        assert rescale.cause.endswith(
            "the record of the job cannot be written (the control plane's log says why)"
        )
        assert here.register.data == before
        assert here.register.record.is_steady
        deployed = {subtask_from_proto(s) for m in members for r in m.requests("deploy") for s in r.subtasks}
        assert not deployed & set(rescale.plan.new)
        assert not [r for m in members for name in ("prepare", "reroute") for r in m.requests(name)]
        here.register.error = None
        again = here.parts.rescaler.request(COUNT, target)
        await until(lambda: again.phase.is_final)
        assert (again.phase.value, here.job.identity.generation) == ("COMPLETE", 1)
        await here.close()

    run(test)


def test_the_next_control_plane_uses_no_index_and_no_version_of_a_rescale_again():
    """Files of a subtask that is gone have its index in their names, and late orders the version of their rescale."""

    async def test(clock):
        first = await left_running(clock)
        grown = first.parts.rescaler.request(COUNT, 3)
        await until(lambda: grown.phase.value == "COMPLETE")
        shrunk = first.parts.rescaler.request(COUNT, 2)
        await until(lambda: shrunk.phase.value == "COMPLETE")

        # One that is taken back after its owners have heard of it.
        async def refuse(request):
            raise HandshakeError("no")

        members = first.task_managers.values()
        for member in members:
            member.on["prepare"] = refuse
        refused = first.parts.rescaler.request(COUNT, 3)
        await until(lambda: refused.phase.value == "ABORTED")
        for member in members:
            del member.on["prepare"]
        first.parts.checkpointer.request()
        await until(lambda: first.register.record.is_steady)
        await first.close()
        second = successor(clock, first)
        await second.running("h:1", "h:2")
        assert second.job.identity.generation == 1
        again = second.parts.rescaler.request(COUNT, 3)
        assert set(again.plan.after) - set(again.plan.before) == {4}
        assert again.plan.version > refused.plan.version
        await until(lambda: again.phase.is_final)
        await second.close()

    run(test)


def test_no_generation_is_deployed_while_the_record_cannot_be_written():
    """The next control plane would use its number for another deployment."""

    async def test(clock):
        here = await left_running(clock)
        here.register.error = no_space()
        origin = SubtaskId(SOURCE, 0)
        here.holder(origin).fail(origin, "1 / 0", failed_step="rows")
        await until(lambda: here.job.identity.generation == 2)
        await asyncio.sleep(5)
        orders = [r for m in here.task_managers.values() for r in m.requests("deploy")]
        assert {order.handshake.generation for order in orders} == {1}
        here.register.error = None
        await until(lambda: here.state is JobState.RUNNING)
        assert here.register.record.generation == 2
        await here.close()

    run(test)


def test_a_job_goes_on_as_it_was_taken_over_but_makes_no_checkpoint_before_that_is_on_record():
    """Two control planes, one after the other, would begin with the same number."""

    async def test(clock):
        first = await left_running(clock)
        await first.close()
        second = successor(clock, first)
        second.register.data = first.register.data
        second.register.error = no_space()
        await second.running("h:1", "h:2")
        record = second.parts.checkpointer.request()
        await until(lambda: record.ended_ms is not None)
        assert "the record of the job cannot be written" in record.cause
        assert triggers(second) == [1]
        second.register.error = None
        await until(lambda: second.register.record.first_checkpoint_id > 1)
        second.parts.checkpointer.request()
        await until(lambda: second.parts.checkpointer.latest_id > 1)
        await second.close()

    run(test)


def test_the_last_checkpoint_is_not_written_before_its_number_is_on_record():
    """The next control plane would use it, and take what is there for a sign that another one leads."""

    async def test(clock):
        first = await left_running(clock)
        await first.close()
        second = successor(clock, first)
        second.register.data = first.register.data
        second.register.error = no_space()
        await second.running("h:1", "h:2")
        second.end_of_input()
        await until(lambda: second.state is JobState.FINISHING)
        await asyncio.sleep(1)
        assert len(second.store.manifests) == 1
        second.register.error = None
        await second.parts.coordinator.ended.wait()
        assert second.state is JobState.FINISHED
        await second.close()

    run(test)
