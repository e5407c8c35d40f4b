"""A job on real processes whose page is looked at: for tests of the page, its benchmark and its pictures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.browser import Browser
from experiments.cluster import Cluster, Start

JOB = "benchmarks.face_job"
#: In the input: one key has this part of the rows.
HOT_SHARE = 3
_SERVERS = 50
#: Without a hot key there are so many that all subtasks get as many rows.
_SERVERS_EVEN = 5_000


class PageCluster(Cluster):
    """The job of ``benchmarks.face_job`` on two task managers, and what can go wrong with it."""

    def __init__(
        self,
        directory: Path,
        *,
        task_managers: int = 2,
        settings: Mapping[str, object] | None = None,
        has_hot_key: bool = True,
        popen: Start | None = None,
    ) -> None:
        """Start nothing yet; see :class:`Cluster`. Without a hot key all keys have as many rows."""
        usual = {"taskManager.operator_quota": 12, "controlPlane.restart_attempts": 3}
        super().__init__(
            directory, task_managers=task_managers, settings={**usual, **(settings or {})}, popen=popen
        )
        self._servers, self._hot_share = (
            (_SERVERS, HOT_SHARE) if has_hot_key else (_SERVERS_EVEN, _SERVERS_EVEN)
        )
        self._trouble = directory / "trouble"
        self._input: Callable[[], None] = partial(write_input, directory / "input.jsonl", 0)

    @property
    def page(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.http_port}/"

    def run_job(self, *, events: int, rate: float = 200.0, late_ms: int = 0, bad: int = 0) -> None:
        """Start all processes and wait until rows are read; arguments as of :meth:`start_job`."""
        self.start_job(events=events, rate=rate, late_ms=late_ms, bad=bad)
        self.start_task_managers()
        self.wait_for(lambda status: status["totals"]["events_in"] > 0, "the first rows")

    def start_task_managers(self) -> None:
        """Write the input, whose times begin now, and start as many as the job waits for."""
        self._input()
        for _ in range(self.task_managers):
            self.start_task_manager()

    def start_job(self, *, events: int, rate: float = 200.0, late_ms: int = 0, bad: int = 0) -> None:
        """Start the control plane, which waits for task managers.

        Args:
            events: of each source.
            rate: events per second of each source.
            late_ms: so far event times of the second source are behind.
            bad: records at the beginning that cannot be read; they look like markup.
        """
        self._input = partial(
            write_input,
            self.directory / "input.jsonl",
            events,
            bad=bad,
            rate=rate,
            hot_share=self._hot_share,
            servers=self._servers,
        )
        parameters = {
            "input": self.directory / "input.jsonl",
            "output": self.directory / "out",
            "trouble": self._trouble,
            "rate": rate,
            "late_ms": late_ms,
        }
        self.start_control_plane(JOB, parameters, exit_when_finished=False)

    def slow_down(self, us_per_row: float) -> None:
        """From now on a row takes so long in step ``score``; 0: none."""
        self._trouble.write_text(f"slow_us {us_per_row:g}")


def await_headline(browser: Browser, words: str, timeout_s: float = 60.0) -> float:
    """Wait until the headline on the page has these words; returns how many seconds that took."""
    began_s = time.monotonic()
    script = f"return document.querySelector('#headline').textContent.includes({json.dumps(words)})"
    browser.wait_for(script, f"a headline with {words!r}", timeout_s)
    return time.monotonic() - began_s


def write_input(
    path: Path,
    events: int,
    *,
    bad: int = 0,
    rate: float = 200.0,
    hot_share: int = HOT_SHARE,
    servers: int = _SERVERS,
) -> None:
    """JSON lines whose times begin now and go on at this rate; of so many events one is of one server."""
    begin_ms = time.time_ns() // 1_000_000
    lines = ['{"id": "<img src=x onerror=alert(1)>"}'] * bad
    lines += [json.dumps(_event(number, begin_ms, rate, hot_share, servers)) for number in range(events)]
    path.write_text("\n".join(lines) + "\n")


def _event(number: int, begin_ms: int, rate: float, hot_share: int, servers: int) -> dict[str, Any]:
    server = 0 if number % hot_share == 0 else number % servers
    return {"id": number, "server_name": f"server-{server}", "time_ms": begin_ms + int(number * 1000 / rate)}
