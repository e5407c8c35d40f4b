"""Which answers of a task manager are asked for again."""

import asyncio

import orjson
import pytest

from weir.protocol.queries import Question
from weir.questions.asking import Asking
from weir.questions.directory import Reply


class OneTaskManager:
    """A directory of one task manager, which answers all questions with the same status."""

    generation, away_s = 1, 0.0

    def __init__(self, status):
        self.status, self.asked, self.checkpoint_id = status, [], 7

    async def refresh(self, *, is_wrong):
        self.checkpoint_id += is_wrong

    def check(self):
        pass

    def stage_of(self, step):
        return 1

    def latest_checkpoint(self):
        return self.checkpoint_id, f"manifests/{self.checkpoint_id}"

    def address(self, stage_index, group):
        return "127.0.0.1:1"

    async def call(self, address, question, manifest_path):
        self.asked.append((question.checkpoint_id, manifest_path))
        return Reply(self.status, b"{}")


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        pytest.param(503, [(7, "manifests/7"), (8, "manifests/8")], id="a checkpoint that has expired"),
        pytest.param(504, [(7, "manifests/7")], id="a question that takes too long"),
    ],
)
def test_a_question_is_asked_again_only_if_that_may_help(status, asked):
    directory = OneTaskManager(status)
    question = Question("count", "words", None, "checkpoint", counts=True)
    answer = asyncio.run(Asking(directory).ask(question))
    assert answer[0] == status
    assert directory.asked == asked


def test_an_answer_says_that_the_control_plane_is_away():
    directory = OneTaskManager(200)
    directory.away_s = 2.04
    answer = asyncio.run(Asking(directory).ask(Question("count", "words", None, "checkpoint", counts=True)))
    assert answer[1]["control_plane_away_s"] == 2.0
    directory.away_s = 0.0
    answer = asyncio.run(Asking(directory).ask(Question("count", "words", None, "checkpoint", counts=True)))
    assert "control_plane_away_s" not in answer[1]


class Quick(OneTaskManager):
    """As the base, of one key, which can be asked for without a task, too."""

    is_fresh = True

    def __init__(self, reply):
        super().__init__(reply.status)
        self.reply = reply

    def routing_version(self, stage_index):
        return 3

    def likely_group(self, question, stage_index):
        return 5

    async def call(self, address, question, manifest_path):
        return self.reply

    def begin_call(self, address, question, done):
        done(self.reply)
        return lambda: None


def both_ways(reply):
    """What is answered for a key without a task, and with one."""
    question, quick = Question("count", "words", "a"), []

    async def work():
        Asking(Quick(reply)).begin(question, quick.append)
        return await Asking(Quick(reply)).ask(question)

    return quick, asyncio.run(work())


@pytest.mark.parametrize(
    ("status", "answer"),
    [(200, {"watermark_ms": None, "key": 'a"}', "value": [1.5]}), (404, {"error": "nothing"})],
)
def test_the_quick_answer_is_the_same(status, answer):
    [(quick_status, quick)], slow = both_ways(Reply(status, orjson.dumps(answer), 5))
    assert (quick_status, orjson.loads(quick)) == slow
    assert slow[1] == answer | {"consistency": "latest", "generation": 1, "routing_version": 3}


def test_a_group_is_remembered_of_keys_that_are_short():
    class Elsewhere(Quick):
        """Not where its key was thought to be: the subtask that is asked first says where."""

        async def call(self, address, question, manifest_path):
            self.asked.append(address)
            is_right = address == "127.0.0.1:9"
            return Reply(200, b'{"key":"a"}', 9) if is_right else Reply(421, b"{}", 9)

        def address(self, stage_index, group):
            return f"127.0.0.1:{group}"

    for key, third in (("a", "127.0.0.1:9"), ("a" * 8_000, "127.0.0.1:5")):
        directory = Elsewhere(Reply(200, b"{}"))
        asking = Asking(directory)
        for _ in range(2):
            assert asyncio.run(asking.ask(Question("count", "words", key)))[0] == 200
        assert directory.asked[:3] == ["127.0.0.1:5", "127.0.0.1:9", third]
        assert len(asking._groups) == (1 if len(key) == 1 else 0)


def test_what_is_no_answer_goes_the_long_way():
    assert both_ways(Reply(200, b"{}", 5))[0] == [None]
