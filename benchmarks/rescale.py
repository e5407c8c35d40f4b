"""A stage is scaled under load with a given amount of state: gaps and latencies at the sink, by state strategy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from benchmarks.events_file import DATA_DIRECTORY
from benchmarks.jitter import JitterProcess
from benchmarks.loaded_job import LoadedJob
from benchmarks.record_sink import read_records
from benchmarks.rescale_figures import around, nothing_lost
from benchmarks.rescale_input import input_directory, key_groups, key_numbers
from benchmarks.results import Bar, BenchmarkResult
from benchmarks.sustained import at_a_rate_that_lasts, check_keeps_up, check_quick
from experiments.cluster import FINAL_STATES, Cluster
from experiments.processes import ClusterError
from experiments.scaling import Rescale, rescale, sleep_until_ms, wait_running
from weir.errors import ConfigError

Strategy = Literal["local", "hybrid", "hybrid-no-cache", "migrate"]

JOB = "benchmarks.rescale_job"
#: The counts.
STAGE = 1
#: Configuration keys by strategy.
SETTINGS: dict[str, dict[str, object]] = {
    "local": {"taskManager.useHybrid": "false"},
    "hybrid": {"taskManager.useMigrate": "false"},
    "hybrid-no-cache": {"taskManager.useMigrate": "false", "taskManager.useCache": "false"},
    "migrate": {},
}
_BARS = {
    "local": (Bar("other_groups_gap_ms_max", "at most", 50),),
    "hybrid": (Bar("owned_ms", "at most", 100),),
    "hybrid-no-cache": (),
    "migrate": (
        Bar("output_gap_ms_max", "at most", 100),
        Bar("p99_during_ms", "at most", 60),
        Bar("migration_s", "at most", 30),
    ),
}
_NONE_LOST = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0))
_POLL_S = 0.5
_RESCALE_TIMEOUT_S = 300


@dataclass(frozen=True)
class RescaleOptions:
    """Command-line options."""

    strategy: Strategy = "migrate"
    #: Who counts, see ``rescale_job``.
    state: str = "count"
    state_bytes: float = 1e9
    payload_bytes: int = 1024
    rate: float = 50_000
    #: Offered from the end of the prefill on; the request comes ``before_s`` after ``settle_s``.
    duration_s: float = 60
    settle_s: float = 3
    before_s: float = 5
    scale_in: bool = False
    repeat: int = 1
    max_parallelism: int = 128
    data_root: Path = DATA_DIRECTORY

    @property
    def keys(self) -> int:
        """Each holds a payload of ``payload_bytes``; its key and count come on top."""
        return max(1, round(self.state_bytes / self.payload_bytes))

    @property
    def parallelism(self) -> tuple[int, int]:
        """Subtasks before and after."""
        return (2, 1) if self.scale_in else (1, 2)

    @property
    def prefill_s(self) -> float:
        """The first event of every key, at the given rate."""
        return self.keys / self.rate


def check_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        ConfigError: there is none.
    """
    for strategy in get_args(Strategy):
        if strategy == name:
            return cast(Strategy, strategy)
    raise ConfigError(f"--strategy {name}: there are {', '.join(get_args(Strategy))}")


