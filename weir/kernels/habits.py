"""Which kernels jobs of a kind have called: the next such job takes them from the disk before its first row.

A kernel that is taken at its first call keeps rows waiting for 3 to 12 ms, and a job calls 10 to 40 of the hundred that
a process has imported. What a job will call depends on its columns' types, so it is remembered and not derived.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from collections.abc import Iterable
from pathlib import Path

from weir.kernels.declare import called_kernels, is_loaded_or_kept, load_kernel
from weir.kernels.sources import cache_directory

_FOLDER = "habits"


def load_habitual(steps: Iterable[str]) -> bool:
    """Take from the disk what earlier jobs of the same steps have called; a task manager calls it at a job's start.

    Args:
        steps: what names the runtime of each step (``runtime`` of specs), in any order.

    Returns:
        Whether any was taken now; False: none is known, or all were there.
    """
    took = False
    for name in sorted(_read(_path(steps))):
        if not name.startswith("weir."):
            continue
        with contextlib.suppress(ImportError):
            # That of a source is imported only where the source runs.
            importlib.import_module(name.rpartition(".")[0])
            if is_loaded_or_kept(name):
                took |= load_kernel(name)
    return took


def note_habitual(steps: Iterable[str]) -> None:
    """Remember what has been called in this process; a task manager calls it when a job has ended.

    Where nothing can be written, nothing is remembered.
    """
    path = _path(steps)
    before = _read(path)
    names = before | called_kernels()
    if names == before:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced as a whole: another process may read it now.
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text("".join(f"{name}\n" for name in sorted(names)))
        written.replace(path)


def _path(steps: Iterable[str]) -> Path:
    kind = hashlib.sha256("\n".join(sorted(set(steps))).encode()).hexdigest()[:16]
    return cache_directory() / _FOLDER / f"{kind}.txt"


def _read(path: Path) -> set[str]:
    try:
        return set(path.read_text(errors="replace").splitlines())
    except OSError:
        return set()
