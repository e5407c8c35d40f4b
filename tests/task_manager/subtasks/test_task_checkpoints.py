"""A subtask with inputs: barriers, and rows that checkpoints overtake; see ``scripted_subtasks``."""

from __future__ import annotations

import pytest

from task_manager.exchange.inbox import Delivery
from tests.task_manager.subtasks.scripted_subtasks import (
    LEFT,
    RIGHT,
    Setup,
    rows,
)
from weir.author.operator import LateSync
from weir.errors import StateError
from weir.rows.records import Barrier, EndOfStream, InputRows


class SlowDisk(LateSync):
    """A sink that notes what the disk is told, and when."""

    def __init__(self):
        self.calls = []

    def process(self, batch):
        yield batch

    def snapshot(self, checkpoint_id):
        self.calls.append(f"snapshot {checkpoint_id}")

    def sync(self):
        self.calls.append("sync")

    def close(self):
        self.calls.append("close")


def test_rows_do_not_wait_for_a_disk_but_who_delivers_a_part_does_and_the_end():
    disk = SlowDisk()
    ends = [(channel, EndOfStream()) for channel in (LEFT, RIGHT)]
    setup = Setup((LEFT, Barrier(1)), (RIGHT, Barrier(1)), (LEFT, rows(1)), *ends, before=(disk,))
    parts, deliver = [], setup.parts.deliver

    def delivered(part, rows=()):
        parts.append(part)
        deliver(part, rows)

    setup.parts.deliver = delivered
    setup.run()
    assert disk.calls == ["snapshot 1", "snapshot 0", "sync", "close"]
    parts[0].sync()
    assert disk.calls[-1] == "sync"
    assert setup.parts.delivered == [(1, []), (0, [])]


def test_a_barrier_waits_for_the_other_input_and_rows_after_it_wait_with_it():
    setup = Setup(
        (LEFT, Barrier(7)),
        (LEFT, rows(1)),
        (RIGHT, rows(2)),
        (RIGHT, Barrier(7)),
        (LEFT, EndOfStream()),
        (RIGHT, EndOfStream()),
    ).run()
    assert setup.operator.calls[:3] == [[2], "snapshot 7", [1]]
    assert setup.parts.delivered[0] == (7, [])
    sent = [item for item in setup.sent if isinstance(item, list | Barrier)]
    assert sent == [[2], Barrier(7), [1]]
    assert setup.subtask.progress.passed_id == 7


def test_a_barrier_that_has_waited_for_long_overtakes_rows_which_are_recorded():
    setup = Setup(
        (LEFT, Barrier(7)),
        lambda: setup.clock.advance_ms(1001),
        (RIGHT, rows(2)),
        (RIGHT, Barrier(7)),
    )
    setup.run()
    assert setup.operator.calls[:2] == ["snapshot 7", [2]]
    assert setup.parts.delivered == [(7, [[2]])]


def test_the_end_of_an_input_takes_the_place_of_its_barrier():
    setup = Setup((LEFT, Barrier(7)), (RIGHT, EndOfStream())).run()
    assert "snapshot 7" in setup.operator.calls


def test_a_checkpoint_that_was_given_up_blocks_nothing():
    setup = Setup(
        (LEFT, Barrier(7)),
        (LEFT, rows(1)),
        lambda: setup.subtask.mailbox.post(lambda: setup.subtask.end_checkpoint(7)),
        (RIGHT, rows(2)),
    )
    setup.run()
    assert setup.operator.calls[0] == [1]
    assert setup.parts.delivered == []


@pytest.mark.parametrize("element", range(8))
def test_no_row_that_waited_passes_another_when_a_checkpoint_is_given_up(element):
    """The barrier of the next checkpoint was put aside, too, and rows behind it are when it is given up."""
    left = [Barrier(6), rows(1), Barrier(7), rows(2), rows(3), rows(4), EndOfStream()]
    setup = Setup(*((LEFT, each) for each in left), (RIGHT, Barrier(6)), (RIGHT, EndOfStream()))
    run, mailbox = setup.subtask.mailbox.run_commands, setup.subtask.mailbox
    looked = []

    def run_commands():
        # It looks once for each element that was put aside.
        if setup.subtask.progress.passed_id:
            looked.append(None)
            if len(looked) == element:
                mailbox.post(lambda: setup.subtask.end_checkpoint(7))
        run()

    mailbox.run_commands = run_commands
    setup.run()
    assert [number for call in setup.operator.calls if isinstance(call, list) for number in call] == [
        1,
        2,
        3,
        4,
    ]


def test_what_was_put_aside_comes_before_what_arrives_while_the_checkpoint_is_given_up():
    setup = Setup(
        (LEFT, Barrier(7)),
        (LEFT, rows(1)),
        (LEFT, rows(2)),
        (LEFT, EndOfStream()),
        (RIGHT, EndOfStream()),
        lambda: None,
    )
    poll = setup.inbox.poll

    def polled(timeout_s, gather_s=0.0):
        if len(setup.inbox.steps) == 4:
            # Run after the second rows were taken from the inbox.
            setup.subtask.mailbox.post(lambda: setup.subtask.end_checkpoint(7))
        return poll(timeout_s, gather_s)

    setup.inbox.poll = polled
    setup.run()
    assert [number for call in setup.operator.calls if isinstance(call, list) for number in call] == [1, 2]


