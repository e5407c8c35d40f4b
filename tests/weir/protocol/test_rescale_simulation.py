"""Thousands of random rescales in virtual time: with losses, never wrong results; broken variants are found.

A failing seed prints how to replay it (``tests/weir/protocol/rescale_simulator.py``).
"""

import functools
from collections import Counter

import pytest

from tests.weir.protocol.rescale_parties import Violation
from tests.weir.protocol.rescale_simulator import outcome
from weir.protocol import routing
from weir.protocol.rescale_model import RescalePhase

SEEDS = range(3_000)
SEEDS_TO_FIND_A_BUG = range(500)


@pytest.fixture(scope="module", autouse=True)
def _remembered_rings():
    """The same few tables occur in all runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "_preferences", functools.cache(routing._preferences))
        yield


def test_random_rescales_never_give_wrong_results():
    counts = Counter()
    for seed in SEEDS:
        run = outcome(seed)
        counts.update(run.phases)
        counts["lost"] += run.killed is not None
        counts["failed jobs"] += bool(run.job_failed)
        counts["rescales with rows on the move"] += run.rows_parked > 0
    # The runs must go where the protocol is interesting.
    assert counts[RescalePhase.COMPLETE] > 1_500
    assert counts[RescalePhase.ABORTED] > 200
    assert counts["rescales with rows on the move"] > 500
    assert 100 < counts["failed jobs"] < counts["lost"]


def test_a_loss_at_every_step_aborts_or_fails():
    counts = Counter()
    for seed in range(3):
        undisturbed = outcome(seed, loss=(0, 0))
        counts.update(undisturbed.phases)
        for step in range(1, undisturbed.steps + 1):
            for party in range(len(undisturbed.parties)):
                run = outcome(seed, loss=(step, party))
                aborted = RescalePhase.ABORTED in run.phases
                counts["failed" if run.job_failed else "aborted" if aborted else "without effect"] += 1
                assert run.job_failed or run.rows_processed == run.rows_emitted
    assert counts[RescalePhase.COMPLETE] > 1
    assert counts["failed"] > 300
    assert counts["aborted"] > 20


@pytest.mark.parametrize(
    "broken",
    [
        "first marker",
        "no parking",
        "finishes early",
        "hands over uncertain",
        "held rows keep their way",
        "nobody speaks for the ended",
        "watermark runs on",
    ],
)
def test_a_broken_variant_is_found(broken):
    def search():
        for seed in SEEDS_TO_FIND_A_BUG:
            outcome(seed, broken=broken)

    with pytest.raises(Violation, match=f'replay: .* "{broken}"'):
        search()


def test_a_seed_always_gives_the_same_run():
    first, second = [], []
    outcome(7, print_line=first.append)
    outcome(7, print_line=second.append)
    assert len(first) > 50
    assert first == second
