"""What checkpoints tell task managers and write, over the ports of a control plane in virtual time."""

import asyncio
from functools import partial

import pytest

from control_plane.web.status_views import job_facts
from tests.control_plane.cluster import COUNT, SOURCE, Cluster, superseded
from tests.control_plane.virtual import run, settle, until
from weir.errors import CheckpointError, ConnectionLostError
from weir.protocol.checkpoints.checkpoint_model import CheckpointState, Hold, Release
from weir.protocol.job.job_machine import JobState
from weir.rpc import control_pb2
from weir.rpc.wire import subtask_to_proto
from weir.types import SubtaskId

ORIGIN, FIRST = SubtaskId(SOURCE, 0), SubtaskId(COUNT, 0)


def everywhere(here, method):
    return [request for member in here.task_managers.values() for request in member.requests(method)]


def told(here):
    """Ends of checkpoints that a task manager was told, by address."""
    return {
        name: [(r.checkpoint_id, r.committed) for r in member.requests("end")]
        for name, member in here.task_managers.items()
    }


def test_no_source_hears_of_a_checkpoint_before_its_number_is_safe():
    """Another control plane that takes over begins with higher numbers than those on record."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.background.may_save.clear()
        here.parts.record.save()
        here.parts.checkpointer.request()
        await settle()
        assert everywhere(here, "trigger") == []
        here.background.may_save.set()
        await until(lambda: here.parts.checkpointer.latest_id == 1)
        assert [r.checkpoint_id for r in everywhere(here, "trigger")] == [1]
        await here.close()

    run(test)


def test_a_checkpoint_that_is_given_up_before_its_number_is_safe_is_not_begun():
    """Sources were told that it is over before they were told to begin it."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.background.may_save.clear()
        here.parts.record.save()
        here.parts.checkpointer.request()
        await settle()
        here.parts.checkpointer.handle(Hold("a test"))
        await settle()
        assert told(here) == {"h:1": [(1, False)], "h:2": [(1, False)]}
        here.background.may_save.set()
        await settle()
        assert everywhere(here, "trigger") == []
        here.parts.checkpointer.handle(Release("a test"))
        here.parts.checkpointer.request()
        await until(lambda: here.parts.checkpointer.latest_id == 2)
        await here.close()

    run(test)


def test_files_are_written_before_sinks_deliver_and_old_ones_go_afterwards():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        done = here.done

        async def note(request):
            done.append(f"end {request.checkpoint_id}")

        for member in here.task_managers.values():
            member.on["end"] = note
        del done[:]
        here.parts.checkpointer.request()
        await until(lambda: done.count("end 1") == 2)
        await settle()
        assert done[0] == "manifest 1"
        assert sorted(done[1:]) == ["end 1", "end 1", "expire"]
        assert here.parts.checkpointer.restore_point() == control_pb2.Restore(
            checkpoint_uri="memory",
            job_id=here.job.identity.job_id,
            manifest_path="manifests/000000000001.json",
        )
        await here.close()

    run(test)


def test_a_part_that_cannot_be_made_gives_the_checkpoint_up_for_everybody():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        for member in here.task_managers.values():
            member.ack = False
        record = here.parts.checkpointer.request()
        await until(lambda: everywhere(here, "trigger"))
        request = control_pb2.AcknowledgeCheckpointRequest(
            handshake=everywhere(here, "trigger")[0].handshake,
            checkpoint_id=1,
            subtask=subtask_to_proto(FIRST),
            failure="the disk is full",
        )
        assert here.parts.checkpointer.acknowledged(request).taken
        await settle()
        cause = "steps 'count -> out', subtask 0: the disk is full"
        assert (record.state, record.cause) == (CheckpointState.FAILED, cause)
        assert told(here) == {"h:1": [(1, False)], "h:2": [(1, False)]}
        assert here.state is JobState.RUNNING
        await here.close()

    run(test)


def test_an_end_that_is_not_heard_is_told_again():
    """Inputs wait for a checkpoint that was given up."""

    async def test(clock):
        here = Cluster(clock)
        two = (await here.running("h:1", "h:2"))[1]

        async def lose(request):
            if len(two.requests("end")) < 3:
                raise ConnectionLostError("task manager h:2 does not answer")

        two.on["end"] = lose
        here.parts.checkpointer.request()
        await until(lambda: len(two.requests("end")) == 3)
        await asyncio.sleep(2)
        assert told(here) == {"h:1": [(1, True)], "h:2": [(1, True)] * 3}
        await here.close()

    run(test)


