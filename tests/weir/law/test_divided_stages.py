"""Another parallelism in a savepoint divides a stage with two keyed steps, or joins two: both keep their state."""

import pytest

import weir
from weir import testing
from weir.errors import CheckpointError
from weir.plan.stages import physical_graph
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest, StoreImage, SubtaskPart
from weir.protocol.checkpoints.restore_plan import places_now
from weir.types import SubtaskId

SECOND = 1_000


def build(parallelism, *, assigns):
    flow = weir.Dataflow("stages", max_parallelism=16)
    rows = flow.source("s", weir.JsonLines("/absent", schema={"k": int, "at": int}, event_time="at"))
    counted = rows.key_by("k").window(weir.tumbling("1s")).aggregate("counted", n=weir.count(), parallelism=1)
    if assigns:
        starts = weir.bounded_out_of_orderness("0s", idle_timeout="1000h")
        counted = counted.assign_event_time("started", "window_start", watermark=starts)
    window = counted.key_by("k").window(weir.tumbling("5s"))
    window.aggregate("out", n=weir.sum("n"), parallelism=parallelism).sink("o", weir.Collect())
    return flow


def stages_of(flow):
    return len(physical_graph(flow.build()).stages)


@pytest.mark.parametrize("assigns", [False, True])
@pytest.mark.parametrize(("then", "now"), [(1, 3), (3, 1), (1, 1), (3, 2)])
def test_both_steps_of_a_stage_keep_their_state(then, now, assigns):
    assert stages_of(build(1, assigns=assigns)) < stages_of(build(3, assigns=assigns))
    keys = range(8)
    with testing.start(build(then, assigns=assigns), {"s": []}) as job:
        # Of each key the first row is in a window of "out", the second one in a window of "counted".
        job.push("s", [{"k": k, "at": at * SECOND} for at in (21, 22) for k in keys])
        job.advance_watermark("s", 22 * SECOND + 500)
        savepoint = job.savepoint()
        assert not job.rows("out").to_dicts()
        assert len(job.rows("counted").to_dicts()) == len(keys)
    with testing.start(build(now, assigns=assigns), {"s": []}, from_savepoint=savepoint) as job:
        job.advance_watermark("s", 60 * SECOND)
        job.finish()
        assert sorted((row["k"], row["window_start"], row["n"]) for row in job.rows("out").to_dicts()) == [
            (k, 20 * SECOND, 2) for k in keys
        ]


@pytest.mark.parametrize(("then", "now"), [(1, 3), (3, 1)])
def test_a_step_behind_one_that_assigns_times_goes_on_by_these(then, now):
    """Its windows are behind the rows of the source: what the first one has counted is not late for the second one."""
    with testing.start(build(then, assigns=True), {"s": []}) as job:
        job.push("s", [{"k": 1, "at": 21 * SECOND}, {"k": 1, "at": 24 * SECOND}])
        # The window that begins at 24 s is open, and that of the source's time has passed 25 s.
        job.advance_watermark("s", 24 * SECOND + 999)
        savepoint = job.savepoint()
    with testing.start(build(now, assigns=True), {"s": []}, from_savepoint=savepoint) as job:
        job.push("s", [{"k": 1, "at": 40 * SECOND}])
        job.finish()
        counted = {row["window_start"]: row["n"] for row in job.rows("out").to_dicts()}
    assert counted == {20 * SECOND: 2, 40 * SECOND: 1}


def manifest(second_image):
    """Two stages of one step each; key group 3 of the second one is in this image."""
    parts = tuple(
        SubtaskPart(
            SubtaskId(stage, 0),
            groups={group: GroupPlace(image if group == 3 else "a") for group in range(4)},
            images=(StoreImage(image, {}),),
        )
        for stage, image in ((1, "a"), (2, second_image))
    )
    return Manifest(
        checkpoint_id=7,
        job_name="job",
        fingerprint="then",
        generation=1,
        created_ms=1,
        job_start_us=1,
        max_parallelism=4,
        stages={0: (0,), 1: (0,), 2: (0,)},
        routing={},
        parts=parts,
        operator_names={0: ("in",), 1: ("counts",), 2: ("map", "totals")},
        state_ids={"counts": 0, "totals/n": 1},
    )


def test_steps_that_run_in_one_subtask_now_need_their_state_in_one_store():
    together = {0: ["in"], 1: ["counts", "map", "totals"]}
    assert places_now(manifest("a"), together) == {(1, group): GroupPlace("a") for group in range(4)}
    with pytest.raises(
        CheckpointError, match=r"'counts' and 'totals' .* key group 3 .* parallelism that it had"
    ):
        places_now(manifest("b"), together)
    apart = places_now(manifest("b"), {0: ["in"], 1: ["counts"], 2: ["totals"]})
    assert (apart[1, 3], apart[2, 3]) == (GroupPlace("a"), GroupPlace("b"))


def test_a_stateless_step_of_another_stage_brings_no_state_along():
    found = places_now(manifest("b"), {0: ["in"], 1: ["counts", "map"], 2: ["totals"]})
    assert (found[1, 3], found[2, 3]) == (GroupPlace("a"), GroupPlace("b"))
