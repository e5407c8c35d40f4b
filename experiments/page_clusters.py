"""A job on real processes whose page is looked at: for tests of the page, its benchmark and its pictures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from experiments.browser import Browser
from experiments.cluster import Cluster, Start

JOB = "benchmarks.face_job"
#: In the input: one key has this part of the rows.
HOT_SHARE = 3
_SERVERS = 50


class PageCluster(Cluster):
    """The job of ``benchmarks.face_job`` on two task managers, and what can go wrong with it."""

    def __init__(self, directory: Path, *, popen: Start | None = None) -> None:
        """Nothing is started yet; see :class:`Cluster`."""
        settings = {"taskManager.operator_quota": 12, "controlPlane.restart_attempts": 3}
        super().__init__(directory, settings=settings, popen=popen)
        self._trouble = directory / "trouble"

    @property
    def page(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.http_port}/"

    def run_job(self, *, events: int, rate: float = 200.0, late_ms: int = 0, bad: int = 0) -> None:
        """Start the processes and wait until rows are read.

        Args:
            events: of each source.
            rate: events per second of each source.
            late_ms: so far event times of the second source are behind.
            bad: records at the beginning that cannot be read; they look like markup.
        """
        write_input(self.directory / "input.jsonl", events, bad=bad, rate=rate)
        parameters = {
            "input": self.directory / "input.jsonl",
            "output": self.directory / "out",
            "trouble": self._trouble,
            "rate": rate,
            "late_ms": late_ms,
        }
        self.start_control_plane(JOB, parameters, exit_when_finished=False)
        for _ in range(self.task_managers):
            self.start_task_manager()
        self.wait_for(lambda status: status["totals"]["events_in"] > 0, "the first rows")

    def slow_down(self, us_per_row: float) -> None:
        """From now on a row takes so long in step ``score``; 0: none."""
        self._trouble.write_text(f"slow_us {us_per_row:g}")


def await_headline(browser: Browser, words: str, timeout_s: float = 60.0) -> float:
    """Wait until the headline on the page has these words; returns how many seconds that took."""
    began_s = time.monotonic()
    script = f"return document.querySelector('#headline').textContent.includes({json.dumps(words)})"
    browser.wait_for(script, f"a headline with {words!r}", timeout_s)
    return time.monotonic() - began_s


def write_input(path: Path, events: int, *, bad: int = 0, rate: float = 200.0) -> None:
    """JSON lines whose times begin now and go on at this rate; every third event is of one server."""
    begin_ms = time.time_ns() // 1_000_000
    lines = ['{"id": "<img src=x onerror=alert(1)>"}'] * bad
    lines += [json.dumps(_event(number, begin_ms, rate)) for number in range(events)]
    path.write_text("\n".join(lines) + "\n")


def _event(number: int, begin_ms: int, rate: float) -> dict[str, Any]:
    server = 0 if number % HOT_SHARE == 0 else number % _SERVERS
    return {"id": number, "server_name": f"server-{server}", "time_ms": begin_ms + int(number * 1000 / rate)}