def test_a_task_manager_that_does_not_hear_of_an_end_gets_no_more_of_it_after_a_restart():
    async def test(clock):
        here = Cluster(clock)
        two = (await here.running("h:1", "h:2"))[1]

        async def lose(request):
            if request.handshake.generation == 1:
                raise ConnectionLostError("task manager h:2 does not answer")

        two.on["end"] = lose
        here.parts.checkpointer.request()
        await until(lambda: len(two.requests("end")) > 2)
        here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count")
        await until(lambda: here.state is JobState.RUNNING and here.job.identity.generation == 2)
        await asyncio.sleep(1)
        before = len(two.requests("end"))
        await asyncio.sleep(5)
        assert len(two.requests("end")) == before
        await here.close()

    run(test)


def test_a_job_ends_although_a_task_manager_registers_again_while_its_sinks_deliver():
    """The reply to its first registration was lost: nobody waited for the end of the last checkpoint any more."""

    async def test(clock):
        here = Cluster(clock)
        two = (await here.running("h:1", "h:2"))[1]
        delivered = asyncio.Event()

        async def slowly(request):
            await delivered.wait()

        two.on["end"] = slowly
        here.end_of_input()
        await until(lambda: two.requests("end"))
        await two.register()
        await settle()
        delivered.set()
        await until(lambda: here.state is JobState.FINISHED)
        await here.close()

    run(test)


def test_sinks_that_cannot_deliver_at_the_end_try_again():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        holder = here.holder(FIRST)

        async def refuse(request):
            if len(holder.requests("end")) < 3:
                failure = control_pb2.DeliveryFailure(
                    subtask=subtask_to_proto(FIRST), cause="the disk is full"
                )
                return control_pb2.EndCheckpointReply(failures=[failure])
            return None

        holder.on["end"] = refuse
        here.end_of_input()
        await here.parts.coordinator.ended.wait()
        assert here.state is JobState.FINISHED
        # Everybody was told once; the one whose sink did not deliver again, of the subtasks that ended there.
        assert len(everywhere(here, "end")) == 4
        assert all(subtask_to_proto(FIRST) in request.ended for request in holder.requests("end"))
        await here.close()

    run(test)


@pytest.mark.parametrize("leads", [True, False])
def test_a_checkpoint_counts_when_the_record_names_it(leads):
    """Where control planes take turns, the next one goes on from the checkpoint that the record names."""

    async def test(clock):
        here = Cluster(clock, is_shared=True)
        await here.running("h:1", "h:2")
        here.parts.checkpointer.request()
        await until(lambda: here.parts.checkpointer.latest_id == 1)
        assert here.register.record.checkpoint_id == 1
        here.register.error = CheckpointError("etcd does not answer") if leads else superseded()
        record = here.parts.checkpointer.request()
        await until(lambda: "manifest 2" in here.done)
        await settle()
        await asyncio.sleep(1)
        if leads:
            assert record.cause == "the record of the job could not be written"
            assert told(here)["h:1"] == [(1, True), (2, False)]
        else:
            # Nobody hears of it, and this process ends.
            assert here.parts.coordinator.superseded.is_set()
            assert told(here)["h:1"] == [(1, True)]
            assert record.state is CheckpointState.COMMITTING
        assert here.register.record.checkpoint_id == 1
        assert here.done.count("expire") == 1
        await here.close()

    run(test)


def test_a_number_that_another_control_plane_has_committed_ends_this_one():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.store.error = superseded()
        here.parts.checkpointer.request()
        await here.parts.coordinator.superseded.wait()
        await settle()
        assert everywhere(here, "end") == []
        assert here.parts.checkpointer.latest is None
        await here.close()

    run(test)


def test_files_of_a_checkpoint_that_is_being_made_stay():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        asked = []

        async def note(work):
            if isinstance(work, partial) and work.func == here.store.expire:
                asked.append(work.args)
            return work()

        here.background.in_thread = note
        checkpointer = here.parts.checkpointer
        checkpointer.request()
        # Two wait: the next one begins at the moment at which the first one is complete.
        for member in here.task_managers.values():
            member.ack = False
        await until(lambda: everywhere(here, "trigger"))
        checkpointer.request()
        for member in here.task_managers.values():
            member.ack = True
            for subtask in list(member.states):
                member.acknowledge(1, subtask)
        await until(lambda: asked)
        assert asked[0][1] == 2
        await here.close()

    run(test)


def test_the_age_of_the_latest_checkpoint_grows_until_there_is_another_one():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")

        def age_s():
            return job_facts(here.parts).checkpoint_age_s

        begun_s = age_s()
        clock.advance_ms(5_000)
        assert age_s() == pytest.approx(begun_s + 5)
        here.parts.checkpointer.request()
        await until(lambda: here.parts.checkpointer.latest_id == 1)
        assert age_s() < 5
        before_s = age_s()
        clock.advance_ms(7_000)
        assert age_s() == pytest.approx(before_s + 7)
        await here.close()

    run(test)


def test_a_job_without_checkpoints_has_no_age_of_one():
    async def test(clock):
        here = Cluster(clock, checkpoint_uri="")
        await here.running("h:1", "h:2")
        assert job_facts(here.parts).checkpoint_age_s is None
        await here.close()

    run(test)
