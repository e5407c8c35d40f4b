from __future__ import annotations

from typing import Any

import pytest

from weir.errors import ConfigError
from workload.parameters import WorkloadParameters


@pytest.mark.parametrize(
    ("wrong", "flag"),
    [
        ({"events": 0}, "--events"),
        ({"keys": 0}, "--keys"),
        ({"exponent": 0.0}, "--exponent"),
        ({"exponent": float("nan")}, "--exponent"),
        ({"payload_bytes": -1}, "--payload-bytes"),
        ({"disorder_ms": -1}, "--disorder-ms"),
        ({"event_rate": 0.0}, "--event-rate"),
        ({"seed": 2**63}, "--seed"),
        ({"partitions": 0}, "--partitions"),
    ],
)
def test_value_out_of_range_names_its_flag(wrong: dict[str, Any], flag: str):
    with pytest.raises(ConfigError, match=flag):
        WorkloadParameters(**{"events": 10, **wrong})


def test_number_of_parts_does_not_depend_on_the_machine():
    assert WorkloadParameters(events=3).part_count == 3
    assert WorkloadParameters(events=1_000).part_count == 4
    assert WorkloadParameters(events=10_000_001).part_count == 11
    assert WorkloadParameters(events=10**10).part_count == 256
    assert WorkloadParameters(events=100, partitions=7).part_count == 7
