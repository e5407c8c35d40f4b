"""Both processes in virtual time: many random courses with faults, and broken rules are found."""

import os
from collections import Counter

import pytest

from experiments.simulation.seeds import Seeds, SimulationError, check_fences, outcome
from tests.effort import cases

#: Broken rules, and seeds to begin with: those that found them last. When the courses of seeds change, others must,
#: before long. ``python -m experiments simulate --check-fences`` breaks all rules.
BROKEN = {
    "channel": 11,
    "commit": 81,
    "ended": 3,
    "finishes early": 65,
    "leaving": 7,
    "parking": 9,
    "retired": 41,
}
#: One of them that one of the first ten seeds finds.
FOUND_SOON = "leaving"


@pytest.fixture(scope="module", autouse=True)
def _one_processor():
    """Threads that take turns need half as much of one processor as of two."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    yield
    os.sched_setaffinity(0, before)


def test_the_output_is_always_that_of_a_run_without_faults():
    counts = Seeds().run(range(cases(24)), "", lambda line: None)
    # The runs must go where the protocol is interesting.
    assert counts["faults"] > 33
    assert counts["checkpoints"] > 30
    assert counts["rescales"] > 7
    assert counts["groups moved"] > 9
    assert counts["drains"] > 1
    assert counts["generations"] > 33
    assert counts["results"] > 1_500


@pytest.mark.parametrize(("broken", "first"), BROKEN.items())
def test_a_broken_fence_or_rule_is_found(broken, first):
    with pytest.raises(SimulationError, match=f'--seed [0-9]+ --break-fence "{broken}"'):
        Seeds().run(range(first, first + 100), broken, lambda line: None)


def test_a_seed_always_gives_the_same_run():
    first, second = [], []
    seed = next(seed for seed in range(100) if outcome(seed)["faults"] > 5)
    outcome(seed, print_line=first.append)
    outcome(seed, print_line=second.append)
    assert len(first) > 20
    assert first == second


def test_the_command_tells_how_to_replay_what_it_found(experiments):
    code, _, errors = experiments(
        "simulate", "--seeds", "500", "--break-fence", FOUND_SOON, "--processes", "1"
    )
    assert code == 1
    replay = errors.split("replay: python -m experiments simulate ")[1].replace('"', "").split()
    assert replay[0] == "--seed"
    code, output, errors = experiments("simulate", *replay)
    assert code == 1
    assert "begins generation 1" in output, "the whole course"
    assert f"seed {replay[1]}:" in errors


def test_the_command_refuses_unknown_fences(experiments):
    code, _, errors = experiments("simulate", "--break-fence", "nothing")
    assert code == 2
    assert "'names': names of pending files" in errors


def test_the_command_breaks_fences_until_that_is_found(experiments):
    code, output, _ = experiments(
        "simulate", "--check-fences", "--break-fence", FOUND_SOON, "--processes", "2"
    )
    assert code == 0
    assert f"{FOUND_SOON}: seed " in output
    assert "1 of 1 broken fences found" in output


def test_a_broken_fence_that_is_not_found_is_told():
    lines = []
    assert check_fences(["lost", "retired"], range(1), 1, lines.append) == ["lost", "retired"]
    assert lines == ["lost: NOT FOUND in 1 seeds", "retired: NOT FOUND in 1 seeds"]


def test_counts_add_up():
    counts = Seeds().run(range(2), "", lambda line: None)
    assert counts == sum((outcome(seed) for seed in range(2)), Counter())
