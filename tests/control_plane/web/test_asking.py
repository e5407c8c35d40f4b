"""Questions go to the owner of their key, and are refused with a reason while there is none."""

import asyncio
from types import SimpleNamespace

import orjson
import pytest

import weir
from control_plane.directory import OwnDirectory
from weir.errors import ConnectionLostError
from weir.plan.stages import physical_graph
from weir.protocol.job.job_machine import JobState
from weir.protocol.queries import QueryError, Question
from weir.protocol.routing import initial_table
from weir.questions import asking
from weir.questions.asking import Asking
from weir.questions.likely_groups import likely_group
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity
from weir.types import SubtaskId

GROUPS = 4
KEY_GROUP = 3


class Owner:
    """A task manager that owns some key groups."""

    def __init__(self, groups):
        self.groups, self.asked = set(groups), []
        self.answer = control_pb2.QueryReply(status=200, answer_json=b'{"value": 1}', key_group=KEY_GROUP)

    def begin_query(self, request, done):
        """Answers when it is told to, with ``query``."""
        task = asyncio.get_running_loop().create_task(self.query(request))
        task.add_done_callback(
            lambda ended: ended.cancelled() or done(None if ended.exception() else ended.result())
        )
        return task.cancel

    async def query(self, request):
        self.asked.append(orjson.loads(request.question_json))
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.asked[-1].get("consistency", "latest") == "latest" and KEY_GROUP not in self.groups:
            return control_pb2.QueryReply(status=421, answer_json=b"{}", key_group=KEY_GROUP)
        return self.answer


class World:
    """Two task managers with a subtask of the counting stage each."""

    def __init__(self):
        flow = weir.Dataflow("job", max_parallelism=GROUPS)
        rows = flow.source("rows", weir.JsonLines("none", schema={"k": str}))
        rows.key_by("k").count("n", parallelism=2).sink("out", weir.Blackhole())
        graph = physical_graph(flow.build())
        stage = next(stage for stage in graph.stages if stage.is_keyed).index
        table = initial_table(stage, 2, GROUPS)
        self.owners = [Owner(table.groups_of(index)) for index in (0, 1)]
        placement = {SubtaskId(stage, index): f"tm{index}" for index in (0, 1)}
        self.job = SimpleNamespace(
            state=JobState.RUNNING,
            graph=graph,
            identity=JobIdentity("job-1", "f", 1),
            routing_tables={stage: table},
            state_ids={"n": 5},
            machine=SimpleNamespace(placement=placement),
            owner=lambda stage, group: SubtaskId(stage, table.groups[group]),
        )
        self.checkpointer = SimpleNamespace(latest=None)
        self.task_managers = SimpleNamespace(
            client=lambda name: self.owners[int(name[-1])],
            clients={f"tm{index}": owner for index, owner in enumerate(self.owners)},
        )
        self.asking = Asking(OwnDirectory(self))

    def ask(self, key="a", **given):
        return asyncio.run(self.asking.ask(Question("n", "n", key, **given)))


def test_the_group_of_a_key_is_asked_for_once():
    world = World()
    first, owner = sorted(world.owners, key=lambda each: KEY_GROUP in each.groups)
    for _ in range(3):
        status, answer = world.ask()
        assert (status, answer["value"], answer["generation"]) == (200, 1, 1)
    assert len(owner.asked) == 3
    assert len(first.asked) <= 1


def test_a_refusal_teaches_no_group():
    world = World()
    for owner in world.owners:
        owner.answer = control_pb2.QueryReply(status=404, answer_json=b'{"error": "no such state"}')
        owner.groups.add(KEY_GROUP)
    assert world.ask()[0] == 404
    assert not world.asking._groups


def test_a_group_that_nobody_owns_is_asked_for_until_it_has_an_owner_or_too_long(monkeypatch):
    world = World()
    _, owner = sorted(world.owners, key=lambda each: KEY_GROUP in each.groups)
    owner.groups.clear()
    monkeypatch.setattr(asking, "_MOVING_S", 0.05)
    with pytest.raises(QueryError, match="key group 3 is on its way") as refused:
        world.ask()
    assert refused.value.status == 503
    assert len(owner.asked) > 1

    async def comes_back():
        async def own():
            await asyncio.sleep(0.03)
            owner.groups.add(KEY_GROUP)

        asyncio.get_running_loop().create_task(own())
        monkeypatch.setattr(asking, "_MOVING_S", 10)
        return await world.asking.ask(Question("n", "n", "a"))

    assert asyncio.run(comes_back())[0] == 200


