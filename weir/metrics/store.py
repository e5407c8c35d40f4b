"""Metrics per state store, read from its own statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from weir.metrics import definitions as d
from weir.types import StoreStats

_ATTRIBUTES = {
    d.STORE_GETS: "gets",
    d.STORE_PUTS: "puts",
    d.STORE_DELETES: "deletes",
    d.STORE_CACHE_HITS: "cache_hits",
    d.STORE_CACHE_MISSES: "cache_misses",
    d.STORE_MEMORY: "memory_bytes",
    d.STORE_DISK: "disk_bytes",
    d.STORE_AWAY: "away_s",
    d.STORE_WAITING: "waiting_checkpoints",
    d.STORE_REQUESTS: "requests",
    d.STORE_REQUESTS_TIME: "requests_s",
}
_TABLE_ATTRIBUTES = {
    d.STORE_TABLES: "total_bytes",
    d.STORE_KEYS: "keys",
    d.STORE_MEMORY_TABLES: "memory_table_bytes",
    d.STORE_LEVEL_0: "level_0_files",
    d.STORE_PENDING: "pending_merge_bytes",
    d.STORE_MERGES: "running_merges",
    d.STORE_FLUSHES: "running_flushes",
    d.STORE_ERRORS: "background_errors",
    d.STORE_STALLS: "stalls",
    d.STORE_STALL_TIME: "stall_s",
    d.STORE_GET_TIME: "get_s",
    d.STORE_WRITE_TIME: "write_s",
    d.STORE_SCANS: "scans",
    d.STORE_SCAN_TIME: "scan_s",
    d.STORE_MERGE_TIME: "merge_s",
    d.STORE_MERGED: "merged_bytes",
}


class StoreMetrics(Collector):
    """Metrics of the stores of one process. Any thread may add and remove stores."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, str], Callable[[], StoreStats]] = {}
        registry.register(self)

    def add(self, task_manager: str, backend: str, read_stats: Callable[[], StoreStats]) -> None:
        """Show a store from now on.

        Args:
            task_manager: its address, ``host:port``.
            backend: ``rocksdb`` or ``memory``.
            read_stats: usually ``store.stats``; called once per scrape, from another thread.
        """
        with self._lock:
            self._stores[task_manager, backend] = read_stats

    def remove(self, task_manager: str, backend: str) -> None:
        """Stop showing a store; call it before the store is closed."""
        with self._lock:
            self._stores.pop((task_manager, backend), None)

    def describe(self) -> list[Metric]:
        """Families without samples, so that registering reads nothing."""
        definitions = (*_ATTRIBUTES, *_TABLE_ATTRIBUTES, d.STORE_BLOCK_CACHE)
        return [definition.family() for definition in definitions]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape; holds the lock, so that no store is closed meanwhile."""
        with self._lock:
            read = [(labels, read_stats()) for labels, read_stats in self._stores.items()]
        for definition, attribute in _ATTRIBUTES.items():
            family = definition.family()
            for labels, stats in read:
                family.add_metric(labels, getattr(stats, attribute))
            yield family
        for definition, attribute in _TABLE_ATTRIBUTES.items():
            family = definition.family()
            for labels, stats in read:
                if stats.tables is not None:
                    family.add_metric(labels, getattr(stats.tables, attribute))
            yield family
        family = d.STORE_BLOCK_CACHE.family()
        for labels, stats in read:
            for kind_and_result, count in ({} if stats.tables is None else stats.tables.cache_looks).items():
                family.add_metric((*labels, *kind_and_result), count)
        yield family
