"""What checkpoints cost: how long they take by size of the state, and the throughput with them beside that without."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_figures import change_figures, checkpoint_figures, steady_checkpoints
from benchmarks.engine_run import run_engine
from benchmarks.events_file import events_directory
from benchmarks.record_sink import read_records
from benchmarks.rescale import wait_finished
from benchmarks.rescale_figures import latencies, nothing_lost
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.state_load import JOB, SMALL_SHARE, StateLoad, StateOptions
from benchmarks.sustained import at_a_rate_that_lasts, check_keeps_up
from benchmarks.throughput import ThroughputOptions, engine_setup
from experiments.cluster import Cluster
from experiments.scaling import sleep_until_ms, wait_running

BARS = (
    Bar("throughput_ratio", "at least", 0.9),
    Bar("duration_ms", "at most", 1000),
    Bar("duration_ratio_to_small", "at most", 1.5),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
)
_INTERVAL = "controlPlane.checkpoint_interval_ms"
_POLL_S = 0.5
#: The control plane shows the latest 50 checkpoints: look before they are gone.
_LOOK_S = 5.0


@dataclass(frozen=True)
class CheckpointOptions(StateOptions):
    """Command-line options."""

    #: Of a throughput run; 0: none.
    events: int = 10_000_000
    #: Throughput runs of each kind.
    pairs: int = 5


def run(options: CheckpointOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run all parts ``repeat`` times.

    Raises:
        BenchmarkError: events are lost or doubled, or no checkpoint was made.
        ClusterError: a job did not finish.
    """
    runs = []
    for _ in range(options.repeat):
        figures = at_a_rate_that_lasts(
            options.rate, lambda rate: _under_load(replace(options, rate=rate).load(), report), report
        )
        if options.compare and figures["judged"]:
            small = _under_load(replace(options, rate=figures["rate"]).load(SMALL_SHARE), report)
            figures["duration_ratio_to_small"] = figures["duration_ms"] / max(small["duration_ms"], 1)
            figures["small"] = small
        if options.events:
            figures.update(_throughput(options, report))
        runs.append(figures)
    load = options.load()
    config = {
        "job": JOB,
        "state_bytes": options.state_bytes,
        "keys": load.keys,
        "payload_bytes": options.payload_bytes,
        "rate": options.rate,
        "duration_s": options.duration_s,
        "change_share": options.change_share,
        "rewrite_every": load.rewrite_every,
        _INTERVAL: options.interval_ms,
        "parallelism": options.parallelism,
        "task_managers": 2,
        "small_share": SMALL_SHARE if options.compare else None,
        "throughput_events": options.events,
        "throughput_pairs": options.pairs,
    }
    return BenchmarkResult(f"checkpoint_{options.state_bytes / 1e6:.0f}_mb", config, runs, BARS)


def _under_load(load: StateLoad, report: Callable[[str, float], None]) -> dict[str, Any]:
    """Checkpoints and latencies of the steady phase."""
    label = f"{load.state_bytes / 1e6:,.0f} MB of state"
    report(f"{label}: generating the input", 0.0)
    numbers = load.numbers()
    with tempfile.TemporaryDirectory(prefix="weir-checkpoint-") as name:
        output = Path(name) / "records"
        parameters = {**load.parameters(numbers), "output": output}
        settings = {_INTERVAL: load.interval_ms}
        with Cluster(Path(name) / "cluster", task_managers=2, settings=settings, poll_s=_POLL_S) as cluster:
            cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
            for _ in range(2):
                cluster.start_task_manager()
            started_ms = wait_running(cluster)["started_ms"]
            report(f"{label}: writing it through the job", 0.1)
            start_ms = started_ms + 1e3 * load.steady_s
            sleep_until_ms(start_ms)
            check_keeps_up(cluster, load.rate)
            report(f"{label}: steady load", 0.5)
            stop_ms = start_ms + 1e3 * load.duration_s
            found = _collect(cluster, stop_ms)
            report(f"{label}: the end", 0.9)
            wait_finished(cluster, load.timeout_s)
            # What was in flight at the last look has ended.
            found |= _look(cluster)
            peaks = {key: process.peak_rss_bytes for key, process in cluster.processes.items()}
        records = read_records(output)
    checked = nothing_lost(records, numbers)
    checkpoints = steady_checkpoints(list(found.values()), start_ms, stop_ms)
    return {
        **checkpoint_figures(checkpoints),
        **change_figures(records, checkpoints, load.payload_bytes, load.keys, load.rewrite_every),
        **latencies(records, round(1e3 * start_ms), round(1e3 * stop_ms)),
        **checked,
        "peak_rss_bytes_max": max(peaks.values()),
    }


def _look(cluster: Cluster) -> dict[int, dict[str, Any]]:
    return {int(item["id"]): item for item in cluster.http("GET", "/checkpoints")[1]}


def _collect(cluster: Cluster, stop_ms: float) -> dict[int, dict[str, Any]]:
    """Checkpoints by id, until that wall clock."""
    found = _look(cluster)
    while (now_ms := time.time() * 1e3) < stop_ms:
        sleep_until_ms(min(now_ms + 1e3 * _LOOK_S, stop_ms))
        found |= _look(cluster)
    return found


def _throughput(options: CheckpointOptions, report: Callable[[str, float], None]) -> dict[str, Any]:
    """The throughput benchmark's job with checkpoints and without, in turn."""
    throughput = ThroughputOptions(events=options.events, data_root=options.data_root)
    report("throughput: generating the input", 0.0)
    source = events_directory(throughput.events, throughput.keys, root=throughput.data_root)
    setup = engine_setup(throughput, source)
    rates: dict[int, list[float]] = {options.interval_ms: [], 0: []}
    made: list[int] = []
    for pair in range(options.pairs):
        # Whichever comes first finds the machine in another state: they take turns.
        for interval_ms in sorted(rates, reverse=pair % 2 == 0):
            report(f"throughput: pair {pair + 1} of {options.pairs}, checkpoints every {interval_ms} ms", 0.0)
            with tempfile.TemporaryDirectory(prefix="weir-throughput-") as name:
                settings = {**setup.settings, _INTERVAL: interval_ms}
                engine = run_engine(replace(setup, settings=settings), Path(name) / "cluster")
            if engine.events_in != options.events:
                raise BenchmarkError(f"{engine.events_in} events read, {options.events} expected")
            rates[interval_ms].append(engine.events_in / engine.sustained_s)
            if interval_ms:
                made.append(int(engine.status["latest_checkpoint"] or 0))
    with_checkpoints, without = (statistics.median(values) for values in rates.values())
    return {
        "throughput_ratio": with_checkpoints / without,
        "throughput": {
            "events_per_second_with_checkpoints": with_checkpoints,
            "events_per_second_without": without,
            "checkpoints_per_run": statistics.median(made),
            "with_checkpoints": rates[options.interval_ms],
            "without": rates[0],
        },
    }
