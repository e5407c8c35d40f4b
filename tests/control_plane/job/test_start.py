"""What a control plane begins with when an earlier one left a job running."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

import weir
from control_plane.__main__ import _start_from
from control_plane.job.start import (
    continue_left,
    start_from_savepoint,
    start_or_take_over,
    strategy_in_force,
)
from control_plane.record.job_record import JobRecord
from tests.weir.checkpoints.manifests import manifest_of
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import manifest_path
from weir.config import StateMove, StateStrategy
from weir.dataflow.loading import LoadedJob
from weir.errors import ConfigError, WeirError
from weir.plan.fingerprints import fingerprint_of
from weir.protocol.job.event_counts import EventCounts
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_log import StageNumbers

JOB_ID = "tiny-job-20260102-030405-6789"


def job_of(parameters=None, name="tiny-job"):
    flow = weir.Dataflow(name, max_parallelism=2)
    source = flow.source("source", weir.JsonLines("in", schema={"id": int}))
    source.sink("out", weir.Blackhole())
    return LoadedJob(flow.build(), {"rate": 5.0, "label": "x"} if parameters is None else parameters)


def record_of(job, **changes):
    record = JobRecord(JOB_ID, fingerprint_of(job.graph), 3, 1_000, parameters=job.parameters, restarts=2)
    return dataclasses.replace(record, **changes)


@pytest.fixture
def uri(tmp_path):
    """A checkpoint store in which the job left a checkpoint."""
    CheckpointStore.open(str(tmp_path / "checkpoints"), JOB_ID).write_manifest(manifest_of(7))
    return str(tmp_path / "checkpoints")


def test_the_same_job_goes_on(uri):
    job = job_of()
    start, store = start_or_take_over(job, uri, record_of(job))
    assert (start.job_id, start.generation, start.left.restarts) == (JOB_ID, 3, 2)
    assert (start.latest.manifest.checkpoint_id, store.latest().checkpoint_id) == (7, 7)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (job_of({"rate": 6.0, "label": "x"}), "its parameters differ: rate was 5.0 and is 6.0; start"),
        (job_of({"rate": 5.0, "new": 1}), "differ: new was absent and is 1, label was 'x' and is absent"),
        (job_of(name="tiny"), r"this is another job \(tiny\)"),
    ],
)
def test_another_job_is_refused_with_the_ways_on(uri, job, words):
    with pytest.raises(ConfigError, match=words) as caught:
        start_or_take_over(job, uri, record_of(job_of()))
    for way in (f"--from-checkpoint {uri}/{JOB_ID}", "--from-savepoint PATH", "--start-fresh", "as it was"):
        assert way in str(caught.value)
    assert caught.value.exit_code == 2


def test_changed_code_is_refused(uri):
    job = job_of()
    with pytest.raises(ConfigError, match=r"its graph differs .*: its code has changed"):
        start_or_take_over(job, uri, record_of(job, fingerprint="other"))
    with pytest.raises(ConfigError, match="its code or a parameter has changed"):
        start_or_take_over(job, uri, record_of(job, fingerprint="other", parameters=None))


def test_a_record_of_before_fingerprints_had_a_version_is_taken_over(uri):
    job = job_of()
    # Made at b9d1eb78.
    start, _ = start_or_take_over(job, uri, record_of(job, fingerprint="3960cb9dade220059ec8390f351fe6b5"))
    assert start.job_id == JOB_ID
    with pytest.raises(
        ConfigError, match=r"was left running, but its fingerprint 3:1 is of version 3, .* a later one;"
    ):
        start_or_take_over(job, uri, record_of(job, fingerprint="3:1"))


def test_start_fresh_gives_the_left_job_up(uri, caplog):
    job = job_of()
    start, _ = start_or_take_over(job, uri, record_of(job, fingerprint="other"), starts_fresh=True)
    assert start.job_id != JOB_ID
    assert (start.latest, start.left) == (None, None)
    [line] = [entry.message for entry in caplog.records if entry.levelno == logging.WARNING]
    assert line == f"job {JOB_ID} was left running and is given up: --start-fresh"


def test_a_job_that_is_over_is_not_missed(uri, caplog):
    start, _ = start_or_take_over(job_of(name="other"), uri, record_of(job_of(), is_over=True))
    assert start.job_id.startswith("other-")
    assert not caplog.records


@pytest.mark.parametrize("named", ["", "/", "/manifests/000000000007.json"])
def test_start_from_a_retained_checkpoint(uri, named):
    CheckpointStore.open(uri, JOB_ID).write_manifest(dataclasses.replace(manifest_of(8), generation=9))
    job = job_of()
    path = f"{uri}/{JOB_ID}{named}"
    start, store = start_from_savepoint(job.graph, uri, path, allow_dropped=True)
    assert start.job_id != JOB_ID
    assert start.latest.path == manifest_path(1)
    # The latest one, unless one is named.
    assert start.generation == (2 if named.endswith("json") else 10)
    assert store.latest().fingerprint == fingerprint_of(job.graph)


def test_a_job_from_a_savepoint_has_a_start_of_its_own_and_knows_the_counts_before(uri):
    """Paced sources count from the start: else all that would have come since the savepoint is due at once."""
    made = dataclasses.replace(manifest_of(8), events=EventCounts(70, 60), job_start_us=1_000)
    CheckpointStore.open(uri, JOB_ID).write_manifest(made)
    start, _ = start_from_savepoint(job_of().graph, uri, f"{uri}/{JOB_ID}", allow_dropped=True)
    assert start.latest.manifest.job_start_us == 0
    assert start.latest.manifest.events == start.events_at_start == EventCounts(70, 60)


def test_one_that_continues_takes_over_or_says_how_the_job_ended(uri):
    job = job_of()
    start, _ = continue_left(job, uri, record_of(job))
    assert (start.job_id, start.generation, start.left.restarts) == (JOB_ID, 3, 2)
    ended = record_of(job, is_over=True, ended_as=JobState.CANCELLED)
    assert continue_left(job, uri, ended) is JobState.CANCELLED
    # It never begins anew, nor again after a failure.
    assert continue_left(job, uri, record_of(job, is_over=True, has_failed=True)) is JobState.FAILED
    with pytest.raises(ConfigError, match=f"job {JOB_ID} cannot go on: it makes no checkpoints"):
        continue_left(job, "", record_of(job))


@pytest.mark.parametrize("named", ["nothing", f"{JOB_ID}/manifests/000000000009.json"])
def test_no_checkpoint_there(uri, named):
    with pytest.raises(WeirError, match=r"there is no savepoint or checkpoint at|does not exist") as raised:
        start_from_savepoint(job_of().graph, uri, f"{uri}/{named}", allow_dropped=True)
    if named == "nothing":
        # The flag is wrong.
        assert raised.value.exit_code == 2


def test_only_one_way_to_start():
    assert _start_from(None, "there", start_fresh=False) == "there"
    with pytest.raises(ConfigError, match="--from-savepoint and --start-fresh exclude each other"):
        _start_from("here", None, start_fresh=True)


def test_a_record_comes_back_and_one_of_an_earlier_version_too():
    record = record_of(
        job_of({"seed": 2**70}),
        rescales=({"id": 3, "phase": "COMPLETE"},),
        used_by_rescales={1: StageNumbers(next_index=4, last_version=2)},
        ended_as=JobState.STOPPED,
        events_at_start=EventCounts(3, 2),
    )
    assert JobRecord.from_bytes(record.to_bytes(), "here") == record
    value = json.loads(record.to_bytes())
    for name in (
        "parameters_json",
        "restarts",
        "rescales",
        "used_by_rescales",
        "ended_as",
        "events_at_start",
    ):
        del value[name]
    old = JobRecord.from_bytes(json.dumps(value).encode(), "here")
    assert (old.job_id, old.parameters, old.restarts, old.rescales) == (JOB_ID, None, 0, ())
    assert not old.used_by_rescales
    assert (old.ended_as, old.events_at_start) == (None, EventCounts())


def test_a_job_that_is_taken_over_keeps_its_strategy(caplog):
    told, configured = StateStrategy(StateMove.LEFT), StateStrategy(StateMove.FETCHED)
    record = JobRecord.from_bytes(record_of(job_of(), strategy=told).to_bytes(), "here")
    assert strategy_in_force(record, configured) == told
    [line] = [entry.message for entry in caplog.records if entry.levelno == logging.WARNING]
    assert f"goes on with {told}" in line
    assert f"{configured}, as configured here" in line


@pytest.mark.parametrize("left", [None, record_of(job_of())])
def test_another_job_has_the_strategy_that_is_configured(left):
    configured = StateStrategy(StateMove.SHIPPED)
    assert strategy_in_force(left, configured) == configured
