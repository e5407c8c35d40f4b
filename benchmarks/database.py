"""Counts in a real Cassandra here: beside what the client alone reads, beside RocksDB, and when disturbed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.database_client import client_reads, warm_up
from benchmarks.database_ranges import latencies
from benchmarks.database_states import rows_per_second
from benchmarks.engine_run import EngineRun, EngineSetup, run_engine
from benchmarks.loaded_job import LoadedJob
from benchmarks.recovery import killed
from benchmarks.rescale import rescaled
from benchmarks.rescale_figures import nothing_lost
from benchmarks.rescale_input import ZIPF, input_directory, key_numbers, repeated_directory, whole_parts
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.sustained import at_a_rate_that_lasts
from experiments.ports import free_port
from services import cassandra

JOB, STAGE = "benchmarks.rescale_job", 1
BARS = (
    Bar("ratio_to_client", "at least", 0.7),
    Bar("ratio_to_rocksdb", "at least", 0.8),
    Bar("first_output_ms", "at most", 3000),
    Bar("output_gap_ms_max", "at most", 100),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
    Bar("range_ms_max", "at most", 100),
)
#: What is measured, in this order.
PARTS = ("speed", "full_cache", "disturbed", "states", "ranges")
_MAX_PARALLELISM = 128
#: Of the counts' cache, for each key: slot, index entry and the bytes of the key.
_CACHE_BYTES_PER_KEY = 96
_CACHE_BYTES_MIN = 1 << 20
_TASK_MANAGERS = 2


@dataclass(frozen=True)
class DatabaseOptions:
    """Command-line options."""

    events: int = 5_000_000
    keys: int = 1_000_000
    #: Part of the keys that the cache holds.
    cached_share: float = 0.1
    #: Offered while a task manager is killed, and while a stage is scaled.
    rate: float = 20_000
    duration_s: float = 30
    #: How often the events are counted with a cache for all keys: for as long as all keys are written about once, at
    #: the pace at which changes are written (``taskManager.cassandra.apply_pause_ms_max``).
    times: int = 80
    #: Of the job that reads versions, windows and sessions.
    state_rows: int = 20_000
    parts: tuple[str, ...] = PARTS
    repeat: int = 1


def check_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Names of parts, as they were given.

    Raises:
        BenchmarkError: there is no such part.
    """
    if unknown := set(names) - set(PARTS):
        raise BenchmarkError(f"there is no part {min(unknown)!r}; there are {', '.join(PARTS)}")
    return tuple(names)


@dataclass(frozen=True)
class Steady:
    """What was seen between the first event after one of every key and the last one."""

    events_per_second: float
    #: Of the job's processes, and of the database.
    cpu_s_per_million: float
    database_cpu_s_per_million: float


