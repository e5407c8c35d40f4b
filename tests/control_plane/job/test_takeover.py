"""What a control plane does with task managers that come back late, and when its record is on disk."""

import asyncio
import types
from dataclasses import replace

import pytest

from control_plane.background import LoopBackground
from control_plane.job.takeover import Takeover
from control_plane.record.job_record import JobRecord
from control_plane.record.record_writer import RecordWriter
from tests.control_plane.cluster import Cluster
from tests.control_plane.virtual import run
from weir.clock import SystemClock
from weir.errors import SupersededError
from weir.rpc import control_pb2
from weir.rpc.wire import parse_address
from weir.types import SubtaskId

LEFT = JobRecord(
    "job-1", "f", 3, 1_000, is_steady=True, placement={SubtaskId(0, 0): "h:1", SubtaskId(1, 0): "h:2"}
)
LEASE_MS = 20


class TaskManager:
    """Answers who it is."""

    def __init__(self, job, asked):
        self._job, self._asked = job, asked

    async def status(self):
        self._asked.set()
        job_id, generation = self._job or ("", 0)
        return control_pb2.StatusReply(job_id=job_id, generation=generation, incarnation="first")

    async def close(self):
        pass


def registered(takeover, address, generation=3, incarnation="first"):
    request = control_pb2.RegisterRequest(
        address=address, job_id="job-1", generation=generation, incarnation=incarnation
    )
    return takeover.registered(request)


@pytest.mark.parametrize(
    ("answers", "restarts"),
    [({"h:2": ("job-1", 3)}, False), ({"h:2": ("job-1", 2)}, True), ({}, True)],
    ids=["it runs the job", "it runs an earlier deployment", "it runs no job"],
)
def test_one_that_registers_late(answers, restarts):
    async def run():
        asked, over = asyncio.Event(), asyncio.Event()
        generations, events, begun = [], [], []

        def begin_generation(generation, manifest):
            generations.append(generation)
            over.set()

        def tell_job(event):
            events.append(event)
            over.set()

        async def let_begin(assignments):
            begun.extend((item.subtask, item.task_manager) for item in assignments)

        takeover = Takeover(
            types.SimpleNamespace(identity=types.SimpleNamespace(job_id="job-1", generation=3), restarts=0),
            LEFT,
            SystemClock(),
            LoopBackground(),
            types.SimpleNamespace(request=lambda: None, latest=None),
            connect=lambda address: TaskManager(answers.get(address), asked),
            tell_job=tell_job,
            begin_generation=begin_generation,
            let_begin=let_begin,
        )
        takeover.start(LEASE_MS)
        assert registered(takeover, "h:1")
        await asyncio.wait_for(asked.wait(), 5)
        if not restarts:
            assert registered(takeover, "h:2")
        await asyncio.wait_for(over.wait(), 5)
        assert (generations, len(events)) == (([4], 0) if restarts else ([], 1))
        await asyncio.sleep(0)
        assert begun == ([] if restarts else list(LEFT.placement.items())), (
            "the earlier one may not have told all"
        )

    asyncio.run(run())


def test_one_that_gives_up_waiting_does_not_stop_the_record(monkeypatch):
    async def run():
        written, may_write = [], asyncio.Event()

        class Slow(LoopBackground):
            async def in_thread(self, work):
                await may_write.wait()
                return work()

        record = types.SimpleNamespace(to_bytes=lambda: b"record")
        monkeypatch.setattr(RecordWriter, "_record", lambda self: record)
        writer = RecordWriter(
            None,
            None,
            Slow(),
            lambda: None,
            written.append,
            is_shared=False,
            first_checkpoint_id=1,
            superseded=lambda: None,
        )
        writer.save()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.saved(), 0.01)
        assert not written
        may_write.set()
        await writer.saved()
        assert written == [b"record"]

    asyncio.run(run())


def test_nothing_that_waits_for_the_record_happens_once_another_control_plane_leads(monkeypatch):
    async def run():
        superseded = asyncio.Event()

        def refuse(data):
            raise SupersededError("another control plane leads")

        record = types.SimpleNamespace(to_bytes=lambda: b"record")
        monkeypatch.setattr(RecordWriter, "_record", lambda self: record)
        writer = RecordWriter(
            None,
            None,
            LoopBackground(),
            lambda: None,
            refuse,
            is_shared=True,
            first_checkpoint_id=1,
            superseded=superseded.set,
        )
        writer.save()
        await asyncio.wait_for(superseded.wait(), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.saved(), 0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.confirm(), 0.05)
        await writer.close()

    asyncio.run(run())


def test_another_process_at_its_address_is_not_the_one_that_had_the_subtasks():
    """A rescale that was taken back may have told it of the job."""
    events = []
    takeover = Takeover(
        types.SimpleNamespace(identity=types.SimpleNamespace(job_id="job-1", generation=3), restarts=0),
        replace(LEFT, incarnations={"h:1": "first", "h:2": "first"}),
        SystemClock(),
        types.SimpleNamespace(spawn=lambda work: work),
        types.SimpleNamespace(request=lambda: None, latest=None),
        connect=lambda address: None,
        tell_job=events.append,
        begin_generation=lambda generation, manifest: None,
        let_begin=lambda assignments: None,
    )
    assert registered(takeover, "h:1")
    assert not registered(takeover, "h:2", incarnation="second")
    assert events == []
    assert takeover.is_waiting
    assert registered(takeover, "h:2")
    assert len(events) == 1


def test_whoever_comes_to_the_address_of_one_that_is_gone_is_not_the_one_that_had_the_subtasks():
    """They may all have finished there, so that the job goes on without it; what sinks had to deliver is lost."""

    async def test(clock):
        here = Cluster(clock)
        _, gone = await here.running("h:1", "h:2")
        here.parts.task_managers.membership.deregister(parse_address("h:2"), gone.incarnation)
        here.parts.record.save()
        await here.parts.record.saved()
        left = here.register.record
        assert left.incarnations == {"h:1": "h:1 first", "h:2": ""}
        assert not Takeover._is_the_same(left, "h:2", "h:2 second")
        await here.close()

    run(test)
