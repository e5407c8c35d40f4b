"""``weir compile``: compiles kernels ahead, and says how far that is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from weir.clock import SystemClock
from weir.console.given_job import GivenJob
from weir.console.kernel_compilation import all_kernels, kernels_of
from weir.console.kernel_compilation import compile_kernels as compile_named
from weir.kernels.sources import cache_directory
from weir.plan.stages import physical_graph

_CLOCK = SystemClock()


def compile_kernels(
    job: str | None, params: Sequence[str], path: Path | None, set_flags: Sequence[str]
) -> int:
    """Compile the kernels that a job may need, or all; returns the exit code.

    Raises:
        GraphError: the job cannot be found or loaded, or its graph is not valid.
        ConfigError: a setting or a flag is wrong.
    """
    began_s = _CLOCK.monotonic_s()
    directory = cache_directory()
    names = all_kernels() if job is None else _kernels_of_job(job, params, path, set_flags)
    numbers = iter(range(1, len(names) + 1))
    compiled = []

    def ended(name: str, seconds: float) -> None:
        number = next(numbers)
        if seconds:
            compiled.append(name)
            print(f"  {number} of {len(names)}: {name}, {seconds:.1f} s", flush=True)

    failures = compile_named(names, ended)
    for failure in failures:
        print(f"weir compile: error: {failure}", file=sys.stderr)
    took_s = _CLOCK.monotonic_s() - began_s
    print(f"{len(compiled)} of {len(names)} kernels compiled in {took_s:.0f} s, kept in {directory}")
    return 1 if failures else 0


def _kernels_of_job(
    job: str, params: Sequence[str], path: Path | None, set_flags: Sequence[str]
) -> list[str]:
    return kernels_of(physical_graph(GivenJob(job, params, path, set_flags).graph()))
