"""Which answers of a task manager are asked for again."""

import asyncio

import pytest

from weir.protocol.queries import Question
from weir.questions.asking import Asking, Reply


class OneTaskManager:
    """A directory of one task manager, which answers all questions with the same status."""

    generation = 1

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
