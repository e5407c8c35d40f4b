"""Processes that compile kernels side by side, each kernel in one of them, into the cache that all share.

They get names of kernels on standard input, one a line, and write ``ended NAME SECONDS`` to standard output when one is
there, with 0 seconds where the cache had it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from weir.clock import SystemClock

_CLOCK = SystemClock()
#: A process takes 300 MB.
PROCESSES_MAX = 4
_ROOT = Path(__file__).parents[2]
# Before other installations of Weir, but never before the standard library if this one is installed.
_CODE = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "from weir.kernels.workers import work; work()"
)


def compile_side_by_side(
    kernels: Iterable[str], processes: int, ended: Callable[[str, float], None]
) -> list[str]:
    """Compile what the cache lacks of these kernels; blocks until all of it is there.

    Args:
        kernels: names with modules, in the order in which to begin them.
        processes: how many to start, at least one.
        ended: called with each kernel, and the seconds that it took; 0: the cache had it.

    Returns:
        Why processes ended before their time, a line for each; what they were to compile is missing then.
    """
    pending = list(reversed(list(kernels)))
    failures: list[str] = []
    lock = threading.Lock()

    def take() -> str | None:
        with lock:
            return pending.pop() if pending else None

    def tell(name: str, seconds: float) -> None:
        with lock:
            ended(name, seconds)

    running: list[subprocess.Popen[str]] = []
    threads = [
        threading.Thread(target=_serve, args=(take, tell, failures, running), name="kernel-worker")
        for _ in range(processes)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        pending.clear()
        for process in list(running):
            process.kill()
        raise
    return failures


def _serve(
    take: Callable[[], str | None],
    tell: Callable[[str, float], None],
    failures: list[str],
    running: list[subprocess.Popen[str]],
) -> None:
    """A process from its start to its end."""
    # Errors go to no pipe, which somebody would have to read all the time.
    with tempfile.TemporaryFile("w+") as errors, start(subprocess.PIPE, errors) as process:
        running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        while (name := take()) is not None:
            try:
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass
            match process.stdout.readline().split():
                case ["ended", _, seconds]:
                    tell(name, float(seconds))
                case _:
                    process.kill()
                    code = process.wait()
                    errors.seek(0)
                    told = errors.read().strip().rpartition("\n")[2]
                    failures.append(f"the process that compiled {name} ended with code {code}: {told}")
                    return
        process.stdin.close()
        process.stdout.read()


def start(output: int, errors: IO[str] | int) -> subprocess.Popen[str]:
    """A process that waits for names; ``output`` and ``errors`` as for ``subprocess``."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE, str(_ROOT)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        text=True,
        # Ctrl-C is for the process that waits for this one, and ends it.
        start_new_session=True,
    )


def work() -> None:
    """Compile what standard input names until it ends; the code of such a process."""
    from weir.kernels.declare import load_kernel, tell_compilations

    took: dict[str, float] = {}
    tell_compilations(lambda name, seconds: took.update({name: seconds or 0.0}))
    # Work that nobody waits for beside a job.
    os.nice(5)
    for line in sys.stdin:
        name = line.strip()
        began_s = _CLOCK.monotonic_s()
        importlib.import_module(name.rpartition(".")[0])
        load_kernel(name)
        print(f"ended {name} {_CLOCK.monotonic_s() - began_s if name in took else 0:.3f}", flush=True)


def processes_for(kernels: int) -> int:
    """How many processes compile so many kernels: no more than there are processors to use."""
    return max(1, min(len(os.sched_getaffinity(0)), PROCESSES_MAX, kernels))