def test_a_snapshot_that_fails_fails_the_checkpoint_only():
    setup = Setup((LEFT, Barrier(7)), (RIGHT, Barrier(7)), (LEFT, rows(1)))
    setup.parts.error = StateError("disk full")
    setup.run()
    assert setup.parts.failed == [(7, "disk full")]
    assert [1] in setup.operator.calls


def test_restored_rows_come_before_all_input():
    setup = Setup((LEFT, rows(1)))
    setup = Setup((LEFT, rows(1)), restored_rows=[InputRows(0, rows(9))])
    setup.run()
    assert setup.operator.calls[:2] == [[9], [1]]


def test_rows_are_taken_in_parts_and_a_barrier_behind_them_overtakes_the_rest():
    """Of an unknown step few rows are taken at first; the barrier has waited too long when they are done."""
    many = rows(*range(40))
    setup = Setup((LEFT, many), alignment_timeout_ms=1000.0)

    def late():
        for channel in (LEFT, RIGHT):
            setup.inbox.put(Delivery(channel, rows(50), setup.inbox.release))
            setup.inbox.put(Delivery(channel, Barrier(7), setup.inbox.release))
            setup.inbox.put(Delivery(channel, rows(60), setup.inbox.release))
        setup.clock.advance_ms(2000)

    setup.operator.after_rows = [late]
    setup.run()
    assert setup.operator.calls[:2] == [list(range(16)), "snapshot 7"]
    seen = [call for call in setup.operator.calls if isinstance(call, list)]
    assert sorted(number for call in seen for number in call) == [*range(40), 50, 50, 60, 60]
    assert setup.parts.delivered[0] == (7, [list(range(16, 40)), [50], [50]])


def test_restored_rows_that_are_left_belong_to_the_next_checkpoint():
    setup = Setup(restored_rows=[InputRows(0, rows(*range(20)))])

    def late():
        for channel in (LEFT, RIGHT):
            setup.inbox.put(Delivery(channel, Barrier(7), setup.inbox.release))
        setup.clock.advance_ms(2000)

    setup.operator.after_rows = [late]
    setup.run()
    assert setup.parts.delivered[0] == (7, [list(range(16, 20))])


def test_a_barrier_that_is_missing_takes_the_rows_before_it_along_once():
    setup = Setup((LEFT, rows(*range(20))))

    def early():
        setup.inbox.put(Delivery(LEFT, Barrier(7), setup.inbox.release))
        setup.inbox.put(Delivery(RIGHT, rows(50), setup.inbox.release))
        setup.clock.advance_ms(2000)

    def late():
        setup.inbox.put(Delivery(RIGHT, rows(51), setup.inbox.release))
        setup.inbox.put(Delivery(RIGHT, Barrier(7), setup.inbox.release))
        setup.clock.advance_ms(2000)

    setup.operator.after_rows = [early, late]
    setup.run()
    assert setup.operator.calls.count("snapshot 7") == 1
    assert setup.parts.delivered[0] == (7, [list(range(16, 20)), [50], [51]])


def _end(setup, *before):
    """The rest of both inputs comes; the left one has these before its end."""
    for element in (*before, EndOfStream()):
        setup.inbox.put(Delivery(LEFT, element, setup.inbox.release))
    setup.inbox.put(Delivery(RIGHT, rows(50), setup.inbox.release))
    setup.inbox.put(Delivery(RIGHT, EndOfStream(), setup.inbox.release))


def test_rows_before_the_ends_of_all_inputs_belong_to_each_checkpoint_that_is_wanted():
    setup = Setup((LEFT, rows(*range(100))))

    def first():
        _end(setup)
        setup.subtask.want_checkpoint(7)

    later = [lambda: setup.subtask.want_checkpoint(8), lambda: setup.subtask.want_checkpoint(9)]
    setup.operator.after_rows = [first, *later]
    setup.run()
    sent = [item for item in setup.sent if isinstance(item, list | Barrier)]
    assert sent[:5] == [[*range(16)], Barrier(7), [*range(16, 80)], Barrier(8), [*range(80, 100)]]
    assert sent[5:7] == [Barrier(9), [50]]
    left = [[[*range(16, 100)], [50]], [[*range(80, 100)], [50]], [[50]]]
    assert setup.parts.delivered[:3] == list(zip((7, 8, 9), left, strict=True))


def test_a_checkpoint_that_is_wanted_waits_for_the_barrier_of_an_input_that_goes_on():
    setup = Setup((LEFT, rows(1)), (LEFT, EndOfStream()), (RIGHT, rows(2)), (RIGHT, Barrier(7)))
    setup.operator.after_rows = [lambda: setup.subtask.want_checkpoint(7)]
    setup.run()
    assert setup.operator.calls[:3] == [[1], [2], "snapshot 7"]
    assert setup.parts.delivered == [(7, [])]


def test_rows_behind_the_barrier_of_a_checkpoint_that_is_wanted_do_not_belong_to_it():
    setup = Setup((LEFT, rows(*range(20))))

    def late():
        _end(setup, Barrier(7), rows(21))
        setup.subtask.want_checkpoint(7)

    setup.operator.after_rows = [late]
    setup.run()
    assert setup.parts.delivered[0] == (7, [[*range(16, 20)], [50]])
    assert setup.operator.calls.count("snapshot 7") == 1
