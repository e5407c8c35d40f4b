"""States of every kind in a database, to be asked about ranges of their keys; the input never ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

import weir

#: Of event time: longer than that of all rows.
_RETENTION = "30d"


class States(weir.KeyedProcess):
    """A state of each kind that a class may declare."""

    value = weir.ValueState(pl.Int64)
    items = weir.ListState(pl.Int64)
    names = weir.MapState(pl.String, pl.Int64)
    versions = weir.VersionedState(pl.Int64, retention=_RETENTION)
    times = weir.WindowState(pl.Int64, retention=_RETENTION)
    visits = weir.SessionState(pl.Int64, retention=_RETENTION)

    def process(self, key: tuple[Any, ...], row: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        """See ``weir.KeyedProcess``."""
        at = row["t"]
        self.value.value = row["v"]
        self.items.append(row["v"])
        self.names[f"name-{row['v']}"] = row["v"]
        self.versions.put(row["v"], at)
        self.times.put(row["v"], at)
        self.visits.put(row["v"], at, at)
        return iter(())


def build(input: str, parallelism: int = 1, max_parallelism: int = 128) -> weir.Dataflow:
    """The dataflow; ``input``: a directory of JSON lines with a key, a time in ms and a number."""
    flow = weir.Dataflow("ranges", max_parallelism=max_parallelism)
    lines = weir.JsonLines(input, schema={"k": str, "t": int, "v": int}, event_time="t", follow=True)
    rows = flow.source("events", lines)
    by_key = rows.key_by("k")
    by_key.process("states", States, {"k": str}, parallelism=parallelism).sink("states_out", weir.Blackhole())
    by_key.count("seen", parallelism=parallelism).sink("seen_out", weir.Blackhole())
    windows = {
        "tumbling": weir.tumbling("1h"),
        "sliding": weir.sliding("1h", "5m"),
        "sessions": weir.session("10m"),
    }
    for name, window in windows.items():
        by_key.window(window).aggregate(
            name, parallelism=parallelism, rows=weir.count(), kinds=weir.count_distinct("v")
        ).sink(f"{name}_out", weir.Blackhole())
    by_key.window(weir.tumbling("1h")).process("kept", _number, {"rows": int}, parallelism=parallelism).sink(
        "kept_out", weir.Blackhole()
    )
    odd = rows.filter("odd", pl.col("v") % 2 == 1).key_by("k")
    by_key.join("paired", odd, within=("-10m", "0ms"), parallelism=parallelism).sink(
        "paired_out", weir.Blackhole()
    )
    by_key.top("newest", by="t", rows=3, parallelism=parallelism).sink("newest_out", weir.Blackhole())
    return flow


def _number(key: dict[str, Any], window: weir.WindowBounds, rows: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({"rows": [rows.height]})
