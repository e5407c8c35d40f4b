"""The steps of the demo with their progress: Spark scripts as processes, runs of the job, a check of its counts."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from experiments.cluster import Cluster, run_job
from experiments.demo_display import Display, JobProgress, last_line
from weir.errors import InputError, WeirError
from workload.directory import read_marker
from workload.parameters import WorkloadParameters

JOB = "jobs.server_count"
#: All that the demo makes, but for the latency file and the pictures (see ``demo_paced``).
DEMO_DIRECTORY = Path("data/demo")
EVENTS_DIRECTORY = DEMO_DIRECTORY / "events"

_ROOT = Path(__file__).resolve().parents[1]
#: A directory of an earlier demo holds this file; only such a one is ever removed.
_MARKER = ".weir-demo"
POLL_S = 0.1
_LOG_LINES = 20
_STOP_TIMEOUT_S = 20.0
#: A machine that is slower than this is not waited for.
_SLOWEST_EVENTS_PER_S = 20_000
START_TIMEOUT_S = 90.0


class DemoError(WeirError):
    """A step of the demo failed; the message has the end of its log, and the log's path."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo's options say."""

    events: int
    keys: int
    #: Of the paced run, in events per second, and how long it lasts.
    rate: float
    seconds: float
    #: Of the paced run: CPU of the counts for each event that reaches them; None: a bit too much for one process.
    count_load_ms: float | None

    @property
    def paced_events(self) -> int:
        """How many events the paced run reads: no more than there are."""
        return max(1, min(self.events, round(self.rate * self.seconds)))


def make_workload(settings: DemoSettings, display: Display, *, fresh: bool) -> None:
    """Generate the events with Spark, or keep those of an earlier demo with the same parameters.

    Raises:
        DemoError: workgen.py failed.
    """
    started_s = time.monotonic()
    wanted = WorkloadParameters(events=settings.events, keys=settings.keys)
    options = {"--events": settings.events, "--keys": settings.keys, "--out": EVENTS_DIRECTORY}
    display.command("python workgen.py", *(f"{name} {value}" for name, value in options.items()))
    marker = read_marker(EVENTS_DIRECTORY)
    reused = marker is not None and not fresh and marker.get("parameters") == wanted.as_json()
    if not reused:
        arguments = [str(word) for option in options.items() for word in option]
        run_script("workgen.py", [*arguments, "--overwrite"], display)
    parts = sorted(EVENTS_DIRECTORY.glob("part-*"))
    size_mb = sum(part.stat().st_size for part in parts) / 1e6
    origin = "made by an earlier demo" if reused else f"in {EVENTS_DIRECTORY}"
    display.done(f"{size_mb:,.1f} MB of JSON lines in {len(parts)} files, {origin}", started_s)


def run_flat_out(settings: DemoSettings, display: Display) -> dict[str, Any]:
    """Run the job as fast as possible over all events, and compare its counts with a batch query.

    Returns:
        ``totals`` of its last ``/status``.

    Raises:
        DemoError: the counts differ.
        ClusterError: the job did not finish.
    """
    started_s = time.monotonic()
    directory = DEMO_DIRECTORY / "flat_out"
    empty_directory(directory)
    latency_directory = directory / "latency"
    parameters = {"source_parallelism": 2, "parallelism": 2, "output": str(latency_directory)}
    with Cluster(directory, poll_s=POLL_S, documented_ports=True) as cluster:
        totals = _run(cluster, settings, parameters, settings.events, display)
    # Flat out, a latency only tells how long the queues are.
    shutil.rmtree(latency_directory)
    with display.live("counting the same files with Polars, to compare"):
        expected = count_in_batch(EVENTS_DIRECTORY)
    found = {name: totals[name] for name in expected}
    if found != expected:
        raise DemoError(f"the job gave {found}, a batch query over the same files gives {expected}")
    display.done(
        f"{totals['events_per_second']:,.0f} events/s; counts equal those of a Polars batch query",
        started_s,
    )
    return totals


def count_in_batch(directory: Path) -> dict[str, int]:
    """What the job must come to, by one query over the files: its totals by their names in ``/status``."""
    schema = {"id": pl.Int64, "server_name": pl.String}
    kept = pl.col("id") % 4 != 0
    counts = (
        pl.scan_ndjson(directory / "part-*", schema=schema)
        .select(
            events_in=pl.len(),
            events_out=kept.sum(),
            distinct_keys=pl.col("server_name").filter(kept).n_unique(),
        )
        .collect()
    )
    return {name: int(value) for name, value in counts.row(0, named=True).items()}


def _run(
    cluster: Cluster,
    settings: DemoSettings,
    parameters: Mapping[str, object],
    events: int,
    display: Display,
) -> dict[str, Any]:
    given = {"input": str(EVENTS_DIRECTORY), **parameters}
    command = f"python -m control_plane --job {JOB} --task-managers {cluster.task_managers}"
    display.command(command, *(f"--param {name}={value}" for name, value in given.items()))
    display.command("python -m task_manager")
    display.command("python -m task_manager --port 8028")
    with display.live("starting a control plane and two task managers", events) as update:
        status = run_job(
            cluster,
            JOB,
            given,
            timeout_s=START_TIMEOUT_S + events / _SLOWEST_EVENTS_PER_S,
            on_status=JobProgress(update),
        )
    totals: dict[str, Any] = status["totals"]
    return totals


def run_script(script: str, arguments: Sequence[str], display: Display) -> None:
    """Run a Spark script as a process of its own; its output goes to a log.

    Raises:
        DemoError: it failed.
    """
    DEMO_DIRECTORY.mkdir(parents=True, exist_ok=True)
    log_path = DEMO_DIRECTORY / f"{Path(script).stem}.log"
    command = [sys.executable, str(_ROOT / script), *arguments]
    with log_path.open("wb") as log, display.live("starting Spark") as update:
        # A session of its own: Ctrl-C reaches it from here, once, and it clears up in peace.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while process.poll() is None:
                update(last_line(log_path) or "starting Spark", 0)
                time.sleep(POLL_S)
        finally:
            _end(process)
    if process.returncode != 0:
        lines = log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        end = "\n".join([f"--- {log_path}", *lines])
        raise DemoError(f"{script} ended with exit code {process.returncode}\n{end}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def empty_directory(directory: Path) -> None:
    """Make an empty directory; what an earlier demo left there is removed, and nothing else.

    Raises:
        InputError: there is something that no demo made.
    """
    if directory.exists():
        if not (directory / _MARKER).is_file():
            raise InputError(f"{directory} was not made by a demo, so it is left alone: move it away")
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / _MARKER).write_text("made by experiments.demo; replaced by its next run\n")
