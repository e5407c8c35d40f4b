"""Whether a machine keeps up with the rate that a benchmark offers; else its figures would tell of the machine alone.

Benchmarks that disturb a job under load look before the disturbance, and try a lower rate where the job is behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.results import BenchmarkError
from experiments.cluster import Cluster

#: A job that is so far behind its schedule does not keep up; counters are told up to a second late.
_BEHIND_S_MAX = 2.0
#: And one whose rows take longer than that before anything disturbs it.
_P50_MS_MAX = 250.0
#: Each rate that is tried is half of the one before.
_RATES_MAX = 4


class OverloadedError(BenchmarkError):
    """The machine does not keep up with the rate: nothing can be judged at it."""


def at_a_rate_that_lasts(
    rate: float,
    attempt: Callable[[float], dict[str, Any]],
    report: Callable[[str, float], None],
    rates_max: int = _RATES_MAX,
) -> dict[str, Any]:
    """Measure at this rate, or at the highest one of its halves that the machine sustains.

    Args:
        rate: that was asked for, events per second.
        attempt: measures at a rate; raises OverloadedError if the machine does not keep up.
        report: is told what goes on.
        rates_max: that are tried.

    Returns:
        The figures, with ``judged`` (1), ``rate`` and ``rate_is`` ("as given" or "found"); or ``judged`` (0) and
        ``not_judged``, the reason, where the machine sustains none of the rates.
    """
    why = ""
    for halvings in range(rates_max):
        tried = rate / 2**halvings
        try:
            figures = attempt(tried)
        except OverloadedError as error:
            why = f"at {tried:,.0f} events/s {error}"
            report(f"this machine does not keep up: {why}", 0.0)
        else:
            how = "found: the machine does not keep up with more" if halvings else "as given"
            return {**figures, "judged": 1, "rate": tried, "rate_given": rate, "rate_is": how}
    return {"judged": 0, "not_judged": why, "rate_given": rate}


def check_keeps_up(cluster: Cluster, rate: float) -> None:
    """Look whether a job under a steady load is on schedule.

    Args:
        cluster: with a job of one source that is paced from the start of the job on, and has not ended.
        rate: of the source, events per second.

    Raises:
        OverloadedError: it is seconds behind.
        ClusterError: nobody answers.
    """
    status = cluster.wait_for(lambda _: True, "an answer")
    late_s = behind_s(status, rate, time.time())
    if late_s > _BEHIND_S_MAX:
        raise OverloadedError(f"the job is {late_s:.1f} s behind its schedule")


def behind_s(status: Mapping[str, Any], rate: float, now_s: float) -> float:
    """How long ago, at a wall clock of seconds, the next event was due that the source has not read."""
    return now_s - float(status["started_ms"]) / 1e3 - float(status["totals"]["events_in"]) / rate


def check_quick(before: Mapping[str, Any]) -> None:
    """Look at the latencies (``rescale_figures.latencies``) of a time in which nothing disturbs the job.

    Raises:
        OverloadedError: there are none, or they are those of a job that is behind.
    """
    if not before["events"]:
        raise OverloadedError("nothing is delivered in time")
    if before["p50_ms"] > _P50_MS_MAX:
        raise OverloadedError(f"the job is behind its schedule: its p50 is {before['p50_ms']:,.0f} ms")


def not_judged(document: Mapping[str, Any]) -> str:
    """Why something in a result's document could not be judged; empty if all could."""
    for run in document["repeats"]:
        if run.get("judged", 1) == 0:
            return str(run["not_judged"])
    return ""
