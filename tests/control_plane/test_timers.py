"""Deadlines are met though the timers of a control plane look seldom: a process with nothing to do sleeps."""

import itertools

from tests.control_plane.cluster import Cluster
from tests.control_plane.virtual import run, until
from weir.rpc.wire import parse_address


def test_checkpoints_begin_when_they_are_due():
    async def test(clock):
        here = Cluster(clock, checkpoint_interval_ms=1_000, lease_timeout_ms=60_000, look_s=10.0)
        looks, tick = [], here.parts.checkpointer.tick
        here.parts.checkpointer.tick = lambda: (looks.append(clock.monotonic_s()), tick())
        await here.running("h:1", "h:2")
        for expected_id in range(1, 21):
            await until(lambda id_=expected_id: here.parts.checkpointer.latest_id == id_)
            here.task_managers["h:1"].records_in += 1
        begun_ms = [record.started_ms for record in here.parts.checkpointer.machine.records]
        assert {newer - older for newer, older in itertools.pairwise(begun_ms)} == {1_000}
        # One for each checkpoint, those of the timers themselves, and one every 5 s that a job without rows would need.
        assert len(looks) <= 20 + 4 + 4
        await here.close()

    run(test)


def test_while_no_row_comes_checkpoints_are_fewer_and_the_first_row_ends_that():
    async def test(clock):
        here = Cluster(clock, checkpoint_interval_ms=1_000, lease_timeout_ms=60_000, look_s=10.0)
        await here.running("h:1", "h:2")
        checkpointer = here.parts.checkpointer
        await until(lambda: checkpointer.latest_id == 4)
        begun_ms = [record.started_ms for record in checkpointer.machine.records]
        assert [newer - older for newer, older in itertools.pairwise(begun_ms)] == [5_000, 5_000, 1_000]
        came_s = clock.monotonic_s()
        here.task_managers["h:1"].records_in += 1
        await until(lambda: checkpointer.latest_id == 5)
        assert clock.monotonic_s() - came_s < 1.0 + 0.1
        await here.close()

    run(test)


def test_a_lease_ends_in_time():
    async def test(clock):
        here = Cluster(clock, lease_timeout_ms=1_000, look_s=0.25)
        await here.running("h:1", "h:2")
        silent_s = clock.monotonic_s()
        here.task_managers["h:2"].is_alive = False
        await until(lambda: here.parts.task_managers.membership.get(parse_address("h:2")) is None)
        assert clock.monotonic_s() - silent_s < 1.0 + 0.01
        await here.close()

    run(test)
