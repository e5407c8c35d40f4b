"""What a task manager has in use of its machine, as heartbeats tell it: memory, and the disk of its state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from weir.clock import Clock
from weir.types import MachineUse

#: Heartbeats in between tell what the last look found.
_LOOK_EVERY_S = 1.0


def nothing_known() -> MachineUse:
    """Where there is no machine to look at."""
    return MachineUse()


def machine_use(state_path: Path | None, clock: Clock) -> Callable[[], MachineUse]:
    """Returns what looks at this process, and at the disk on which this directory is or will be; never raises.

    None: state is kept in memory, so that no disk of it can be full.
    """
    process = psutil.Process()
    found, looked_s = MachineUse(), -_LOOK_EVERY_S

    def look() -> MachineUse:
        nonlocal found, looked_s
        now_s = clock.monotonic_s()
        if now_s - looked_s >= _LOOK_EVERY_S:
            looked_s = now_s
            found = _look(process, state_path)
        return found

    return look


def _look(process: psutil.Process, state_path: Path | None) -> MachineUse:
    resident_bytes = process.memory_info().rss
    if state_path is None:
        return MachineUse(resident_bytes)
    for place in (state_path, *state_path.absolute().parents):
        try:
            disk = shutil.disk_usage(place)
        except OSError:
            # Not made yet: its parent will have it.
            continue
        return MachineUse(resident_bytes, disk.free, disk.total)
    return MachineUse(resident_bytes)