def run(options: RescaleOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run it ``repeat`` times.

    Raises:
        BenchmarkError: events are lost or doubled.
        ClusterError: the job did not finish, or the rescale failed.
    """
    runs = [
        at_a_rate_that_lasts(
            options.rate,
            lambda rate, number=number: _one_run(  # type: ignore[misc]
                replace(options, rate=rate), f"run {number} of {options.repeat}", report
            ),
            report,
        )
        for number in range(1, options.repeat + 1)
    ]
    config = {
        **{key: value for key, value in asdict(options).items() if key not in ("data_root", "repeat")},
        "job": JOB,
        "keys": options.keys,
        "prefill_s": options.prefill_s,
        "from": options.parallelism[0],
        "to": options.parallelism[1],
        "task_managers": 2,
    }
    direction = "_in" if options.scale_in else ""
    whose = "" if options.state == "count" else f"_{options.state}"
    name = f"rescale{direction}{whose}_{options.strategy}_{options.state_bytes / 1e6:.0f}_mb"
    holds = () if options.state == "count" else (Bar("flush_hold_ms_max", "at most", 20),)
    return BenchmarkResult(name, config, runs, (*_BARS[options.strategy], *_NONE_LOST, *holds))


def _one_run(options: RescaleOptions, label: str, report: Callable[[str, float], None]) -> dict[str, Any]:
    report("generating the input", 0.0)
    later = round(options.rate * options.duration_s)
    numbers = key_numbers(options.keys, later, "uniform")
    source = input_directory(numbers, f"keys-{options.keys}-then-{later}", options.data_root)
    with tempfile.TemporaryDirectory(prefix="weir-rescale-") as name:
        load, settings = _load(options, source, numbers), SETTINGS[options.strategy]
        after = options.parallelism[1]
        return rescaled(load, after, options.before_s, settings, Path(name), label, report)


def _load(options: RescaleOptions, source: Path, numbers: np.ndarray) -> LoadedJob:
    parameters = {
        "input": source,
        "rate": options.rate,
        "payload_bytes": options.payload_bytes,
        "parallelism": options.parallelism[0],
        "max_parallelism": options.max_parallelism,
        "state": options.state,
    }
    return LoadedJob(
        job=JOB,
        parameters=parameters,
        rate=options.rate,
        stage=STAGE,
        max_parallelism=options.max_parallelism,
        keys=options.keys,
        steady_s=options.prefill_s + options.settle_s,
        timeout_s=120 + len(numbers) / options.rate * 3,
        check=lambda records: nothing_lost(records, numbers),
    )


def rescaled(
    load: LoadedJob,
    after: int,
    before_s: float,
    settings: Mapping[str, object],
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    """Run a job whose stage is scaled under load; returns the figures of the time around it.

    Args:
        load: the job.
        after: subtasks of its stage after the request, which comes so long after the begin of the steady load:
        before_s: what is compared with.
        settings: of the processes.
        directory: for stores, logs and records.
        label: of the run, for the report.
        report: is told what goes on.

    Raises:
        OverloadedError: the machine does not keep up with the rate, also before the request.
        BenchmarkError: events are lost or doubled.
        ClusterError: the job did not finish, or the rescale failed.
    """
    parameters = {**load.parameters, "output": directory / "records"}
    with Cluster(directory / "cluster", task_managers=2, settings=settings, poll_s=_POLL_S) as cluster:
        cluster.start_control_plane(load.job, parameters, exit_when_finished=False)
        for _ in range(2):
            cluster.start_task_manager()
        started_ms = wait_running(cluster)["started_ms"]
        report(f"{label}: writing the state through the job, {load.steady_s:.0f} s", 0.1)
        before_ms = started_ms + 1e3 * load.steady_s
        sleep_until_ms(before_ms)
        check_keeps_up(cluster, load.rate)
        report(f"{label}: steady load before the rescale", 0.4)
        jitter = JitterProcess(before_s + _RESCALE_TIMEOUT_S)
        try:
            sleep_until_ms(before_ms + 1e3 * before_s)
            check_keeps_up(cluster, load.rate)
            tables = [_owners(cluster, load.stage)]
            report(f"{label}: scaling to {after}", 0.6)
            done = rescale(cluster, load.stage, after, timeout_s=_RESCALE_TIMEOUT_S)
            tables.append(_owners(cluster, load.stage))
            stalls = jitter.finish()["stalls"]
        finally:
            jitter.close()
        report(f"{label}: steady load after the rescale", 0.8)
        status = wait_finished(cluster, load.timeout_s)
        peaks = {name: process.peak_rss_bytes for name, process in cluster.processes.items()}
    records = read_records(directory / "records")
    checked = load.check(records)
    moved = (tables[0] != tables[1])[key_groups(load.keys, load.max_parallelism)]
    times_us = [
        round(1e3 * moment) for moment in (before_ms, done.requested_ms, done.owned_ms, done.completed_ms)
    ]
    figures = around(records, moved, *times_us)
    check_quick(figures["before"])
    return {
        **figures,
        **_rescale_figures(done),
        "flush_hold_ms_max": flush_hold_ms_max(status, load.stage),
        **_stall_figures(stalls, 1e3 * done.requested_ms),
        "events": len(records),
        **checked,
        "peak_rss_bytes_max": max(peaks.values()),
        "peak_rss_bytes": peaks,
    }


def wait_finished(
    cluster: Cluster, timeout_s: float, on_status: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Wait until the job has finished; returns its last status.

    Raises:
        ClusterError: it failed, or did not finish in time.
    """
    status = cluster.wait_for(
        lambda status: status["state"] in FINAL_STATES, "the end of the job", timeout_s, on_status
    )
    if status["state"] != "FINISHED":
        raise ClusterError(f"the job failed: {status['cause']}\n{cluster.logs()}")
    return status


def _stall_figures(stalls: list[tuple[int, float]], requested_us: float) -> dict[str, float]:
    """The longest times for which the machine did not run a process that had slept, before the request and after."""
    before = [late_ms for end_us, late_ms in stalls if end_us < requested_us]
    after = [late_ms for end_us, late_ms in stalls if end_us >= requested_us]
    return {
        "machine_stall_before_ms_max": max(before, default=0.0),
        "machine_stall_ms_max": max(after, default=0.0),
    }


def flush_hold_ms_max(status: dict[str, Any], stage: int = STAGE) -> float:
    """The longest time for which rows of a stage waited while state was written or noted."""
    subtasks = status["stages"][stage]["subtasks"]
    return float(max(subtask["state_hold_ms_max"] for subtask in subtasks))


def _rescale_figures(done: Rescale) -> dict[str, Any]:
    report = done.report
    return {
        "rescale_ms": done.completed_ms - done.requested_ms,
        "owned_ms": done.owned_ms - done.requested_ms,
        "migration_s": (done.completed_ms - done.owned_ms) / 1e3,
        "phases": {f"{name.lower()}_ms": duration_ms for name, duration_ms in done.phases_ms().items()},
        "groups_moved": report["groups_total"],
        # Fewer than moved: the job ended before the migration did, which then took longer than is shown.
        "groups_complete": report["groups_migrated"],
        "moved_bytes": report["bytes_moved"],
    }


def _owners(cluster: Cluster, stage: int) -> np.ndarray:
    """Subtask index of every key group of the scaled stage."""
    tables = cluster.http("GET", "/routing")[1]
    return np.array(next(table["group_to_subtask"] for table in tables if table["stage"] == stage))
