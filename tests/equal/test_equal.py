"""Jobs say the same in ``weir.run`` and ``weir.testing``, whatever the cut and restarts, and what plain Python says."""

from dataclasses import replace

import pytest

import weir
from tests.effort import IS_LONG
from tests.equal.equal_jobs import JOBS, flow_of
from tests.equal.equal_rows import write_input
from tests.equal.equal_runs import differences, paced, run_with_restarts, said_in_one_process
from tests.equal.plain import PLAIN, otherwise
from weir.local import running
from weir.local.preparing import local_settings
from weir.testing import job as testing_job

#: Of each of the larger sources.
ROWS = 30
#: Jobs in one dataflow. With timers among them rows of all steps say as of what they are; without, only late ones.
TIMED = [
    *("lateness_session_changes", "early_late", "window_process", "triggered", "windows_of_changes"),
    *("join_between_left", "as_of_left", "join_all_within", "join_changes", "join_then_windows"),
    *(
        "process_expiring",
        "process_histories",
        "process_of_join",
        "process_sides_then_windows",
        "odd_batches",
    ),
    *("broadcast_then_windows", "assigned_process", "map_async_unordered"),
    *("bad_lines", "bad_times", "put_aside", "union_of_quiet"),
]
UNTIMED = [
    "join_then_others",
    "join_then_sessions",
    "join_all_then_windows",
    "null_keys_full",
    "null_keys_as_of",
]
#: Those that are compared with plain Python in each run.
PLAINLY = [
    *("tumbling", "sliding", "session", "join_within_full", "join_ttl_left", "top", "deduplicate_within"),
    *("deduplicate_last", "running", "process_counting"),
]
CHOSEN = {"timed": TIMED, "untimed": UNTIMED} | ({"all": list(JOBS)} if IS_LONG else {})


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("equal")


@pytest.fixture(scope="module")
def given(directory):
    return write_input(directory, ROWS)


@pytest.fixture
def with_batches(monkeypatch):
    """Sets how many rows a source reads at once."""

    def set_size(size):
        for module in (running, testing_job):
            monkeypatch.setattr(
                module, "local_settings", lambda *a: replace(local_settings(*a), batch_size=size)
            )

    return set_size


@pytest.mark.parametrize("names", CHOSEN.values(), ids=CHOSEN)
def test_jobs_say_the_same_in_one_process(directory, given, with_batches, names):
    with_batches(1)
    flow, compare = flow_of(directory, names, 1)
    expected = said_in_one_process(weir.run(flow), compare)

    with_batches(1_000)
    found = said_in_one_process(weir.run(flow_of(directory, names, 3)[0]), compare)
    assert differences(expected, found) == {}

    with_batches(7)
    flow, _ = flow_of(directory, names, 1, read=paced)
    assert differences(expected, said_in_one_process(run_with_restarts(flow, ROWS, 1), compare)) == {}


def test_jobs_say_what_plain_python_says(directory, given):
    names = [name for name in JOBS if name in PLAIN] if IS_LONG else PLAINLY
    flow, compare = flow_of(directory, names, 2)
    result = weir.run(flow)
    outputs = PLAIN.keys() & compare.keys()
    assert len(outputs) > len(names)
    rows = {output: result[f"{output}_out"].to_dicts(times=True) for output in outputs}
    assert all(map(rows.get, PLAINLY))
    wrong = {output: otherwise(output, rows[output], given) for output in outputs}
    assert not any(wrong.values()), wrong
