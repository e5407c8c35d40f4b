"""One program that is run to its end, with the time, the CPU and the memory that it took."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from experiments.processes import ClusterError, WeirProcess, signals_later

#: How often the memory is looked at: a look costs the two cores some ms.
_LOOK_S = 0.5
#: How often the end is looked for.
_POLL_S = 0.05


@dataclass(frozen=True)
class Usage:
    """What a run took, its start and end included."""

    wall_s: float
    #: Of all processes, user and system.
    cpu_s: float
    peak_rss_bytes: int


def run_measured(
    command: Sequence[str],
    log_path: Path,
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 1200.0,
) -> Usage:
    """Run a program, which may start others, to its end; nothing else may be waited for meanwhile.

    Args:
        command: what to run.
        log_path: of its output.
        name: for messages.
        environment: variables on top of this process's.
        timeout_s: of a program that hangs.

    Raises:
        ClusterError: it failed, or did not end; the message has the end of its log.
    """
    before, began_s = _cpu_of_children_s(), time.monotonic()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log, signals_later():
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    program = WeirProcess(name, popen, log_path)
    peak, looked_s = 0, 0.0
    try:
        while popen.poll() is None:
            now_s = time.monotonic()
            if now_s - began_s > timeout_s:
                raise ClusterError(f"{name} did not end within {timeout_s:g} s\n{program.log_tail()}")
            if now_s - looked_s > _LOOK_S:
                peak, looked_s = max(peak, _rss_of_tree(popen.pid)), now_s
            time.sleep(_POLL_S)
        wall_s = time.monotonic() - began_s
    finally:
        if popen.poll() is None:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
    if popen.returncode:
        raise ClusterError(f"{name} ended with {popen.returncode}\n{program.log_tail(30)}")
    return Usage(wall_s, _cpu_of_children_s() - before, peak)


def _cpu_of_children_s() -> float:
    """CPU of the programs that were waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rss_of_tree(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in tree:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
