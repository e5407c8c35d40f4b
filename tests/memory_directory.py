"""A directory in memory for tests that need no process: they open a thousand stores, and would wait for a disk."""

import os
import re
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")
_NAME = re.compile(r"weir-tests-(\d+)")
#: What the tests write is a tenth of it.
_FREE_BYTES_MIN = 8 << 30


def _free_bytes(memory):
    """What may be written there, which takes as much of the machine's memory."""
    try:
        there = os.statvfs(memory)
        known = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return 0
    return min(there.f_bavail * there.f_frsize, int(known[1]) * 1024) if known else 0


def _is_alive(pid):
    return Path(f"/proc/{pid}").exists()


def make_memory_directory(memory=MEMORY, free_bytes_min=_FREE_BYTES_MIN):
    """A new directory of this process; None: there is little memory. What runs that were killed left is removed."""
    if _free_bytes(memory) < free_bytes_min or not os.access(memory, os.W_OK):
        return None
    for left in memory.iterdir():
        named = _NAME.fullmatch(left.name)
        if named and not _is_alive(named[1]):
            shutil.rmtree(left, ignore_errors=True)
    made = memory / f"weir-tests-{os.getpid()}"
    made.mkdir(mode=0o700)
    return made
