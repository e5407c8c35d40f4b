"""Jobs say the same on all runners: few of them here, all by ``python -m tests.runners.matrix``."""

import pytest

from tests.equal.equal_jobs import JOBS
from tests.equal.equal_runs import differences
from tests.runners import matrix, record, runs
from tests.runners.exclusions import BATCH, STREAMING, TRIGGERS

ROWS = 60
#: With late rows that they tell of, in streams that begin twice.
IN_PARTS, PARTS = ["lateness_changes"], 2


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parts")
    runs.write_parts(directory, 4 * ROWS, PARTS)
    return directory


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    directory = tmp_path_factory.mktemp("batch")
    runs.write_sorted(directory, ROWS)
    return directory


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stream")
    runs.write_sorted(directory, ROWS)
    runs.prepare_streams(directory)
    return directory


def test_exclusions_are_jobs_and_few():
    assert {*BATCH, *TRIGGERS} <= JOBS.keys()
    assert {name for jobs in record.compared().values() for name in jobs} <= JOBS.keys()
    assert len(TRIGGERS) <= 0.15 * len(JOBS)


def test_no_job_is_refused_and_the_page_has_the_tables_of_the_command(tmp_path, monkeypatch):
    refusals = {(name, mode): runs.refusal_of(name, tmp_path, mode) for mode in matrix.MODES for name in JOBS}
    assert refusals == dict.fromkeys(refusals)
    monkeypatch.setattr(runs, "refusal_of", lambda name, directory, mode: refusals[name, mode])
    text = matrix.PAGE.read_text()
    assert matrix.tables_in(text, tmp_path) == text, "run: python -m tests.runners.matrix --write"


def test_a_plan_tells_of_each_job_that_is_not_compared_why(tmp_path):
    for mode, reasons in (("batch", BATCH), ("streaming", STREAMING)):
        for name, reason in reasons.items():
            assert reason in runs.differences_of(name, tmp_path, mode), name
    # One source, and no step that gives times.
    assert runs.differences_of("sliding", tmp_path, "streaming") == set()
    assert runs.differences_of("union", tmp_path, "batch") == set()


@pytest.mark.spark
@pytest.mark.parametrize("name", record.TESTED["batch"])
def test_a_batch_says_the_same(spark, batch, name):
    expected = runs.on_weir(batch, name)
    assert any(expected.values())
    assert differences(expected, runs.on_spark(spark, batch, name)) == {}


@pytest.mark.spark
@pytest.mark.parametrize("name", record.TESTED["streaming"])
def test_a_stream_says_the_same(spark, stream, name):
    expected = runs.before_last(stream, name)
    assert any(expected.values())
    assert differences(expected, runs.on_stream(spark, stream, name)) == {}


@pytest.mark.spark
@pytest.mark.parametrize("name", IN_PARTS)
def test_a_stream_that_is_stopped_between_late_rows_says_the_same(spark, parts, tmp_path, name):
    expected = runs.in_parts_on_weir(parts, name)
    assert all(expected.values())
    assert differences(expected, runs.in_parts_on_stream(spark, parts, name, PARTS, tmp_path)) == {}
