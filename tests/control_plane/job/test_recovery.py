"""How a failed job starts again, over the ports of a control plane in virtual time."""

import asyncio

from control_plane.web.totals import totals_view
from tests.control_plane.cluster import COUNT, SOURCE, Cluster
from tests.control_plane.virtual import run, settle, until
from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import manifest_from_json, manifest_to_json
from weir.protocol.job.job_machine import JobState
from weir.rpc import control_pb2
from weir.rpc.wire import subtask_to_proto
from weir.types import SubtaskId

FIRST, SECOND, ORIGIN = SubtaskId(COUNT, 0), SubtaskId(COUNT, 1), SubtaskId(SOURCE, 0)


def is_running(here, generation):
    return here.state is JobState.RUNNING and here.job.identity.generation == generation


def test_a_lease_that_ends_while_its_task_manager_is_looked_for_does_not_keep_the_job_from_starting_again():
    """The connection is closed while somebody waits for an answer from it: the job was RESTARTING for ever."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        two = here.task_managers["h:2"]
        two.is_alive = False

        async def leave(request):
            two.deregister()
            await asyncio.Event().wait()

        two.on["is_gone"] = leave
        one = here.task_managers["h:1"]
        one.fail(next(iter(one.states)), "its channel to h:2 broke")
        await until(lambda: is_running(here, 2))
        assert set(here.job.machine.placement.values()) == {"h:1"}
        await here.close()

    run(test)


def test_what_led_to_a_failure_is_waited_for_a_moment():
    """A subtask that lost a peer may tell of it sooner than the peer tells why it failed."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.holder(SECOND).fail(SECOND, "a channel broke")
        here.holder(SECOND).heartbeat()
        assert here.state is JobState.RESTARTING
        here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count")
        await until(lambda: is_running(here, 2))
        assert here.job.machine.restart_cause == "step 'count', subtask 0 failed: 1 / 0"
        await here.close()

    run(test)


def test_a_job_starts_from_the_manifest_that_is_being_written():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        writing, write = asyncio.Event(), here.background.in_thread

        async def slowly(work):
            await writing.wait()
            return await write(work)

        here.background.in_thread = slowly
        here.parts.checkpointer.request()
        await until(lambda: not here.parts.checkpointer.is_settled)
        here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count")
        await asyncio.sleep(5)
        assert here.state is JobState.RESTARTING
        writing.set()
        await until(lambda: is_running(here, 2))
        assert here.parts.checkpointer.latest_id == 1
        asked = here.holder(ORIGIN).requests("deploy")[-1]
        assert asked.restore.manifest_path == here.parts.checkpointer.latest.path
        # Numbers up to it are over.
        assert asked.ended_checkpoint_id == 1
        await here.close()

    run(test)


def test_a_job_that_is_cancelled_while_it_waits_stays_cancelled():
    async def test(clock):
        here = Cluster(clock, restart_delay_ms=5_000, restart_delay_ms_max=5_000)
        await here.running("h:1", "h:2")
        for attempt in (2, 3):
            here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count")
            if attempt == 2:
                await until(lambda: is_running(here, 2))
        await until(lambda: here.state is JobState.RESTARTING)
        assert here.parts.coordinator.cancel()
        await until(lambda: here.state is JobState.CANCELLED)
        await asyncio.sleep(20)
        assert (here.state, here.job.identity.generation) == (JobState.CANCELLED, 2)
        await here.close()

    run(test)


def test_failures_in_a_row_come_to_an_end():
    async def test(clock):
        here = Cluster(clock, restart_attempts=2)
        await here.running("h:1", "h:2")
        for generation in (1, 2, 3):
            await until(lambda generation=generation: is_running(here, generation))
            here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count")
        await here.parts.coordinator.ended.wait()
        assert here.state is JobState.FAILED
        assert here.job.machine.cause.startswith(
            "step 'count', subtask 0 failed: 1 / 0; given up after 2 restarts without"
        )
        # Its checkpoints stay: another start goes on from them.
        assert "remove" not in here.done
        await here.close()

    run(test)


def test_rows_that_raise_again_and_again_are_put_aside_from_the_next_deployment_on():
    async def test(clock):
        here = Cluster(clock, poison_attempts=2)
        await here.running("h:1", "h:2")
        for generation in (1, 2):
            await until(lambda generation=generation: is_running(here, generation))
            kind = control_pb2.FAILURE_KIND_ROWS
            here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count", failure_kind=kind)
        await until(lambda: is_running(here, 3))
        steps = {
            r.handshake.generation: list(r.isolated_steps) for r in here.holder(FIRST).requests("deploy")
        }
        assert steps == {1: [], 2: [], 3: ["count"]}
        await here.close()

    run(test)


def test_a_checkpoint_that_could_not_be_written_is_not_what_a_job_starts_from():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.parts.checkpointer.request()
        await until(lambda: here.parts.checkpointer.latest_id == 1)
        here.store.error = CheckpointError("the disk is full")
        record = here.parts.checkpointer.request()
        await until(lambda: record.state.is_final)
        await settle()
        assert (record.cause, here.parts.checkpointer.latest_id) == ("the disk is full", 1)
        ends = [(r.checkpoint_id, r.committed) for r in here.holder(FIRST).requests("end")]
        assert ends == [(1, True), (2, False)]
        await here.close()

    run(test)


def test_late_rows_of_subtasks_that_a_rescale_ended_are_counted_after_a_restart():
    """No part of a checkpoint tells of them any more."""

    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        job = here.parts.job
        gone = control_pb2.SubtaskReport(
            subtask=subtask_to_proto(SubtaskId(COUNT, 7)),
            late=[control_pb2.LateRows(step="count", rows=3)],
        )
        job.retired_reports.append(gone)
        for generation, late in ((1, 3), (2, 3), (3, 6)):
            if generation == 3:
                job.retired_reports.append(gone)
            made = (here.parts.checkpointer.latest_id or 0) + 1
            here.parts.checkpointer.request()
            await until(lambda made=made: here.parts.checkpointer.latest_id == made)
            assert manifest_from_json(manifest_to_json(here.parts.checkpointer.latest.manifest)).late == {
                "count": late
            }
            assert totals_view(job, [], None).rows_late == {"count": late}
            here.holder(FIRST).fail(FIRST, "1 / 0", failed_step="count")
            await until(lambda generation=generation: is_running(here, generation + 1))
            assert totals_view(job, [], None).rows_late == {"count": late}
        await here.close()

    run(test)
