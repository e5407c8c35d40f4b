"""What a task manager has in use of its machine, as heartbeats tell it: memory, processors, the disk of its state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from weir.clock import Clock
from weir.types import MachineUse

#: Heartbeats in between tell what the last look found.
_LOOK_EVERY_S = 1.0
_CONTAINER = Path("/sys/fs/cgroup")


def nothing_known() -> MachineUse:
    """Where there is no machine to look at."""
    return MachineUse()


def machine_use(state_path: Path | None, clock: Clock) -> Callable[[], MachineUse]:
    """Returns what looks at this process, and at the disk on which this directory is or will be; never raises.

    None: state is kept in memory, so that no disk of it can be full.
    """
    process = psutil.Process()
    found, looked_s = MachineUse(), -_LOOK_EVERY_S
    processors, memory_bytes = _processors(), _memory_bytes()

    def look() -> MachineUse:
        nonlocal found, looked_s
        now_s = clock.monotonic_s()
        if now_s - looked_s >= _LOOK_EVERY_S:
            looked_s = now_s
            found = replace(_look(process, state_path), processors=processors, memory_bytes=memory_bytes)
        return found

    return look


def _look(process: psutil.Process, state_path: Path | None) -> MachineUse:
    resident_bytes, times = process.memory_info().rss, process.cpu_times()
    processor_us = int((times.user + times.system) * 1e6)
    if state_path is None:
        return MachineUse(resident_bytes, processor_us=processor_us)
    for place in (state_path, *state_path.absolute().parents):
        try:
            disk = shutil.disk_usage(place)
        except OSError:
            # Not made yet: its parent will have it.
            continue
        return MachineUse(resident_bytes, disk.free, disk.total, processor_us)
    return MachineUse(resident_bytes, processor_us=processor_us)


def _processors() -> int:
    """Return how many the process may use: by affinity, and by the quota of a container."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    quota, _, period = _of_container("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return min(usable, max(int(quota) // int(period), 1))
    return usable


def _memory_bytes() -> int:
    """What the process may use: the machine's, or what a container has of it."""
    limit, total = _of_container("memory.max"), psutil.virtual_memory().total
    return min(int(limit), total) if limit.isdigit() else total


def _of_container(name: str) -> str:
    """A limit of the container, by control groups of version 2; empty: there is none."""
    try:
        return (_CONTAINER / name).read_text().strip()
    except OSError:
        return ""
