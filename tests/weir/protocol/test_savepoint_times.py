"""Where stages begin with other steps than before, they go on by the times of those that they had."""

from weir.protocol.checkpoints.manifest import Manifest, SubtaskPart
from weir.protocol.checkpoints.savepoint import StageNow, fit_savepoint, renamed
from weir.types import SubtaskId

OF_SOURCE, OF_STAGE = ({"version": 2, "shown": at, "inputs": []} for at in (15, 25))


def manifest(steps):
    return Manifest(
        checkpoint_id=1,
        job_name="job",
        fingerprint="then",
        generation=1,
        created_ms=1,
        job_start_us=1,
        max_parallelism=4,
        stages={0: (0,), 1: (0,)},
        routing={},
        parts=(
            SubtaskPart(SubtaskId(0, 0), operators={"in#times": OF_SOURCE, "in": {"offset": 3}}),
            SubtaskPart(SubtaskId(1, 0), operators={f"{steps[0]}#times": OF_STAGE, "counts": {"kind": "x"}}),
        ),
        operator_names={0: ("in",), 1: tuple(steps)},
    )


def fitted(then, now, names=None):
    """What the parts tell of times, by stage now: the first step's."""
    made = renamed(manifest(then), names or {}, {})
    stages = {
        index: StageNow(steps, 1, has_groups=False, states=()) for index, steps in enumerate([["in"], *now])
    }
    parts = fit_savepoint(made, "now", stages, 4).parts
    told = {name: value for part in parts for name, value in part.operators.items()}
    return [told.get(f"{steps[0]}#times") for steps in now]


def test_a_step_at_the_beginning_of_a_stage_is_renamed():
    assert fitted(["counts"], [["totals"]], {"totals": "counts"}) == [OF_STAGE]


def test_a_stateless_step_at_the_beginning_of_a_stage_comes_goes_or_has_another_name():
    assert fitted(["counts"], [["where", "counts"]]) == [OF_STAGE]
    assert fitted(["where", "counts"], [["counts"]]) == [OF_STAGE]
    assert fitted(["where", "counts"], [["filter", "counts"]]) == [OF_STAGE]


def test_a_stage_becomes_two():
    assert fitted(["where", "counts"], [["where"], ["counts"]]) == [OF_STAGE, OF_STAGE]


def test_a_new_stage_begins_without_times():
    assert fitted(["counts"], [["counts"], ["new"]]) == [OF_STAGE, None]
