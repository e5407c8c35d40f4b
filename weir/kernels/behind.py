"""Kernels that take long to compile, and that there is a slower way around: they are compiled beside the job.

The process that does it goes on when the job has ended, so that the next run has the kernel.
"""

from __future__ import annotations

import subprocess
import threading
from typing import Any

from weir.clock import SystemClock
from weir.kernels.declare import is_loaded_or_kept, name_of
from weir.kernels.workers import start

_CLOCK = SystemClock()
#: How often the disk is asked, at most.
_ASKED_EVERY_S = 0.5
#: So many rows are done sooner in the slower way than the kernel is compiled.
_ROWS_MIN = 20_000


class KernelBehind:
    """A kernel that is compiled by another process while the caller does its work in a slower way."""

    def __init__(self, kernel: Any) -> None:
        """``kernel``: made by a decorator of :mod:`weir.kernels.declare`."""
        self._name = name_of(kernel)
        #: Whether :meth:`look` has found it: call it, and look no more.
        self.is_ready = False
        self._process: subprocess.Popen[str] | None = None
        self._next_s = 0.0
        self._rows = 0
        self._lock = threading.Lock()

    def look(self) -> bool:
        """Return whether to call the kernel now; called for each batch until it is ready."""
        with self._lock:
            now_s = _CLOCK.monotonic_s()
            if now_s >= self._next_s:
                self._next_s = now_s + _ASKED_EVERY_S
                self.is_ready = self._ask()
            return self.is_ready

    def did_without(self, rows: int) -> None:
        """Rows were done in the slower way; called after each such batch. Many of them start the process."""
        with self._lock:
            self._rows += rows
            if self._rows >= _ROWS_MIN and self._process is None:
                self._process = start(subprocess.DEVNULL, subprocess.DEVNULL)
                assert self._process.stdin is not None
                self._process.stdin.write(f"{self._name}\n")
                self._process.stdin.close()

    def _ask(self) -> bool:
        if is_loaded_or_kept(self._name):
            return True
        # It has failed, or nothing can be kept: then it is compiled here.
        return self._process is not None and self._process.poll() is not None
