"""Both processes in virtual time: many random courses with faults, and broken rules are found."""

import subprocess
import sys
from collections import Counter

import pytest

from experiments.simulation.run import FENCES, SimulationError, outcome, run_seeds

SEEDS_TO_FIND_A_BUG = range(500)


def test_the_output_is_always_that_of_a_run_without_faults():
    counts = run_seeds(range(200), "", lambda line: None)
    # The runs must go where the protocol is interesting.
    assert counts["faults"] > 700
    assert counts["checkpoints"] > 250
    assert counts["rescales"] > 80
    assert counts["groups moved"] > 100
    assert counts["drains"] > 10
    assert counts["generations"] > 350
    assert counts["results"] > 10_000


#: Rules whose break is not found so soon yet: owners and outputs mostly notice it themselves, and the job starts again.
LATE = {"first marker", "held rows", "last part", "lost", "settled", "watermark"}


@pytest.mark.parametrize("broken", sorted(FENCES.keys() - LATE))
def test_a_broken_fence_or_rule_is_found(broken):
    with pytest.raises(SimulationError, match=f'--seed [0-9]+ --break-fence "{broken}"'):
        run_seeds(SEEDS_TO_FIND_A_BUG, broken, lambda line: None)


def test_a_seed_always_gives_the_same_run():
    first, second = [], []
    seed = next(seed for seed in range(100) if outcome(seed)["faults"] > 5)
    outcome(seed, print_line=first.append)
    outcome(seed, print_line=second.append)
    assert len(first) > 20
    assert first == second


def simulate(*arguments):
    command = [sys.executable, "-m", "experiments", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_command_tells_how_to_replay_what_it_found():
    found = simulate("--seeds", "500", "--break-fence", "retired")
    assert found.returncode == 1
    replay = found.stderr.split("replay: python -m experiments simulate ")[1].replace('"', "").split()
    assert replay[0] == "--seed"
    again = simulate(*replay)
    assert again.returncode == 1
    assert "begins generation 1" in again.stdout, "the whole course"
    assert f"seed {replay[1]}:" in again.stderr


def test_the_command_refuses_unknown_fences():
    refused = simulate("--break-fence", "nothing")
    assert refused.returncode == 2
    assert "'names': names of pending files" in refused.stderr


def test_counts_add_up():
    counts = run_seeds(range(3), "", lambda line: None)
    assert counts == sum((outcome(seed) for seed in range(3)), Counter())
