"""Random and damaged inputs to every entry, for a few seconds; ``python -m experiments fuzz`` goes on for longer."""

import random

import pytest

from experiments.fuzzing.inputs import any_json, damaged, fill
from experiments.fuzzing.run import Tally, _try_all, fuzz
from weir.errors import ConfigError
from weir.rpc import control_pb2


def test_readers_answer_or_refuse():
    tally = fuzz(1_500, 20_261_129, "", lambda _: None, with_processes=False)
    assert tally.findings == []
    assert len(tally.inputs) == 14
    assert tally.slowest_s < 5


def test_what_a_reader_must_not_do_is_found():
    tally = Tally()

    def bad(rng):
        raise {0: ConfigError("clear"), 1: ValueError("unclear"), 2: KeyError("unclear")}[rng.randrange(3)]

    _try_all({"bad": bad}, 60, 0, tally)
    assert 0 < len(tally.findings) <= 20
    assert all("unclear" in finding and "seed" in finding for finding in tally.findings)


def test_inputs_are_made_again_from_their_seed():
    def made(seed):
        rng = random.Random(seed)
        return (
            damaged(rng, b"x" * 50),
            any_json(rng),
            fill(rng, control_pb2.DeployRequest()).SerializeToString(),
        )

    assert made(3) == made(3) != made(4)


@pytest.mark.scenario
def test_processes_answer_or_refuse(forks):
    tally = fuzz(4_000, 20_261_129, "", lambda _: None, popen=forks.popen)
    assert tally.findings == []
    assert tally.grown_bytes < 64 << 20
    assert {"TaskManager.Deploy", "LogBroker.Produce", "pages of a task manager"} <= tally.inputs.keys()
