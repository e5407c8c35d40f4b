import itertools
import random
from collections import Counter

import pytest

from weir.protocol.job.profile import BOXES_MAX, Frame, FrameKind, Stack, boxes, telling_frame, words


def frame(function, line=1, kind=FrameKind.JOB, file="jobs/hot.py"):
    return Frame(function, file, line, kind)


LOOP = frame("Subtask.run", 100, FrameKind.ENGINE, "task_manager/subtasks/subtask.py")
CALL = frame("MapOperator.process", 33, FrameKind.ENGINE, "weir/operators/stateless/functions.py")
SCORE = frame("score", 12)
SELECT = frame("DataFrame.select", 900, FrameKind.LIBRARY, "polars/dataframe/frame.py")


def test_it_says_which_function_of_which_step_and_line_takes_how_much():
    stacks = [
        Stack((LOOP, CALL, SCORE), 71, "score"),
        Stack((LOOP,), 22, waits=True),
        Stack((LOOP, CALL), 7, "count"),
    ]
    assert words(stacks) == [
        "71 % in `score` of step `score`, line 12 of jobs/hot.py",
        "22 % waits for rows, or for room in the stages after it",
        "7 % in `MapOperator.process` of step `count`, line 33 of weir/operators/stateless/functions.py",
    ]


def test_lines_of_one_function_are_one_part_and_the_line_with_most_is_named():
    stacks = [
        Stack((LOOP, CALL, frame("score", line)), count, "score") for line, count in ((12, 60), (13, 40))
    ]
    assert words(stacks) == ["100 % in `score` of step `score`, most of it in line 12 of jobs/hot.py"]


def test_what_the_job_calls_is_time_of_the_job_and_what_the_engine_calls_is_of_the_library():
    assert telling_frame((LOOP, CALL, SCORE, SELECT)) == SCORE
    inner = frame("collect", 5, FrameKind.LIBRARY, "polars/lazyframe/frame.py")
    assert telling_frame((LOOP, CALL, SELECT, inner)) == SELECT
    assert telling_frame((LOOP, CALL)) == CALL


def test_parts_without_a_step_and_small_ones():
    stacks = [Stack((LOOP,), 99), Stack((LOOP, CALL, SCORE), 1, "score")]
    assert words(stacks) == [
        "99 % in `Subtask.run` between steps, line 100 of task_manager/subtasks/subtask.py"
    ]
    assert words([]) == []
    assert [box.width for box in boxes([], "nothing")] == [0]


@pytest.mark.parametrize("seed", range(5))
def test_boxes_lie_on_each_other_and_are_as_wide_as_their_samples(seed):
    chance = random.Random(seed)
    functions = [frame(f"f{number}", number) for number in range(6)]
    stacks = [
        Stack(
            tuple(chance.choices(functions, k=chance.randint(1, 8))),
            chance.randint(1, 50),
            chance.choice(["", "a", "b"]),
            chance.random() < 0.2,
        )
        for _ in range(40)
    ]
    found = boxes(stacks, "stage 3")
    assert found[0].width == sum(stack.samples for stack in stacks)
    by_depth = {}
    for box in found:
        by_depth.setdefault(box.depth, []).append(box)
    for depth, level in by_depth.items():
        ends = [(box.start, box.start + box.width) for box in level]
        assert ends == sorted(ends)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
        for start, end in ends:
            assert not depth or any(
                under.start <= start and end <= under.start + under.width for under in by_depth[depth - 1]
            )
    steps = Counter()
    for stack in stacks:
        steps[
            "waits for rows or room"
            if stack.waits
            else f"step {stack.step}"
            if stack.step
            else "between steps"
        ] += stack.samples
    assert {box.name: box.width for box in by_depth[1]} == steps


def test_there_are_never_too_many_boxes():
    stacks = [Stack(tuple(frame(f"f{a}_{b}") for b in range(30)), 1, "s") for a in range(200)]
    found = boxes(stacks, "stage")
    assert len(found) == BOXES_MAX
    assert found[0].width == 200
