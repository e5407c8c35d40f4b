"""Jobs say the same whatever the cut into batches and the parallelism, in ``weir.run`` and in ``weir.testing``."""

from dataclasses import replace

import pytest

import weir
from tests.effort import IS_LONG
from tests.equal.equal_jobs import JOBS
from tests.equal.equal_runs import differences, flow_of, said_in_one_process, write_input
from weir import testing
from weir.local import running
from weir.local.preparing import local_settings
from weir.testing import job as testing_job

#: Of each of the larger sources.
ROWS = 30
#: Jobs in one dataflow. With timers among them rows of all steps say as of what they are; without, only late ones.
TIMED = [
    *("tumbling", "lateness_session_changes", "early_late", "odd_sliding", "window_process", "triggered"),
    *("join_between_left", "as_of_left", "join_all_within", "join_changes", "join_then_windows"),
    *("join_all_then_windows", "process_expiring", "process_histories", "process_sides", "process_of_join"),
    *("broadcast", "assigned_process", "map_async_unordered", "odd_batches", "windows_of_changes", "union"),
]
UNTIMED = [
    "join_then_others",
    "join_then_sessions",
    "join_all_then_windows",
    "null_keys_full",
    "null_keys_as_of",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("equal")
    write_input(directory, ROWS)
    return directory


@pytest.fixture
def with_batches(monkeypatch):
    """Sets how many rows a source reads at once."""

    def set_size(size):
        for module in (running, testing_job):
            monkeypatch.setattr(
                module, "local_settings", lambda *a: replace(local_settings(*a), batch_size=size)
            )

    return set_size


CHOSEN = {"timed": TIMED, "untimed": UNTIMED} | ({"all": list(JOBS)} if IS_LONG else {})


@pytest.mark.parametrize("names", CHOSEN.values(), ids=CHOSEN)
def test_jobs_say_the_same_in_one_process(directory, with_batches, names):
    def run(size, parallelism, call):
        with_batches(size)
        flow, compare = flow_of(directory, names, parallelism, lambda _: weir.Collect())
        return said_in_one_process(call(flow), compare)

    expected = run(1, 1, weir.run)
    runs = [(1_000, 3, weir.run), (7, 1, lambda flow: testing.run(flow, seed=1))]
    for size, parallelism, call in runs:
        assert differences(expected, run(size, parallelism, call)) == {}, (size, parallelism)
