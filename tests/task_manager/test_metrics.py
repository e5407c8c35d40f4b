"""What the metrics of a task manager say of its store: with the caches of all tables above it."""

from task_manager.metrics import TaskManagerMetrics
from weir.keys.hashing import KeyColumn, hash_keys
from weir.metrics import SubtaskLabels
from weir.state.layout import encode_key
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing import ManualClock

SHOWN = {"task_manager": "here:1", "backend": "memory"}


def test_caches_of_cells_and_values_are_counted_with_the_store():
    metrics = TaskManagerMetrics(ManualClock())
    store = MemoryBackend()
    tables = StateTables(store, 1 << 20, 16)
    declared = tables.of("step", {"cells": 1, "values": 2})
    cells, values = declared.cells(1, "cells"), declared.values("values")
    metrics.show_store("here:1", "memory", store.stats)
    labels = SubtaskLabels("job", 1, "step", 0)
    metrics.show_caches(labels, tables.stats)
    keys = KeyColumn.from_list([b"a", b"b"])
    for _ in range(2):
        cells.read(hash_keys(keys), keys.data, keys.offsets)
        values.get_stored([encode_key(0, values.state_id, name) for name in (b"a", b"b")])

    def shown(name):
        return metrics.registry.get_sample_value(f"weir_store_{name}", SHOWN)

    assert shown("cache_hits_total") == 4
    assert shown("cache_misses_total") == 4
    assert shown("memory_bytes") == store.stats().memory_bytes + tables.stats().memory_bytes
    metrics.hide_subtask(labels)
    assert shown("cache_hits_total") == 0
    metrics.hide_store()
    assert shown("cache_hits_total") is None
    metrics.close()