def test_a_checkpoint_is_waited_for_and_not_for_ever(monkeypatch):
    world = World()
    for owner in world.owners:
        owner.groups.add(KEY_GROUP)

    def made(number):
        manifest = SimpleNamespace(checkpoint_id=number)
        world.checkpointer.latest = SimpleNamespace(job_id="job-1", manifest=manifest, path=f"{number}")

    async def ask_while(change, **given):
        asking_task = asyncio.ensure_future(
            world.asking.ask(Question("n", "n", "a", min_checkpoint=7, **given))
        )
        await asyncio.sleep(0.02)
        assert not asking_task.done()
        assert not any(owner.asked for owner in world.owners)
        change()
        return await asking_task

    monkeypatch.setattr(asking, "_CHECKPOINT_LOOK_S", 0.001)
    made(6)
    assert asyncio.run(ask_while(lambda: made(7)))[0] == 200
    assert asyncio.run(world.asking.ask(Question("n", "n", "a", min_checkpoint=7)))[0] == 200
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.01)
    for latest, says in ((made, "the last one is 6"), (None, "there is none yet")):
        if latest is None:
            world.checkpointer.latest = None
        else:
            latest(6)
        with pytest.raises(QueryError, match=says) as refused:
            world.ask(min_checkpoint=7)
        assert refused.value.status == 503


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"state": JobState.RESTARTING}, 503, "RESTARTING"),
        ({"state": JobState.CANCELLED}, 409, "CANCELLED"),
        ({"routing_tables": {}}, 503, "not known yet where stage"),
        ({"machine": SimpleNamespace(placement={})}, 503, "no owner now"),
    ],
)
def test_refusals(change, status, says):
    world = World()
    vars(world.job).update(change)
    with pytest.raises(QueryError, match=says) as refused:
        world.ask()
    assert refused.value.status == status


def test_what_can_be_asked_is_listed_and_named_in_refusals():
    world = World()
    assert asyncio.run(world.asking.listed(None)) == [{"step": "n", "state": "n"}]
    assert asyncio.run(world.asking.listed("n")) == [{"step": "n", "state": "n"}]
    assert asyncio.run(world.asking.named(None, None)) == ("n", "n")
    for ask in (world.asking.listed("rows"), world.asking.ask(Question("rows", "n", "a"))):
        with pytest.raises(
            QueryError, match=r"'rows' keeps nothing by key; what can be asked.*: n/n"
        ) as refused:
            asyncio.run(ask)
        assert refused.value.status == 404


def test_a_task_manager_that_is_gone_is_no_answer():
    world = World()
    for owner in world.owners:
        owner.answer = ConnectionLostError("task manager tm0 does not answer")
        owner.groups.add(KEY_GROUP)
    with pytest.raises(QueryError, match="does not answer: try again") as refused:
        world.ask()
    assert refused.value.status == 503


def test_an_answer_of_an_older_deployment_is_none():
    world = World()

    class Restarting(Owner):
        async def query(self, request):
            world.job.identity = JobIdentity("job-1", "f", 2)
            return self.answer

    world.owners = [Restarting(range(GROUPS))] * 2
    with pytest.raises(QueryError, match="restarted meanwhile"):
        world.ask()


def test_checkpoints():
    world = World()
    with pytest.raises(QueryError, match="not made a checkpoint of its own yet"):
        world.ask(None, consistency="checkpoint")
    latest = SimpleNamespace(job_id="job-1", path="m7", manifest=SimpleNamespace(checkpoint_id=7))
    world.checkpointer.latest = latest
    assert world.ask(None, consistency="checkpoint")[0] == 200
    asked = [question for owner in world.owners for question in owner.asked]
    assert [question["checkpoint_id"] for question in asked] == [7]
    world.checkpointer.latest = SimpleNamespace(job_id="another", path="m7", manifest=latest.manifest)
    with pytest.raises(QueryError, match="of its own"):
        world.ask(None, consistency="checkpoint")


