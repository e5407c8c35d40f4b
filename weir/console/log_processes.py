"""Processes of ``weir log start``: a controller and brokers, which are started again when they die."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from weir.clock import SystemClock
from weir.console.processes import Child, Children, Ended, Signalled
from weir.errors import ConfigError, GraphError
from weir.security.private_files import private_directory
from weir.state.ttl import duration_ms

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: A process that ends so soon after its start has something wrong that stays wrong.
_SETTLED_S = 3.0
_END_S = 10.0
HOST = "127.0.0.1"


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


def run_log(directory: Path, brokers: int, port: int, http_port: int, lease_ms: int) -> int:
    """Run a log on this machine until a signal; returns the exit code.

    Args:
        directory: of all data; made if it is absent.
        brokers: how many.
        port: of the first broker; the controller has the one before.
        http_port: of the controller's page ``/log``; 0: any free one.
        lease_ms: a broker that is silent for so long is lost.

    Raises:
        ConfigError: the directory cannot be made.
    """
    try:
        private_directory(directory)
    except OSError as error:
        raise ConfigError(f"--dir {directory}: {error.strerror}; name another directory") from error
    clock = SystemClock()
    children = Children(os.environ, None, clock)

    def on_signal(number: int, frame: FrameType | None) -> None:
        children.events.put(Signalled(number))

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    controller = ["--controller-only", "--port", str(port - 1), "--http-port", str(http_port)]
    controller += ["--lease-ms", str(lease_ms)]
    arguments = {"controller": [*controller, "--dir", str(directory / "controller")]}
    for index in range(brokers):
        arguments[f"broker {index + 1}"] = [
            *("--id", str(index + 1), "--port", str(port + index)),
            *("--controller", f"{HOST}:{port - 1}", "--dir", str(directory / str(index + 1))),
        ]
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
    """Start what dies again, until a signal comes, or something dies that has only just begun."""
    while True:
        event = children.events.get()
        if isinstance(event, Signalled):
            return 0
        if isinstance(event, Ended):
            since_s = running.pop(event.child)
            if now_s() - since_s < _SETTLED_S:
                return 1
            print(f"weir log: {event.child.name} ended (code {event.code}); it is started again", flush=True)
            start(event.child.name)
