"""Processes that compile kernels side by side, each module in one of them, into the cache that all share.

:mod:`weir.kernel_compilation` starts them. They get names of modules on standard input, one a line, import each, and
write what they do to standard output: ``began NAME`` when a kernel is not in the cache, ``ended NAME SECONDS``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from weir.clock import SystemClock

#: A process takes 300 MB; the longest module takes as long as a quarter of all.
PROCESSES_MAX = 4
_ROOT = Path(__file__).parents[1]
_IMPORT = re.compile(r"^(?:from|import) (weir[\w.]*)", re.MULTILINE)
# Before other installations of Weir, but never before the standard library if this one is installed.
_CODE = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "from weir.kernel_workers import work; work()"
)


def kernel_needs(modules: Sequence[str]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, and would compile if nobody had done it before."""
    needs = {}
    for name in modules:
        file = _ROOT.joinpath(*name.split(".")).with_suffix(".py")
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        needs[name] = {found for found in _IMPORT.findall(text) if found in modules and found != name}
    return needs


class Schedule:
    """Which module is compiled next: the first whose needs are compiled."""

    def __init__(self, needs: Mapping[str, set[str]]) -> None:
        """``needs``: of each module, in the order in which they are wanted."""
        self._needs = needs
        self._pending = list(needs)
        self._running: set[str] = set()

    def take(self) -> str | None:
        """A module to compile now; None: there is none, or none before another one has ended."""
        left = {*self._pending, *self._running}
        ready = (name for name in self._pending if not self._needs[name] & left)
        # Modules that need each other would wait for ever.
        name = next(ready, None if self._running else next(iter(self._pending), None))
        if name is not None:
            self._pending.remove(name)
            self._running.add(name)
        return name

    def end(self, name: str) -> None:
        """It is compiled, or the process that did it is gone."""
        self._running.discard(name)


class _Worker:
    """A process, and the thread that reads what it writes."""

    def __init__(self, number: int, lines: queue.Queue[tuple[int, str]]) -> None:
        self._number, self._lines = number, lines
        # Not a pipe, which somebody would have to read all the time.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self.module: str | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Ctrl-C is for the process that waits for this one, and ends it.
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, name="kernel-worker", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put((self._number, line))
        self._lines.put((self._number, ""))

    def compile(self, module: str) -> None:
        """Let it compile a module; that it is gone is told by its last line, which is empty."""
        assert self._process.stdin is not None
        self.module = module
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{module}\n")
            self._process.stdin.flush()

    def failure(self) -> str:
        """Why it is gone, in a line."""
        code = self._process.wait()
        self._errors.seek(0)
        told = self._errors.read().strip().rpartition("\n")[2]
        return f"the process that compiled {self.module} ended with code {code}" + (
            f": {told}" if told else ""
        )

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


def compile_side_by_side(
    modules: Sequence[str],
    processes: int,
    began: Callable[[str], None],
    ended: Callable[[str, float], None],
) -> list[str]:
    """Compile what the cache lacks of the kernels of these modules; blocks until all of it is there.

    Args:
        modules: in the order in which to begin them.
        processes: how many to start, at least one.
        began: called with a module when the first of its kernels is not in the cache.
        ended: called with each module, and the seconds that its import took.

    Returns:
        Why processes ended before their time, a line for each; what they were to compile is missing then.
    """
    schedule = Schedule(kernel_needs(modules))
    lines: queue.Queue[tuple[int, str]] = queue.Queue()
    failures: list[str] = []
    with contextlib.ExitStack() as stack:
        workers = dict(enumerate(_started(processes, lines, stack)))
        while True:
            for worker in workers.values():
                if worker.module is None and (name := schedule.take()):
                    worker.compile(name)
            if not any(worker.module for worker in workers.values()):
                return failures
            number, line = lines.get()
            worker = workers[number]
            match line.split():
                case ["began", name]:
                    began(name)
                case ["ended", name, seconds]:
                    schedule.end(name)
                    worker.module = None
                    ended(name, float(seconds))
                case []:
                    if worker.module is not None:
                        failures.append(worker.failure())
                        schedule.end(worker.module)
                    del workers[number]


def _started(
    processes: int, lines: queue.Queue[tuple[int, str]], stack: contextlib.ExitStack
) -> Iterator[_Worker]:
    for number in range(processes):
        worker = _Worker(number, lines)
        stack.callback(worker.close)
        yield worker


def work() -> None:
    """Import what standard input names until it ends; the code of such a process."""
    from numba.core import event

    clock, name = SystemClock(), ""
    begun: set[str] = set()

    class Listener(event.Listener):
        """Hears of compilations only, not of kernels that come from the cache."""

        def on_start(self, event: object) -> None:
            if name not in begun:
                begun.add(name)
                print(f"began {name}", flush=True)

        def on_end(self, event: object) -> None:
            """One of several of the module."""

    with event.install_listener("numba:compile", Listener()):
        for line in sys.stdin:
            name = line.strip()
            began_s = clock.monotonic_s()
            importlib.import_module(name)
            print(f"ended {name} {clock.monotonic_s() - began_s:.3f}", flush=True)


def processes_for(modules_missing: int) -> int:
    """How many processes compile so many modules: no more than there are processors to use."""
    return min(len(os.sched_getaffinity(0)), PROCESSES_MAX, modules_missing)
