"""Many queries that DuckDB judges, on several processors: a night's run has 10,000."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.sql.generator import made_up
from benchmarks.sql.judge import Record, difference

#: Made-up queries of one seed.
_OF_A_SEED = 1_000_000
#: Queries that a process is handed at a time.
_PART = 10
_MEMORY = Path("/dev/shm")


def made_up_queries(seed: int, first: int, count: int) -> Iterator[tuple[int, Record]]:
    """Queries from the one numbered ``first`` on, each with its number."""
    for number in range(first, first + count):
        yield number, made_up(seed * _OF_A_SEED + number)


def told_of(seed: int, query: tuple[int, Record]) -> str:
    """What is wrong with a query; empty: nothing. Its number says cuts, parallelism, and whether there are restarts."""
    number, record = query
    try:
        return difference(record, seed + number, 1 + number % 2, restarts=number % 3 > 0)
    # An error of any type is a finding, and the queries after it are judged all the same.
    except Exception as error:
        return f"{record.place} {record.name}: {type(error).__name__}: {error}\n{record.text}"


def differing(
    queries: Sequence[tuple[int, Record]], seed: int, report: Callable[[str, float], None], processes: int = 0
) -> int:
    """Judge queries; returns how many differ, each of which is told. ``processes``: 0 for one of each processor."""
    processes = processes or len(os.sched_getaffinity(0))
    judge = partial(told_of, seed)
    if processes == 1:
        return _count(map(judge, queries), len(queries), report)
    # Started anew: a process that has run a job has threads, which no fork takes along.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _keep_files_in_memory) as pool:
        return _count(pool.map(judge, queries, chunksize=_PART), len(queries), report)


def _keep_files_in_memory() -> None:
    """What jobs write is read by none but them: a disk that each checkpoint waits for is not what is judged."""
    if _MEMORY.is_dir():
        tempfile.tempdir = str(_MEMORY)


def _count(found: Iterator[str], count: int, report: Callable[[str, float], None]) -> int:
    different = 0
    for number, told in enumerate(found):
        report("queries judged by DuckDB", number / count)
        if told:
            different += 1
            report(f"DIFFERS {told}", number / count)
    return different
