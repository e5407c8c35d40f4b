"""A killed broker with segments begins to serve again; ``benchmarks wal --only recovery`` does it with 10 GB."""

import pytest

from benchmarks.wal.recovery import recovery

pytestmark = pytest.mark.scenario


def test_a_killed_broker_serves_its_oldest_and_its_newest_records_again(tmp_path):
    steps = []
    found = recovery(tmp_path, 200e6, lambda step, done: steps.append(done))
    assert found["recovered_bytes"] > 199e6
    # How long it takes is the benchmark's matter; the process has to start first, beside other tests.
    assert 0 < found["recovery_s"] < 60
    assert len(list((tmp_path / "1" / "large-0").glob("*.index"))) >= 2
    assert steps == sorted(steps)
