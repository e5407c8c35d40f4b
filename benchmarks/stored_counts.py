"""The counts that a job left in its stores, read when its task managers have ended, against an independent count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.results import BenchmarkError
from weir.config.stores import RocksDbConfig
from weir.state import layout
from weir.state.stores.rocksdb import open_store
from weir.state.tables.cells.accumulators import decode_values

#: A store's directory is recognised by its marker.
_MARKER = "weir-store.json"


@dataclass(frozen=True)
class CountDifference:
    """Events that are missing in the stores, and events that are there too often."""

    lost: int
    duplicated: int

    def check(self, what: str) -> None:
        """Raise BenchmarkError unless both are 0."""
        if self.lost or self.duplicated:
            raise BenchmarkError(f"{what}: {self.lost} events lost, {self.duplicated} duplicated")


def stored_counts(directory: Path) -> pl.DataFrame:
    """``server_name`` (String) and ``count`` (Int64) of all stores in a directory; one row per stored key."""
    keys: list[str] = []
    counts: list[np.ndarray] = []
    for marker in sorted(directory.glob(f"*/{_MARKER}")):
        store = open_store(marker.parent, RocksDbConfig(), fresh=False)
        try:
            entries = list(_entries(store.scan()))
        finally:
            store.close()
        keys += [key for key, _ in entries]
        cells, _ = decode_values([value for _, value in entries], 1)
        counts.append(cells.reshape(-1))
    joined = np.concatenate(counts) if counts else np.empty(0, dtype=np.int64)
    return pl.DataFrame({"server_name": pl.Series(keys, dtype=pl.String), "count": joined.astype(np.int64)})


def _entries(scan: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[str, bytes]]:
    for key, value in scan:
        yield layout.decode_key(key).user_key.decode(), value


def compare_counts(expected: pl.DataFrame, found: pl.DataFrame) -> CountDifference:
    """Difference of two tables ``server_name, count``; a key that two stores have counts with its sum.

    Raises:
        BenchmarkError: two stores hold the same key.
    """
    if found["server_name"].is_duplicated().any():
        raise BenchmarkError("a key is in the stores of two task managers")
    joined = expected.join(found, on="server_name", how="full", coalesce=True, suffix="_found").with_columns(
        (pl.col("count_found").fill_null(0) - pl.col("count").fill_null(0)).alias("difference")
    )
    difference = joined["difference"]
    return CountDifference(
        lost=int(-difference.filter(difference < 0).sum()),
        duplicated=int(difference.filter(difference > 0).sum()),
    )
