"""Key groups that move between owners that know of time in different order: nothing is due before what was told."""

import random

import pytest

from task_manager.ownership.group_ownership import GivenGroups
from tests.task_manager.rescale.test_rescaling import NOTHING
from tests.task_manager.subtasks.scripted_subtasks import LEFT, RIGHT, Setup
from weir.protocol.rescale.rescale_owner import OwnerMachine, Prepare
from weir.protocol.routing import GroupMove, RoutingTable
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, EndOfStream, Idle, RouteMarker, Watermark

#: Subtask 0 gives its groups to subtask 1, and retires or keeps one.
TABLE = RoutingTable(5, 1, (0, 1), (0, 0, 1, 1), (1, 1, 1, 1))
VERSION = 2


class NoState:
    """A stage without states."""

    def flush_groups(self, groups):
        pass

    def give_groups(self, version, groups):
        return GivenGroups({}, NOTHING)


class Reports:
    """What an owner had shown when it gave groups away."""

    def __init__(self, setup):
        self._setup, self.shown_ms = setup, []

    def hand_over(self, version, target, groups, given):
        self.shown_ms.append(highest(self._setup))


def highest(setup):
    return max(
        (int(call.split()[1]) for call in setup.operator.calls if str(call).startswith("watermark")),
        default=WATERMARK_MIN_MS,
    )


def in_some_order(dice, *sequences):
    """The elements of channels, each channel's in order."""
    left, found = [list(sequence) for sequence in sequences], []
    while any(left):
        found.append(dice.choice([rest for rest in left if rest]).pop(0))
    return found


@pytest.mark.parametrize("seed", range(150))
def test_no_owner_has_told_more_of_time_than_what_comes_to_it_has_seen(seed):
    dice = random.Random(seed)
    retires = dice.random() < 0.5
    moves = tuple(GroupMove(group, 0, 1) for group in ((0, 1) if retires else (1,)))
    for_old, for_new = [], []
    for channel in (LEFT, RIGHT):
        at, before, after = 0, [], []
        for sequence in (before, after):
            for _ in range(dice.randrange(4)):
                at += dice.randrange(1, 50)
                sequence.append((channel, Watermark(at)))
                if dice.random() < 0.2:
                    sequence.append((channel, Idle()))
        marker, end = (channel, RouteMarker(VERSION)), (channel, EndOfStream())
        if dice.random() < 0.2:
            after += [(channel, Watermark(WATERMARK_MAX_MS)), end]
        for_old.append([*before, marker, *([end] if retires else after)])
        for_new.append([*before, marker, *after])

    def run(index, channels):
        plan = Prepare(VERSION, moves, retiring=retires and index == 0)
        setup = Setup(lambda: setup.subtask.handle(plan), *in_some_order(dice, *channels))
        reports = Reports(setup)
        machine = OwnerMachine(index, TABLE, [LEFT, RIGHT])
        setup.subtask.own_groups(machine, NoState(), reports, None, {0})
        setup.run()
        return setup, reports

    _, given = run(0, for_old)
    new, _ = run(1, for_new)
    # It still waits for the groups.
    assert len(given.shown_ms) == 1
    assert highest(new) <= given.shown_ms[0]
