"""A short run of ``make chaos``, with fixed seeds."""

import pytest

from experiments.chaos import ChaosSettings, run_chaos

pytestmark = pytest.mark.scenario


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_doubled_under_random_faults(tmp_path, environment, forks, seed):
    settings = ChaosSettings(20, 3.5, seed, rate=1000, keys=("taskManager.useRelink=true",))
    result = run_chaos(tmp_path / "run", settings, print, environment, forks.popen)
    assert result.faults >= 4
    assert result.generations > 1
    assert result.digest
