"""The ``state`` benchmark: uniform updates of far more keys than the cache holds, counted exactly.

Two worker processes, as two task managers would be, each with half the key groups, its own RocksDB and a
running count per event whose cache holds a tenth of its keys. Filling the stores is not measured.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.state_worker import WorkerParameters, command_line
from weir.config.stores import RocksDbConfig
from weir.state.stores.rocksdb_settings import memory_bytes_max
from weir.state.tables.cells.slot_table import bytes_for_slots

CACHED_SHARE = 0.1
BARS = (Bar("events_per_second", "at least", 400_000), Bar("rss_above_bound_bytes_max", "at most", 300 << 20))
#: Tuned for updates of many small values: few, large runs to merge. Mapped are sixteen tables.
SETTINGS = RocksDbConfig(
    block_cache_bytes=128 << 20,
    write_buffer_bytes=32 << 20,
    write_buffer_count=4,
    write_buffer_total_bytes=128 << 20,
    compression="none",
    level_0_runs=6,
    max_open_files=26,
)
#: Length of ``server-N`` for most numbers below ten million.
_KEY_BYTES = 14


def run(
    events: int = 10_000_000,
    keys: int = 10_000_000,
    repeat: int = 1,
    *,
    workers: int = 2,
    batch_rows: int = 65_536,
    settings: RocksDbConfig = SETTINGS,
    reference_events: int = 100_000,
    directory: Path | None = None,
    on_progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run it ``repeat`` times on fresh stores below ``directory`` (default: a temporary one).

    Returns:
        What the JSON file of a benchmark holds (``benchmarks.results``).

    Raises:
        BenchmarkError: a worker failed, or a count is wrong.
    """
    cached_keys = int(keys / workers * CACHED_SHARE)
    cache_bytes = bytes_for_slots(cached_keys, _KEY_BYTES, cell_count=1)
    config = {
        "events": events,
        "keys": keys,
        "workers": workers,
        "batch_rows": batch_rows,
        "cached_keys_per_worker": cached_keys,
        "state_cache_bytes": cache_bytes,
        "memory_bound_bytes": cache_bytes + memory_bytes_max(settings),
        "rocksdb": settings.model_dump(),
    }
    repeats = []
    for number in range(repeat):
        with tempfile.TemporaryDirectory(prefix="weir-state-", dir=directory) as root:
            parameters = [
                WorkerParameters(
                    directory=str(Path(root) / str(index)),
                    worker_index=index,
                    worker_count=workers,
                    keys=keys,
                    events=events // workers,
                    batch_rows=batch_rows,
                    seed=number,
                    state_cache_bytes=cache_bytes,
                    rocksdb=settings.model_dump(),
                    reference_events=reference_events,
                )
                for index in range(workers)
            ]
            repeats.append(_run_once(parameters, cache_bytes + memory_bytes_max(settings), on_progress))
    return BenchmarkResult("state", config, repeats, BARS).as_json()


def _run_once(
    parameters: list[WorkerParameters], bound_bytes: int, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    processes = [
        subprocess.Popen(
            command_line(one), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for one in parameters
    ]
    try:
        on_progress("filling the stores")
        filled = [_figures(process) for process in processes]
        on_progress(f"{sum(one['keys'] for one in filled):,} keys stored; counting")
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        counted = [_figures(process) for process in processes]
        on_progress("comparing every count; running the reference")
        checked = [_figures(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return _merge(counted, checked, bound_bytes)


def _figures(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise BenchmarkError(
            f"a worker of the state benchmark ended early with code {process.wait()}; see its error"
        )
    figures: dict[str, Any] = json.loads(line)
    return figures


def _merge(counted: list[dict[str, Any]], checked: list[dict[str, Any]], bound_bytes: int) -> dict[str, Any]:
    events = sum(one["events"] for one in counted)
    rate = events / max(one["elapsed_s"] for one in counted)
    reference = sum(one["reference_events_per_second"] for one in checked)
    peak = max(one["peak_rss_bytes"] for one in counted)
    lost, duplicated = sum(one["lost"] for one in checked), sum(one["duplicated"] for one in checked)
    return {
        "events_per_second": rate,
        "cpu_seconds_per_million_events": sum(one["cpu_s"] for one in counted) / events * 1e6,
        "peak_rss_bytes_max": peak,
        "rss_above_bound_bytes_max": peak - bound_bytes,
        "lost": lost,
        "duplicated": duplicated,
        "reference": {
            "what": "one get and one put of rocksdict per event, default options, same stores",
            "events_per_second": reference,
        },
        "ratio_to_reference": rate / reference,
        "workers": counted,
    }
