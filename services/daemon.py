"""Processes that outlive the command that started them: found again by a file with their number, and awaited."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from services.errors import ServiceError

HOST = "127.0.0.1"
_SETTINGS = "settings.json"
_POLL_S = 0.05


class Daemon:
    """One process of a service: ``DIRECTORY/NAME.pid`` tells which, ``DIRECTORY/NAME.log`` has its output."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._pid_path = directory / f"{name}.pid"

    @property
    def pid(self) -> int | None:
        """Its number while it lives, else None. A number that another process has got does not count."""
        try:
            pid, started = self._pid_path.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _started_at(int(pid)) == started else None

    @property
    def memory_mib(self) -> int:
        """Resident memory in MiB; 0 when it is gone."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss >> 20) if self.pid else 0
        except psutil.Error:
            return 0

    def launch(self, command: Sequence[str]) -> None:
        """Start it in a session of its own, so that it stays when the terminal goes."""
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log_path.parent,
                start_new_session=True,
            )
        self._pid_path.write_text(f"{process.pid} {_started_at(process.pid)}\n")
        # It is no child that anybody waits for: its number is in the file.
        process.returncode = 0

    def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL if it still runs after ``grace_s``; SIGKILL at once if that is 0.

        Raises:
            ServiceError: it does not end.
        """
        attempts = [(signal.SIGTERM, grace_s)] if grace_s else []
        for number, wait_s in [*attempts, (signal.SIGKILL, 10.0)]:
            if pid := self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline_s = time.monotonic() + wait_s
            while self.pid and time.monotonic() < deadline_s:
                _reap(self.pid)
                time.sleep(_POLL_S)
        if self.pid:
            raise ServiceError(f"{self.name} (process {self.pid}) does not end")

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of its output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def _started_at(pid: int) -> str | None:
    """Start time of a live process, as the kernel counts it; None: it is gone.

    A killed process is a zombie at once, but holds its ports until the last of its threads has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        gone = fields[0] == "Z" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return None
    return None if gone else fields[19]


def _reap(pid: int | None) -> None:
    """Take note of the end of a process that this one started, which would else stay a zombie."""
    if pid:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def check_ports(ports: Mapping[int, str]) -> None:
    """Raise ServiceError unless each port, given with the option that sets it, can be bound now."""
    for port, option in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except (OSError, OverflowError) as error:
                raise ServiceError(
                    f"port {port} cannot be used ({error}): choose another with {option}"
                ) from None


def exchange(port: int, payload: bytes, complete: Callable[[bytes], bool], timeout_s: float = 2.0) -> bytes:
    """Send a request and read until ``complete`` says that the answer is whole.

    Raises:
        OSError: nobody listens, or the peer closes or is late.
    """
    with socket.create_connection((HOST, port), timeout=timeout_s) as peer:
        peer.sendall(payload)
        answer = b""
        while not complete(answer):
            if not (part := peer.recv(65536)):
                raise ConnectionError("closed")
            answer += part
        return answer


def wait_ready(daemons: Sequence[Daemon], ready: Callable[[], bool], timeout_s: float) -> None:
    """Return when ``ready`` says so.

    Raises:
        ServiceError: a process ended, with the end of its log; or time is up.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        for daemon in daemons:
            if daemon.pid is None:
                raise ServiceError(f"{daemon.name} ended; the end of {daemon.log_path}:\n{daemon.log_tail()}")
        with contextlib.suppress(OSError):
            if ready():
                return
        if time.monotonic() > deadline_s:
            logs = ", ".join(str(daemon.log_path) for daemon in daemons)
            raise ServiceError(f"not ready after {timeout_s:g} s; see {logs}")
        time.sleep(_POLL_S)


def check_settings(directory: Path, settings: Mapping[str, Any]) -> None:
    """Raise ServiceError when the directory was made with other settings than these."""
    before = recall(directory)
    if before not in (None, dict(settings)):
        changed = ", ".join(
            f"{key} {before.get(key)} -> {value}"
            for key, value in settings.items()
            if before.get(key) != value
        )
        raise ServiceError(
            f"{directory} was made with other settings ({changed}): use those, another --dir, or stop --wipe first"
        )


def remember(directory: Path, settings: Mapping[str, Any]) -> None:
    """Make the directory of a service, and keep in it what the service is started with."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")


def recall(directory: Path) -> dict[str, Any] | None:
    """The settings that the service of a directory was started with; None: it never was."""
    path = directory / _SETTINGS
    return json.loads(path.read_text()) if path.exists() else None


def wipe(directory: Path) -> None:
    """Delete a directory that :func:`remember` made, and no other."""
    if recall(directory) is not None:
        shutil.rmtree(directory)


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """The values of options ``--set KEY=VALUE``.

    Raises:
        ServiceError: one has another form.
    """
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, pairs, strict=True):
        if not (key and equals):
            raise ServiceError(f"--set {text!r}: give KEY=VALUE")
    return {key: value for key, _, value in pairs}
