"""Subtasks that are ready for a checkpoint at about the same time share one image, and nobody waits long for others."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from task_manager.checkpoints.shared_images import Joining, SharedImages
from weir.errors import CheckpointError
from weir.state.tables.capture import WriteHold


class Publisher:
    """Implements ``Publisher.take``: an image is the number of its checkpoint and its own."""

    def __init__(self):
        self.taken = []
        self.error = None

    def take(self, checkpoint_id, *, stays=False):
        if self.error is not None:
            raise self.error
        self.taken.append(checkpoint_id)
        return checkpoint_id, len(self.taken)


class Subtask:
    """Waits for its image."""

    def __init__(self):
        self.hold, self.done = WriteHold(), threading.Event()
        self.image = self.counts = self.error = None

    @property
    def joining(self):
        return Joining(self.hold, self._taken, self._failed)

    def _taken(self, image, counts):
        self.image, self.counts = image, counts
        self.done.set()

    def _failed(self, error):
        self.error = error
        self.done.set()


@pytest.fixture
def publisher():
    return Publisher()


@pytest.fixture
def takers():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def join(shared, checkpoint_id, count):
    subtasks = [Subtask() for _ in range(count)]
    for subtask in subtasks:
        shared.join(checkpoint_id, subtask.joining)
    return subtasks


def wait(subtasks):
    assert all(subtask.done.wait(60) for subtask in subtasks)


def test_those_of_the_next_checkpoint_share_an_image_whose_bytes_count_once(publisher, takers):
    shared = SharedImages(publisher, takers, wait_s=60.0)
    wait(join(shared, 1, 3))
    publisher.taken.clear()
    subtasks = join(shared, 2, 3)
    wait(subtasks)
    assert publisher.taken == [2]
    assert [subtask.image for subtask in subtasks] == [(2, 1)] * 3
    assert [subtask.counts for subtask in subtasks] == [True, False, False]


def test_one_that_does_not_come_is_not_waited_for_long(publisher, takers):
    shared = SharedImages(publisher, takers, wait_s=0.05)
    wait(join(shared, 1, 3))
    subtasks = join(shared, 2, 2)
    wait(subtasks)
    assert len({subtask.image for subtask in subtasks}) == 1
    (late,) = join(shared, 2, 1)
    wait([late])
    assert late.image != subtasks[0].image


def test_who_has_to_write_waits_for_nobody(publisher, takers):
    shared = SharedImages(publisher, takers, wait_s=60.0)
    wait(join(shared, 1, 2))
    (early,) = join(shared, 2, 1)
    time.sleep(0.05)
    assert not early.done.is_set()
    writer = threading.Thread(target=early.hold.wait)
    writer.start()
    wait([early])
    early.hold.release()
    writer.join(60)
    assert not writer.is_alive()


@pytest.mark.parametrize("is_early", [True, False])
def test_an_end_of_the_checkpoint_and_a_write_before_it_are_seen(publisher, takers, is_early):
    shared = SharedImages(publisher, takers, wait_s=60.0)
    wait(join(shared, 1, 2))
    if is_early:
        shared.ended(2)
    (early,) = join(shared, 2, 1)
    if not is_early:
        shared.ended(2)
    wait([early])


def test_a_failure_is_everybodys(publisher, takers):
    shared = SharedImages(publisher, takers, wait_s=0.05)
    wait(join(shared, 1, 2))
    publisher.error = CheckpointError("the disk is full")
    subtasks = join(shared, 2, 2)
    wait(subtasks)
    assert [str(subtask.error) for subtask in subtasks] == ["the disk is full"] * 2


def test_the_end_of_the_job_is_told(publisher):
    pool = ThreadPoolExecutor(1)
    shared = SharedImages(publisher, pool, wait_s=60.0)
    pool.shutdown()
    (subtask,) = join(shared, 1, 1)
    wait([subtask])
    assert str(subtask.error) == "the job ends"
