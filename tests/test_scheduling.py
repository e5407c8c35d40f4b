"""The order in which workers take files of tests with processes."""

from pathlib import Path

import pytest

from tests import scheduling

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sorted({*scheduling._GROUPS, *scheduling._LONGEST, *scheduling._ALONE}))
def test_files_that_are_named_are_there(name):
    assert name in scheduling._TOGETHER or (ROOT / name).exists()


def test_the_longest_come_first_and_those_with_a_server_together(pytestconfig):
    queue = scheduling._LongestFirst()
    for name in ("tests/test_b.py", "tests/test_a.py", "Spark", "Kafka", "tests/scenarios/test_rescale.py"):
        queue[name] = {}
    taken = [queue.popitem(last=False)[0] for _ in range(len(queue))]
    assert taken == [
        "Spark",
        "Kafka",
        "tests/scenarios/test_rescale.py",
        "tests/test_b.py",
        "tests/test_a.py",
    ]
    kafka = {scheduling.group_of(f"{file}::test_x[a]") for file in scheduling._TOGETHER["Kafka"]}
    assert kafka == {"Kafka"}
    assert scheduling.group_of("tests/test_a.py::test_x") == "tests/test_a.py"


def test_what_needs_a_server_and_is_in_no_group_is_found():
    assert scheduling.is_missing("tests/scenarios/test_new.py::test_x[a]")
    assert not scheduling.is_missing("tests/scenarios/test_kafka.py::test_x[a]")
    assert not scheduling.is_missing("tests/services/test_commands.py::test_x")


def test_files_whose_tests_start_processes_are_told_from_others():
    """By their own marks, or by those of the fixtures beside them."""
    assert scheduling.may_start_processes(ROOT / "tests/scenarios/test_rescale.py")
    assert scheduling.may_start_processes(ROOT / "tests/weir/state/test_conformance.py")
    assert not scheduling.may_start_processes(ROOT / "tests/test_docs.py")
