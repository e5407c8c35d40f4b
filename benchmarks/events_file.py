"""Inputs of benchmarks: the lines that workgen.py makes by default, without Spark and Java, kept for the next run.

A line is ``{"id": 7, "server_name": "server-123"}``: ids uniform in 1..100, keys uniform in 1..keys, a part
per million events and at least four, as ``workgen.py --events N --keys K`` writes them. Only the random numbers differ.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

#: Where inputs are kept, below the current directory; git ignores it.
DATA_DIRECTORY = Path("data/benchmarks")
SEED = 42

_EVENTS_PER_PART = 1_000_000
_PARTS_MIN = 4
#: workgen's ids are 1..100.
_ID_MAX = 100


def event_lines(rng: np.random.Generator, events: int, keys: int) -> pl.Series:
    """Lines without line ends; dtype String, shape (events,)."""
    return format_lines(rng.integers(1, _ID_MAX + 1, events), rng.integers(1, keys + 1, events))


def format_lines(ids: np.ndarray, key_numbers: np.ndarray) -> pl.Series:
    """The line of each event, without its end; int64 arrays of the same shape (events,)."""
    line = pl.concat_str(
        pl.lit('{"id": '), pl.col("id"), pl.lit(', "server_name": "server-'), pl.col("key"), pl.lit('"}')
    )
    return pl.DataFrame({"id": ids, "key": key_numbers}).select(line.alias("line")).to_series()


def events_directory(
    events: int, keys: int, *, root: Path = DATA_DIRECTORY, on_part: Callable[[int, int], None] | None = None
) -> Path:
    """The directory with these events; made if it is not there yet, all of it or nothing.

    Args:
        events: number of lines.
        keys: number of different server names, at most.
        root: where directories of events are kept.
        on_part: called with the number of parts written and their total.
    """
    part_count = min(max(-(-events // _EVENTS_PER_PART), _PARTS_MIN), events)
    bounds = np.linspace(0, events, part_count + 1).astype(int).tolist()

    def write(fresh: Path) -> None:
        rng = np.random.default_rng(SEED)
        for part in range(part_count):
            lines = event_lines(rng, bounds[part + 1] - bounds[part], keys).to_frame()
            lines.write_csv(fresh / f"part-{part:05d}.jsonl", include_header=False, quote_style="never")
            if on_part is not None:
                on_part(part + 1, part_count)

    return made_if_absent(root / f"events-{events}-keys-{keys}-seed-{SEED}", write)


def made_if_absent(directory: Path, write: Callable[[Path], None]) -> Path:
    """The directory; if it is not there, ``write`` fills one that then gets its name: all of it, or nothing."""
    if directory.exists():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=directory.parent))
    try:
        write(fresh)
        os.replace(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory
