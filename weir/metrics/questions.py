"""Counts and times of the questions to state that a process has taken."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from weir.metrics.definitions import QUESTION_SECONDS, QUESTIONS
from weir.protocol.job.latency_share import BUCKETS_MS

#: Steps and states with labels of their own; those after them, and those that there may not be, are "other".
STATES_MAX = 100
OTHER = ("other", "other")
_ANSWERED = (200, 404)
#: What a status means; others are "failed".
_RESULTS = {
    200: "answered",
    400: "malformed",
    404: "nothing",
    409: "job_over",
    410: "continuation_expired",
    413: "too_large",
    429: "busy",
    499: "caller_gone",
    503: "try_again",
}
_BOUND_NAMES = [*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf"]
_BOUNDS_S = [bound / 1000 for bound in BUCKETS_MS]


class QuestionMetrics(Collector):
    """Metrics of the questions to one process, which registers it once. Any thread may call it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        #: Those that have answered: the labels are not for callers to make up.
        self._known: set[tuple[str, str]] = set()
        self._counts: dict[tuple[str, ...], int] = {}
        #: Counts of buckets, and the sum in seconds.
        self._times: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        registry.register(self)

    def observe(self, step: str, state: str, consistency: str, status: int, took_s: float) -> None:
        """Count one question.

        Args:
            step: as the question named it; "" of one that is malformed.
            state: of the step.
            consistency: "latest" or "checkpoint"; "" of one that is malformed.
            status: of the answer, as of HTTP.
            took_s: until there was an answer.
        """
        name = step, state
        with self._lock:
            if name not in self._known:
                if status == 200 and len(self._known) < STATES_MAX:
                    self._known.add(name)
                else:
                    name = OTHER
            labels = *name, consistency, _RESULTS.get(status, "failed")
            self._counts[labels] = self._counts.get(labels, 0) + 1
            if status in _ANSWERED:
                buckets, sum_s = self._times.setdefault(labels[:3], ([0] * len(_BOUND_NAMES), [0.0]))
                buckets[bisect_left(_BOUNDS_S, took_s)] += 1
                sum_s[0] += took_s

    def describe(self) -> list[Metric]:
        """Families without samples."""
        return [QUESTIONS.family(), _time_family()]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        with self._lock:
            counts = dict(self._counts)
            times = {labels: (list(buckets), sum_s[0]) for labels, (buckets, sum_s) in self._times.items()}
        family = CounterMetricFamily(QUESTIONS.name, QUESTIONS.meaning, labels=QUESTIONS.labels)
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family
        time_family = _time_family()
        for labels, (buckets, sum_s) in times.items():
            so_far, cumulative = 0, []
            for bound, count in zip(_BOUND_NAMES, buckets, strict=True):
                so_far += count
                cumulative.append((bound, so_far))
            time_family.add_metric(labels, cumulative, sum_s)
        yield time_family


def _time_family() -> HistogramMetricFamily:
    return HistogramMetricFamily(
        QUESTION_SECONDS.name, QUESTION_SECONDS.meaning, labels=QUESTION_SECONDS.labels
    )
