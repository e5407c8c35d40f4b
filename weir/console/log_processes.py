"""Processes of ``weir log start``: a controller and brokers, which are started again when they die."""

from __future__ import annotations

import math
import os
import queue
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from weir.clock import SystemClock
from weir.console.processes import Child, Children, Ended, Signalled
from weir.console.restarts import Restarts
from weir.errors import AddressInUseError, ConfigError, GraphError
from weir.process.owned_directory import owned_directory
from weir.state.ttl import duration_ms

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_S = 10.0
HOST = "127.0.0.1"
PORT_MAX = 65_535


def retention_ms(text: str) -> int:
    """Read a retention as the command takes it; "": 0.

    Raises:
        ConfigError: it is no duration.
    """
    if not text:
        return 0
    try:
        return duration_ms(text)
    except (GraphError, ValueError) as error:
        raise ConfigError(f"--retention {text}: {error}") from error


@dataclass(frozen=True)
class LogStart:
    """What a log on this machine is."""

    #: Of all data; made if it is absent.
    directory: Path
    #: How many.
    brokers: int
    #: Of the first broker; the controller has the one before.
    port: int
    #: Of the controller's page ``/log``; 0: any free one.
    http_port: int
    #: A broker that is silent for so long is lost.
    lease_ms: int
    #: ``host:port`` of each endpoint of etcd, with commas: the controller's record is there; "": in the directory.
    etcd: str = ""
    #: With etcd: of this log among those that have their record there.
    name: str = "log"

    def arguments(self) -> dict[str, list[str]]:
        """Command lines of ``python -m log_broker`` by what the processes are called."""
        controller = ["--controller-only", "--port", str(self.port - 1), "--http-port", str(self.http_port)]
        controller += ["--lease-ms", str(self.lease_ms), "--dir", str(self.directory / "controller")]
        if self.etcd:
            controller += ["--etcd", self.etcd, "--name", self.name]
        found = {"controller": controller}
        for index in range(self.brokers):
            found[f"broker {index + 1}"] = [
                *("--id", str(index + 1), "--port", str(self.port + index)),
                *("--controller", f"{HOST}:{self.port - 1}", "--dir", str(self.directory / str(index + 1))),
            ]
        return found


def _check_ports(log: LogStart) -> None:
    """Refuse a port that is taken before anything runs: each process would say so, and the others wait for it."""
    for port in range(log.port - 1, log.port + log.brokers):
        if port > PORT_MAX:
            raise ConfigError(
                f"--port {log.port}: {log.brokers} brokers need ports up to {port}, and {PORT_MAX} is the last"
            )
        _check_port(port, "--port")
    if log.http_port:
        _check_port(log.http_port, "--http-port")


def _check_port(port: int, option: str) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise AddressInUseError(
                f"cannot listen on {HOST}:{port}: {error.strerror}; choose another with {option}"
            ) from error


def run_log(log: LogStart) -> int:
    """Run a log on this machine until a signal; returns the exit code.

    Raises:
        AddressInUseError: a port is taken, or another log has the directory.
        ConfigError: the directory cannot be used.
    """
    with owned_directory(log.directory, "log"):
        _check_ports(log)
        return _run(log)


def _run(log: LogStart) -> int:
    brokers, port, http_port = log.brokers, log.port, log.http_port
    clock = SystemClock()
    children = Children(os.environ, None, clock)

    def on_signal(number: int, frame: FrameType | None) -> None:
        children.events.put(Signalled(number))

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    arguments = log.arguments()
    running: dict[Child, float] = {}

    def start(name: str) -> None:
        running[children.start(name, "log_broker", arguments[name])] = clock.monotonic_s()

    try:
        for name in arguments:
            start(name)
        addresses = ",".join(f"{HOST}:{port + index}" for index in range(brokers))
        state = f"; state at http://{HOST}:{http_port}/log" if http_port else ""
        print(f"weir log: {brokers} brokers at {addresses}{state}; Ctrl-C ends them", flush=True)
        return _watch(children, running, start, clock.monotonic_s)
    finally:
        for child in running:
            child.popen.terminate()
        for child in running:
            try:
                child.popen.wait(_END_S)
            except subprocess.TimeoutExpired:
                # ``close`` ends it by force.
                continue
        children.close()


def _watch(
    children: Children, running: dict[Child, float], start: Callable[[str], None], now_s: Callable[[], float]
) -> int:
    """Start what dies again, until a signal comes, or something ends by itself that has never run for long."""
    restarts = {child.name: Restarts() for child in running}
    #: When what is started again after a pause is started.
    due_s: dict[str, float] = {}
    while True:
        wait_s = min(due_s.values(), default=math.inf) - now_s()
        try:
            event = children.events.get(timeout=None if wait_s == math.inf else max(wait_s, 0.0))
        except queue.Empty:
            event = None
        if isinstance(event, Signalled):
            return 0
        if isinstance(event, Ended):
            # Its end of the line.
            event.child.cut_off()
            name, ran_s = event.child.name, now_s() - running.pop(event.child)
            pause_s = restarts[name].ended(event.code, ran_s)
            told = restarts[name].told(name, event.code, ran_s, pause_s)
            print(f"weir log: {told}", flush=True)
            if pause_s is None:
                return 1
            due_s[name] = now_s() + pause_s
        for name in [name for name, at_s in due_s.items() if at_s <= now_s()]:
            del due_s[name]
            start(name)
