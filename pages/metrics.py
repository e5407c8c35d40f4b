"""Writes ``docs/metrics.md`` from the definitions."""

from __future__ import annotations

from weir.metrics.definitions import DEFINITIONS
from weir.protocol.job.latency_share import BUCKETS_MS

_INTRODUCTION = """\
# Metrics

<!-- Written by `python -m pages metrics`; do not edit. -->

The control plane serves its metrics at `/metrics` of its HTTP port. A task manager serves its own at
`prometheus_host:prometheus_port` when `prometheus.enabled` is true; processes on one host need different
ports. With `prometheus.push_enabled` they are also pushed to a Pushgateway, at intervals, never per record.

Subtasks count once per batch in plain attributes, and samples are made only when the page is read. The busy,
idle and back-pressured seconds of a subtask add up to its running time: mostly idle means that it is fast
enough, mostly busy that it is the bottleneck, mostly back-pressured that a stage after it is.

Besides the metrics below there are the usual `process_*` (CPU, memory, open files) and `python_gc_*`.
"""


def markdown() -> str:
    """The page: one table of all metrics, and the buckets."""
    rows = ["| Metric | Kind | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for item in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in item.labels)
        rows.append(f"| `{item.name}` | {item.kind} | {labels} | {item.meaning} |")
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS_MS)
    buckets = f"Upper bounds of the latency buckets, in ms: {bounds}, and one without bound."
    return "\n".join([_INTRODUCTION, *rows, "", buckets, ""])
