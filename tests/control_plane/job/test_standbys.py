"""Whose state is kept where, what task managers are told of it, and who takes over; in virtual time."""

import pytest

from control_plane.web.status_views import job_facts, status_view
from tests.control_plane.cluster import Cluster
from tests.control_plane.virtual import run, settle, until
from weir.protocol.job.job_machine import JobState
from weir.rpc import control_pb2
from weir.rpc.wire import subtask_from_proto


async def checkpoint(here):
    latest = here.parts.checkpointer.latest_id
    here.parts.checkpointer.request()
    await until(lambda: here.parts.checkpointer.latest_id != latest)


def ordered(member):
    return sorted(str(subtask_from_proto(item)) for item in member.standby.subtasks)


@pytest.mark.parametrize("replicas", [0, 1])
def test_the_standby_is_told_and_takes_over(replicas):
    async def test(clock):
        here = Cluster(clock, standby_replicas=replicas)
        one, two, spare = await here.running("h:1", "h:2", "h:3")
        await settle()
        await checkpoint(here)
        for member in (one, two, spare):
            member.heartbeat()
        with_state = {name: place for name, place in here.job.machine.placement.items() if name.stage_index}
        chosen = here.parts.standbys.chosen
        assert set(chosen) == (set(with_state.values()) if replicas else set())
        if not replicas:
            assert not here.parts.standbys.views()
            assert ordered(one) == ordered(two) == []
            await here.close()
            return
        victim = here.task_managers[with_state[min(with_state)]]
        (name,) = chosen[victim.address]
        standby = here.task_managers[name]
        expected = sorted(
            str(subtask)
            for owner, names in chosen.items()
            for subtask, place in with_state.items()
            if name in names and place == owner
        )
        assert ordered(standby) == expected
        assert standby.standby.checkpoint_id == here.parts.checkpointer.latest_id
        assert standby.standby.manifest_path == here.parts.checkpointer.latest.path
        standby.state_files = control_pb2.StateFiles(
            standby_checkpoint_id=1,
            standby_bytes=10,
            standby_missing_bytes=5,
            standby_problem="no room",
            write_stalls=3,
            write_stall_ms=250,
        )
        standby.heartbeat()
        await checkpoint(here)
        (shown,) = (each for each in here.parts.standbys.views() if each.of == victim.address)
        assert (shown.task_manager, shown.checkpoint, shown.lag_checkpoints) == (name, 1, 1)
        assert (shown.lag_bytes, shown.held_bytes, shown.problem) == (5, 10, "no room")
        stalls = {(it.write_stalls, it.write_stall_ms) for it in status_view(here.parts).task_managers}
        assert (3, 250) in stalls
        assert job_facts(here.parts).standbys[victim.address, name] == (1, 5, 10)
        was_there = [name for name, place in here.job.machine.placement.items() if place == victim.address]
        victim.is_alive, victim.gone = False, True
        await until(lambda: here.state is JobState.RUNNING and here.job.identity.generation == 2)
        assert {here.job.machine.placement[subtask] for subtask in was_there} == {name}
        # Those that are left keep each other's state.
        await settle()
        assert victim.address not in {
            place for names in here.parts.standbys.chosen.values() for place in names
        }
        await here.close()

    run(test)


def test_nobody_keeps_state_where_nobody_has_room():
    async def test(clock):
        here = Cluster(clock, standby_replicas=2)
        await here.running("h:1", "h:2", quota=2)
        await until(lambda: here.parts.standbys.chosen)
        owners = set(here.parts.standbys.chosen)
        assert owners
        views = here.parts.standbys.views()
        assert here.parts.standbys.missing == 2 * len(owners) - len(views) > 0
        await here.close()

    run(test)
