"""Orders of a rescale that do not arrive."""

import asyncio
import types

import pytest

from control_plane.link.task_managers import TaskManagers
from control_plane.rescale.rescale_calls import RescaleCalls
from weir.errors import ConnectionLostError, HandshakeError
from weir.protocol.rescale.rescale_model import RescalePhase, SendPrepare
from weir.protocol.routing import GroupMove
from weir.rpc.wire import JobIdentity
from weir.types import SubtaskId

OLD, NEW = SubtaskId(1, 0), SubtaskId(1, 3)
IDENTITY = JobIdentity("job-1", "f", 2)


class Peer:
    """A task manager whose first answers to an order to stop are failures."""

    def __init__(self, failures: int, error=None) -> None:
        self.asked = []
        self.error = error or ConnectionLostError("a task manager does not answer")
        self.failures = failures

    async def cancel(self, request):
        self.asked.append(request)
        if len(self.asked) <= self.failures:
            raise self.error

    async def abort_rescale(self, request):
        await self.cancel(request)

    async def prepare_rescale(self, request):
        await self.cancel(request)


def calls_to(job, peers, on_sleep=lambda: None):
    task_managers = TaskManagers(1_000)
    for name, peer in peers.items():
        task_managers.membership.register(name, f"incarnation of {name}", 1, 0)
        task_managers.clients[name] = peer

    async def sleep(seconds):
        on_sleep()

    async def saved():
        return True

    return RescaleCalls(
        job,
        types.SimpleNamespace(sleep=sleep),
        task_managers,
        types.SimpleNamespace(saved=saved),
        {1: IDENTITY},
        lambda rescale, event: None,
        lambda rescale, cause: None,
    )


def job_with(placement):
    return types.SimpleNamespace(identity=IDENTITY, machine=types.SimpleNamespace(placement=placement))


def rescale_that(is_final):
    phase, plan = types.SimpleNamespace(is_final=is_final), types.SimpleNamespace(stage_index=1)
    return types.SimpleNamespace(rescale_id=1, phase=phase, plan=plan)


def test_new_subtasks_of_a_rescale_that_is_taken_back_are_told_to_stop_until_they_have_heard_it():
    """A rescale that is being taken back holds checkpoints up until they have ended."""
    slept = []
    peer = Peer(failures=2)
    calls = calls_to(job_with({NEW: "h:1"}), {"h:1": peer}, lambda: slept.append(1))
    asyncio.run(calls.cancel(rescale_that(is_final=False), [NEW], []))
    assert (len(peer.asked), len(slept)) == (3, 2)
    assert [item.subtask_index for item in peer.asked[0].subtasks] == [3]


def test_consumers_of_a_lost_new_subtask_hear_of_it_though_the_rescale_has_ended():
    """They wait for rows and barriers of its channels otherwise, for ever."""
    peers = {"h:1": Peer(failures=0), "h:2": Peer(failures=2)}
    calls = calls_to(job_with({NEW: "h:3"}), peers)
    asyncio.run(calls.cancel(rescale_that(is_final=True), [], [NEW]))
    assert [len(peer.asked) for peer in peers.values()] == [1, 3]
    assert [item.subtask_index for item in peers["h:2"].asked[-1].lost_producers] == [3]


def test_nobody_is_told_of_a_lost_subtask_of_an_earlier_deployment():
    """The same names belong to other subtasks when the job has started again."""
    job, peer = job_with({}), Peer(failures=100)

    def start_again():
        job.identity = JobIdentity("job-1", "f", 3)

    asyncio.run(calls_to(job, {"h:1": peer}, start_again).cancel(rescale_that(is_final=True), [], [NEW]))
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("error", "times"),
    [(ConnectionLostError("it does not answer"), 3), (HandshakeError("it has another job"), 1)],
)
def test_owners_are_told_that_a_rescale_is_taken_back_until_they_have_heard_it(error, times):
    """One whose inputs have ended, and to which nothing else comes, would wait for it for ever."""
    peer = Peer(2, error)
    calls = calls_to(job_with({OLD: "h:1"}), {"h:1": peer})
    asyncio.run(calls.abort(rescale_that(is_final=True), [OLD], 2))
    assert len(peer.asked) == times
    assert [item.subtask_index for item in peer.asked[0].owners] == [0]


def test_owners_of_an_earlier_deployment_are_not_told_that_a_rescale_is_taken_back():
    job, peer = job_with({OLD: "h:1"}), Peer(failures=100)

    def start_again():
        job.identity = JobIdentity("job-1", "f", 3)

    asyncio.run(calls_to(job, {"h:1": peer}, start_again).abort(rescale_that(is_final=True), [OLD], 2))
    assert len(peer.asked) == 1


def test_a_manifest_that_is_being_written_is_waited_for_and_not_for_ever():
    answers = [None, None, 7]
    calls = calls_to(types.SimpleNamespace(), {}, on_sleep=lambda: answers.pop(0) if answers[1:] else None)
    calls._relinks_to = lambda: answers[0]
    assert asyncio.run(calls._relinkable_id()) == 7
    answers[:] = [None]
    assert asyncio.run(calls._relinkable_id()) == 0


def test_no_images_are_opened_for_a_rescale_that_is_taken_back_while_a_manifest_is_written():
    """Its owners have heard of that by then, and nobody would close them."""
    peer, rescale = Peer(failures=0), rescale_that(is_final=False)
    rescale.phase = RescalePhase.PREPARING
    job = job_with({NEW: "h:1"})
    job.strategy = types.SimpleNamespace(relinks=True)
    answers = [None, 7]

    def take_back():
        answers.pop(0)
        rescale.phase = RescalePhase.ABORTED

    calls = calls_to(job, {"h:1": peer}, take_back)
    calls._relinks_to = lambda: answers[0]
    action = SendPrepare((NEW,), 2, (GroupMove(3, OLD.subtask_index, NEW.subtask_index),), ())
    asyncio.run(calls.prepare(rescale, action))
    assert answers == [7]
    assert peer.asked == []
