"""A job from its first deployment to its end, over the ports of a control plane in virtual time."""

import asyncio

import pytest

from tests.control_plane.cluster import COUNT, SOURCE, Cluster, job_of, no_space
from tests.control_plane.virtual import run, settle, until
from weir.errors import ConnectionLostError, FailureKind
from weir.protocol.job import job_machine as machine
from weir.protocol.job.job_machine import JobState
from weir.rpc.wire import subtask_from_proto
from weir.types import SubtaskId


def deployed(member):
    """Stages of the subtasks that a task manager was told to create, in order, by generation."""
    return [
        (request.handshake.generation, item.stage_index)
        for request in member.requests("deploy")
        for item in request.subtasks
    ]


def test_a_job_is_deployed_last_stage_first_when_enough_task_managers_are_there():
    async def test(clock):
        here = Cluster(clock)
        await here.join("h:1")
        assert here.state is JobState.WAITING_FOR_TASK_MANAGERS
        assert here.job.waiting_for == "2 task managers; 1 registered"
        one, two = await here.running("h:2", "h:1")
        assert sorted(deployed(one) + deployed(two)) == [(1, SOURCE), (1, COUNT), (1, COUNT)]
        both = here.holder(SubtaskId(SOURCE, 0))
        assert deployed(both) == [(1, COUNT), (1, SOURCE)]
        await here.close()

    run(test)


def test_a_lost_task_manager_leads_to_a_restart_from_the_latest_checkpoint_on_the_others():
    async def test(clock):
        here = Cluster(clock, checkpoint_interval_ms=300)
        one, two = await here.running("h:1", "h:2")
        await until(lambda: here.parts.checkpointer.latest is not None)
        two.is_alive = False
        await until(lambda: here.state is JobState.RUNNING and here.job.identity.generation == 2)
        assert set(here.job.machine.placement.values()) == {"h:1"}
        assert here.job.restarts == 1
        restored = [r.restore.manifest_path for r in one.requests("deploy") if r.handshake.generation == 2]
        assert set(restored) == {here.parts.checkpointer.latest.path}
        assert "no heartbeat for 1000 ms" in here.job.machine.restart_cause
        await here.close()

    run(test)


def test_a_job_of_which_two_readers_have_not_seen_the_same_input_begins_anew():
    """Each would have taken its share of another one: rows twice, or not at all."""

    async def test(clock):
        here = Cluster(clock, job=job_of(sources=2))
        await here.running("h:1", "h:2")
        readers = [SubtaskId(SOURCE, index) for index in range(2)]

        def report(*plans):
            for reader, plan in zip(readers, plans, strict=True):
                for member in here.task_managers.values():
                    member.causes[reader] = {"input_plan": plan}

        report(7, 7)
        await asyncio.sleep(1)
        assert here.job.identity.generation == 1
        report(7, 8)
        await until(lambda: here.job.identity.generation > 1)
        report(8, 8)
        # A deployment that was told of the other ones may have to end first.
        await asyncio.sleep(2)
        generation = here.job.identity.generation
        await asyncio.sleep(1)
        assert (here.state, here.job.identity.generation) == (JobState.RUNNING, generation)
        assert "source 'rows': its subtasks 0 and 1 have not found the same" in here.job.machine.restart_cause
        await here.close()

    run(test)


def test_a_job_at_its_end_is_over_on_record_before_its_checkpoints_are_removed():
    """Another control plane that finds no checkpoint, and a record of a job that runs, would start it anew."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.background.may_save.clear()
        here.end_of_input()
        await until(lambda: here.state is JobState.FINISHED)
        await settle()
        assert "remove" not in here.done
        assert not here.parts.coordinator.ended.is_set()
        here.background.may_save.set()
        await here.parts.coordinator.ended.wait()
        assert here.done[-2:] == ["record 1 True", "remove"]
        await here.close()

    run(test)


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_a_job_that_was_cancelled_or_failed_is_over_when_that_is_on_record(state):
    """Another control plane with a record of a job that runs would start it again."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.background.may_save.clear()
        if state is JobState.CANCELLED:
            here.parts.coordinator.handle(machine.CancelRequested())
        else:
            here.parts.coordinator.handle(machine.FailRequested("it is wrong", FailureKind.PERMANENT))
        await until(lambda: here.state is state)
        await settle()
        assert not here.parts.coordinator.ended.is_set()
        here.background.may_save.set()
        await here.parts.coordinator.ended.wait()
        assert "remove" not in here.done
        await here.close()

    run(test)


