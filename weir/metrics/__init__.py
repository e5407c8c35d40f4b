"""Metrics of a process. Nothing is global: each class registers with the ``CollectorRegistry`` it is given.

Counters are plain attributes that their owner writes once per batch; they are turned into samples only when
somebody reads the page, so the hot path pays nothing for metrics.
``python -m pages metrics`` prints ``docs/metrics.md``.
"""

from weir.metrics.definitions import DEFINITIONS, Definition
from weir.metrics.job import JobFacts, JobMetrics
from weir.metrics.latency import LatencyMetrics, LatencyRecorder
from weir.metrics.process import register_process_metrics
from weir.metrics.questions import QuestionMetrics
from weir.metrics.serving import MetricsPusher, MetricsServer, serve_metrics
from weir.metrics.store import StoreMetrics
from weir.metrics.subtask import SubtaskCounters, SubtaskLabels, SubtaskMetrics

__all__ = [
    "DEFINITIONS",
    "Definition",
    "JobFacts",
    "JobMetrics",
    "LatencyMetrics",
    "LatencyRecorder",
    "MetricsPusher",
    "MetricsServer",
    "QuestionMetrics",
    "StoreMetrics",
    "SubtaskCounters",
    "SubtaskLabels",
    "SubtaskMetrics",
    "register_process_metrics",
    "serve_metrics",
]
