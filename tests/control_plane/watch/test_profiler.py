"""Profiles and logs of task managers in virtual time."""

import asyncio

from control_plane.watch.profiler import DONE, FAILED, RUNNING, ProfileRefusal
from tests.control_plane.cluster import COUNT, Cluster
from tests.control_plane.virtual import run, until
from weir.errors import ConnectionLostError
from weir.rpc import control_pb2

REPLY = control_pb2.ProfileReply(
    subtasks=1,
    frames=[control_pb2.ProfileFrame(function="count", file="jobs/shop.py", line=12, kind=1)],
    stacks=[
        control_pb2.ProfileStack(frames=[0, 99], samples=75, step="count"),
        control_pb2.ProfileStack(samples=25, waits=True),
    ],
)


def answering(member, reply, *, after_s=10.0):
    async def profile(request):
        await asyncio.sleep(after_s)
        if isinstance(reply, Exception):
            raise reply
        return reply

    member.on["profile"] = profile


async def ended(here):
    await until(lambda: here.parts.profiler.latest.state != RUNNING)
    return here.parts.profiler.latest


def test_what_all_task_managers_saw_is_one_profile():
    async def test(clock):
        here = Cluster(clock)
        for member in await here.running("h:1", "h:2"):
            answering(member, REPLY)
        begun = here.parts.profiler.request(COUNT, 10)
        assert (begun.state, begun.number, begun.stage) == (RUNNING, 1, COUNT)
        found = await ended(here)
        assert (found.state, found.samples, found.subtasks, found.cause) == (DONE, 200, 2, "")
        assert found.words[0] == "75 % in `count` of step `count`, line 12 of jobs/shop.py"
        assert found.boxes[0].width == 200
        (request,) = here.task_managers["h:1"].requests("profile")
        assert (request.stage_index, request.duration_ms) == (COUNT, 10_000)
        assert request.handshake.generation == 1
        await here.close()

    run(test)


def test_a_task_manager_that_does_not_answer_is_told_and_the_others_count():
    async def test(clock):
        here = Cluster(clock)
        one, two = await here.running("h:1", "h:2")
        answering(one, REPLY)
        answering(two, ConnectionLostError("task manager h:2 does not answer"))
        here.parts.profiler.request(COUNT, 1)
        found = await ended(here)
        assert (found.state, found.samples, found.cause) == (DONE, 100, "task manager h:2 does not answer")
        answering(one, ConnectionLostError("task manager h:1 does not answer"))
        assert here.parts.profiler.request(COUNT, 1).number == 2
        found = await ended(here)
        assert found.state == FAILED
        assert "h:1 does not answer; task manager h:2" in found.cause
        await here.close()

    run(test)


def test_what_cannot_be_looked_at_is_refused():
    async def test(clock):
        here = Cluster(clock)
        profiler = here.parts.profiler
        assert profiler.request(COUNT, 10).status == 409
        for member in await here.running("h:1", "h:2"):
            answering(member, REPLY)
        assert profiler.request(99, 10) == ProfileRefusal(404, "no stage 99; there are 0, 1")
        for seconds in (0, -1, 61, float("nan")):
            assert profiler.request(COUNT, seconds).status == 400
        assert profiler.latest is None
        assert profiler.version == []
        profiler.request(COUNT, 10)
        assert "is being made" in profiler.request(COUNT, 10).message
        await ended(here)
        assert profiler.version == [1, DONE]
        await here.close()

    run(test)


def test_many_who_look_at_a_log_ask_its_task_manager_once():
    async def test(clock):
        here = Cluster(clock)
        one, _ = await here.running("h:1", "h:2")

        async def tail(request):
            await asyncio.sleep(0.1)
            return control_pb2.LogTailReply(entries=["a", "b", "who", "c"], audit_places=[2])

        one.on["log_tail"] = tail
        tails = here.parts.log_tails
        asked = [tails.of("h:1", 2, with_audit=False) for _ in range(20)]
        assert await asyncio.gather(*asked) == [["b", "c"]] * 20
        assert await tails.of("h:1", 400, with_audit=False) == ["a", "b", "c"]
        assert await tails.of("h:1", 400, with_audit=True) == ["a", "b", "who", "c"]
        assert len(one.requests("log_tail")) == 1
        await asyncio.sleep(1)
        await tails.of("h:1", 1, with_audit=False)
        assert len(one.requests("log_tail")) == 2
        await here.close()

    run(test)
