"""The demo's paced run: one task manager that is not quite enough, a second one, and the counts scaled onto it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.cluster import FINAL_STATES, Cluster
from experiments.demo_display import Display, JobProgress
from experiments.demo_load import measure_free_cores
from experiments.demo_steps import (
    DEMO_DIRECTORY,
    EVENTS_DIRECTORY,
    JOB,
    POLL_S,
    START_TIMEOUT_S,
    DemoSettings,
    empty_directory,
    run_script,
)
from experiments.processes import ClusterError
from experiments.scaling import Rescale, rescale, sleep_until_ms, wait_running

LATENCY_DIRECTORY = Path("zout")
PLOTS_DIRECTORY = Path("plots/demo")
PICTURE = PLOTS_DIRECTORY / "latency_over_time.png"
#: What the page of the job showed at its end.
REPORT = PLOTS_DIRECTORY / "report.html"

#: The counts of jobs.server_count.
SCALED_STAGE = 3
#: Of the run's length: when the second task manager is started, and when scaling is asked for at the earliest.
_SECOND_START_SHARE = 0.15
_SCALE_SHARE = 0.4
#: Events that reach the counts; and how much more they need than one subtask gets.
_COUNTED_SHARE = 0.75
_EXCESS = 1.02


def with_load(settings: DemoSettings, display: Display) -> DemoSettings:
    """Return the settings with a load of the counts that is a little too much for one process on this machine, now."""
    if settings.count_load_ms is not None:
        return settings
    free = measure_free_cores()
    if not free.second_helps:
        display.line(
            f"    two processes get {free.two:.1f} cores here, one alone {free.one:.1f}: other programs are busy, so "
            "the second task manager will hardly help",
            "yellow",
        )
    load_ms = round(free.load_ms(_COUNTED_SHARE * settings.rate, _EXCESS), 2)
    return replace(settings, count_load_ms=load_ms)


def paced_cluster() -> Cluster:
    """The cluster of the paced run; nothing of it is started yet."""
    directory = DEMO_DIRECTORY / "paced"
    empty_directory(directory)
    return Cluster(directory, task_managers=1, poll_s=POLL_S, documented_ports=True)


def run_paced(settings: DemoSettings, display: Display, cluster: Cluster) -> tuple[dict[str, Any], Rescale]:
    """Run the job at a fixed rate, whose latency means something, and scale the counts meanwhile.

    Args:
        settings: of the demo.
        display: where to write.
        cluster: as :func:`paced_cluster` makes it; its processes go on afterwards.

    Returns:
        ``totals`` of its last ``/status``, and the rescale.

    Raises:
        ClusterError: the job did not finish, or could not be scaled.
    """
    began_s = time.monotonic()
    events = settings.paced_events
    parameters = {
        "input": EVENTS_DIRECTORY,
        "rate": settings.rate,
        "events": events,
        "count_load_ms": settings.count_load_ms,
        "output": LATENCY_DIRECTORY,
    }
    display.command(
        f"python -m control_plane --job {JOB}",
        *(f"--param {name}={value}" for name, value in parameters.items()),
    )
    display.command("python -m task_manager")
    run_s = events / settings.rate
    with display.live("starting a control plane and one task manager", events) as update:
        progress = JobProgress(update)
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        cluster.start_task_manager()
        started_ms = wait_running(cluster, START_TIMEOUT_S)["started_ms"]
        _wait_until(cluster, started_ms + 1e3 * _SECOND_START_SHARE * run_s, progress)
    display.command("python -m task_manager --port 8028")
    with display.live("starting another task manager", events) as update:
        progress = JobProgress(update)
        cluster.start_task_manager()
        cluster.wait_for(
            lambda status: len(status["task_managers"]) > 1,
            "the second task manager",
            START_TIMEOUT_S,
            progress,
        )
        _wait_until(cluster, started_ms + 1e3 * _SCALE_SHARE * run_s, progress)
    page = f"http://localhost:{cluster.http_port}"
    display.command(f'curl -X POST "{page}/scale?stage={SCALED_STAGE}&parallelism=2"')
    done = rescale(cluster, SCALED_STAGE, 2)
    moved = f"{done.report['groups_total']} of 128 key groups have a new owner"
    display.line(f"    {moved} {done.owned_ms - done.requested_ms} ms later", "green")
    display.line(f"    look at it while it runs: curl {page}/rescales/{done.report['id']}", "cyan")
    with display.live("running on", events) as update:
        status = cluster.wait_for(
            lambda status: status["state"] in FINAL_STATES,
            "the end of the job",
            START_TIMEOUT_S + 4 * run_s,
            JobProgress(update),
        )
    if status["state"] != "FINISHED":
        raise ClusterError(f"job {JOB} {status['state'].lower()}: {status['cause']}\n{cluster.logs()}")
    note_rescale(latency_file().with_suffix(".json"), done)
    totals: dict[str, Any] = status["totals"]
    display.done(f"{totals['events_out']:,} latencies in {latency_file()}", began_s)
    return totals, done


def note_rescale(sidecar: Path, done: Rescale) -> None:
    """Add the moments of a rescale to a latency file's sidecar, for ``plot.py``."""
    content = json.loads(sidecar.read_bytes())
    content["scale_requested_ms"] = done.requested_ms
    content["scale_completed_ms"] = done.completed_ms
    content["rescale"] = dict(done.report)
    fresh = sidecar.with_name(f".{sidecar.name}.unfinished")
    fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(fresh, sidecar)


def analyse(settings: DemoSettings, display: Display) -> dict[str, Any]:
    """Analyse and draw the latency file with Spark; gives its part of ``summary.json``.

    Raises:
        DemoError: plot.py failed.
    """
    began_s = time.monotonic()
    title = f"server_count at {settings.rate:,.0f}/s, scaled"
    display.command(f"python plot.py {latency_file()} --out {PLOTS_DIRECTORY}")
    arguments = [latency_file(), "--out", PLOTS_DIRECTORY, "--overwrite", "--title", title]
    run_script("plot.py", list(map(str, arguments)), display)
    latency: dict[str, Any] = json.loads((PLOTS_DIRECTORY / "summary.json").read_bytes())["files"][0]
    display.done(f"{latency['events']:,} latencies, pictures in {PLOTS_DIRECTORY}", began_s)
    return latency


def latency_file() -> Path:
    """The latency file of the newest run, by its own name."""
    return LATENCY_DIRECTORY / (LATENCY_DIRECTORY / "latest.txt").readlink()


def _wait_until(cluster: Cluster, moment_ms: float, progress: JobProgress) -> None:
    """Show the job until a wall clock.

    Raises:
        ClusterError: the job ended before.
    """
    while time.time() * 1e3 < moment_ms:
        status = cluster.wait_for(lambda _: True, "an answer", on_status=progress)
        if status["state"] in FINAL_STATES:
            raise ClusterError(f"the job {status['state'].lower()} before it was scaled: {status['cause']}")
        sleep_until_ms(min(moment_ms, time.time() * 1e3 + 1e3 * POLL_S))
