"""The cache goes ahead in parts that rows do not notice."""

from __future__ import annotations

from task_manager.rescale.cache_copy import next_part


def test_parts_grow_while_they_are_short_and_shrink_when_they_are_long() -> None:
    assert next_part(2, 0.0) == 4
    assert next_part(8, 0.0001) == 16
    assert next_part(8, 0.002) == 8
    assert next_part(8, 0.0025) == 6
    assert next_part(8, 0.1) == 4
    assert next_part(1, 0.1) == 1
