"""What runs in the tasks of a stream of Spark, trigger by trigger with late rows, says what ``weir.run`` says."""

import pytest

from tests.equal.equal_runs import differences
from tests.runners import runs

ROWS, PARTS = 90, 2
#: One of each kind of state and time.
JOBS = [
    *("lateness_session_changes", "window_all_early", "window_top", "triggered"),
    *("join_within_full", "join_between_left", "as_of_left", "null_keys_full"),
    *("running_changes", "process_expiring", "process_sides_then_windows", "broadcast_then_windows"),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parts")
    runs.write_parts(directory, ROWS, PARTS)
    return directory


@pytest.mark.parametrize("name", JOBS)
def test_triggers_say_what_a_run_says_that_reads_their_rows_in_the_order_of_time(parts, name):
    expected = runs.in_parts_on_weir(parts, name)
    assert any(expected.values())
    assert differences(expected, runs.in_parts_without_spark(parts, name, PARTS)) == {}
