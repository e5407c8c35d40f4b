"""Processes of Weir that are forked from one that has imported what they need: see ``experiments.forking``.

For tests with many short jobs. The processes are those of ``python -m``, but for how they begin, and that those of one
test run share the hash seeds of two or three of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import IO, Any, Self

from experiments.forking import MESSAGE_BYTES_MAX

#: Variables that count while a process begins and imports.
_EARLY = ("PYTHON", "POLARS", "MIMALLOC", "ARROW", "NUMBA", "OMP", "OPENBLAS", "GRPC", "XDG", "HOME")
#: Task managers of two hash seeds, in turn: what differs between processes is to differ here, too.
_SEEDS = {"control_plane": 1, "task_manager": 2, "log_broker": 1}
_START_TIMEOUT_S = 250.0
_END_S = 60.0
_POLL_S = 0.005


class Forks:
    """Starts processes; use as a context manager. Any thread may call it."""

    def __init__(self) -> None:
        self._servers: dict[tuple[object, ...], _Server] = {}
        self._turns = count()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.close()

    def popen(
        self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """As ``subprocess.Popen``, with nothing as standard input, and ``log`` as standard output and error."""
        module = command[2]
        if module not in _SEEDS or list(command[:2]) != [sys.executable, "-m"]:
            return subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
            )
        early = {name: value for name, value in environment.items() if name.startswith(_EARLY)}
        with self._lock:
            key = (module, next(self._turns) % _SEEDS[module], tuple(sorted(early.items())))
            if key not in self._servers:
                self._servers[key] = _Server(module, environment)
        return self._servers[key].start(command, log, environment)


class _Server:
    """A process that makes others, and what it has told of them."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._lock = threading.RLock()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        #: Those that have not ended, by process id.
        self._made: dict[int, _Forked] = {}
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "experiments.forking", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        self._receive(_START_TIMEOUT_S)

    def start(
        self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Have one more made."""
        order = {
            "module": command[2],
            "arguments": list(command[3:]),
            "environment": dict(environment),
            "folder": os.getcwd(),
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(order).encode()], [log.fileno()])
            while "pid" not in (told := self._receive(_START_TIMEOUT_S)):
                pass
            made = self._made[told["pid"]] = _Forked(self, command, told["pid"])
            return made

    def look(self) -> None:
        """Take what was told; returns at once."""
        with self._lock:
            while self._receive(0.0):
                pass

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        """One message, or an empty one."""
        self._connection.settimeout(timeout_s or 1e-6)
        try:
            data = self._connection.recv(MESSAGE_BYTES_MAX)
        except TimeoutError:
            return {}
        if not data:
            raise RuntimeError("the process that forks others has ended")
        told: dict[str, Any] = json.loads(data)
        if "ended" in told:
            self._made.pop(told["ended"]).returncode = told["code"]
        return told

    def close(self) -> None:
        """End it; what it has made goes on."""
        self._connection.close()
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class _Forked(subprocess.Popen[bytes]):
    """A process that this one has not started itself."""

    def __init__(self, server: _Server, command: Sequence[str], pid: int) -> None:
        self._server = server
        self.args, self.pid = list(command), pid
        # Declared as a number by the base class, which sets it to None, too.
        setattr(self, "returncode", None)  # noqa: B010
        self.stdin = self.stdout = self.stderr = None

    def __del__(self) -> None:
        """It is the server's child."""

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        if self.returncode is None:
            self._server.look()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        deadline_s = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            # It may end, and its server take its exit code, after that look.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)
