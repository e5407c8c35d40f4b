"""Whether the subtasks of a source have divided the same input."""

import pytest

from weir.protocol.job.input_plans import differing_plans


@pytest.mark.parametrize(
    ("plans", "told"),
    [({}, ""), ({0: 7, 1: 7}, ""), ({0: 7, 1: 0, 2: 7}, ""), ({2: 9, 0: 0, 1: 7, 3: 7}, "subtasks 1 and 2")],
)
def test_those_that_have_divided_anything_have_divided_the_same(plans, told):
    found = differing_plans("events", plans)
    assert bool(found) == bool(told)
    assert told in found
