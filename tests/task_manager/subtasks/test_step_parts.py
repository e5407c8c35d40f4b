"""Rows that a step puts aside are in its dead letters once, through deployments that meet none of them."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

import weir
from task_manager.subtasks.job_settings import JobSettings
from task_manager.subtasks.step_parts import StepParts
from weir.config import TaskManagerConfig
from weir.operators.user_errors import UserErrors
from weir.plan.stages import physical_graph
from weir.rpc.wire import JobIdentity
from weir.types import SubtaskId


@pytest.fixture
def stage():
    flow = weir.Dataflow("aside")
    rows = flow.source("rows", weir.JsonLines("in", schema={"id": int}))
    rows.map_batches("step", lambda batch: batch, schema={"id": int}).sink("out", weir.Blackhole())
    [stage] = physical_graph(flow.build()).stages
    return stage


@pytest.fixture
def begin(tmp_path, stage):
    """Deploys the stage; returns what puts a row of the step aside."""
    made = []

    def begin(generation, restored_id):
        parts = StepParts(
            JobIdentity("job", "", generation),
            JobSettings(200, 0, 1000, 1000, 0, {}, isolated_steps=("step",)),
            TaskManagerConfig(dead_letter_path=str(tmp_path)),
            SimpleNamespace(restored_id=restored_id),
            None,
            UserErrors(),
        )
        isolation = parts.isolation(SubtaskId(0, 0), stage, lambda: restored_id)
        made.append(isolation)
        set_aside = isolation.timers_of(None, SimpleNamespace(operator_name="step", is_sink=False))

        def put_aside(number):
            assert set_aside(pa.record_batch({"id": [number]}), ValueError("raised"))

        return put_aside

    yield begin
    for isolation in made:
        isolation.close()


def letters(directory):
    return sorted(
        json.loads(line)["raw"]
        for path in directory.rglob("*.jsonl")
        for line in path.read_text().splitlines()
    )


def test_a_deployment_that_ends_before_the_row_comes_again_does_not_make_it_a_new_one(begin, tmp_path):
    begin(1, 1)(7)
    # It completes checkpoint 2 with the row still to come.
    begin(2, 1)
    begin(3, 2)(7)
    assert letters(tmp_path) == ['{"id":7}']


def test_who_was_given_up_writes_nothing_once_the_next_deployment_has_begun(begin, tmp_path):
    given_up = begin(2, 1)
    put_aside = begin(3, 1)
    given_up(7)
    put_aside(7)
    assert letters(tmp_path) == ['{"id":7}']


def test_a_letter_of_the_last_moment_of_who_was_given_up_counts(begin, tmp_path):
    """It is in a file that was not there when the next deployment began to look."""
    given_up = begin(2, 1)
    given_up(7)
    [written] = tmp_path.rglob("*.jsonl")
    hidden = written.rename(written.with_suffix(".later"))
    put_aside = begin(3, 1)
    hidden.rename(written)
    put_aside(7)
    assert letters(tmp_path) == ['{"id":7}']
