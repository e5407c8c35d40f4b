"""Compiles the kernels before the first run, with a bar; processes then find them in Numba's cache."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

from rich.console import Console

from weir.kernel_compilation import KERNEL_MODULES, kernels_missing

_CODE = (
    "from weir.clock import SystemClock; from weir.kernel_compilation import compile_kernels; "
    "compile_kernels(lambda progress: print(progress.number, flush=True), SystemClock())"
)


def compile_missing(environment: Mapping[str, str], console: Console) -> None:
    """Compile what the cache lacks, and show how far that is; takes a millisecond where it lacks nothing.

    ``environment``: of the processes to come, copied after ``weir.kernel_compilation.choose_cache_directory``.
    What goes wrong here is told by the task manager that needs the kernel.
    """
    if not kernels_missing():
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        console.print("compiling the kernels, once: this takes a minute or two", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            text=True,
        ) as process,
    ):
        bar = progress.add_task("compiling the kernels, once", total=len(KERNEL_MODULES))
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if re.fullmatch(r"\d+\n", line):
                    progress.update(bar, completed=int(line) - 1)
        except BaseException:
            process.kill()
            raise
