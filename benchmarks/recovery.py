"""Kill -9 of the task manager that holds the state, a standby beside it: time to the first output and to caught up."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaded_job import LoadedJob
from benchmarks.record_sink import read_records
from benchmarks.rescale import flush_hold_ms_max, wait_finished
from benchmarks.rescale_figures import latencies, nothing_lost, recovered_ms
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.state_load import JOB, SMALL_SHARE, STAGE, StateLoad, StateOptions
from benchmarks.sustained import at_a_rate_that_lasts, check_keeps_up, check_quick
from experiments.cluster import Cluster
from experiments.processes import ClusterError, WeirProcess
from experiments.s3_server import s3_server, uri_of
from experiments.scaling import sleep_until_ms, wait_running

BARS = (
    Bar("first_output_ms", "at most", 3000),
    Bar("caught_up", "at least", 1),
    Bar("caught_up_ms", "at most", 15_000),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
    Bar("first_output_ratio_to_small", "at most", 1.25),
)
#: Of a user's state.
HOLD_BAR = Bar("flush_hold_ms_max", "at most", 20)
SETTINGS = {
    "controlPlane.checkpoint_interval_ms": 1000,
    "controlPlane.lease_timeout_ms": 1000,
    "controlPlane.heartbeat_interval_ms": 200,
}
_POLL_S = 0.2


@dataclass(frozen=True)
class RecoveryOptions(StateOptions):
    """Command-line options."""

    #: Offered from ``settle_s`` after the prefill on; the kill comes ``before_s`` later.
    duration_s: float = 45
    before_s: float = 5
    #: All of the state is lost at once.
    parallelism: int = 1
    interval_ms: int = SETTINGS["controlPlane.checkpoint_interval_ms"]
    #: Checkpoints go to an S3 server of this machine that waits for so long with each request; None: to its disk.
    s3_delay_ms: float | None = None
    #: Task managers that keep the state of the one that is killed.
    standby_replicas: int = 0


@dataclass(frozen=True)
class _Kill:
    """What is known of it."""

    #: Wall clocks, µs since the epoch: begin of the time that is compared with, the kill itself.
    before_us: int
    killed_us: int
    #: Before it.
    generation: int
    #: From the kill to seeing the job run again.
    running_ms: float
    #: What its standbys had not got of the latest checkpoint that they knew of; None: there was none.
    lag_bytes: int | None


def run(options: RecoveryOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Kill ``repeat`` times, each in a run of its own.

    Raises:
        BenchmarkError: events are lost or doubled, or nothing came after the kill.
        ClusterError: a job did not go on or did not finish.
    """
    runs = []
    for _ in range(options.repeat):
        figures = at_a_rate_that_lasts(
            options.rate,
            lambda rate: _one_run(replace(options, rate=rate).load(), options, report),
            report,
        )
        if options.compare and figures["judged"]:
            small_load = replace(options, rate=figures["rate"]).load(SMALL_SHARE)
            small = _one_run(small_load, options, report)
            figures["first_output_ratio_to_small"] = figures["first_output_ms"] / small["first_output_ms"]
            figures["small"] = small
        runs.append(figures)
    config = {
        "job": JOB,
        "state": options.state,
        "state_bytes": options.state_bytes,
        "keys": options.load().keys,
        "payload_bytes": options.payload_bytes,
        "rate": options.rate,
        "duration_s": options.duration_s,
        "before_s": options.before_s,
        "change_share": options.change_share,
        **SETTINGS,
        "parallelism": 1,
        "task_managers": "2 and a standby",
        "small_share": SMALL_SHARE if options.compare else None,
        "s3_delay_ms": options.s3_delay_ms,
        "standby_replicas": options.standby_replicas,
    }
    whose = "" if options.state == "count" else f"_{options.state}"
    where = "" if options.s3_delay_ms is None else "_s3_standby" if options.standby_replicas else "_s3"
    name = f"recovery{whose}{where}_{options.state_bytes / 1e6:.0f}_mb"
    return BenchmarkResult(name, config, runs, BARS if options.state == "count" else (*BARS, HOLD_BAR))


def _one_run(
    load: StateLoad, options: RecoveryOptions, report: Callable[[str, float], None]
) -> dict[str, Any]:
    label = f"{load.state_bytes / 1e6:,.0f} MB of state"
    report(f"{label}: generating the input", 0.0)
    numbers = load.numbers()
    job = LoadedJob(
        job=JOB,
        parameters=load.parameters(numbers),
        rate=load.rate,
        stage=STAGE,
        max_parallelism=128,
        keys=load.keys,
        steady_s=load.steady_s,
        timeout_s=load.timeout_s,
        check=lambda records: nothing_lost(records, numbers),
    )
    settings: dict[str, object] = {"controlPlane.standby_replicas": options.standby_replicas}
    if options.s3_delay_ms is None:
        return killed(job, options.before_s, label, report, settings)
    with s3_server(options.s3_delay_ms) as port:
        settings["controlPlane.checkpoint_uri"] = uri_of(port)
        return killed(job, options.before_s, label, report, settings)


