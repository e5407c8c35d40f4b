"""A job with two keyed steps, HASH and round robin, through restarts and savepoints: exact, whatever the seed."""

import random

import pytest

from experiments.soak_check import check_output, write_events
from experiments.soak_job import build
from tests.effort import cases
from weir import testing


@pytest.mark.parametrize("seed", range(cases(2)))
def test_what_is_delivered_is_exact_over_restarts_and_savepoints(tmp_path, seed):
    events = write_events(tmp_path / "events.jsonl", 3_000, 40, 7)
    rng = random.Random(seed)
    savepoint, generations = None, 0
    for parallelism in (1, 3, 2):
        flow = build(
            str(events),
            str(tmp_path / "out"),
            rate=1_000,
            count_parallelism=parallelism,
            release=str(tmp_path / "release"),
        )
        state = rng.choice(["memory", "rocksdb"])
        with testing.start(flow, {}, from_savepoint=savepoint, state=state, seed=seed or None) as job:
            for _ in range(6):
                job.advance_time(rng.randrange(200))
                job.checkpoint(rng.choice(["prepared", "complete", "committed"]))
                job.advance_time(rng.randrange(100))
                if rng.random() < 0.5:
                    job.restart()
            generations += job.restarts
            if parallelism == 2:
                # The rest need not come one by one.
                (tmp_path / "release").touch()
                job.finish()
            else:
                savepoint = job.savepoint()
    assert generations
    check_output(events, tmp_path / "out")