def test_too_many_at_a_time_are_refused(monkeypatch):
    world = World()
    monkeypatch.setattr(asking, "_ASKED_MAX", 2)

    async def several():
        asked = (world.asking.ask(Question("n", "n", "a")) for _ in range(3))
        return await asyncio.gather(*asked, return_exceptions=True)

    results = asyncio.run(several())
    refused = [result for result in results if isinstance(result, QueryError)]
    assert [error.status for error in refused] == [429]
    assert world.ask()[0] == 200


def answers_range(groups):
    answer = {
        "groups": groups,
        "parts": [],
        "keys": [],
        "rows": [],
        "order": "key",
        "after": None,
        "count": 2,
    }
    return control_pb2.QueryReply(status=200, answer_json=orjson.dumps(answer))


def test_a_range_as_it_is_now_has_each_key_group_once_or_says_why_not(monkeypatch):
    world = World()
    first, second = world.owners
    first.answer, second.answer = answers_range([0, 1]), answers_range([2, 3])
    monkeypatch.setattr(Owner, "query", lambda self, request: asyncio.sleep(0, self.answer))
    status, answer = world.ask(None, counts=True)
    assert (status, answer["count"], answer["generation"]) == (200, 4, 1)
    monkeypatch.setattr(asking, "_RANGE_MOVING_S", 0.03)
    # On its way to another owner: nobody has it, or both answered.
    for groups, says in (([3], "1 key groups are on their way .* such as 2"), ([1, 2, 3], "such as 1")):
        second.answer = answers_range(groups)
        with pytest.raises(QueryError, match=says) as refused:
            world.ask(None, counts=True)
        assert refused.value.status == 503
    second.answer = control_pb2.QueryReply(status=413, answer_json=b'{"error": "too many"}')
    assert world.ask(None) == (
        413, {"error": "too many", "consistency": "latest", "generation": 1, "routing_version": 1}
    )  # fmt: skip


def begun(world, key="a", **given):
    """What asking without a task led to, and how it ended; with a key that the kernels' hash puts into KEY_GROUP."""

    async def go():
        ended = asyncio.get_running_loop().create_future()
        take_back = world.asking.begin(Question("n", "n", key, **given), ended.set_result)
        return None if take_back is None else await asyncio.wait_for(ended, 10)

    return asyncio.run(go())


#: A key of KEY_GROUP.
OWN_KEY = next(f"k{index}" for index in range(100) if likely_group("text", f"k{index}", GROUPS) == KEY_GROUP)


def test_the_owner_is_asked_at_once_without_a_task():
    world = World()
    status, answer = begun(world, OWN_KEY)
    shown = {"value": 1, "consistency": "latest", "generation": 1, "routing_version": 1}
    assert (status, orjson.loads(answer)) == (200, shown)
    assert sum(len(owner.asked) for owner in world.owners) == 1, "nobody else was asked for the key's group"
    assert world.ask(OWN_KEY)[1] == shown
    assert not world.asking._groups, "what can be told is not kept"


def test_what_does_not_lead_to_an_answer_at_once_takes_the_long_way():
    world = World()
    for owner in world.owners:
        owner.groups.clear()
    assert begun(world, OWN_KEY) is None, "the group has moved"
    for owner in world.owners:
        owner.answer = ConnectionLostError("gone")
        owner.groups.add(KEY_GROUP)
    assert begun(world, OWN_KEY) is None
    asked = sum(len(owner.asked) for owner in world.owners)
    assert begun(world, None) is None
    assert begun(world, OWN_KEY, consistency="checkpoint") is None
    world.job.state = JobState.RESTARTING
    assert begun(world, OWN_KEY) is None
    assert sum(len(owner.asked) for owner in world.owners) == asked, "these were not even sent"


def test_questions_without_a_task_count_among_those_under_way(monkeypatch):
    world = World()
    monkeypatch.setattr(asking, "_ASKED_MAX", 2)

    async def go():
        questions, ended = [Question("n", "n", OWN_KEY)] * 3, []
        first, _, third = (world.asking.begin(question, ended.append) for question in questions)
        assert third is None
        first()
        again = world.asking.begin(questions[0], ended.append)
        assert again is not None
        while len(ended) < 2:
            await asyncio.sleep(0)
        assert [status for status, _ in ended] == [200, 200], "the one that was taken back is told nothing"
        assert world.asking._asked == 0

    asyncio.run(go())