def test_a_record_that_could_not_be_written_is_written_when_that_goes_again():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.register.error = no_space()
        here.end_of_input()
        await until(lambda: here.state is JobState.FINISHED)
        await asyncio.sleep(1)
        assert "remove" not in here.done
        assert not here.parts.coordinator.ended.is_set()
        here.register.error = None
        await here.parts.coordinator.ended.wait()
        assert here.done[-2:] == ["record 1 True", "remove"]
        await here.close()

    run(test)


def test_checkpoints_stay_of_a_job_whose_end_cannot_be_put_on_record():
    """Another start finds the last one, with nothing left to do."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.register.error = no_space()
        here.end_of_input()
        await here.parts.coordinator.ended.wait()
        assert here.state is JobState.FINISHED
        assert "remove" not in here.done
        await here.close()

    run(test)


def test_an_order_to_stop_that_is_lost_is_given_again():
    """Nothing else ends a job whose task manager lives and did not hear of it."""

    async def test(clock):
        here = Cluster(clock)
        one, two = await here.running("h:1", "h:2")

        async def lose(request):
            if len(two.requests("cancel")) < 3:
                raise ConnectionLostError("task manager h:2 does not answer")

        two.on["cancel"] = lose
        assert here.parts.coordinator.cancel()
        await until(lambda: here.state is JobState.CANCELLED)
        assert (len(one.requests("cancel")), len(two.requests("cancel"))) == (1, 3)
        assert "remove" not in here.done
        # Nobody is told any more.
        await asyncio.sleep(2)
        assert len(two.requests("cancel")) == 3
        await here.close()

    run(test)


def test_nothing_more_is_deployed_of_a_job_that_is_stopped_while_its_record_is_written():
    async def test(clock):
        here = Cluster(clock)
        here.background.may_save.clear()
        await here.join("h:1", "h:2")
        await until(lambda: here.state is JobState.DEPLOYING)
        here.parts.coordinator.cancel()
        await settle()
        here.background.may_save.set()
        await until(lambda: here.state is JobState.CANCELLED)
        assert [deployed(member) for member in here.task_managers.values()] == [[], []]
        await here.close()

    run(test)


def test_a_job_that_finishes_before_a_reply_to_its_deployment_comes_is_not_told_to_stop():
    """A task manager that was would stop whatever a control plane that takes the job over adds to it."""

    async def test(clock):
        here = Cluster(clock)
        may_reply = asyncio.Event()

        def answers_late(member):
            async def deploy(request):
                member._deploy(request)
                if any(item.stage_index == SOURCE for item in request.subtasks):
                    await may_reply.wait()
                return request

            return deploy

        async def never(request):
            await asyncio.Event().wait()

        for member in (here.add("h:1"), here.add("h:2")):
            # The last checkpoint stays incomplete.
            member.on.update(deploy=answers_late(member), end=never)
        await here.running("h:1", "h:2")
        here.end_of_input()
        await until(lambda: here.state is JobState.FINISHING)
        may_reply.set()
        await asyncio.sleep(5)
        assert here.state is JobState.FINISHING
        assert not [r for member in here.task_managers.values() for r in member.requests("cancel")]
        await here.close()

    run(test)


def test_a_refused_deployment_stops_what_was_deployed_and_starts_the_job_again():
    async def test(clock):
        here = Cluster(clock)
        await here.join("h:1")
        two = here.add("h:2")

        async def refuse(request):
            if request.handshake.generation == 1 and request.subtasks:
                raise ConnectionLostError("task manager h:2: the store cannot be opened")

        two.on["deploy"] = refuse
        await here.running("h:2")
        assert here.job.identity.generation == 2
        assert here.job.machine.restart_cause == (
            "task manager h:2 refused its deployment: the store cannot be opened"
        )
        assert {item.generation for item in two.requests("cancel")} == {1}
        await here.close()

    run(test)


def test_a_late_refusal_of_an_earlier_deployment_ends_no_rescale_of_the_next():
    async def test(clock):
        here = Cluster(clock)
        refused = asyncio.Event()
        two = here.add("h:2")

        async def hang(request):
            if request.handshake.generation == 1:
                await refused.wait()
                raise ConnectionLostError("task manager h:2 does not answer")

        two.on["deploy"] = hang
        await here.join("h:1", "h:2")
        await until(lambda: here.state is JobState.DEPLOYING)
        told = []
        here.parts.rescaler.deployment_failed = lambda subtasks, cause: told.append(list(subtasks))
        one = here.task_managers["h:1"]
        await until(lambda: one.states)
        one.fail(next(iter(one.states)), "a step raised", failed_step="count")
        await until(lambda: here.state is JobState.RUNNING)
        refused.set()
        await settle()
        assert (told, here.state) == ([], JobState.RUNNING)
        await here.close()

    run(test)


def test_a_task_manager_that_leaves_while_it_loads_the_job_keeps_no_other_from_loading_it():
    async def test(clock):
        names = [f"h:{n}" for n in range(1, 6)]
        here = Cluster(clock, min_task_managers=5)
        left = []

        def load(member):
            async def leave(request):
                if not request.subtasks and not left:
                    left.append(member)
                    member.deregister()
                    await asyncio.Event().wait()

            return leave

        for name in names:
            member = here.add(name)
            member.on["deploy"] = load(member)
        await here.running(*names)
        await settle()
        idle = [member for member in here.task_managers.values() if not member.states]
        assert len(idle) == 2
        assert all(len(member.requests("deploy")) == 1 for member in idle)
        await here.close()

    run(test)


def test_a_task_manager_that_only_keeps_state_is_missed():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        groups = [group for group, owner in enumerate(here.job.routing_tables[COUNT].groups) if owner == 0]
        here.job.locations.note(COUNT, groups, ["h:3"] * len(groups))
        await here.join("h:3")
        here.task_managers["h:3"].deregister()
        assert here.state is JobState.RESTARTING
        assert here.job.machine.restart_cause.startswith(
            f"task manager h:3 is lost with the state of {len(groups)} key groups of stage 1 (count"
        )
        await here.close()

    run(test)


def test_a_reply_to_the_first_deployment_that_is_lost_ends_nothing_that_a_rescale_adds_there():
    """All subtasks have reported by then, and the job runs; the new ones have not been sent yet."""

    async def test(clock):
        here = Cluster(clock)
        is_lost = asyncio.Event()

        def answers_late(member):
            async def deploy(request):
                if not any(item.stage_index == SOURCE for item in request.subtasks):
                    return
                member._deploy(request)
                await is_lost.wait()
                raise ConnectionLostError(f"task manager {member.address} does not answer")

            return deploy

        for member in (here.add("h:1"), here.add("h:2")):
            member.on["deploy"] = answers_late(member)
        await here.running("h:1", "h:2")
        here.background.may_save.clear()
        rescale = here.parts.rescaler.request(COUNT, 4)
        assert here.holder(SubtaskId(SOURCE, 0)) in map(here.holder, rescale.plan.new)
        is_lost.set()
        await settle()
        assert here.job.machine.statuses.keys() > set(rescale.plan.new)
        here.background.may_save.set()
        await until(lambda: rescale.phase.is_final)
        assert (rescale.phase.value, here.job.identity.generation) == ("COMPLETE", 1)
        await here.close()

    run(test)


def test_a_new_subtask_that_has_reported_itself_is_not_lost_with_the_answer_to_its_deployment():
    """It would run for ever: the rescale counted it as lost, and the job as running."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        rescale = here.parts.rescaler.request(COUNT, 4)
        there, missing = sorted(rescale.plan.new)

        async def loses_the_answer(request):
            if request.subtasks:
                here.holder(there)._deploy(request)
                raise ConnectionLostError("the answer was lost")

        async def refuses(request):
            if request.subtasks:
                raise ConnectionLostError("it does not answer")

        here.holder(there).on["deploy"], here.holder(missing).on["deploy"] = loses_the_answer, refuses
        await until(lambda: rescale.phase.is_final)
        assert rescale.phase.value == "ABORTED"
        # It was told to stop, so it is not missed when it is forgotten.
        orders = here.task_managers[rescale.plan.placement[there]].requests("cancel")
        assert there in [subtask_from_proto(item) for order in orders for item in order.subtasks]
        await until(lambda: not set(here.job.machine.statuses) & set(rescale.plan.new))
        assert here.job.identity.generation == 1
        await here.close()

    run(test)
