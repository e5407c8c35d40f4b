"""Throughput after scaling with half of the keys at a peer (hybrid, no migration), beside the all-local run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.events_file import DATA_DIRECTORY
from benchmarks.rescale import JOB, SETTINGS, STAGE, wait_finished
from benchmarks.rescale_input import ZIPF, Distribution, input_directory, key_numbers
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts
from experiments.cluster import Cluster
from experiments.scaling import rescale, wait_running
from weir.state.tables.cells.slot_table import bytes_for_slots

#: Share of the keys that a subtask owns after scaling for which its cache has room.
CACHE_SHARE = 0.25
_LABELS: dict[Distribution, str] = {"uniform": "uniform", "zipf": f"zipf_{ZIPF:g}".replace(".", "_")}
_RATIO_BARS: dict[Distribution, float] = {"uniform": 0.6, "zipf": 0.9}
#: Share of the events after which scaling is asked for, and those between which throughput is measured.
_SCALE_SHARE, _FROM_SHARE, _TO_SHARE = 0.2, 0.4, 0.95
_POLL_S = 0.2


@dataclass(frozen=True)
class SteadyOptions:
    """Command-line options."""

    keys: int = 1_000_000
    #: After the first one of each key.
    events: int = 8_000_000
    repeat: int = 1
    data_root: Path = DATA_DIRECTORY

    @property
    def cache_bytes(self) -> int:
        """Bound of each task manager's cache: a quarter of the keys that its subtask owns after scaling."""
        key_bytes = len(f"server-{self.keys}")
        return bytes_for_slots(round(self.keys / 2 * CACHE_SHARE), key_bytes, 1)


def run(options: SteadyOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run hybrid and local, uniform and Zipf, ``repeat`` times.

    Raises:
        BenchmarkError: counts are wrong, or a run was too short.
        ClusterError: a job did not finish, or a rescale failed.
    """
    runs = []
    for number in range(1, options.repeat + 1):
        figures: dict[str, Any] = {}
        for distribution, label in _LABELS.items():
            numbers = key_numbers(options.keys, options.events, distribution)
            name = f"steady-{distribution}-keys-{options.keys}-then-{options.events}"
            source = input_directory(numbers, name, options.data_root)
            rates = {}
            for strategy in ("local", "hybrid"):
                report(f"run {number} of {options.repeat}: {label}, {strategy}", 0.0)
                rates[strategy] = _one_run(options, strategy, source, numbers)
            figures[f"{label}_ratio_to_local"] = rates["hybrid"] / rates["local"]
            figures[label] = {f"{key}_events_per_second": value for key, value in rates.items()}
        runs.append({**figures, "lost": 0, "duplicated": 0})
    config = {
        "job": JOB,
        "keys": options.keys,
        "events": options.keys + options.events,
        "cache_share": CACHE_SHARE,
        "taskManager.state_cache_bytes": options.cache_bytes,
        "from": 1,
        "to": 2,
        "task_managers": 2,
    }
    bars = [Bar(f"{_LABELS[name]}_ratio_to_local", "at least", bound) for name, bound in _RATIO_BARS.items()]
    return BenchmarkResult("rescale_steady", config, runs, bars)


def _one_run(options: SteadyOptions, strategy: str, source: Path, numbers: np.ndarray) -> float:
    """Events per second after scaling 1 -> 2, as fast as possible."""
    samples: list[tuple[float, int]] = []
    settings = {**SETTINGS[strategy], "taskManager.state_cache_bytes": options.cache_bytes}
    with tempfile.TemporaryDirectory(prefix="weir-steady-") as name:
        directory = Path(name)
        with Cluster(directory, task_managers=2, settings=settings, poll_s=_POLL_S) as cluster:
            cluster.start_control_plane(JOB, {"input": source}, exit_when_finished=False)
            for _ in range(2):
                cluster.start_task_manager()
            wait_running(cluster)
            scale_at = _SCALE_SHARE * len(numbers)
            cluster.wait_for(lambda status: _events_out(status) >= scale_at, "a part of the events", 300)
            done = rescale(cluster, STAGE, 2, timeout_s=300)

            def sample(status: dict[str, Any]) -> None:
                samples.append((status["totals"]["last_event_ms"] or 0, _events_out(status)))

            wait_finished(cluster, 600, sample)
        expected = np.bincount(numbers)
        names = pl.DataFrame({"key": np.flatnonzero(expected)}).select(
            pl.concat_str(pl.lit("server-"), pl.col("key")).alias("server_name")
        )
        frame = names.with_columns(count=pl.Series(expected[expected > 0], dtype=pl.Int64))
        compare_counts(frame, stored_counts(directory)).check(f"final counts, strategy {strategy}")
    low = max(_FROM_SHARE * len(numbers), 1)
    window = [
        (time_ms, events)
        for time_ms, events in samples
        if low <= events <= _TO_SHARE * len(numbers) and time_ms > done.completed_ms
    ]
    if len(window) < 2 or window[-1][0] <= window[0][0]:
        raise BenchmarkError(f"strategy {strategy}: the rescale took up the whole run; give more --events")
    return (window[-1][1] - window[0][1]) / (window[-1][0] - window[0][0]) * 1e3


def _events_out(status: dict[str, Any]) -> int:
    return int(status["totals"]["events_out"])
