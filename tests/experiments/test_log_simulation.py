"""The log among random faults, in virtual time; each planted fault is found."""

import pytest

from experiments.log_simulation.machines import FAULTS
from experiments.log_simulation.run import ViolationError, run
from tests.effort import cases

#: Seeds that found the fault when it was planted. The search begins there and goes on past them.
FIRST_SEEDS = {
    "promise lost at restart": 41,
    "admitted too early": 56,
    "producers lost with their segment": 8,
    "replicas exchanged in one step": 63,
    "next step before the last one counts": 63,
    "leadership moved to a shorter log": 22,
    "stale reads": 26,
}


def test_nothing_acknowledged_is_lost_doubled_or_out_of_order():
    # What finds a fault finds nothing without it.
    for seed in sorted({*range(cases(6, 1_800)), *FIRST_SEEDS.values()}):
        assert run(seed) > 0, seed


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    first = FIRST_SEEDS.get(fault, 0)
    for seed in range(first, first + 200):
        try:
            run(seed, FAULTS[fault])
        except ViolationError:
            return
    pytest.fail(f"200 seeds without a trace of: {fault}")
