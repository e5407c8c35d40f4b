"""Counts in a real Cassandra here: beside what the client alone reads, beside RocksDB, and when disturbed."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_run import EngineRun, EngineSetup, run_engine
from benchmarks.events_file import SEED
from benchmarks.loaded_job import LoadedJob
from benchmarks.recovery import killed
from benchmarks.rescale import rescaled
from benchmarks.rescale_figures import nothing_lost
from benchmarks.rescale_input import ZIPF, input_directory, key_numbers
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
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
)
_MAX_PARALLELISM = 128
#: Of the counts' cache, for each key: slot, index entry and the bytes of the key.
_CACHE_BYTES_PER_KEY = 96
_CACHE_BYTES_MIN = 1 << 20
_TASK_MANAGERS = 2
#: Keys that the client alone reads, at a time and in all.
_READ_KEYS, _READ_ROUNDS = 20_000, 10


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
    repeat: int = 1


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
            figures = _speed(options, port, settings, place / "speed", report)
            figures |= _disturbed(options, settings, place, report)
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
    }
    return BenchmarkResult("cassandra", config, runs, BARS)


def _speed(
    options: DatabaseOptions,
    port: int,
    settings: dict[str, object],
    directory: Path,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    """Events per second with a small cache, and with one for all keys beside RocksDB."""
    small = _cache(options.keys * options.cached_share)
    large = _cache(options.keys * 2)
    first, rate = _count(options, settings | small, directory / "small", "a cache for some keys", report)
    report("the client alone", 0.0)
    client = _client_reads(options.keys, port)
    _, full = _count(options, settings | large, directory / "full", "a cache for all keys", report)
    _, rocksdb = _count(options, large, directory / "rocksdb", "RocksDB", report)
    seen = first.cache_hits + first.cache_misses
    # The first event of a key misses in any case: it is before what is measured.
    misses = max(first.cache_misses - options.keys, 0)
    missed = misses / options.events if seen else 1.0
    return {
        **first.figures(),
        "events_per_second": rate,
        "missed_share": missed,
        "client_single_reads_per_second": client["single"],
        "client_batched_reads_per_second": client["batched"],
        # What reads one by one allow; and those that the store makes, of many keys of one partition.
        "ratio_to_client": rate * missed / client["single"],
        "ratio_to_batched_client": rate * missed / client["batched"],
        "full_cache_events_per_second": full,
        "rocksdb_events_per_second": rocksdb,
        "ratio_to_rocksdb": full / rocksdb,
    }


def _cache(keys: float) -> dict[str, object]:
    size = int(keys * _CACHE_BYTES_PER_KEY / _TASK_MANAGERS)
    return {"taskManager.state_cache_bytes": max(_CACHE_BYTES_MIN, size)}


def _count(
    options: DatabaseOptions,
    settings: dict[str, object],
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> tuple[EngineRun, float]:
    """Count one event of every key, then the skewed ones; returns the run, and their events per second."""
    numbers = key_numbers(options.keys, options.events, "zipf")
    source = input_directory(numbers, f"zipf-{options.keys}-then-{options.events}")
    looks: list[tuple[float, int]] = []

    def look(events: int) -> None:
        looks.append((time.monotonic(), events))
        report(label, events / len(numbers))

    setup = EngineSetup(
        JOB,
        {"input": source, "parallelism": 2, "max_parallelism": _MAX_PARALLELISM},
        task_managers=_TASK_MANAGERS,
        settings=settings,
        measures_state=True,
        timeout_s=900,
    )
    engine = run_engine(setup, directory, look)
    if engine.events_out != len(numbers):
        raise BenchmarkError(f"{label}: {engine.events_out} of {len(numbers)} events")
    steady = [(moment_s, events) for moment_s, events in looks if options.keys <= events]
    (began_s, before), (ended_s, after) = steady[0], steady[-1]
    done = next(moment_s for moment_s, events in steady if events == after)
    return engine, (after - before) / max(min(done, ended_s) - began_s, 1e-3)


def _client_reads(keys: int, port: int) -> dict[str, float]:
    """Rows per second that the client library reads of the counts, alone: each by itself, and as the store does."""
    from weir.protocol.database_run import DatabaseRun
    from weir.state.cassandra.schema import state_tables
    from weir.state.cassandra.session import leave_session, open_session
    from weir.state.cassandra.settings import CassandraSettings
    from weir.state.cassandra.tables import DatabaseTables
    from weir.state.layout import encode_key

    chance = random.Random(SEED)
    rates = {}
    for kind, read_keys, in_flight in (("single", 1, 256), ("batched", 64, 32)):
        settings = CassandraSettings(port=port, read_keys_max=read_keys, requests_in_flight_max=in_flight)
        session = open_session(settings)
        try:
            tables = state_tables("rescale", {"count": 0}, settings)
            rows = DatabaseTables(session, DatabaseRun("client"), tables)
            rows.create()
            listed = [
                encode_key(number % _MAX_PARALLELISM, 0, b"server-%d" % number) for number in range(keys)
            ]
            if kind == "single":
                for start in range(0, keys, _READ_KEYS):
                    rows.write([(key, bytes(10)) for key in listed[start : start + _READ_KEYS]], 1)
            began_s = time.monotonic()
            for _ in range(_READ_ROUNDS):
                found = rows.get_many(chance.sample(listed, min(_READ_KEYS, keys)))
                if None in found:
                    raise BenchmarkError("the client does not find rows that it has written")
            rates[kind] = _READ_ROUNDS * min(_READ_KEYS, keys) / (time.monotonic() - began_s)
        finally:
            leave_session(session)
    return rates


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
