"""Modules are on the way of a batch if they are called in half of the moments in which the sink gets rows."""

from __future__ import annotations

from tests.style.journeys import on_the_way


def test_a_module_that_is_called_now_and_then_is_not_on_the_way():
    slots = {
        "weir.operators.sinks.part_files:write": [2, 3, 4, 5],
        "weir.reader:read": [2, 4],
        "weir.heartbeat:beat": [3],
        "weir.start:start": [0, 1],
    }
    kernels = {"weir.reader:read": ["weir.scan_kernels"], "weir.heartbeat:beat": ["weir.beat_kernels"]}
    found = on_the_way({"slots": slots, "kernels": kernels})
    assert found == {"weir.operators.sinks.part_files", "weir.reader", "weir.scan_kernels"}


def test_nothing_is_on_the_way_where_no_row_came_to_the_sink():
    assert on_the_way({"slots": {"weir.reader:read": [1]}, "kernels": {}}) == set()
