"""What certificates cost: throughput and latency with and without them, in turn, with rows by TCP in both cases."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.latency import percentiles, read_latencies, without_warm_up
from benchmarks.results import Bar
from weir.security.certificates import initialise, now

BARS = (Bar("tls_throughput_ratio", "at least", 0.7), Bar("tls_p99_ratio", "at most", 1.5))
_JOB, _KEYS, _DAYS = "jobs.throughput", 100_000, 2
_LOOK_S = 0.5


@dataclass(frozen=True)
class EncryptionOptions:
    """Command-line options."""

    #: Pairs of runs.
    turns: int = 3
    events: int = 10_000_000
    rate: float = 10_000
    duration_s: float = 20
    data_root: Path = DATA_DIRECTORY


def measure(options: EncryptionOptions, report: Callable[[str, float], None]) -> dict[str, Any]:
    """Run each job ``turns`` times with and without; ratios are of the medians.

    Raises:
        ClusterError: a job did not finish.
    """
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="weir-tls-") as name:
        directory = Path(name)
        initialise(directory / "security", [], _DAYS, now())
        certified: dict[str, object] = {"security.directory": str(directory / "security")}
        fast = events_directory(options.events, _KEYS, root=options.data_root)
        paced = events_directory(int(options.rate * options.duration_s), _KEYS, root=options.data_root)
        for turn in range(options.turns):
            # The second of two is not always the same one.
            kinds = [("plain", {}), ("tls", certified)][:: 1 if turn % 2 == 0 else -1]
            for kind, settings in kinds:
                report(f"turn {turn + 1} of {options.turns}: {kind}", turn / options.turns)
                place = directory / f"{kind}-{turn}"
                speed = _throughput(fast, place / "speed", settings)
                figures.setdefault(f"{kind}_events_per_second", []).append(speed)
                late = _p99_ms(paced, place / "latency", settings, options.rate)
                figures.setdefault(f"{kind}_p99_ms", []).append(late)
    medians = {key: statistics.median(values) for key, values in figures.items()}
    return {
        "tls_throughput_ratio": medians["tls_events_per_second"] / medians["plain_events_per_second"],
        "tls_p99_ratio": medians["tls_p99_ms"] / medians["plain_p99_ms"],
        **medians,
    }


def _setup(source: Path, settings: dict[str, object], **parameters: object) -> EngineSetup:
    return EngineSetup(
        _JOB,
        {"input": source, "parallelism": 2, **parameters},
        task_managers=2,
        # By Unix sockets nothing would be encrypted.
        settings={"taskManager.operator_quota": 32, "taskManager.unix_sockets": "false", **settings},
        look_s=_LOOK_S,
    )


def _throughput(source: Path, place: Path, settings: dict[str, object]) -> float:
    engine = run_engine(_setup(source, settings, sink="blackhole"), place)
    return engine.events_in / engine.sustained_s


def _p99_ms(source: Path, place: Path, settings: dict[str, object], rate: float) -> float:
    run_engine(_setup(source, settings, rate=rate, sink="latency", output=place / "zout"), place / "cluster")
    return percentiles(without_warm_up(read_latencies(place / "zout")))["p99_ms"]
