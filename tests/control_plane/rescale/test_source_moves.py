"""Sources that get other subtasks, over the ports of a control plane in virtual time."""

import pytest

from tests.control_plane.cluster import COUNT, SOURCE, Cluster
from tests.control_plane.virtual import run, until
from weir.errors import CheckpointError
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_model import RescalePhase
from weir.protocol.rescale.rescale_plan import RefusalKind
from weir.types import SubtaskId


async def request(here, parallelism):
    """Ask for a rescale of the source; returns it, ended."""
    rescale = here.parts.rescaler.request(SOURCE, parallelism)
    await until(lambda: rescale.phase.is_final)
    return rescale


@pytest.mark.parametrize("restart_attempts", [0, 3])
def test_a_source_gets_more_and_fewer_subtasks_by_a_checkpoint_and_a_new_deployment(restart_attempts):
    async def test(clock):
        here = Cluster(clock, restart_attempts=restart_attempts)
        members = await here.running("h:1", "h:2")
        grown = await request(here, 3)
        assert (grown.phase, grown.cause) == (RescalePhase.COMPLETE, "")
        assert here.job.graph.stage(SOURCE).subtask_indices == (0, 1, 2)
        assert (here.state, here.job.identity.generation) == (JobState.RUNNING, 2)
        # Nothing is read after the barrier, and sinks have delivered before the new deployment.
        triggers = [r for member in members for r in member.requests("trigger")]
        assert [trigger.holds for trigger in triggers] == [True]
        assert all([r.waits for r in member.requests("end")] == [True] for member in members)
        [deployed] = {
            r.restore.manifest_path
            for m in members
            for r in m.requests("deploy")
            if r.handshake.generation == 2
        }
        assert deployed == here.parts.checkpointer.latest.path
        # What it starts from has one source; a failure now must not bring that back.
        here.holder(SubtaskId(COUNT, 0)).fail(SubtaskId(COUNT, 0), "lost")
        if restart_attempts:
            await until(lambda: here.state is JobState.RUNNING and here.job.identity.generation == 3)
            assert here.job.graph.stage(SOURCE).subtask_indices == (0, 1, 2)
            assert (await request(here, 1)).phase is RescalePhase.COMPLETE
            assert here.job.graph.stage(SOURCE).subtask_indices == (0,)
        else:
            # A move is no failure; this is.
            await until(lambda: here.state is JobState.FAILED)
        await here.close()

    run(test)


def test_a_checkpoint_that_fails_leaves_the_source_as_it_was():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        here.store.error = CheckpointError("no room")
        rescale = await request(here, 2)
        assert (rescale.phase, rescale.cause) == (RescalePhase.ABORTED, "no room")
        assert (here.state, here.job.identity.generation) == (JobState.RUNNING, 1)
        assert here.job.graph.stage(SOURCE).subtask_indices == (0,)
        here.store.error = None
        assert (await request(here, 2)).phase is RescalePhase.COMPLETE
        await here.close()

    run(test)


def test_a_failure_between_checkpoint_and_deployment_leads_to_the_new_subtasks_too():
    async def test(clock):
        here = Cluster(clock)
        first, _ = await here.running("h:1", "h:2")

        async def fail(request):
            here.holder(SubtaskId(SOURCE, 0)).fail(SubtaskId(SOURCE, 0), "lost")
            here.holder(SubtaskId(SOURCE, 0)).heartbeat()

        first.on["end"] = fail
        rescale = await request(here, 2)
        assert rescale.phase is RescalePhase.COMPLETE
        assert here.job.graph.stage(SOURCE).subtask_indices == (0, 1)
        await here.close()

    run(test)


def test_what_cannot_be_is_refused():
    async def test(clock):
        here = Cluster(clock)
        await here.running("h:1", "h:2")
        assert here.parts.rescaler.request(SOURCE, 1).kind is RefusalKind.NOTHING_TO_DO
        assert here.parts.rescaler.request(SOURCE, 99).kind is RefusalKind.NO_SLOT
        rescale = here.parts.rescaler.request(SOURCE, 2)
        assert here.parts.rescaler.request(COUNT, 3).kind is RefusalKind.BUSY
        assert "a source moves" in here.parts.checkpointer.request().message
        await until(lambda: rescale.phase.is_final)
        await here.close()
        without = Cluster(clock, checkpoint_uri="")
        await without.running("h:1", "h:2")
        refusal = without.parts.rescaler.request(SOURCE, 2)
        assert (refusal.kind, "checkpoint_uri" in refusal.message) == (RefusalKind.SOURCE, True)
        await without.close()

    run(test)
