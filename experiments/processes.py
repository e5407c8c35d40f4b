"""One process of a cluster: what it uses, what it logs, its end, and how it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from weir.errors import WeirError

POLL_S = 0.05
#: Time-outs are for what hangs, so they are generous: a busy machine can take several times as long as an idle one.
WAIT_TIMEOUT_S, END_TIMEOUT_S = 120.0, 120.0


class ClusterError(WeirError):
    """A process of the cluster ended or did not do what was awaited; the message has the end of its log."""


def start_process(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that reads nothing and writes into ``log``; called by clusters, and replaced by tests."""
    return subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
    )


@dataclass
class WeirProcess:
    """One started process. ``cpu_s`` and ``peak_rss_bytes`` are final once it has ended."""

    name: str
    popen: subprocess.Popen[bytes]
    log_path: Path
    #: gRPC port of a task manager.
    port: int = 0
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    #: Resident memory at the last sample.
    rss_bytes: int = 0
    started_s: float = field(default_factory=time.monotonic)

    def alive(self) -> bool:
        """Whether it still runs; also samples its resources."""
        self.sample()
        return self.popen.poll() is None

    def sample(self) -> None:
        """Note CPU time (user and system) and peak resident memory so far."""
        if self.popen.returncode is not None:
            return
        try:
            status = Path(f"/proc/{self.popen.pid}/status").read_text()
            times = psutil.Process(self.popen.pid).cpu_times()
        except (OSError, psutil.Error):
            return
        self.cpu_s = times.user + times.system
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_rss_bytes = max(self.peak_rss_bytes, int(line.split()[1]) * 1024)
            elif line.startswith("VmRSS:"):
                self.rss_bytes = int(line.split()[1]) * 1024

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait until it has ended by itself; gives its exit code.

        Raises:
            ClusterError: it still runs after ``timeout_s``.
        """
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"{self.name} did not end within {timeout_s:g} s\n--- {self.log_path}\n{self.log_tail()}"
            ) from None

    def wait_for_text(self, text: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until its log has this text.

        Raises:
            ClusterError: it has not after ``timeout_s``, or the process ended without it.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            ended = not self.alive()
            if text in self.log_path.read_text(errors="replace"):
                return
            if ended or time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{self.name} did not log {text!r}\n--- {self.log_path}\n{self.log_tail()}"
                )
            time.sleep(POLL_S)

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@contextmanager
def held_to(cpus: Sequence[int] | None) -> Iterator[None]:
    """Processes started inside run on these processors only, all their threads from the first on; None: on any."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def signals_later() -> Iterator[None]:
    """Signals whose handlers are Python functions, such as Ctrl-C, are handled behind the block and not inside it.

    So an exception that a handler raises cannot come between the start of a process and the note of it, which would
    leave the process without anybody to end it. Does nothing outside the main thread, where no handler runs.
    """
    came: list[int] = []
    before: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                # A child inherits what is ignored or left to the system, so that must stay.
                if callable(handler):
                    before[number] = handler
                    signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came_number in came:
            signal.raise_signal(came_number)