def killed(
    load: LoadedJob,
    before_s: float,
    label: str,
    report: Callable[[str, float], None],
    settings: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Run a job whose task manager with the state is killed; returns the figures of the time around it.

    Args:
        load: the job; its stage has one subtask.
        before_s: from the begin of the steady load to the kill.
        label: of the run, for the report.
        report: is told what goes on.
        settings: of the processes, besides those of all recoveries.

    Raises:
        OverloadedError: the machine does not keep up with the rate, also before the kill.
        BenchmarkError: events are lost or doubled, or nothing came after the kill.
        ClusterError: the job did not go on or did not finish.
    """
    with tempfile.TemporaryDirectory(prefix="weir-recovery-") as name:
        output = Path(name) / "records"
        parameters = {**load.parameters, "output": output}
        with Cluster(
            Path(name) / "cluster", task_managers=2, settings=SETTINGS | dict(settings or {}), poll_s=_POLL_S
        ) as cluster:
            cluster.start_control_plane(load.job, parameters, exit_when_finished=False)
            for _ in range(2):
                cluster.start_task_manager()
            started_ms = wait_running(cluster)["started_ms"]
            cluster.start_task_manager("standby")
            report(f"{label}: writing it through the job", 0.1)
            cluster.wait_for(lambda status: len(status["task_managers"]) == 3, "the standby")
            # Whatever the standby took.
            before_ms = max(started_ms + 1e3 * load.steady_s, time.time() * 1e3)
            sleep_until_ms(before_ms)
            report(f"{label}: steady load before the kill", 0.4)
            # Its rate is bounded, so that a large state takes a while.
            if (settings or {}).get("controlPlane.standby_replicas"):
                cluster.wait_for(_is_kept, "the standby to have a checkpoint", load.timeout_s)
            status = cluster.wait_for(lambda _: True, "an answer")
            check_keeps_up(cluster, load.rate)
            seen = status["totals"]["events_out"]
            sleep_until_ms(before_ms + 1e3 * before_s)
            check_keeps_up(cluster, load.rate)
            cluster.wait_for(lambda status: status["totals"]["events_out"] > seen, "events before the kill")
            report(f"{label}: killed", 0.6)
            kill = _kill(cluster, load.stage, round(1e3 * before_ms))
            # What they have fetched comes with the same report.
            status = cluster.wait_for(
                lambda status: status["stages"][load.stage]["records_in"] > 0, "rows again", load.timeout_s
            )
            places = _task_managers_of(status, load.stage)
            status = wait_finished(cluster, load.timeout_s)
            peaks = {key: process.peak_rss_bytes for key, process in cluster.processes.items()}
        records = read_records(output)
        after = read_records(output, kill.generation + 1)
    checked = load.check(records)
    return {
        **kill_figures(records, after, kill.before_us, kill.killed_us),
        "running_ms": kill.running_ms,
        "fetched_bytes": sum(item["fetched_bytes"] for item in places),
        "standby_lag_bytes": kill.lag_bytes,
        "restarts": status["restarts"],
        "flush_hold_ms_max": flush_hold_ms_max(status, load.stage),
        **checked,
        "peak_rss_bytes_max": max(peaks.values()),
    }


def _kill(cluster: Cluster, stage: int, before_us: int) -> _Kill:
    """Kill whoever has the state, and wait until the job runs again.

    Raises:
        ClusterError: there is no checkpoint yet, the job is over already, or it does not go on.
    """
    status = cluster.wait_for(lambda status: status["latest_checkpoint"] is not None, "a checkpoint")
    if status["state"] != "RUNNING":
        raise ClusterError(
            f"the job is {status['state'].lower()} before the kill; give a longer --duration-s"
        )
    generation = int(status["generation"])
    victim = _holder(cluster, status, stage)
    killed_us = time.time_ns() // 1000
    victim.popen.kill()
    cluster.wait_for(
        lambda status: status["generation"] > generation and status["state"] in ("RUNNING", "FINISHED"),
        "the restart",
    )
    running_ms = (time.time_ns() // 1000 - killed_us) / 1e3
    lags = [each["lag_bytes"] for each in status["standbys"] if each["of"].endswith(f":{victim.port}")]
    return _Kill(before_us, killed_us, generation, running_ms, min(lags, default=None))


def _is_kept(status: dict[str, Any]) -> bool:
    """Whether every standby has a whole checkpoint."""
    return bool(status["standbys"]) and all(each["checkpoint"] for each in status["standbys"])


def _task_managers_of(status: dict[str, Any], stage: int) -> list[dict[str, Any]]:
    """Where the subtasks of a stage are now."""
    places = {item["task_manager"] for item in status["stages"][stage]["subtasks"]}
    return [item for item in status["task_managers"] if item["address"] in places]


def _holder(cluster: Cluster, status: dict[str, Any], stage: int) -> WeirProcess:
    """The task manager that has the state."""
    place = status["stages"][stage]["subtasks"][0]["task_manager"]
    return next(
        process
        for process in cluster.processes.values()
        if process.port and place.endswith(f":{process.port}")
    )


def kill_figures(records: np.ndarray, after: np.ndarray, before_us: int, killed_us: int) -> dict[str, Any]:
    """Figures of the time around a kill.

    Args:
        records: delivered in the whole run, int64, shape (events, 4), see ``record_sink``, by arrival.
        after: those of them that were written after the restart.
        before_us: begin of the time that is compared with.
        killed_us: the kill.

    Returns:
        ``first_output_ms`` from the kill to the first record after the restart, ``caught_up_ms`` to the first second
        whose p99 is within 110 % of that before (None if none was: then ``caught_up`` is 0), and latencies.

    Raises:
        OverloadedError: there are no records before the kill, or they are late.
        BenchmarkError: there are none after it.
    """
    before = latencies(records, before_us, killed_us)
    check_quick(before)
    if not len(after):
        raise BenchmarkError("nothing was delivered after the kill; give a longer --duration-s")
    assert before["p99_ms"] is not None
    caught_up_ms = recovered_ms(after, killed_us, float(before["p99_ms"]))
    return {
        "first_output_ms": (int(after[0, 2]) - killed_us) / 1e3,
        "caught_up_ms": caught_up_ms,
        "caught_up": int(caught_up_ms is not None),
        "before": before,
        "after": latencies(after, int(after[0, 2]), int(after[-1, 2]) + 1),
    }
