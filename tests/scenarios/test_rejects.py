"""What is rejected is told, and counts."""

import json
import re

import pytest

pytestmark = pytest.mark.scenario

ROWS = 100
BAD = 34


@pytest.fixture
def numbers(tmp_path):
    """A hundred rows; in the last ones the field is null."""
    path = tmp_path / "numbers.jsonl"
    lines = [json.dumps({"n": number if number < ROWS - BAD else None}) for number in range(ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def ended(cluster, job_parameters, *flags):
    """Runs the job to its end: the control plane's exit code, its log, and the task manager's."""
    cluster.start_control_plane("flow_rejects", job_parameters, arguments=flags)
    cluster.start_task_manager("first")
    codes = cluster.wait_ended()
    logs = {name: process.log_path.read_text() for name, process in cluster.processes.items()}
    return codes["control_plane"], logs["control_plane"], logs["first"]


def test_records_that_a_source_rejects_are_told_of(make_cluster, tmp_path, numbers):
    cluster = make_cluster(task_managers=1)
    code, log, task_manager_log = ended(cluster, {"input": numbers, "output": tmp_path / "out"}, "--follow")
    assert code == 0
    [letters] = (cluster.directory / "dead_letters").rglob("*.jsonl")
    position = numbers.read_text().index('{"n": null}')
    first = f"{numbers} at {position}: "
    warnings = [line for line in log.splitlines() if " WARNING " in line]
    assert "source 'numbers' rejected" in warnings[0]
    counts = f"finished: {ROWS - BAD} events in, {ROWS - BAD} out"
    assert f"{counts}; but source 'numbers' rejected {BAD} records; the first: {first}" in warnings[-2]
    assert str(letters) in warnings[-2]
    rejected = warnings[-2].partition("; but ")[2]
    assert log.splitlines()[-1].endswith(f"exit code 0, but rejected: {rejected}")
    # So short a job may end before it is looked at; what these lines say is in ``tests/control_plane``.
    followed = [line for line in log.splitlines() if " INFO " in line and "events in, " in line]
    assert followed
    # Only the first of them has the record.
    telling = [first in line for line in followed if "records rejected by numbers" in line]
    assert telling in ([], [True, *[False] * (len(telling) - 1)])
    told = [line for line in task_manager_log.splitlines() if " WARNING " in line]
    assert [re.search(r"numbers: (\d+) rejected so far", line).group(1) for line in told] == ["1", "10"]
    assert first in told[0]


def test_a_job_of_which_no_record_is_good_fails(make_cluster, tmp_path, numbers):
    numbers.write_text('{"n": "one"}\n' * 100)
    cluster = make_cluster(task_managers=1)
    code, log, _ = ended(cluster, {"input": numbers, "output": tmp_path / "out"})
    assert code == 1
    [error] = [line for line in log.splitlines() if " ERROR " in line]
    assert "source 'numbers' rejected 100 records" in error
    assert "none was good" in error
    assert not list((tmp_path / "out").glob("part-*"))


def test_strict_fails_at_them(make_cluster, tmp_path, numbers):
    cluster = make_cluster({"controlPlane.restart_attempts": 10}, task_managers=1)
    code, log, _ = ended(cluster, {"input": numbers, "output": tmp_path / "out"}, "--strict")
    assert code == 1
    assert " WARNING restart" not in log
    [error] = [line for line in log.splitlines() if " ERROR " in line]
    assert f"{numbers} at " in error
    assert "run without --strict" in error
    assert not list((tmp_path / "out").glob("part-*")), "the last checkpoint is not made"


@pytest.mark.parametrize(
    ("function", "reason"),
    [("raises", "ZeroDivisionError"), ("returns_nothing", "the function returned NoneType")],
)
def test_a_function_that_is_wrong_for_every_row_fails_the_job(make_cluster, tmp_path, function, reason):
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text("".join(f'{{"n": {number}}}\n' for number in range(300)))
    settings = {"controlPlane.restart_attempts": 20, "controlPlane.restart_delay_ms": 10}
    cluster = make_cluster(settings, task_managers=1)
    parameters = {"input": numbers, "output": tmp_path / "out", "function": function}
    code, log, task_manager_log = ended(cluster, parameters)
    assert code == 1
    [error] = [line for line in log.splitlines() if " ERROR " in line]
    for text in ("step 'change' had ", "dead_letter_share_max", reason, "change.0.jsonl"):
        assert text in error
    assert not list((tmp_path / "out").glob("part-*"))
    # Once, although every row of several deployments was wrong.
    assert task_manager_log.count("step 'change' failed on the row {\"n\":0}:") == 1
    assert task_manager_log.count("Traceback") == (function == "raises")
