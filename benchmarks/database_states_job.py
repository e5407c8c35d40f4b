"""Versions, windows and sessions, with 16 operations a row; with ``release`` states of all kinds, for questions.

State lies in a database. It is run at older commits, too: it needs nothing of this folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

import weir
from experiments.held_source import held

COLUMNS = {"k": str, "t": int, "found": int}
#: Of event time; a row of each key comes every 1,000 ms.
_RETENTION = "1h"


class Reads(weir.KeyedProcess):
    """16 operations a row, twelve of which read."""

    versions = weir.VersionedState(pl.Int64, retention=_RETENTION)
    windows = weir.WindowState(pl.Int64, retention=_RETENTION)
    sessions = weir.SessionState(pl.Int64, retention=_RETENTION)

    def process(self, key: tuple[Any, ...], row: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        """See ``weir.KeyedProcess``."""
        at = row["t"]
        window = at - at % 5_000
        self.versions.put(row["v"], at)
        found = [self.versions.get(at - ago) for ago in (0, 2_000, 4_000)]
        found += self.versions.fetch(at - 3_000, at)
        self.windows.put((self.windows.get(window) or 0) + 1, window)
        found.append(self.windows.get(window - 5_000))
        found += self.windows.fetch(window - 10_000, window)
        found += self.windows.fetch(window - 5_000, reverse=True)
        begin, seen = at, 1
        for session in list(self.sessions.find(at - 1_500, at)):
            begin, seen = min(begin, session.start_ms), seen + session.value
            self.sessions.delete(session.start_ms, session.end_ms)
        self.sessions.put(seen, begin, at)
        found += self.sessions.find(at - 5_000, at)
        found += self.sessions.find(at - 10_000, at - 5_000)
        found.append(next(self.sessions.find(reverse=True), None))
        yield {"k": key[0], "t": at, "found": len(found)}


class EveryKind(Reads):
    """The same, and states of the other kinds."""

    value = weir.ValueState(pl.Int64, default=0)
    values = weir.ListState(pl.Int64)
    names = weir.MapState(pl.Int64, pl.Int64)

    def process(self, key: tuple[Any, ...], row: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        """See ``weir.KeyedProcess``."""
        self.value.value += 1
        self.values.append(row["v"])
        self.names[row["t"] % 10] = row["v"]
        yield from super().process(key, row, context)


def build(input: str, release: str = "", max_parallelism: int = 128) -> weir.Dataflow:
    """The dataflow; ``input``: JSON lines with a key, a time in ms and a number; ``release``: see ``held``."""
    flow = weir.Dataflow("states", max_parallelism=max_parallelism)
    lines = weir.JsonLines(input, schema={"k": str, "t": int, "v": int}, event_time="t")
    by_key = flow.source("events", held(lines, release)).key_by("k")
    states = EveryKind if release else Reads
    by_key.process("states", states, COLUMNS, parallelism=2).sink("states_out", weir.Blackhole())
    if release:
        by_key.count("seen").sink("seen_out", weir.Blackhole())
        minutes = by_key.window(weir.tumbling("1h"))
        minutes.aggregate("hours", n=weir.count(), total=weir.sum("v")).sink("hours_out", weir.Blackhole())
        hops = by_key.window(weir.sliding("1m", "10s"))
        hops.aggregate("hops", n=weir.count(), kinds=weir.count_distinct("v")).sink(
            "hops_out", weir.Blackhole()
        )
        sessions = by_key.window(weir.session("5m"))
        sessions.aggregate("visits", n=weir.count()).sink("visits_out", weir.Blackhole())
    return flow
