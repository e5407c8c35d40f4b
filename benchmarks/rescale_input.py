"""Inputs of the rescale benchmark: one event of every key, then random ones; kept for the next run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from benchmarks.events_file import DATA_DIRECTORY, SEED, format_lines
from weir.keys import hashing as weir_keys

Distribution = Literal["uniform", "zipf"]
#: Exponent of the Zipf distribution.
ZIPF = 1.1
_EVENTS_PER_PART = 1_000_000


def key_numbers(keys: int, events: int, distribution: Distribution) -> np.ndarray:
    """Numbers from 1 on, int64, shape (keys + events,): all keys in random order, then as distributed."""
    rng = np.random.default_rng(SEED)
    order = rng.permutation(np.arange(1, keys + 1))
    if distribution == "uniform":
        later = rng.integers(1, keys + 1, events)
    else:
        weights = np.cumsum(1.0 / np.arange(1, keys + 1) ** ZIPF)
        ranks = np.searchsorted(weights, rng.random(events) * weights[-1])
        # Hot keys are anywhere, not first in the input.
        later = rng.permutation(np.arange(1, keys + 1))[ranks]
    return np.concatenate([order, later])


def input_directory(numbers: np.ndarray, name: str, root: Path = DATA_DIRECTORY) -> Path:
    """The directory with the lines of these keys, in order; made if it is not there yet, all of it or nothing."""
    directory = root / f"rescale-{name}-seed-{SEED}"
    if directory.exists():
        return directory
    root.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=root))
    try:
        for part, start in enumerate(range(0, len(numbers), _EVENTS_PER_PART)):
            piece = numbers[start : start + _EVENTS_PER_PART]
            lines = format_lines(piece, piece).to_frame()
            lines.write_csv(fresh / f"part-{part:05d}.jsonl", include_header=False, quote_style="never")
        os.replace(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory


def whole_parts(events: int) -> int:
    """Events of the parts that have the first ones."""
    return -(-events // _EVENTS_PER_PART) * _EVENTS_PER_PART


def repeated_directory(source: Path, first: int, times: int) -> Path:
    """As another directory of input, with the parts after those of the first events so many times; as links."""
    directory = source.with_name(f"{source.name}-times-{times}")
    if directory.exists():
        return directory
    fresh = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=source.parent))
    parts = sorted(source.iterdir())
    once = whole_parts(first) // _EVENTS_PER_PART
    listed = parts[:once] + parts[once:] * times
    for number, part in enumerate(listed):
        os.link(part, fresh / f"part-{number:05d}.jsonl")
    os.replace(fresh, directory)
    return directory


def key_groups(keys: int, max_parallelism: int) -> np.ndarray:
    """The key group of each key number from 0 to ``keys``, uint16; that of number 0 means nothing."""
    names = (
        pl.select(pl.concat_str(pl.lit("server-"), pl.int_range(0, keys + 1)))
        .to_series()
        .rename("server_name")
    )
    batch = names.to_frame().to_arrow().combine_chunks().to_batches()[0]
    column = weir_keys.key_bytes(batch, ("server_name",))
    return weir_keys.key_groups(weir_keys.hash_keys(column), max_parallelism)
