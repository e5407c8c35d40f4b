"""Runs many seeds on all processors: until one fails, or until a fence broken on purpose is found."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.queues
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

from experiments.simulation.run import Simulation
from weir.errors import WeirError

_SHOW_EVERY = 500
#: Seeds that a process runs at a time: few, as what was handed out when one fails is run in vain.
_PART_SEEDS = 2


class SimulationError(WeirError):
    """A seed failed; the message says how to replay it."""


def replay_command(seed: int, broken: str = "") -> str:
    """How to see the whole course of a seed."""
    return f"python -m experiments simulate --seed {seed}" + (f' --break-fence "{broken}"' if broken else "")


def outcome(seed: int, *, broken: str = "", print_line: Callable[[str], None] | None = None) -> Counter[str]:
    """Run a seed; returns what happened how often.

    Raises:
        SimulationError: it failed.
    """
    try:
        return Simulation(seed, broken=broken, print_line=print_line).run()
    except Exception as error:
        raise SimulationError(f"seed {seed}: {error!r}; replay: {replay_command(seed, broken)}") from error


class Seeds:
    """Runs seeds in this process, or in several that stay for all calls; a context manager that ends them."""

    def __init__(self, processes: int = 1) -> None:
        """Start the processes, if there are to be more than this one."""
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            # Forked from one that has only imported: a process that has run a seed has threads.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            cpus = context.SimpleQueue()
            for number in range(processes):
                cpus.put(number)
            self._pool = ProcessPoolExecutor(processes, context, _stay_on_cpu, (cpus,))

    def __enter__(self) -> Seeds:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, seeds: Sequence[int], broken: str, show: Callable[[str], None]) -> Counter[str]:
        """Run seeds until one fails; returns what happened how often in all of them.

        Raises:
            SimulationError: one failed.
        """
        counts: Counter[str] = Counter()
        done = 0
        for part, found, failure in self._parts(seeds, broken):
            if failure:
                raise SimulationError(failure)
            counts += found
            done += len(part)
            if done % _SHOW_EVERY == 0:
                show(f"{done} seeds")
        return counts

    def first_failing(self, seeds: Sequence[int], broken: str) -> str:
        """Returns what the first seed that fails with a fence broken says, and how to replay it; "": none fails."""
        return next((failure for _, _, failure in self._parts(seeds, broken) if failure), "")

    def _parts(self, seeds: Sequence[int], broken: str) -> Iterator[tuple[Sequence[int], Counter[str], str]]:
        """Seeds, what happened in them, and the failure that ended that; in order."""
        parts = iter([seeds[start : start + _PART_SEEDS] for start in range(0, len(seeds), _PART_SEEDS)])
        if self._pool is None:
            for part in parts:
                yield part, *_outcomes(broken, part)
            return
        # No process has much to do that nobody needs when a seed fails.
        running: list[tuple[Sequence[int], Future[tuple[Counter[str], str]]]] = []
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: [future.cancel() for _, future in running])
            while True:
                for part in parts:
                    running.append((part, self._pool.submit(_outcomes, broken, part)))
                    if len(running) > 2 * self._processes:
                        break
                if not running:
                    return
                part, future = running.pop(0)
                yield part, *future.result()


def check_fences(
    names: Sequence[str], seeds: Sequence[int], processes: int, show: Callable[[str], None]
) -> list[str]:
    """Break fences, one after the other, and run seeds until the break is found; returns those not found."""
    missed = []
    with Seeds(processes) as runner:
        for name in names:
            failure = runner.first_failing(seeds, name)
            show(f"{name}: {failure or f'NOT FOUND in {len(seeds)} seeds'}")
            if not failure:
                missed.append(name)
    return missed


def _outcomes(broken: str, seeds: Sequence[int]) -> tuple[Counter[str], str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            counts += outcome(seed, broken=broken)
        except SimulationError as error:
            return counts, str(error)
    return counts, ""


def _stay_on_cpu(cpus: multiprocessing.queues.SimpleQueue[int]) -> None:
    """Threads that take turns do so faster on one processor; called by each process when it starts."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[cpus.get() % len(usable)]})
