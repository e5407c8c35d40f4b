"""Runs the configurations of the latency experiments on real processes and writes their results."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

import weir
from benchmarks.jitter import JitterProcess
from benchmarks.machine import machine_facts
from experiments.cluster import FINAL_STATES, Cluster
from experiments.matrix import COUNT_STAGE, P50_EXTRA_MS, PASS_THROUGH_MS, Configuration, write_events
from experiments.processes import ClusterError
from experiments.quiet import OthersShare, wait_for_idle
from experiments.scaling import Rescale, rescale, sleep_until_ms, wait_running
from weir.errors import WeirError

JOB = "jobs.server_count"
_POLL_S = 0.5
_JITTER_S_MAX = 600.0
_ATTEMPTS = 4
#: Share of the machine that others may use during a run that counts.
_OTHERS_SHARE_MAX = 0.1


class ExperimentError(WeirError):
    """A run gave something else than it must: its latencies mean nothing."""


@dataclass(frozen=True)
class RunSettings:
    """What is the same in all configurations."""

    #: Events of the source that are recorded, and those before them that are not.
    events: int = 1000
    warm_up_s: float = 3.0
    #: After the warm-up.
    scale_after_s: float = 3.0
    repeat: int = 3
    #: Few enough that counts and junk of most keys exist when their group moves.
    keys: int = 100
    #: Wait so long for an idle machine before each run, and repeat runs that others disturbed; 0: do not care.
    idle_timeout_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """One repetition; ``latencies`` has ``arrival_ms`` (Int64) and ``latency_ms`` (Float64) in order of arrival."""

    latencies: pl.DataFrame
    rescale: Rescale | None
    #: Share of the machine that other processes used while the job ran.
    others_share: float = 0.0
    #: The longest time for which the machine woke nobody.
    machine_stall_ms: float = 0.0
    #: Latency at which no event has waited for another one.
    idle_latency_ms: float = float("inf")

    def figures(self) -> dict[str, Any]:
        """Percentiles of all recorded events and, of a scaled run, before, during and after the rescale.

        *settled* is the part of *after* from the first event on that waited for no other: the queue that had built up
        before the rescale is gone then.
        """
        arrival = pl.col("arrival_ms")
        figures: dict[str, Any] = {
            "all": percentiles(self.latencies),
            "others_cpu_share": round(self.others_share, 3),
            "machine_stall_ms": self.machine_stall_ms,
        }
        if self.rescale is not None:
            requested_ms, completed_ms = self.rescale.requested_ms, self.rescale.completed_ms
            parts = {
                "before": arrival < requested_ms,
                "during": arrival.is_between(requested_ms, completed_ms, closed="left"),
                "after": arrival >= completed_ms,
            }
            is_first = parts["after"] & (pl.col("latency_ms") <= self.idle_latency_ms)
            settled_ms = self.latencies.filter(is_first)["arrival_ms"].min()
            parts["settled"] = arrival >= pl.lit(settled_ms, pl.Int64)
            figures |= {name: percentiles(self.latencies.filter(part)) for name, part in parts.items()}
            figures["queue_gone_ms"] = None if settled_ms is None else cast(int, settled_ms) - requested_ms
            figures["rescale_ms"] = completed_ms - requested_ms
            figures["owned_ms"] = self.rescale.owned_ms - requested_ms
            figures["phases_ms"] = self.rescale.phases_ms()
        return figures


def percentiles(latencies: pl.DataFrame) -> dict[str, float | int]:
    """``events``, and ``p50_ms``, ``p99_ms``, ``max_ms`` by nearest rank; only the first of no events."""
    if not latencies.height:
        return {"events": 0}
    values = np.percentile(latencies["latency_ms"].to_numpy(), [50, 99, 100], method="inverted_cdf").tolist()
    return {"events": latencies.height, **dict(zip(("p50_ms", "p99_ms", "max_ms"), values, strict=True))}


def run_matrix(
    configurations: Iterable[Configuration],
    settings: RunSettings,
    out: Path,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Run every configuration, the repetitions in turn, and write ``<name>.txt`` and ``<name>.json``.

    The repetition with the middle p50 is written, its sidecar has the figures of all. An earlier result of the same
    name is replaced.

    Raises:
        ClusterError: a process ended, or the rescale was refused.
        ExperimentError: events are missing, or counts are wrong.
    """
    chosen = list(configurations)
    out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[Run]] = {configuration.name: [] for configuration in chosen}
    # In turn, so that a busy minute of the machine does not hit all repetitions of one configuration.
    for repetition in range(1, settings.repeat + 1):
        for configuration in chosen:
            run = _run_quietly(configuration, settings, report)
            runs[configuration.name].append(run)
            report(_line(configuration, repetition, settings.repeat, run.figures()))
    return [write_result(out, configuration, settings, runs[configuration.name]) for configuration in chosen]


def _run_quietly(configuration: Configuration, settings: RunSettings, report: Callable[[str], None]) -> Run:
    """Run once; again, where others used much of the machine meanwhile and that must not be."""
    if not settings.idle_timeout_s:
        return run_once(configuration, settings)
    for _ in range(_ATTEMPTS):
        if not wait_for_idle(settings.idle_timeout_s):
            raise ExperimentError(
                f"{configuration.name}: the machine was not idle within {settings.idle_timeout_s:g} s; end what "
                "else runs, or leave --idle-timeout-s out"
            )
        run = run_once(configuration, settings)
        if run.others_share <= _OTHERS_SHARE_MAX:
            break
        report(f"{configuration.name}: others used {run.others_share:.0%} of the machine")
    return run


