"""What a rescale consists of, and why one is refused."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.protocol.job.placement import TaskManagerLoad
from weir.protocol.rescale.rescale_plan import RefusalKind, RescalePlan, StageFacts, plan_rescale
from weir.protocol.routing import initial_table
from weir.types import SubtaskId

UPSTREAM = (SubtaskId(0, 0), SubtaskId(0, 1))
COUNT = StageFacts(3, "count", False, (0, 1), (), UPSTREAM, table=initial_table(3, 2, 8))
BUSY = StageFacts(4, "busy", False, (0, 1), (), UPSTREAM)
STAGES = {
    0: StageFacts(0, "read", True, (0, 1)),
    3: COUNT,
    4: BUSY,
    5: replace(BUSY, index=5, name="tied", forward_neighbours=("busy", "sink")),
    6: replace(BUSY, index=6, name="ending", finished=(1,)),
}
MANAGERS = [TaskManagerLoad("tm-a", 5, {3: 2}), TaskManagerLoad("tm-b", 5)]


def test_one_more_subtask_goes_where_fewest_of_its_stage_are():
    plan = plan_rescale(3, STAGES, MANAGERS)
    assert (plan.before, plan.after, plan.version) == ((0, 1), (0, 1, 2), 2)
    assert plan.placement == {SubtaskId(3, 2): "tm-b"}
    assert (plan.new, plan.retiring) == ((SubtaskId(3, 2),), ())
    assert plan.subtasks == tuple(SubtaskId(3, i) for i in range(3))
    assert plan.upstream == UPSTREAM
    assert plan.table.version == 2
    assert {move.target for move in plan.moves} == {2}
    assert len(plan.moves) in (2, 3)


def test_scaling_in_needs_no_slot():
    plan = plan_rescale(3, STAGES, [], 1)
    assert (plan.after, plan.retiring, plan.placement) == ((0,), (SubtaskId(3, 1),), {})


def test_one_subtask_moves_to_another_index():
    plan = plan_rescale(3, STAGES, MANAGERS[1:], (0, 5))
    assert (plan.new, plan.retiring) == ((SubtaskId(3, 5),), (SubtaskId(3, 1),))
    assert {(move.source, move.target) for move in plan.moves} == {(1, 5)}


def test_a_stage_without_hash_input_moves_nothing():
    plan = plan_rescale(4, STAGES, MANAGERS, 3, last_version=6)
    assert (plan.table, plan.moves, plan.version) == (None, (), 7)


def test_a_version_is_not_used_twice():
    plan = plan_rescale(3, STAGES, MANAGERS, last_version=9)
    assert plan.version == plan.table.version == 10


@pytest.mark.parametrize(
    ("stage", "target", "kind", "message"),
    [
        (9, None, RefusalKind.UNKNOWN_STAGE, r"no stage 9; there are 0 \(read\), 3 \(count\)"),
        (3, 0, RefusalKind.BAD_NUMBER, "parallelism is 0; it must be in 1..4096"),
        (3, 10**12, RefusalKind.BAD_NUMBER, "parallelism is 1000000000000"),
        (3, (), RefusalKind.BAD_NUMBER, "at least one is needed"),
        (3, (-1, 0), RefusalKind.BAD_NUMBER, "indices start at 0"),
        (5, 3, RefusalKind.FORWARD_NEIGHBOUR, r"stage 5 \(tied\) is tied to busy, sink subtask by subtask"),
        (6, 3, RefusalKind.ENDING, r"stage 6 \(ending\) has reached the end"),
        (3, 2, RefusalKind.NOTHING_TO_DO, "has these 2 subtasks already"),
        (3, 9, RefusalKind.TOO_FEW_GROUPS, "9 subtasks, but only 8 key groups"),
        (
            4,
            99,
            RefusalKind.NO_SLOT,
            r"stage 4 \(busy\).*tm-a: 3 of 5 free, tm-b: 5 of 5 free.*operator_quota",
        ),
    ],
)
def test_a_refusal_says_why(stage, target, kind, message):
    refusal = plan_rescale(stage, STAGES, MANAGERS, target)
    assert refusal.kind is kind
    assert re.search(message, refusal.message)
    assert "\n" not in refusal.message


@given(st.sets(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 8))
def test_a_number_keeps_the_lowest_and_fills_gaps(current, count):
    facts = replace(BUSY, subtasks=tuple(sorted(current)))
    plan = plan_rescale(4, {4: facts}, [TaskManagerLoad("tm", 99)], count)
    if not isinstance(plan, RescalePlan):
        assert (plan.kind, len(current)) == (RefusalKind.NOTHING_TO_DO, count)
        return
    kept = set(plan.after) & current
    assert len(plan.after) == count
    assert kept == set(sorted(current)[:count])
    new = set(plan.after) - current
    unused = [index for index in range(20) if index not in current]
    assert sorted(new) == unused[: len(new)]
