"""The benchmark of Spark jobs: what is computed of its runs."""

import subprocess
import sys

import pytest

from benchmarks import runners
from benchmarks.peers.processes import Usage

BUSY_S = 0.2
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass"


def test_processors_of_a_process_that_has_ended_count():
    """As those of Spark's workers, which hold what Weir's steps take."""
    before_s = runners._cpu_s()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    # The kernel tells hundredths of a second, cut off.
    assert runners._cpu_s() - before_s >= BUSY_S / 2


def test_a_ratio_is_of_what_more_events_take():
    used = {
        ("weir", 100): Usage(5.0, 6.0, 0),
        ("weir", 300): Usage(7.0, 10.0, 0),
        ("by_hand", 100): Usage(1.0, 1.0, 0),
        ("by_hand", 300): Usage(2.0, 4.0, 0),
    }
    figures = runners._figures(used, 100, 300)
    assert figures["ratio_to_by_hand"] == pytest.approx(0.5)
    assert figures["ratio_to_by_hand_per_core"] == pytest.approx(0.75)
    used["weir", 300] = Usage(5.0, 6.0, 0)
    assert runners._figures(used, 100, 300)["ratio_to_by_hand"] is None