def run_once(configuration: Configuration, settings: RunSettings) -> Run:
    """One repetition of one configuration.

    Raises:
        ClusterError: a process ended, or the rescale was refused.
        ExperimentError: events are missing, or counts are wrong.
    """
    warm_up = round(settings.warm_up_s * 1e3 / configuration.source_ms)
    with ExitStack() as exits:
        directory = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="weir-experiment-")))
        write_events(directory / "events.jsonl", warm_up + settings.events, settings.keys)
        parameters = {
            "input": directory / "events.jsonl",
            "rate": 1e3 / configuration.source_ms,
            "load_ms": PASS_THROUGH_MS,
            "count_load_ms": configuration.count_ms,
            "junk": configuration.junk,
            "output": directory / "zout",
        }
        with Cluster(
            directory / "cluster", task_managers=2, settings=configuration.settings(), poll_s=_POLL_S
        ) as cluster:
            cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
            for _ in range(2):
                cluster.start_task_manager()
            started_ms = wait_running(cluster)["started_ms"]
            others = OthersShare(_own_cpu_s(cluster))
            jitter = exits.enter_context(closing(JitterProcess(_JITTER_S_MAX)))
            done = None
            if configuration.scaled:
                sleep_until_ms(started_ms + 1e3 * (settings.warm_up_s + settings.scale_after_s))
                done = rescale(cluster, COUNT_STAGE, 2)
            status = cluster.wait_for(
                lambda status: status["state"] in FINAL_STATES,
                "the end of the job",
                60 + (warm_up + settings.events) * (configuration.source_ms + configuration.work_ms) / 1e3,
            )
            if status["state"] != "FINISHED":
                raise ClusterError(
                    f"{configuration.name}: the job failed: {status['cause']}\n{cluster.logs()}"
                )
            others_share = others.share(_own_cpu_s(cluster))
            stall_ms = jitter.finish()["max_ms"]
        latencies = _read(directory / "zout")
    kept = sum(1 for number in range(warm_up + settings.events) if number % 4)
    if latencies.height != kept:
        raise ExperimentError(f"{configuration.name}: {latencies.height} events at the sink, {kept} expected")
    due_ms = pl.col("arrival_ms") - pl.col("latency_ms")
    # The first column is in whole ms; half an interval keeps rounding from moving an event across.
    first_ms = started_ms + (warm_up - 0.5) * configuration.source_ms
    idle_latency_ms = configuration.work_ms + P50_EXTRA_MS
    return Run(latencies.filter(due_ms >= first_ms), done, others_share, stall_ms, idle_latency_ms)


def _own_cpu_s(cluster: Cluster) -> float:
    """CPU seconds of the experiment's processes, this one among them."""
    for process in cluster.processes.values():
        process.sample()
    return time.process_time() + sum(process.cpu_s for process in cluster.processes.values())


def write_result(out: Path, configuration: Configuration, settings: RunSettings, runs: Sequence[Run]) -> Path:
    """Write the repetition with the middle p50 and the sidecar; gives the path of the latencies."""
    figures = [run.figures() for run in runs]
    middle = sorted(range(len(runs)), key=lambda index: figures[index]["all"]["p50_ms"])[(len(runs) - 1) // 2]
    run = runs[middle]
    requested_ms = run.rescale.requested_ms if run.rescale is not None else None
    sidecar: dict[str, Any] = {
        "label": configuration.label(requested_ms),
        "job": JOB,
        "configuration": asdict(configuration),
        "settings": {**asdict(settings), **configuration.settings(), "pass_through_ms": PASS_THROUGH_MS},
        "repetition": middle + 1,
        "figures": figures[middle],
        "repetitions": figures,
        "weir_version": weir.__version__,
        "commit": _commit(),
        "machine": machine_facts(),
    }
    if run.rescale is not None:
        sidecar["scale_requested_ms"] = requested_ms
        sidecar["scale_owned_ms"] = run.rescale.owned_ms
        sidecar["scale_completed_ms"] = run.rescale.completed_ms
        sidecar["rescale"] = dict(run.rescale.report)
    path = out / f"{configuration.name}.txt"
    lines = [f"{arrival_ms},{latency_ms:.3f}\n" for arrival_ms, latency_ms in run.latencies.iter_rows()]
    _replace(path, "".join(lines))
    _replace(path.with_suffix(".json"), json.dumps(sidecar, indent=1) + "\n")
    return path


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.unfinished")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def _read(directory: Path) -> pl.DataFrame:
    schema = {"arrival_ms": pl.Int64, "latency_ms": pl.Float64}
    files = [path for path in sorted(directory.glob("*.txt")) if not path.is_symlink()]
    parts = [pl.read_csv(path, has_header=False, schema=schema) for path in files]
    return pl.concat(parts).sort("arrival_ms", maintain_order=True)


def _line(configuration: Configuration, repetition: int, repeat: int, figures: dict[str, Any]) -> str:
    parts = [
        f"{name} {part['p50_ms']:.1f}/{part['p99_ms']:.1f}/{part['max_ms']:.1f}"
        for name, part in figures.items()
        if isinstance(part, dict) and "p50_ms" in part
    ]
    rescale_ms = f"  rescale {figures['rescale_ms']} ms" if "rescale_ms" in figures else ""
    return f"{repetition}/{repeat} {configuration.name}: p50/p99/max ms: {'  '.join(parts)}{rescale_ms}"


def _commit() -> str:
    """The checkout's commit; empty outside of one."""
    root = Path(__file__).resolve().parents[1]
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
