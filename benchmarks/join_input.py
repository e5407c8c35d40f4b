"""Inputs of the join benchmark: orders, then steps of orders at random and new orders; kept for the next run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.events_file import DATA_DIRECTORY, SEED, made_if_absent

#: Of the events after the first orders, one of so many is a new order.
NEW_ORDER_EVERY = 20
_EVENTS_PER_PART = 1_000_000


def order_numbers(orders: int, later: int) -> np.ndarray:
    """The order of each event, from 1 on, int64, shape (orders + later,): a first event begins an order."""
    rng = np.random.default_rng(SEED)
    begun = orders + 1 + np.arange(later) // NEW_ORDER_EVERY
    numbers = rng.integers(1, begun)
    is_new = np.arange(later) % NEW_ORDER_EVERY == 0
    numbers[is_new] = begun[is_new]
    return np.concatenate([rng.permutation(np.arange(1, orders + 1)), numbers])


def occurrences(numbers: np.ndarray) -> np.ndarray:
    """How often each event's number has come with it: 1, 2 and so on; int64."""
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    firsts = np.cumsum(counts) - counts
    found = np.empty(len(numbers), dtype=np.int64)
    found[order] = np.arange(len(numbers)) - firsts[numbers[order]] + 1
    return found


def input_directory(numbers: np.ndarray, rate: float, name: str, root: Path = DATA_DIRECTORY) -> Path:
    """The directory with the lines of these events; made if it is not there yet. Event time goes on at the rate."""

    def write(fresh: Path) -> None:
        counts = occurrences(numbers)
        for part, start in enumerate(range(0, len(numbers), _EVENTS_PER_PART)):
            rows = np.arange(start, min(start + _EVENTS_PER_PART, len(numbers)))
            frame = pl.DataFrame(
                {"id": numbers[rows], "n": counts[rows], "at": (rows * 1000 / rate).astype(np.int64)}
            )
            line = pl.concat_str(
                pl.lit('{"id": '),
                pl.col("id"),
                pl.lit(', "server_name": "server-'),
                pl.col("id"),
                pl.lit('", "n": '),
                pl.col("n"),
                pl.lit(', "at": '),
                pl.col("at"),
                pl.lit("}"),
            )
            lines = frame.select(line.alias("line"))
            lines.write_csv(fresh / f"part-{part:05d}.jsonl", include_header=False, quote_style="never")

    return made_if_absent(root / f"joins-{name}-rate-{rate:.0f}-seed-{SEED}", write)
