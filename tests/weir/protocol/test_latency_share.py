import numpy as np
import pytest

from weir.metrics.latency import LatencyRecorder
from weir.protocol.job.latency_share import BUCKETS_MS, share_below


def counts_of(latencies_ms):
    recorder = LatencyRecorder()
    recorder.observe_us(np.array(latencies_ms) * 1000)
    return recorder.read()[0].tolist()


def test_no_rows_have_no_percentile():
    assert share_below([0] * (len(BUCKETS_MS) + 1), 0.99) is None
    assert share_below([], 0.99) is None


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_percentile_is_within_the_bucket_of_the_row(share):
    latencies = np.random.default_rng(7).exponential(40, 5_000)
    exact = float(np.quantile(latencies, share, method="inverted_cdf"))
    upper = next(bound for bound in BUCKETS_MS if bound >= exact)
    lower = max((bound for bound in BUCKETS_MS if bound < exact), default=0.0)
    found = share_below(counts_of(latencies), share)
    assert lower <= found <= upper


def test_what_is_above_all_bounds_is_told_as_the_highest():
    assert share_below(counts_of([90_000.0]), 0.5) == 60_000
