"""The page beside a job: how soon it names a step that became slow, when it first shows something, what it costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import encryption
from benchmarks.face_scaling import decisions_per_period, lag_and_slots
from benchmarks.results import Bar, BenchmarkResult
from benchmarks.wide_job import JOB, WARM_UP_S, WideOptions, write_inputs
from benchmarks.wide_job_flow import SUBTASKS
from experiments.browser import Browser
from experiments.cluster import Cluster
from experiments.page_clusters import PageCluster, await_headline

#: What a row of the step takes before and after: it becomes three times slower. Its busiest subtask has a third and
#: more of 400 rows a second: it keeps up with the first and not with the second.
_QUICK_US, _SLOW_US = 2_000.0, 6_000.0
_NAMED_IN_S_MAX = 60.0
_PAINTS = 5
_NOBODY = "about:blank"

BARS = (
    Bar("bottleneck_named_s", "at most", 5.0),
    Bar("page_cores", "at most", 0.02),
    Bar("first_paint_ms", "at most", 1000),
)
SCALING_BARS = (
    Bar("lag_back_s", "at most", 60.0),
    Bar("slots_freed_s", "at most", 300.0),
    Bar("decisions_per_period", "at most", 2),
)


@dataclass(frozen=True)
class FaceOptions:
    """Command-line options."""

    repeat: int = 1
    #: How often a step is made slow.
    slowed: int = 3
    #: Seconds for which the page is open, and closed, in turn.
    open_s: float = 15.0
    turns: int = 4
    #: Periods of the sine under which the autoscaler is to be calm.
    periods: int = 2
    #: Pairs of runs with and without certificates.
    tls_turns: int = 3
    #: Measure nothing but ``page``, ``scaling`` or ``tls``; empty: all.
    only: str = ""

    def measures(self, part: str) -> bool:
        """Whether a part is measured."""
        return self.only in ("", part)


def run(options: FaceOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Measure ``repeat`` times.

    Raises:
        BrowserError: there is no browser, or the page did not show what it must.
        ClusterError: a job did not run.
    """
    runs = []
    for number in range(1, options.repeat + 1):
        with tempfile.TemporaryDirectory(prefix="weir-face-") as name:
            step = f"run {number} of {options.repeat}"
            directory = Path(name)
            figures: dict[str, Any] = {}
            if options.measures("page"):
                with Browser(directory / "browser") as browser:
                    report(f"{step}: a step becomes slow", 0.0)
                    figures |= _named(directory / "named", browser, options)
                    report(f"{step}: the page beside a wide job", 0.2)
                    figures |= _cost(directory / "cost", browser, options)
            if options.measures("scaling"):
                report(f"{step}: the autoscaler brings a lag back, and frees slots", 0.4)
                figures |= lag_and_slots(directory / "lag")
                report(f"{step}: the autoscaler under a sine", 0.6)
                figures |= decisions_per_period(directory / "sine", options.periods)
            if options.measures("tls"):
                figures |= encryption.measure(encryption.EncryptionOptions(options.tls_turns), report)
            runs.append(figures)
    config = {
        "job": JOB,
        "subtasks": SUBTASKS,
        "slowed": options.slowed,
        "open_s": options.open_s,
        "turns": options.turns,
        "tls_turns": options.tls_turns,
        "us_per_row": [_QUICK_US, _SLOW_US],
        "periods": options.periods,
    }
    parts = (("page", BARS), ("scaling", SCALING_BARS), ("tls", encryption.BARS))
    bars = tuple(bar for part, of_part in parts if options.measures(part) for bar in of_part)
    return BenchmarkResult("face", config, runs, bars)


def _named(directory: Path, browser: Browser, options: FaceOptions) -> dict[str, Any]:
    """Seconds from when a step became slow to when the page names it, of the slowest time; and first paints."""
    seconds = []
    with PageCluster(directory) as cluster:
        cluster.slow_down(_QUICK_US)
        cluster.run_job(events=1_000_000)
        paints = [_first_paint_ms(browser, cluster.page) for _ in range(_PAINTS)]
        for _ in range(options.slowed):
            await_headline(browser, "keeps up")
            cluster.slow_down(_SLOW_US)
            seconds.append(await_headline(browser, "stage 3 `score` limits", _NAMED_IN_S_MAX))
            cluster.slow_down(0)
            # What had queued up is worked off before the next time.
            await_headline(browser, "keeps up")
            cluster.slow_down(_QUICK_US)
    return {
        "bottleneck_named_s": max(seconds),
        "bottleneck_named_s_median": statistics.median(seconds),
        "first_paint_ms": statistics.median(paints),
    }


def _first_paint_ms(browser: Browser, page: str) -> float:
    """From the beginning of the navigation to the first content, as the browser says."""
    browser.open(_NOBODY)
    browser.open(page)
    name = "first-contentful-paint"
    return float(
        browser.wait_for(f"return performance.getEntriesByName('{name}')[0]?.startTime", "the first paint")
    )


def _cost(directory: Path, browser: Browser, options: FaceOptions) -> dict[str, Any]:
    """Cores of all processes of Weir with the page open less those without it, in turn; beside it the browser's."""
    wide = WideOptions(duration_s=WARM_UP_S + 2 * options.turns * (options.open_s + 1) + 30)
    directory.mkdir()
    write_inputs(wide, directory)
    settings: dict[str, object] = {"taskManager.operator_quota": -(-SUBTASKS // 2)}
    parameters = {
        "left": directory / "left",
        "right": directory / "right",
        "output": directory / "records",
        "rate": wide.rate / 2,
    }
    opened, closed, of_browser, of_blank = [], [], [], []
    with Cluster(directory / "cluster", task_managers=2, settings=settings) as cluster:
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        for _ in range(2):
            cluster.start_task_manager()
        cluster.wait_for(lambda status: status["state"] == "RUNNING", "the start of the job")
        time.sleep(WARM_UP_S)
        for _ in range(options.turns):
            browser.open(_NOBODY)
            weir_cores, browser_cores = _cores(cluster, browser, options.open_s)
            closed.append(weir_cores)
            of_blank.append(browser_cores)
            browser.open(f"http://127.0.0.1:{cluster.http_port}/")
            await_headline(browser, "rows/s")
            weir_cores, browser_cores = _cores(cluster, browser, options.open_s)
            opened.append(weir_cores)
            of_browser.append(browser_cores)
    return {
        "page_cores": statistics.mean(opened) - statistics.mean(closed),
        "cores_with_page": statistics.mean(opened),
        "cores_without_page": statistics.mean(closed),
        # Of the browser alone: drawing the page, less an empty one.
        "browser_cores": statistics.mean(of_browser) - statistics.mean(of_blank),
    }


def _cores(cluster: Cluster, browser: Browser, seconds: float) -> tuple[float, float]:
    """Processors that Weir's processes and the browser's use for so long."""
    began_s, weir_s, browser_s = time.monotonic(), _weir_cpu_s(cluster), _browser_cpu_s(browser)
    time.sleep(seconds)
    elapsed_s = time.monotonic() - began_s
    return (_weir_cpu_s(cluster) - weir_s) / elapsed_s, (_browser_cpu_s(browser) - browser_s) / elapsed_s


def _weir_cpu_s(cluster: Cluster) -> float:
    for process in cluster.processes.values():
        process.sample()
    return sum(process.cpu_s for process in cluster.processes.values())


def _browser_cpu_s(browser: Browser) -> float:
    total = 0.0
    for process in psutil.Process(browser.pid).children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
