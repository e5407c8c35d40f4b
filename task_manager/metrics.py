"""Metrics of one task manager process; nothing is measured for them beyond what subtasks and stores count anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry

from weir.clock import Clock
from weir.config import PrometheusConfig
from weir.metrics import (
    LatencyMetrics,
    MetricsPusher,
    MetricsServer,
    StoreMetrics,
    SubtaskLabels,
    SubtaskMetrics,
    register_process_metrics,
    serve_metrics,
)
from weir.types import StoreStats

log = logging.getLogger("task_manager")


class TaskManagerMetrics:
    """The registry of the process, and its page and pusher if config.json asks for them."""

    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        register_process_metrics(self.registry, "task_manager")
        self.subtasks = SubtaskMetrics(self.registry, clock)
        self.latencies = LatencyMetrics(self.registry)
        self._stores = StoreMetrics(self.registry)
        self._store_labels: tuple[str, str] | None = None
        #: What tells about the caches of each subtask's states.
        self._caches: dict[SubtaskLabels, Callable[[], StoreStats]] = {}
        self._server: MetricsServer | None = None
        self._pusher: MetricsPusher | None = None

    def start(self, config: PrometheusConfig, port: int, address: str) -> None:
        """Serve and push, as configured.

        Raises:
            AddressInUseError: the port is taken.
        """
        if config.enabled:
            self._server = serve_metrics(self.registry, config.prometheus_host, port)
            log.info("metrics at http://%s:%d/metrics", config.prometheus_host, self._server.port)
        if config.push_enabled:
            gateway = f"{config.pushgateway_host}:{config.pushgateway_port}"
            self._pusher = MetricsPusher(
                self.registry, gateway, config.job_name, address, config.push_interval_ms / 1e3
            )

    def show_store(self, task_manager: str, backend: str, stats: Callable[[], StoreStats]) -> None:
        """Show a job's store from now on, with the caches above it; ``stats`` is called at each scrape."""
        self._store_labels = (task_manager, backend)
        self._stores.add(task_manager, backend, lambda: self._with_caches(stats()))

    def show_caches(self, labels: SubtaskLabels, stats: Callable[[], StoreStats]) -> None:
        """Count the caches of a subtask's states to the store from now on; ``stats`` is called at each scrape."""
        self._caches[labels] = stats

    def hide_subtask(self, labels: SubtaskLabels) -> None:
        """Stop showing a subtask and counting its caches; unknown labels are ignored."""
        self.subtasks.remove(labels)
        self.latencies.remove(labels)
        self._caches.pop(labels, None)

    def _with_caches(self, store: StoreStats) -> StoreStats:
        caches = [stats() for stats in list(self._caches.values())]
        return replace(
            store,
            cache_hits=sum(each.cache_hits for each in caches),
            cache_misses=sum(each.cache_misses for each in caches),
            memory_bytes=store.memory_bytes + sum(each.memory_bytes for each in caches),
        )

    def hide_store(self) -> None:
        """Stop showing it; called before it is closed."""
        if self._store_labels is not None:
            self._stores.remove(*self._store_labels)
            self._store_labels = None

    def close(self) -> None:
        """Push a last time and stop serving."""
        if self._pusher is not None:
            self._pusher.close()
        if self._server is not None:
            self._server.close()
