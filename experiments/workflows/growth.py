"""``workflows run growth``: throughput, latencies, checkpoint and restore while the store grows; CSV and pictures."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.processes import ClusterError
from experiments.workflows.driver import Launch
from experiments.workflows.trial import WINDOW_MS, Say, Trial
from weir.errors import ConfigError, InputError

CSV_NAME = "growth.csv"
#: What fills the store: payloads as large as the predecessor's larger runs had.
_FILLING = Launch(1000, 10_000, 1, drivers=2)
#: What is measured at each size, as fast as possible.
_PROBE = Launch(1000, 2000, 20, drivers=2)
_RESTORED_S = 120.0
_CHECKPOINT_S = 60.0


def run_growth(
    out: Path,
    sizes: Sequence[int],
    store: str,
    log: str,
    payload: str,
    say: Say,
    settings: Mapping[str, object] | None = None,
) -> list[Path]:
    """Measure at each size, and draw; returns the paths that were written.

    Args:
        out: directory of the results.
        sizes: bytes of payloads in the store, ascending.
        store: what ``--store`` takes.
        log: "weir" or "kafka".
        payload: "compressible" or "random".
        say: told of progress.
        settings: of the configuration, such as another compaction.

    Raises:
        ConfigError: sizes do not ascend.
        InputError: the disk has too little room.
        WeirError: a process ended, or Spark failed.
    """
    if list(sizes) != sorted(sizes):
        raise ConfigError("--sizes: give them in ascending order")
    out.mkdir(parents=True, exist_ok=True)
    check_room(out, max(sizes), f"--out {out}", "--sizes")
    rows = []
    with Trial(out / "trial", store=store, log=log, say=say, settings=settings) as trial:
        done: list[Launch] = []
        for size in sizes:
            fill(trial, done, size, payload, say)
            say(f"at {size / 2**20:,.0f} MiB of payloads")
            rows.append(
                {"size_bytes": size, "store": store, "payload": payload, **_probe(trial, done, payload)}
            )
            path = out / CSV_NAME
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    # After a failure it stays, to be looked at.
    shutil.rmtree(out / "trial", ignore_errors=True)
    from workload.growth import draw_growth

    return [path, *draw_growth(path, out)]


def check_room(directory: Path, size: int, place: str, option: str) -> None:
    """Check that a trial with so many bytes of payloads fits on a disk.

    Args:
        directory: on that disk.
        size: bytes of payloads.
        place: what the directory is called, for the message.
        option: what says the size.

    Raises:
        InputError: it does not.
    """
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    # The log has it, too, and checkpoints and compaction have parts of it twice.
    if free < 4 * size:
        raise InputError(
            f"{place}: {free / 2**30:.1f} GiB are free, {4 * size / 2**30:.1f} are needed for the log, the "
            f"store and its checkpoints; take smaller {option} or another directory"
        )


def fill(trial: Trial, done: list[Launch], size: int, payload: str, say: Say) -> None:
    """Bring the payloads in the store to a size; ``done`` has all launches so far."""
    there = sum(each.workflows * each.tasks * each.payload_bytes for each in done)
    tasks = (size - there) // (_FILLING.workflows * _FILLING.payload_bytes)
    if tasks > 0:
        say(f"filling: {tasks:,} tasks of {_FILLING.workflows:,} workflows")
        launch_and_wait(
            trial, done, replace(_FILLING, tasks=tasks, payload=payload, prefix=f"fill{len(done)}")
        )


def launch_and_wait(trial: Trial, done: list[Launch], launch: Launch) -> float:
    """Send, and wait until all is processed; returns the seconds, by the clock of the engine, which is this one."""
    began_s = time.time()
    trial.launch(launch)
    done.append(launch)
    wanted = sum(each.commands for each in done)
    sums = trial.wait_for(lambda sums: sums["messages_processed"] >= wanted, 3600)
    return sums["latest_command_ms"] / 1000 - began_s


def _probe(trial: Trial, done: list[Launch], payload: str) -> dict[str, Any]:
    time.sleep(2 * WINDOW_MS / 1000)
    since_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
    launch = replace(_PROBE, payload=payload, prefix=f"probe{len(done)}")
    began_s = task_managers_cpu_s(trial)
    took_s = launch_and_wait(trial, done, launch)
    cpu_s = task_managers_cpu_s(trial) - began_s
    sums = trial.sums(since_ms)
    metrics = trial.metrics()
    return {
        "commands_per_second": round(launch.commands / took_s),
        # Other work on the machine changes it less.
        "cpu_us_per_command": round(1e6 * cpu_s / launch.commands, 1),
        "start_latency_ms_mean": round(sums["task_start_latency_ms"] / max(1, sums["task_starts"]), 2),
        "start_latency_ms_max": sums["task_start_latency_ms_max"],
        "pause_ms_max": sums["pause_ms_max"],
        "store_disk_bytes": round(sum_of(metrics, "weir_store_disk_bytes")),
        "store_memory_bytes": round(sum_of(metrics, "weir_store_memory_bytes")),
        "checkpoint_ms": _checkpoint_ms(trial),
        "restore_ms": measure_restore(trial, done, payload).caught_up_ms,
        "wrong": trial.wrong(done, trial.sums()),
    }


def task_managers_cpu_s(trial: Trial) -> float:
    """Return the processor time of all task managers so far."""
    processes = trial.cluster.processes.items()
    return sum(each.cpu_s for name, each in processes if name.startswith("task_manager") and each.alive())


def sum_of(metrics: Mapping[str, float], name: str, *labels: str) -> float:
    """A metric of all processes together, of those with labels that have these (``name=value``)."""
    return sum(
        value
        for each, value in metrics.items()
        if f" {name}" in each and all(label in each for label in labels)
    )


def _checkpoint_ms(trial: Trial) -> int:
    """How long the next savepoint takes, which is a checkpoint with everything in it."""
    place = trial.cluster.directory / "savepoints" / f"at-{time.monotonic_ns()}"
    began_s = time.monotonic()
    status, answer = trial.cluster.http("POST", f"/savepoint?path={place}")
    while not list(place.rglob("*.json")):
        if status != 202 or time.monotonic() > began_s + _CHECKPOINT_S:
            raise ClusterError(f"no savepoint was made: {answer}")
        time.sleep(0.01)
    return round((time.monotonic() - began_s) * 1000)


@dataclass(frozen=True, slots=True)
class Restore:
    """How long a restore took, from kill -9 of a task manager, in whose place another one is started.

    Attributes:
        first_output_ms: to the first command that is processed, also if it is one since the latest checkpoint.
        caught_up_ms: to the first one that was sent after the kill, which comes behind all of those.
        replayed: how many commands since the latest checkpoint were processed again, nearly.
    """

    first_output_ms: int
    caught_up_ms: int
    replayed: int


def measure_restore(trial: Trial, done: list[Launch], payload: str) -> Restore:
    """Kill a task manager and wait for commands; ``done`` has all launches so far."""
    cluster = trial.cluster
    status = trial.status()
    restarts = status["restarts"]
    # One that was started after a kill may have come too late to be given anything.
    busy = {item["task_manager"] for stage in status["stages"] for item in stage["subtasks"]}
    running = [each for each in cluster.processes.values() if each.alive()]
    victim = next(each for each in reversed(running) if f"127.0.0.1:{each.port}" in busy)
    launch = replace(_PROBE, tasks=1, payload=payload, prefix=f"kill{len(done)}")
    sent = sum(each.commands for each in done)
    began_s = time.monotonic()
    victim.popen.send_signal(signal.SIGKILL)
    cluster.start_task_manager()
    trial.launch(launch)
    done.append(launch)
    # Until the job stops, subtasks of the other one still process commands: those are no output of a restore.
    cluster.wait_for(lambda status: status["restarts"] > restarts, "the restart", _RESTORED_S)
    first = trial.wait_for(lambda sums: True, _RESTORED_S)["messages_processed"]

    def ms_until(more_than: int) -> int:
        trial.wait_for(lambda sums: sums["messages_processed"] > more_than, _RESTORED_S, rest_factor=0.0)
        return round((time.monotonic() - began_s) * 1000)

    # What the first answer has may have been in the checkpoint: a later one shows that rows come out.
    first_output_ms = ms_until(min(first, sent))
    caught_up_ms = ms_until(sent)
    ms_until(sent + launch.commands - 1)
    return Restore(first_output_ms, caught_up_ms, max(0, sent - first))
