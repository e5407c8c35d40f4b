"""The log among random faults, in virtual time; each planted fault is found."""

import pytest

from experiments.log_simulation.machines import FAULTS
from experiments.log_simulation.run import run
from tests.effort import cases


def test_nothing_acknowledged_is_lost_doubled_or_out_of_order():
    for seed in range(cases(60)):
        assert run(seed) > 0, seed


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    for seed in range(200):
        try:
            run(seed, FAULTS[fault])
        except Exception:
            return
    pytest.fail(f"200 seeds without a trace of: {fault}")
