"""Latency histograms that take a whole batch of latencies at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from weir.metrics.definitions import LATENCY
from weir.metrics.subtask import SubtaskLabels
from weir.protocol.job.latency_share import BUCKETS_MS

_BOUNDS_US = np.array([round(bound * 1000) for bound in BUCKETS_MS], dtype=np.int64)
_BOUND_NAMES = [*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf"]


class LatencyRecorder:
    """Histogram of one subtask at the end of a job. One thread writes, any thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = np.zeros(len(_BOUND_NAMES), dtype=np.int64)
        self._sum_us = 0.0

    def observe_us(self, latencies_us: npt.NDArray[Any]) -> None:
        """Count one batch.

        Args:
            latencies_us: microseconds, integer or float dtype, shape (rows,); negative ones (a clock that
                went back) count in the first bucket.
        """
        buckets = np.searchsorted(_BOUNDS_US, latencies_us, side="left")
        counts = np.bincount(buckets, minlength=len(_BOUND_NAMES))
        sum_us = float(latencies_us.sum())
        with self._lock:
            self._counts += counts
            self._sum_us += sum_us

    def read(self) -> tuple[npt.NDArray[np.int64], float]:
        """Events per bucket (not cumulative; the last is above all bounds), and the sum in seconds."""
        with self._lock:
            return self._counts.copy(), self._sum_us / 1e6


class LatencyMetrics(Collector):
    """Latency histograms of all subtasks of one process at the end of a job."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._recorders: dict[SubtaskLabels, LatencyRecorder] = {}
        registry.register(self)

    def add(self, labels: SubtaskLabels, recorder: LatencyRecorder) -> None:
        """Show what a subtask at the end of the job records, from now on."""
        with self._lock:
            self._recorders[labels] = recorder

    def remove(self, labels: SubtaskLabels) -> None:
        """Stop showing a subtask; unknown labels are ignored."""
        with self._lock:
            self._recorders.pop(labels, None)

    def describe(self) -> list[Metric]:
        """The family without samples."""
        return [HistogramMetricFamily(LATENCY.name, LATENCY.meaning, labels=LATENCY.labels)]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        with self._lock:
            recorders = list(self._recorders.items())
        family = HistogramMetricFamily(LATENCY.name, LATENCY.meaning, labels=LATENCY.labels)
        for labels, recorder in recorders:
            counts, sum_s = recorder.read()
            cumulative = np.cumsum(counts).tolist()
            family.add_metric(labels.values(), list(zip(_BOUND_NAMES, cumulative, strict=True)), sum_s)
        yield family