def run(options: DatabaseOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Start a database, then measure ``repeat`` times.

    Raises:
        BenchmarkError: events are lost or doubled.
        ServiceError: there is no Java or no Maven.
    """
    directory = Path(tempfile.mkdtemp(prefix="weir-cassandra-"))
    try:
        report("starting Cassandra", 0.0)
        port = free_port()
        cassandra.start(directory / "node", port=port, storage_port=free_port(), heap="2g")
        settings: dict[str, object] = {
            "taskManager.state_backend": "cassandra",
            "taskManager.cassandra.port": port,
        }
        runs = []
        for number in range(options.repeat):
            place = directory / str(number)
            bench = _Bench(options, directory / "node", port, settings, report)
            figures: dict[str, Any] = {}
            if "speed" in options.parts:
                figures |= bench.speed(place / "speed")
            if "full_cache" in options.parts:
                figures |= bench.full_cache(place / "full_cache")
            if "states" in options.parts:
                report("versions, windows and sessions", 0.0)
                figures |= rows_per_second(options.state_rows, settings, place / "states")
            if "ranges" in options.parts:
                figures |= latencies(settings, place / "ranges", report)
            if "disturbed" in options.parts:
                figures |= at_a_rate_that_lasts(
                    options.rate,
                    lambda rate, place=place: _disturbed(  # type: ignore[misc]
                        replace(options, rate=rate), settings, place / f"{rate:.0f}", report
                    ),
                    report,
                )
            runs.append(figures)
    finally:
        cassandra.stop(directory / "node", wipe=True)
        shutil.rmtree(directory, ignore_errors=True)
    config = {
        "job": JOB,
        "events": options.events,
        "keys": options.keys,
        "cached_share": options.cached_share,
        "zipf": ZIPF,
        "rate": options.rate,
        "times": options.times,
        "state_rows": options.state_rows,
    }
    measured = set[str]().union(*runs)
    return BenchmarkResult("cassandra", config, runs, tuple(bar for bar in BARS if bar.metric in measured))


@dataclass(frozen=True)
class _Bench:
    """Runs of the counts."""

    options: DatabaseOptions
    #: Of the database.
    directory: Path
    port: int
    settings: dict[str, object]
    report: Callable[[str, float], None]

    def speed(self, directory: Path) -> dict[str, Any]:
        """Events per second with a small cache, beside what the client reads alone."""
        keys, events = self.options.keys, self.options.events
        small = self.settings | _cache(keys * self.options.cached_share)
        engine, steady = self._count(small, directory, "a cache for some keys", 1)
        self.report("the client alone", 0.0)
        client = client_reads(keys, self.port, _MAX_PARALLELISM)
        seen = engine.cache_hits + engine.cache_misses
        # The first event of a key misses in any case: it is before what is measured.
        missed = max(engine.cache_misses - keys, 0) / events if seen else 1.0
        rate = steady.events_per_second
        return {
            **engine.figures(),
            "events_per_second": rate,
            "missed_share": missed,
            "client_single_reads_per_second": client["single"],
            "client_batched_reads_per_second": client["batched"],
            # What reads one by one allow; and those that the store makes, of many keys of one partition.
            "ratio_to_client": rate * missed / client["single"],
            "ratio_to_batched_client": rate * missed / client["batched"],
        }

    def full_cache(self, directory: Path) -> dict[str, Any]:
        """Events per second with a cache for all keys, beside those with RocksDB."""
        large = _cache(self.options.keys * 2)
        times = self.options.times
        self.report("the database gets warm", 0.0)
        warm_up(self.port, _MAX_PARALLELISM)
        full_run, full = self._count(
            self.settings | large, directory / "cassandra", "a cache for all keys", times
        )
        rocksdb_run, rocksdb = self._count(large, directory / "rocksdb", "RocksDB", times)
        return {
            # Between start and end of the job, when all changes are in the database.
            "full_cache_wall_s": full_run.wall_s,
            "rocksdb_wall_s": rocksdb_run.wall_s,
            "full_cache_events_per_second": full.events_per_second,
            "rocksdb_events_per_second": rocksdb.events_per_second,
            "ratio_to_rocksdb": full.events_per_second / rocksdb.events_per_second,
            # The job's processes have the CPU that the database leaves them, here on the same machine.
            "full_cache_cpu_s_per_million": full.cpu_s_per_million,
            "rocksdb_cpu_s_per_million": rocksdb.cpu_s_per_million,
            "database_cpu_s_per_million": full.database_cpu_s_per_million,
            "ratio_to_rocksdb_by_cpu": rocksdb.cpu_s_per_million / full.cpu_s_per_million,
            "ratio_to_rocksdb_by_all_cpu": rocksdb.cpu_s_per_million
            / (full.cpu_s_per_million + full.database_cpu_s_per_million),
        }

    def _count(
        self, settings: dict[str, object], directory: Path, label: str, times: int
    ) -> tuple[EngineRun, Steady]:
        """Count one event of every key, then the skewed ones; what was seen of the latter."""
        keys, events = self.options.keys, self.options.events
        numbers = key_numbers(keys, events, "zipf")
        source = input_directory(numbers, f"zipf-{keys}-then-{events}")
        if times > 1:
            source = repeated_directory(source, keys, times)
        # Lines that share a part with the first event of every key come once.
        expected = len(numbers) + (len(numbers) - whole_parts(keys)) * (times - 1)
        #: Monotonic seconds, events, CPU seconds of the database.
        looks: list[tuple[float, int, float]] = []
        ((node, _, _),) = cassandra.states(self.directory)
        database = psutil.Process(node.pid)

        def look(seen: int) -> None:
            spent = database.cpu_times()
            looks.append((time.monotonic(), seen, spent.user + spent.system))
            self.report(label, seen / expected)

        setup = EngineSetup(
            JOB,
            {"input": source, "parallelism": 2, "max_parallelism": _MAX_PARALLELISM},
            task_managers=_TASK_MANAGERS,
            settings=settings,
            measures_state=True,
            timeout_s=900,
        )
        engine = run_engine(setup, directory, look)
        if engine.events_out != expected:
            raise BenchmarkError(f"{label}: {engine.events_out} of {expected} events")
        first = next(look for look in looks if look[1] >= keys)
        last = next(look for look in looks if look[1] == looks[-1][1])
        millions = (last[1] - first[1]) / 1e6
        cpu_s = [
            spent for moment_s, spent in engine.cpu_samples if first[0] - 0.2 <= moment_s <= last[0] + 0.2
        ]
        return engine, Steady(
            (last[1] - first[1]) / max(last[0] - first[0], 1e-3),
            (cpu_s[-1] - cpu_s[0]) / millions,
            (last[2] - first[2]) / millions,
        )


def _cache(keys: float) -> dict[str, object]:
    size = int(keys * _CACHE_BYTES_PER_KEY / _TASK_MANAGERS)
    return {"taskManager.state_cache_bytes": max(_CACHE_BYTES_MIN, size)}


def _disturbed(
    options: DatabaseOptions,
    settings: dict[str, object],
    directory: Path,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    """A kill -9 of the task manager with the state, and a rescale, each under steady load after the prefill."""
    later = round(options.rate * options.duration_s)
    numbers = key_numbers(options.keys, later, "zipf")
    fill_s = options.keys / options.rate
    load = LoadedJob(
        job=JOB,
        parameters={
            "input": input_directory(numbers, f"zipf-{options.keys}-then-{later}"),
            "rate": options.rate,
            "payload_bytes": 0,
            "parallelism": 1,
            "max_parallelism": _MAX_PARALLELISM,
        },
        rate=options.rate,
        stage=STAGE,
        max_parallelism=_MAX_PARALLELISM,
        keys=options.keys,
        steady_s=fill_s + options.duration_s / 4,
        timeout_s=300 + len(numbers) / options.rate * 3,
        check=lambda records: nothing_lost(records, numbers),
    )
    small = settings | _cache(options.keys * options.cached_share)
    recovery = killed(load, options.duration_s / 6, "kill -9", report, small)
    scaling = rescaled(load, 2, options.duration_s / 6, small, directory / "rescale", "rescale", report)
    return {
        "first_output_ms": recovery["first_output_ms"],
        "output_gap_ms_max": scaling["output_gap_ms_max"],
        "lost": recovery["lost"] + scaling["lost"],
        "duplicated": recovery["duplicated"] + scaling["duplicated"],
        "recovery": recovery,
        "rescale": scaling,
    }
