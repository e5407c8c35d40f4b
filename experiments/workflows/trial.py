"""One trial: brokers and the job as real processes on free ports, launches, and what became of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import weir
from experiments.cluster import Cluster
from experiments.ports import free_port, is_free
from experiments.processes import ClusterError
from experiments.s3_server import s3_server, uri_of
from experiments.workflows.driver import Launch, LaunchResult, run_launch
from experiments.workflows.home import Home, Settings
from experiments.workflows.job import ENGINE
from experiments.workflows.metrics import every_metric, total, workflow_windows
from experiments.workflows.server import JOB, store_settings

#: Windows of a trial are short, so that those of one launch are known.
WINDOW_MS = 1_000
_POLL_S = 0.1
#: Questions read all windows: with this they take a tenth of a processor at most, where they took that of each process.
_REST_FACTOR = 9.0
_WINDOWS_MAX = 10_000
#: Workflows whose task runs are compared one by one.
_COMPARED = 50
#: Task runs of one of them.
_TASKS_MAX = 1_000
#: Of each request to the object store that the store "object" gets.
OBJECT_DELAY_MS = 20.0
#: Checkpoints by which a standby is behind that counts as ready: one each second, while commands come.
_STANDBY_LAG_MAX = 3
_SETTINGS = {"taskManager.operator_quota": 20, "controlPlane.restart_attempts": 20}

Say = Callable[[str], None]


class Trial:
    """Use as a context manager: leaving it ends what it started."""

    def __init__(
        self,
        directory: Path,
        *,
        store: str,
        log: str,
        say: Say,
        partitions: int = 2,
        parallelism: int = 2,
        task_managers: int = 2,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
        s3_delay_ms: float | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: for everything; must be empty or absent.
            store: what ``--store`` takes.
            log: "weir" or "kafka".
            say: told of progress.
            partitions: of the topic with commands.
            parallelism: of the source and the engine.
            task_managers: processes that work.
            parameters: others of the job.
            settings: of the configuration.
            s3_delay_ms: checkpoints go to an S3 server of this machine, in memory, that waits for so long with each
                request; None: to the disk, or with the store "object" to one that waits for :data:`OBJECT_DELAY_MS`.

        Raises:
            ConfigError: there is no such store.
        """
        if store == "object" and s3_delay_ms is None:
            s3_delay_ms = OBJECT_DELAY_MS
        self._s3_delay_ms, self._s3 = s3_delay_ms, contextlib.ExitStack()
        self._say, self._log, self._partitions = say, log, partitions
        self._home = Home(directory / "home")
        given = _SETTINGS | store_settings(store) | dict(settings or {})
        self._has_standbys = bool(given.get("controlPlane.standby_replicas"))
        self.cluster = Cluster(directory / "cluster", task_managers=task_managers, settings=given)
        self._parameters = {"parallelism": parallelism, "window_ms": WINDOW_MS, **(parameters or {})}

    def __enter__(self) -> Self:
        port = free_port()
        # The controller of the log has the one before.
        while not is_free(port - 1):
            port = free_port()
        self._home.set_up(Settings(self._log, "", 1, port, self._partitions), self._say)
        try:
            settings: dict[str, object] = {}
            if self._s3_delay_ms is not None:
                port = self._s3.enter_context(s3_server(self._s3_delay_ms))
                settings["controlPlane.checkpoint_uri"] = uri_of(port)
            parameters = {"bootstrap": self._home.bootstrap, "log": self._log, **self._parameters}
            self.cluster.start_control_plane(JOB, parameters, exit_when_finished=False, settings=settings)
            for _ in range(self.cluster.task_managers):
                self.cluster.start_task_manager()
            self.cluster.wait_for(lambda status: status["state"] == "RUNNING", "a running job")
            self.wait_for(lambda sums: True)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.stop()
        self._s3.close()
        self._home.end_brokers(wipe=True)

    @property
    def address(self) -> str:
        """Where the job is asked."""
        return f"127.0.0.1:{self.cluster.http_port}"

    def launch(self, launch: Launch) -> LaunchResult:
        """Send commands. Raises as ``driver.run_launch``."""
        return run_launch(launch, self._log, self._home.bootstrap, self._partitions, self._say)

    def windows(self) -> list[dict[str, int]]:
        """All windows so far, of all subtasks."""
        return workflow_windows(self.address, _WINDOWS_MAX, None)

    def sums(self, since_ms: int = 0, subtask: int | None = None) -> dict[str, int]:
        """All windows from a time on, of one subtask or of all, as one."""
        windows = workflow_windows(self.address, _WINDOWS_MAX, subtask)
        return total([window for window in windows if window["window_start_ms"] >= since_ms])

    def wait_for(
        self,
        holds: Callable[[dict[str, int]], bool],
        timeout_s: float = 600.0,
        rest_factor: float = _REST_FACTOR,
    ) -> dict[str, int]:
        """Return the sums of all windows when they are as wanted.

        Args:
            holds: whether they are.
            timeout_s: for so long.
            rest_factor: after a question none is asked for so many times as long as it took.

        Raises:
            ClusterError: they are not in time.
        """
        asked_s = time.monotonic()
        until_s, told_s = asked_s + timeout_s, asked_s
        while not holds(found := self.sums()):
            now_s = time.monotonic()
            if now_s > until_s:
                raise ClusterError(f"not all commands were processed in time: {found}\n{self.cluster.logs()}")
            if now_s - told_s > 2:
                told_s = now_s
                self._say(
                    f"{found['messages_processed']:,} commands processed, {found['timers_fired']:,} timers fired"
                )
            time.sleep(max(_POLL_S, rest_factor * (now_s - asked_s)))
            asked_s = time.monotonic()
        return found

    def status(self) -> dict[str, Any]:
        """What ``/status`` of the job says."""
        return self.cluster.wait_for(lambda status: True, "a status")

    def metrics(self) -> dict[str, float]:
        """Every metric of job and stores."""
        return every_metric(self.address)

    def wait_for_standbys(self, timeout_s: float = 600.0) -> None:
        """Return when each standby has all of a checkpoint that is at most a few behind; at once if there are none.

        Raises:
            ClusterError: they have not in time.
        """

        def are_here(status: dict[str, Any]) -> bool:
            standbys = status["standbys"]
            return bool(standbys) and all(
                each["checkpoint"] and each["lag_checkpoints"] <= _STANDBY_LAG_MAX for each in standbys
            )

        if self._has_standbys:
            self.cluster.wait_for(are_here, "the standbys to have a checkpoint", timeout_s)

    def wait_for_checkpoint(self, timeout_s: float = 1200.0) -> None:
        """Return when a checkpoint that begins after the call is complete.

        Raises:
            ClusterError: none is in time.
        """
        # The next one may have begun.
        wanted = (self.status()["latest_checkpoint"] or 0) + 2
        self.cluster.wait_for(
            lambda status: (status["latest_checkpoint"] or 0) >= wanted, "a checkpoint", timeout_s
        )

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each process of the job so far."""
        processes = self.cluster.processes
        return {name: round(process.cpu_s, 1) for name, process in processes.items() if process.alive()}

    def peak_resident_bytes(self) -> int:
        """The most memory that each task manager has had, added up."""
        found = [each for name, each in self.cluster.processes.items() if name.startswith("task_manager")]
        return sum(process.peak_rss_bytes for process in found if process.alive())

    def wrong(self, launches: Sequence[Launch], sums: Mapping[str, int]) -> int:
        """How many workflows and counts are not as plain arithmetic has them.

        Args:
            launches: all since the job's start, and all of them processed.
            sums: of all windows.
        """
        starts = sum(launch.workflows * launch.tasks for launch in launches)
        expected = {
            "messages_processed": sum(launch.commands for launch in launches),
            "workflow_starts": sum(launch.workflows for launch in launches),
            "workflow_completes": sum(launch.workflows for launch in launches if launch.tasks),
            "task_starts": starts,
            "task_completes": starts,
            "rejected": 0,
        }
        wrong = sum(sums[name] != count for name, count in expected.items())
        with weir.connect(self.address) as job:
            steps = dict(job.state(ENGINE, "step").range(consistency="latest").iter_rows())
            runs = job.state(ENGINE, "task_runs")
            for launch in launches:
                ids = launch.ids(0, 1)
                wrong += sum(steps.get(each) != 1 + 2 * launch.tasks for each in ids)
                for each in ids[:: max(1, len(ids) // _COMPARED)]:
                    found = runs.get(each, limit=_TASKS_MAX, default=[])
                    wrong += not _is_right(found, min(launch.tasks, _TASKS_MAX), launch.payload_bytes)
        return wrong


def _is_right(items: list[dict[str, Any]], tasks: int, payload_bytes: int) -> bool:
    """Whether task runs have all numbers, payloads, and times that follow one another."""
    runs = [item["value"] for item in items]
    if [int(item["key"]) for item in items] != list(range(tasks)):
        return False
    return all(
        len(run["payload"]) == payload_bytes
        and run["launched_ms"] <= run["started_ms"] <= run["completed_ms"]
        and (number == 0 or run["launched_ms"] == runs[number - 1]["completed_ms"])
        for number, run in enumerate(runs)
    )
