"""What a control plane does with task managers that come back late, and when its record is on disk."""

import asyncio
import types

import pytest
from control_plane.record.takeover import Takeover

from control_plane.record import takeover as module
from control_plane.record.job_record import JobRecord
from weir.rpc import control_pb2
from weir.types import SubtaskId

LEFT = JobRecord(
    "job-1", "f", 3, 1_000, is_steady=True, placement={SubtaskId(0, 0): "h:1", SubtaskId(1, 0): "h:2"}
)
LEASE_MS = 20


class Coordinator:
    """As much of one as a takeover sees."""

    def __init__(self):
        self.identity = types.SimpleNamespace(job_id="job-1", generation=3)
        self.checkpointer = types.SimpleNamespace(request=lambda: None, latest=None)
        self.recovery = types.SimpleNamespace(restarts=0)
        self.generations, self.events = [], []

    def spawn(self, work):
        self.task = asyncio.create_task(work)

    def now_ms(self):
        return int(asyncio.get_running_loop().time() * 1000)

    def handle(self, event):
        self.events.append(event)

    def begin_generation(self, generation, manifest):
        self.generations.append(generation)


def registered(takeover, address, generation=3):
    request = control_pb2.RegisterRequest(address=address, job_id="job-1", generation=generation)
    return takeover.registered(request)


@pytest.mark.parametrize(
    ("answers", "restarts"),
    [({"h:2": ("job-1", 3)}, False), ({"h:2": ("job-1", 2)}, True), ({}, True)],
    ids=["it runs the job", "it runs an earlier deployment", "nobody answers"],
)
def test_one_that_registers_late(monkeypatch, answers, restarts):
    asked = asyncio.Event()

    async def job_at(address):
        asked.set()
        return answers.get(address)

    monkeypatch.setattr(module, "job_at", job_at)

    async def run():
        coordinator = Coordinator()
        takeover = Takeover(coordinator, LEFT, None)
        takeover.start(LEASE_MS)
        assert registered(takeover, "h:1")
        await asyncio.wait_for(asked.wait(), 5)
        if restarts:
            await asyncio.wait_for(coordinator.task, 5)
        else:
            assert registered(takeover, "h:2")
            await asyncio.wait_for(coordinator.task, 5)
        assert (coordinator.generations, len(coordinator.events)) == (([4], 0) if restarts else ([], 1))

    asyncio.run(run())


def test_one_that_gives_up_waiting_does_not_stop_the_record():
    async def run():
        takeover = Takeover(Coordinator(), None, None)
        takeover._saver = asyncio.create_task(asyncio.sleep(0.05))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(takeover.saved(), 0.01)
        await takeover.saved()
        assert not takeover._saver.cancelled()

    asyncio.run(run())
