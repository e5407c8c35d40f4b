"""Parts that are made at about the same time are told in one message, and a failure at once."""

from __future__ import annotations

import threading

from task_manager.checkpoints.acknowledgements import Acknowledgements
from task_manager.link.control_calls import MadePart
from weir.types import SubtaskId


def part(index, checkpoint_id=7, *, failure="", size_bytes=2):
    return MadePart(SubtaskId(1, index), checkpoint_id, b"" if failure else b"x" * size_bytes, failure)


class Sent:
    """What was told, message by message."""

    def __init__(self, wait_s):
        self.messages = []
        self.acknowledgements = Acknowledgements(self._send, lambda work: work(), wait_s)

    def _send(self, parts):
        self.messages.append([(it.subtask.subtask_index, it.checkpoint_id) for it in parts])

    def add(self, *parts):
        adding = [threading.Thread(target=self.acknowledgements.add, args=(it,)) for it in parts]
        for thread in adding:
            thread.start()
        for thread in adding:
            thread.join(60)
            assert not thread.is_alive()


def made_before(sent, count):
    for index in range(count):
        sent.acknowledgements.add(part(index, checkpoint_id=6))
    sent.messages.clear()
    return sent


def test_parts_of_a_checkpoint_are_one_message():
    sent = made_before(Sent(0.01), 3)
    sent.acknowledgements._wait_s = 60.0
    sent.add(part(0), part(1), part(2))
    assert [sorted(message) for message in sent.messages] == [[(0, 7), (1, 7), (2, 7)]]


def test_one_that_is_missing_is_not_waited_for_long():
    sent = made_before(Sent(0.01), 3)
    sent.add(part(0), part(1))
    assert sorted(it for message in sent.messages for it in message) == [(0, 7), (1, 7)]


def test_a_failure_and_a_last_part_do_not_wait():
    sent = made_before(Sent(0.01), 3)
    sent.acknowledgements._wait_s = 60.0
    sent.add(part(0, checkpoint_id=0))
    sent.add(part(1, failure="the disk is full"))
    assert sent.messages == [[(0, 0)], [(1, 7)]]


def test_large_parts_are_messages_of_their_own():
    sent = made_before(Sent(0.01), 2)
    sent.acknowledgements._wait_s = 60.0
    sent.add(part(0, size_bytes=1 << 20), part(1, size_bytes=1 << 20))
    assert sorted(sent.messages) == [[(0, 7)], [(1, 7)]]
