"""A control plane and task managers as real processes on free ports, for the demo, benchmarks and scenario tests."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from experiments import processes
from experiments.ports import free_port, is_free
from experiments.processes import (
    END_TIMEOUT_S,
    POLL_S,
    WAIT_TIMEOUT_S,
    ClusterError,
    WeirProcess,
    held_to,
    signals_later,
)
from weir.process import bytecode

_STOP_TIMEOUT_S = 20.0
_PATIENT_POLL_S = 0.25
#: Starts a command with a log and variables.
Start = Callable[[Sequence[str], IO[bytes], Mapping[str, str]], "subprocess.Popen[bytes]"]
#: The ports that README.md names, which are the defaults of config.json.
_GRPC_PORT, _HTTP_PORT, _TASK_MANAGER_PORT, _TASK_MANAGER_PORT_STEP = 8008, 9008, 8018, 10
#: In the log of a control plane: where it is asked.
_STATUS_PAGE = re.compile(r"; https?://\S+:(\d+)/status")
#: Job states that never change again.
FINAL_STATES = frozenset({"FINISHED", "FAILED", "CANCELLED", "STOPPED"})


class Cluster:
    """Use as a context manager: leaving it stops whatever still runs."""

    def __init__(
        self,
        directory: Path,
        *,
        task_managers: int = 2,
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        poll_s: float = POLL_S,
        poll_share: float = 0.0,
        documented_ports: bool = False,
        popen: Start | None = None,
    ) -> None:
        """Choose ports and make the directory; nothing is started yet.

        Args:
            directory: for logs, stores and dead letters of this cluster; created if absent.
            task_managers: how many the control plane waits for.
            settings: configuration keys for all processes, e.g. ``{"taskManager.batch_size": 1000}``.
            environment: variables on top of this process's.
            poll_s: how often waiting looks; every look costs the control plane some CPU.
            poll_share: pauses grow to so much of the time that was waited, and ``_PATIENT_POLL_S`` at most.
            popen: starts processes; None: ``subprocess.Popen``.
            documented_ports: take 8008, 9008, 8018, 8028 and so on where they are free; otherwise any free ones.
        """
        self.directory = directory
        self.task_managers = task_managers
        self._documented_ports = documented_ports
        self._popen = popen or processes.start_process
        self.grpc_port, self.http_port = self._port(_GRPC_PORT), self._port(_HTTP_PORT)
        self.task_manager_ports: list[int] = []
        self.processes: dict[str, WeirProcess] = {}
        #: How often waiting looks; may be changed meanwhile.
        self.poll_s = poll_s
        self._poll_share = poll_share
        self._settings = {
            "taskManager.dead_letter_path": str(directory / "dead_letters"),
            "taskManager.rocksDBPath": str(directory / "data.db"),
            "controlPlane.checkpoint_uri": str(directory / "checkpoints"),
            "controlPlane.savepoint_roots": str(directory / "savepoints"),
            "controlPlane.state_path": str(directory / "control_plane.json"),
            **(settings or {}),
        }
        self._environment = {**os.environ, **bytecode.variables(), **(environment or {})}
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- processes -------------------------------------------------------------------------------------------

    def start_control_plane(
        self,
        job: str,
        parameters: Mapping[str, object],
        *,
        exit_when_finished: bool = True,
        cpus: Sequence[int] | None = None,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        name: str = "control_plane",
    ) -> WeirProcess:
        """``python -m control_plane``; gives the process at once. ``cpus`` holds it to processors."""
        flags = [*arguments, "--job", job, "--port", str(self.grpc_port), "--http-port", str(self.http_port)]
        # Another process may take a documented port after it was seen free, and would be asked in place of this one.
        flags += ["--or-any-http-port"] if self._documented_ports else []
        flags += ["--task-managers", str(self.task_managers)]
        flags += ["--exit-when-finished"] if exit_when_finished else []
        for parameter, value in parameters.items():
            flags += ["--param", f"{parameter}={value}"]
        return self.start(name, "control_plane", flags, settings, cpus)

    def start_task_manager(
        self,
        name: str = "",
        *,
        cpus: Sequence[int] | None = None,
        settings: Mapping[str, object] | None = None,
        port: int = 0,
        control_plane_port: int = 0,
        metrics_port: int = 0,
    ) -> WeirProcess:
        """``python -m task_manager`` on a free port; ``cpus`` holds it to processors.

        ``metrics_port``: serve metrics there; 0: as the settings say.
        ``port``: that of an earlier one, which has ended; ``control_plane_port``: of what leads to the control plane.
        """
        name = name or f"task_manager_{len(self.processes)}"
        if not port:
            port = self._port(_TASK_MANAGER_PORT + len(self.task_manager_ports) * _TASK_MANAGER_PORT_STEP)
            self.task_manager_ports.append(port)
        control_plane = f"127.0.0.1:{control_plane_port or self.grpc_port}"
        arguments = ["--port", str(port), "--control-plane", control_plane]
        if metrics_port:
            arguments += ["--prometheus-port", str(metrics_port)]
            settings = {**(settings or {}), "prometheus.enabled": "true"}
        process = self.start(name, "task_manager", arguments, settings, cpus)
        process.port = port
        return process

    def start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        settings: Mapping[str, object] | None = None,
        cpus: Sequence[int] | None = None,
    ) -> WeirProcess:
        """Any module as a process, with this cluster's settings; its output is added to ``<directory>/<name>.log``."""
        command = [sys.executable, "-m", module, *arguments]
        for key, value in {**self._settings, **(settings or {})}.items():
            command += ["--set", f"{key}={value}"]
        log_path = self.directory / f"{name}.log"
        with signals_later(), held_to(cpus), log_path.open("ab") as log:
            popen = self._popen(command, log, self._environment)
            process = WeirProcess(name, popen, log_path)
            self.processes[name] = process
        return process

    def stop(self) -> None:
        """End every process: SIGTERM, and SIGKILL for one that does not listen."""
        for process in self.processes.values():
            if process.alive():
                process.popen.send_signal(signal.SIGTERM)
                # One that was stopped hears nothing before it goes on.
                process.popen.send_signal(signal.SIGCONT)
        for process in self.processes.values():
            try:
                process.popen.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()

    # --- waiting ---------------------------------------------------------------------------------------------

    def http(self, method: str, path: str, timeout_s: float = 30.0) -> tuple[int, Any]:
        """Call the control plane; gives the status code and the decoded JSON (or the text)."""
        scheme, context, headers = "http", None, {}
        if directory := self._settings.get("security.directory"):
            # As a program of an operator would.
            scheme, context = "https", ssl.create_default_context(cafile=f"{directory}/ca.pem")
            headers["Authorization"] = f"Bearer {Path(f'{directory}/operate.token').read_text().strip()}"
        address = f"{scheme}://127.0.0.1:{self.http_port}{path}"
        request = urllib.request.Request(address, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=context) as reply:
                code, body, kind = reply.status, reply.read(), reply.headers.get_content_type()
        except urllib.error.HTTPError as error:
            with error:
                code, body, kind = error.code, error.read(), error.headers.get_content_type()
        return code, json.loads(body) if kind == "application/json" else body.decode()

    def status(self, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """``/status``; None while the control plane does not answer."""
        if self._documented_ports and not self._find_http_port():
            return None
        try:
            status: dict[str, Any] = self.http("GET", "/status", timeout_s)[1]
        except (urllib.error.URLError, OSError):
            return None
        return status

    def wait_for(
        self,
        condition: Callable[[dict[str, Any]], bool],
        what: str,
        timeout_s: float = WAIT_TIMEOUT_S,
        on_status: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Poll ``/status`` until it satisfies ``condition``; gives that status.

        Raises:
            ClusterError: it did not within ``timeout_s``, or the control plane ended; names ``what`` was awaited.
        """
        began_s = time.monotonic()
        while (waited_s := time.monotonic() - began_s) < timeout_s:
            for process in self.processes.values():
                process.sample()
            status = self.status()
            if status is not None:
                if on_status is not None:
                    on_status(status)
                if condition(status):
                    return status
            self._check_alive(what)
            time.sleep(max(self.poll_s, min(waited_s * self._poll_share, _PATIENT_POLL_S)))
        raise ClusterError(f"{what} did not come within {timeout_s:g} s\n{self.logs()}")

    def wait_ended(self, timeout_s: float = END_TIMEOUT_S) -> dict[str, int]:
        """Wait until every process has ended by itself; gives exit codes by name.

        Raises:
            ClusterError: one still runs after ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while any([process.alive() for process in self.processes.values()]):
            if time.monotonic() > deadline_s:
                raise ClusterError(f"not all processes ended within {timeout_s:g} s\n{self.logs()}")
            time.sleep(self.poll_s)
        return {name: process.popen.returncode for name, process in self.processes.items()}

    def logs(self) -> str:
        """The ends of all logs with their paths, for messages."""
        return "\n".join(
            f"--- {process.log_path}\n{process.log_tail()}" for process in self.processes.values()
        )

    def _check_alive(self, what: str) -> None:
        process = self.processes.get("control_plane")
        if process is not None and process.popen.poll() is not None:
            raise ClusterError(f"the control plane ended while {what} was awaited\n{self.logs()}")

    def check_task_managers(self, status: dict[str, Any]) -> None:
        """Do not wait for a task manager that has ended already, for instance because of a wrong setting.

        Raises:
            ClusterError: the job waits for task managers, and one ended; the message has the end of its log.
        """
        if status["state"] != "WAITING_FOR_TASK_MANAGERS":
            return
        for process in self.processes.values():
            if process.popen.poll():
                raise ClusterError(
                    f"{process.name} ended with exit code {process.popen.returncode} before the job started\n"
                    f"--- {process.log_path}\n{process.log_tail()}"
                )

    def _find_http_port(self) -> bool:
        """Look into the control plane's log where it is asked; returns whether that is known."""
        process = self.processes["control_plane"]
        found = _STATUS_PAGE.findall(process.log_path.read_text(errors="replace"))
        if found:
            self.http_port = int(found[-1])
        return bool(found)

    def _port(self, documented: int) -> int:
        return documented if self._documented_ports and is_free(documented) else free_port()


def files_below(directory: Path, pattern: str) -> list[Path]:
    """Files of a tree out of which a running job may remove others meanwhile: checkpoints that have expired.

    ``Path.rglob`` raises for a directory that goes while it is read.
    """
    found = (Path(place) / name for place, _, names in os.walk(directory) for name in names)
    return [path for path in found if path.match(pattern)]


def run_job(
    cluster: Cluster,
    job: str,
    parameters: Mapping[str, object],
    *,
    timeout_s: float = 120.0,
    on_status: Callable[[dict[str, Any]], None] | None = None,
    cpus: Sequence[Sequence[int]] | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """Start everything, run a finite job to its end, end everything; gives the last ``/status``.

    The control plane is told not to exit by itself, so that its last status can be read. With ``keep`` the
    processes go on until the caller leaves the cluster.

    Raises:
        ClusterError: the job did not finish; the message has its cause or the logs.
    """
    cluster.start_control_plane(job, parameters, exit_when_finished=False)
    for index in range(cluster.task_managers):
        cluster.start_task_manager(cpus=None if cpus is None else cpus[index])

    def is_over(status: dict[str, Any]) -> bool:
        cluster.check_task_managers(status)
        return status["state"] in FINAL_STATES

    status = cluster.wait_for(is_over, "the end of the job", timeout_s, on_status)
    if status["state"] != "FINISHED":
        raise ClusterError(
            f"job {status['job']} {status['state'].lower()}: {status['cause']}\n{cluster.logs()}"
        )
    if not keep:
        cluster.stop()
    return status
