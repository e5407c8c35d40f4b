"""What the records of a rescale benchmark say: losses, gaps and latencies around the rescale."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.results import BenchmarkError

#: Latencies are judged in windows of this length, one beginning every step.
_WINDOW_US, _STEP_US = 1_000_000, 100_000
#: Back to normal: p99 of a window no larger than this many times that of the time before.
_RECOVERED = 1.1


def check_counts(records: np.ndarray, numbers: np.ndarray) -> dict[str, int]:
    """``lost`` and ``duplicated`` events: each key's counts must be 1, 2 and so on to its events in the input.

    Args:
        records: int64, shape (events, 4), see ``record_sink``.
        numbers: int64, key number of every event of the input.
    """
    expected = np.bincount(numbers)
    ids, counts = records[:, 0], records[:, 1]
    known = (ids > 0) & (ids < len(expected)) & (counts > 0)
    ids, counts = ids[known], counts[known]
    possible = counts <= expected[ids]
    ids, counts = ids[possible], counts[possible]
    first = np.cumsum(expected) - expected
    met = np.zeros(len(numbers), dtype=bool)
    met[first[ids] + counts - 1] = True
    distinct = int(met.sum())
    return {"lost": len(numbers) - distinct, "duplicated": len(records) - distinct}


def nothing_lost(records: np.ndarray, numbers: np.ndarray) -> dict[str, int]:
    """``lost`` and ``duplicated``, both 0; arguments as of ``check_counts``.

    Raises:
        BenchmarkError: events are lost or doubled.
    """
    checked = check_counts(records, numbers)
    if any(checked.values()):
        raise BenchmarkError(f"{checked['lost']} events lost, {checked['duplicated']} duplicated")
    return checked


def gap_ms(arrivals_us: np.ndarray, start_us: int, stop_us: int) -> float | None:
    """Longest time between arrivals of which a part is in ``start <= time < stop``; None without arrivals.

    Args:
        arrivals_us: int64, sorted, reaching beyond both ends.
        start_us: of the range.
        stop_us: of the range.
    """
    low = max(int(np.searchsorted(arrivals_us, start_us)) - 1, 0)
    high = int(np.searchsorted(arrivals_us, stop_us)) + 1
    part = arrivals_us[low:high]
    return float(np.diff(part).max()) / 1e3 if len(part) > 1 else None


def latencies(records: np.ndarray, start_us: int, stop_us: int) -> dict[str, float | int | None]:
    """``events``, ``p50_ms``, ``p99_ms``, ``max_ms`` (nearest rank) of arrivals in ``start <= time < stop``."""
    low, high = np.searchsorted(records[:, 2], [start_us, stop_us])
    waited = (records[low:high, 2] - records[low:high, 3]) / 1e3
    if not len(waited):
        return {"events": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}
    p50_ms, p99_ms, max_ms = np.percentile(waited, [50, 99, 100], method="inverted_cdf").tolist()
    return {"events": len(waited), "p50_ms": p50_ms, "p99_ms": p99_ms, "max_ms": max_ms}


def recovered_ms(records: np.ndarray, requested_us: int, p99_before_ms: float) -> float | None:
    """Time from the request to the first second whose p99 is within 110 % of that before; None: never."""
    last_us = int(records[-1, 2])
    for start_us in range(requested_us, last_us - _WINDOW_US, _STEP_US):
        p99_ms = latencies(records, start_us, start_us + _WINDOW_US)["p99_ms"]
        if p99_ms is not None and p99_ms <= _RECOVERED * p99_before_ms:
            return (start_us - requested_us) / 1e3
    return None


def around(
    records: np.ndarray,
    moved: np.ndarray,
    before_us: int,
    requested_us: int,
    owned_us: int,
    completed_us: int,
) -> dict[str, Any]:
    """Figures of the time around a rescale.

    Args:
        records: of the whole run.
        moved: bool, by key number, whether its group moved.
        before_us: begin of the time that is compared with.
        requested_us: the request.
        owned_us: every group has its new owner.
        completed_us: the rescale is complete.
    """
    arrivals = records[:, 2]
    # Rows that were parked come out a little after the last group was taken over.
    stop_us = completed_us + _WINDOW_US
    is_moved = moved[records[:, 0]]
    before = latencies(records, before_us, requested_us)
    during = latencies(records, requested_us, completed_us)
    p99_before_ms = before["p99_ms"]
    return {
        "output_gap_ms_max": gap_ms(arrivals, requested_us, stop_us),
        "output_gap_before_ms_max": gap_ms(arrivals, before_us, requested_us),
        "moved_groups_gap_ms_max": gap_ms(arrivals[is_moved], requested_us, stop_us),
        "other_groups_gap_ms_max": gap_ms(arrivals[~is_moved], requested_us, stop_us),
        "p99_during_ms": during["p99_ms"],
        "before": before,
        "until_owned": latencies(records, requested_us, owned_us),
        "during": during,
        "after": latencies(records, completed_us, int(arrivals[-1]) + 1),
        "p99_recovered_ms": None
        if p99_before_ms is None
        else recovered_ms(records, requested_us, float(p99_before_ms)),
    }
