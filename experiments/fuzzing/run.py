"""``python -m experiments fuzz``: so many inputs to all entries, and what was found."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from experiments.fuzzing.processes import LIMIT_S, FuzzedCluster
from experiments.fuzzing.readers import clear, readers
from weir.errors import WeirError

Try = Callable[[random.Random], object]
#: Inputs to processes are a hundred times slower than those to functions.
_SHARE_OF_PROCESSES = 0.05
#: Of these most wait: for the end of a stream, or for an answer that does not come.
_THREADS = 8
#: The memory of the processes, and of this one, may grow so much after the first half.
_GROWTH_BYTES_MAX = 64 << 20
_FINDINGS_MAX = 20


class FuzzError(WeirError):
    """An input did what none may do; the text has the entry and the seed that makes it again."""


@dataclass
class Tally:
    """What was tried."""

    inputs: dict[str, int] = field(default_factory=dict)
    slowest_s: float = 0.0
    slowest_entry: str = ""
    findings: list[str] = field(default_factory=list)
    #: Of the processes, and of this one with the readers, in the second half.
    grown_bytes: int = 0
    grown_here_bytes: int = 0

    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, entry: str, seconds: float) -> None:
        """Count an input; any thread may call it."""
        with self._lock:
            self.inputs[entry] = self.inputs.get(entry, 0) + 1
            if seconds > self.slowest_s:
                self.slowest_s, self.slowest_entry = seconds, entry


def fuzz(
    inputs: int,
    seed: int,
    only: str,
    report: Callable[[str], None],
    *,
    with_processes: bool = True,
    popen: Any = None,
) -> Tally:
    """Try inputs; returns what was tried, with what was found.

    Args:
        inputs: how many, over all entries.
        seed: of the first one; the same seed makes the same inputs.
        only: entries whose name has this text; "": all.
        report: takes lines to show.
        with_processes: also those of running processes.
        popen: as of ``Cluster``.

    Raises:
        FuzzError: there is no such entry.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="weir-fuzz-") as name:
        directory = Path(name)
        functions = _chosen(readers(directory), only)
        of_processes = max(int(inputs * _SHARE_OF_PROCESSES), 1) if with_processes else 0
        if functions:
            report(f"{inputs - of_processes:,} inputs to {len(functions)} readers")
            tally.grown_here_bytes = _try_halves(functions, inputs - of_processes, seed, tally, _rss_bytes)
            _check_growth("this process has", tally.grown_here_bytes, tally)
        if with_processes:
            with FuzzedCluster(directory, popen) as cluster:
                targets = _chosen(cluster.targets(), only)
                if not functions and not targets:
                    raise FuzzError(f"there is no entry with {only!r} in its name")
                report(f"{of_processes:,} inputs to {len(targets)} entries of processes")
                tally.grown_bytes = _try_halves(
                    targets, of_processes, seed, tally, cluster.rss_bytes, _THREADS
                )
                if trouble := cluster.trouble():
                    tally.findings.append(trouble)
                _check_growth("the processes have", tally.grown_bytes, tally)
    return tally


def _chosen(entries: Mapping[str, Try], only: str) -> dict[str, Try]:
    return {name: work for name, work in entries.items() if only in name}


def _rss_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _check_growth(who: str, grown_bytes: int, tally: Tally) -> None:
    if grown_bytes > _GROWTH_BYTES_MAX:
        tally.findings.append(f"{who} grown by {grown_bytes >> 20} MiB")


def _try_halves(
    entries: Mapping[str, Try],
    inputs: int,
    seed: int,
    tally: Tally,
    rss_bytes: Callable[[], int],
    threads: int = 1,
) -> int:
    """Try inputs; returns by how many bytes the memory has grown in the second half of them."""
    half = inputs // 2
    _try_all(entries, half, seed, tally, threads)
    before_bytes = rss_bytes()
    _try_all(entries, inputs - half, seed + half, tally, threads)
    return rss_bytes() - before_bytes


def _try_all(entries: Mapping[str, Try], inputs: int, seed: int, tally: Tally, threads: int = 1) -> None:
    names = list(entries)

    def one(number: int) -> None:
        if len(tally.findings) >= _FINDINGS_MAX:
            return
        name = names[number % len(names)]
        began_s = time.monotonic()
        try:
            clear(lambda: entries[name](random.Random(seed + number)))
        except Exception as error:
            tally.findings.append(f"{name}, seed {seed + number}: {type(error).__name__}: {error}")
        took_s = time.monotonic() - began_s
        tally.note(name, took_s)
        if took_s > LIMIT_S:
            tally.findings.append(f"{name}, seed {seed + number}: took {took_s:.1f} s")

    numbers = iter(range(inputs if names else 0))
    lock = threading.Lock()

    def some() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            one(number)

    # Each takes the next number: a future for each of a million inputs would need a gigabyte.
    with ThreadPoolExecutor(threads) as pool:
        for work in [pool.submit(some) for _ in range(threads)]:
            work.result()
