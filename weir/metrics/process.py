"""Metrics of the process itself: CPU, memory, files, garbage collection, versions."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Gauge, GCCollector, ProcessCollector

from weir.metrics.definitions import BUILD_INFO


def register_process_metrics(registry: CollectorRegistry, role: str) -> None:
    """Add the standard ``process_*`` and ``python_gc_*`` metrics, and ``weir_build_info``.

    Args:
        registry: of this process.
        role: ``control_plane`` or ``task_manager``.
    """
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    try:
        weir_version = version("weir")
    except PackageNotFoundError:  # run from a clone that is not installed
        weir_version = "unknown"
    info = Gauge(BUILD_INFO.name, BUILD_INFO.meaning, BUILD_INFO.labels, registry=registry)
    info.labels(weir_version, platform.python_version(), role).set(1)
