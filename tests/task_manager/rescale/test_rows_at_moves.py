"""Rows that come while key groups move: a step that minds the time of each has before them what it has without that."""

import random
from functools import partial

import pyarrow as pa
import pytest

from task_manager.ownership.group_ownership import GivenGroups
from tests.task_manager.rescale.test_rescaling import NOTHING
from tests.task_manager.subtasks.scripted_subtasks import LEFT, RIGHT, Setup
from weir.author.operator import InTimeOperator
from weir.protocol.rescale.rescale_owner import HandoverReceived, OwnerMachine, Prepare
from weir.protocol.routing import GroupMove, RoutingTable
from weir.rows.records import EndOfStream, RouteMarker, Watermark
from weir.rows.row_watermarks import RowWatermarks, TimeCuts

#: Subtask 1 gets a group from subtask 0, or the other way round.
TABLE = RoutingTable(5, 1, (0, 1), (0, 0, 1, 1), (1, 1, 1, 1))
VERSION = 2
#: The groups of each subtask that do not move; a group's first hash.
STAY = ((0,), (2, 3))
MOVES = 1
EACH_MS = 10


class Early(InTimeOperator):
    """Is due every ``EACH_MS``, and notes which rows came before that, and what the watermark was at late ones."""

    def __init__(self):
        self.said, self.told_ms = [], 0

    @property
    def time_cuts(self):
        return TimeCuts.DUE | TimeCuts.LATE

    def due_ms(self):
        return self.told_ms - self.told_ms % EACH_MS + EACH_MS

    def process(self, batch):
        for row in batch.to_pylist():
            is_late = row["_watermark_ms"] > row["_event_time_ms"]
            self.said += [f"late at {self.told_ms}", row["n"]] if is_late else [row["n"]]
        yield batch

    def on_watermark(self, time_ms):
        if time_ms >= self.due_ms():
            self.said.append(f"due {time_ms // EACH_MS}")
        self.told_ms = time_ms
        return ()


class State:
    """A stage without states."""

    def flush_groups(self, groups):
        pass

    def give_groups(self, version, groups):
        return GivenGroups({}, NOTHING)

    def adopt_groups(self, groups, location):
        return location


class Reports:
    """Nobody asks."""

    def hand_over(self, version, target, groups, given):
        pass

    def owned(self, version, groups, place):
        pass


def rows(dice, groups, numbers, at_ms):
    """Rows of one split, some of them late; each says what the watermark is as of it."""
    times, watermarks, hashes = [], [], []
    for _ in numbers:
        at_ms += dice.randrange(4)
        times.append(at_ms - dice.choice([0, 0, 7]))
        watermarks.append(at_ms - 2)
        hashes.append((dice.choice(groups) << 62) + dice.randrange(99))
    columns = {
        "n": pa.array(numbers, pa.int64()),
        "_event_time_ms": pa.array(times, pa.int64()),
        "_key_hash": pa.array(hashes, pa.uint64()),
        "_watermark_ms": pa.array(watermarks, pa.int64()),
    }
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    return pa.record_batch(list(columns.values()), schema=pa.schema(fields)), at_ms


def told(index, gets, steps):
    """What the operator of a subtask says that gives a group away or gets one."""
    early = Early()
    move = GroupMove(MOVES, 1 - index, index) if gets else GroupMove(STAY[index][0], index, 1 - index)
    setup = Setup(
        lambda: setup.subtask.handle(Prepare(VERSION, (move,), retiring=False)),
        *(
            step if isinstance(step, tuple) else partial(lambda event: setup.subtask.handle(event), step)
            for step in steps
        ),
        before=(early,),
        row_watermarks=RowWatermarks.ALL,
    )
    machine = OwnerMachine(index, TABLE, [LEFT, RIGHT])
    setup.subtask.own_groups(machine, State(), Reports(), None, {0})
    setup.run()
    return early.said


@pytest.mark.parametrize("seed", range(60))
def test_what_is_due_between_rows_comes_between_them_while_groups_move(seed):
    dice = random.Random(seed)
    gets = dice.random() < 0.7
    index = 1
    groups = STAY[1] if gets else STAY[1][1:]
    at_ms, number, batches = 5, 0, []
    for _ in range(12):
        count = dice.randrange(1, 5)
        batch, at_ms = rows(dice, groups, range(number, number + count), at_ms)
        number += count
        batches.append((LEFT, batch))
        if dice.random() < 0.3:
            batches.append((LEFT, Watermark(at_ms - 2)))
    end = (RIGHT, EndOfStream())
    plain = told(index, gets, [end, *batches, (LEFT, EndOfStream())])
    marker = dice.randrange(1, 8)
    came = dice.randrange(marker, 12)
    moved = [*batches[:marker], (LEFT, RouteMarker(VERSION)), *batches[marker:came]]
    if gets:
        moved.append(HandoverReceived(VERSION, {MOVES: 2}, "here"))
    moved += batches[came:]
    # The word that an input has ended may come behind the marker of the other.
    at = dice.randrange(marker + 2) if dice.random() < 0.5 else 0
    disturbed = told(index, gets, [*moved[:at], end, *moved[at:], (LEFT, EndOfStream())])
    if not at:
        assert disturbed == plain
    # In any case nothing is lost, and no row passes another one.
    assert [n for n in disturbed if isinstance(n, int)] == list(range(number))
