"""A task manager answers for the key groups of its subtasks, whichever way a state is read."""

from concurrent.futures import Future

import pytest

import weir
from task_manager.queries.answers import MOVED, Answers
from task_manager.queries.open_checkpoints import OpenCheckpoints
from tests.task_manager.queries.test_window_questions import GROUPS, STATE, WINDOWS, Job
from weir.plan.stages import physical_graph
from weir.protocol.queries import QueryError, Question
from weir.testing import ManualClock
from weir.types import SubtaskId


class World:
    """One subtask of a window step with rows."""

    def __init__(self, kind="sliding"):
        self.job = Job(WINDOWS[kind], {"n": weir.count(), "kinds": weir.count_distinct("v")})
        self.job.take(["a", "a", "b"], [1_000, 1_001, 1_002], [1, 2, 3])
        self.epochs = dict.fromkeys(range(GROUPS), 1)
        ownership = self.job.backend.ownership
        ownership.epoch, ownership.owns = self.epochs.get, self.epochs.__contains__
        graph = physical_graph(self.job.graph)
        stage = next(stage.index for stage in graph.stages for node in stage.nodes if node.name == "step")
        self.running = self.job.running()
        self.running.is_over, self.running.post = False, self.post
        self.meanwhile = lambda: None
        checkpoints = OpenCheckpoints({}.__getitem__, lambda: None, ManualClock())
        running = {SubtaskId(stage, 0): self.running}
        self.answers = Answers(graph, running, checkpoints, self.job.numbers, ManualClock())

    def post(self, command):
        command()
        # What the subtask does before the question reads on.
        self.meanwhile()
        return Future()

    def ask(self, state, key=None, **given):
        question = Question("step", state, key, **given)
        return self.answers.answer(question, STATE, "", lambda: True)


@pytest.mark.parametrize("state", ["n", "kinds"])
def test_one_key_and_ranges(state):
    world = World()
    status, answer, group = world.ask(state, "a")
    assert (status, answer["key"], answer["watermark_ms"]) == (200, "a", 0)
    assert [window["value"] for window in answer["value"]] == [2] * 4
    status, first, _ = world.ask(state, "a", limit=3, cuts=True)
    assert (status, first) == (200, {**answer, "value": answer["value"][:3], "more": True})
    status, nothing, _ = world.ask(state, "c")
    assert (status, nothing["key"]) == (404, "c")
    status, page, _ = world.ask(state)
    assert status == 200
    assert {row["key"]: row["value"] for row in page["rows"]}["a"] == answer["value"]
    assert page["groups"] == list(range(GROUPS))
    assert world.ask(state, counts=True)[1]["count"] == 2
    del world.epochs[group]
    assert world.ask(state, "a")[::2] == (MOVED, group)
    assert world.ask(state)[1]["groups"] == [other for other in range(GROUPS) if other != group]


@pytest.mark.parametrize("key", ["a", None])
def test_a_key_group_that_goes_and_comes_back_while_it_is_read(key):
    world = World()
    world.meanwhile = lambda: world.epochs.update(dict.fromkeys(world.epochs, 2))
    assert world.ask("kinds", key)[0] == MOVED
    world.meanwhile = lambda: None
    assert world.ask("kinds", key)[0] == 200


@pytest.mark.parametrize("key", ["a", None])
def test_sessions_that_are_put_together_while_they_are_read(key):
    world = World("session")

    def merge():
        world.job.take(["a"], [1_008], [9])
        world.job.watermark(1_012)
        world.job.tables.flush()

    world.meanwhile = merge
    with pytest.raises(QueryError, match="try again") as refused:
        world.ask("kinds", key)
    assert refused.value.status == 503
    world.meanwhile = lambda: None
    assert world.ask("kinds", key)[0] == 200


def test_a_subtask_that_is_over_and_a_caller_that_has_gone():
    world = World()
    with pytest.raises(QueryError, match="the caller has gone"):
        world.answers.answer(Question("step", "kinds"), STATE, "", lambda: False)
    world.running.is_over = True
    with pytest.raises(QueryError, match="end of its input"):
        world.ask("n", "a")
