"""Versions, windows and sessions in a database, with 16 operations a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

import weir

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


def build(input: str, max_parallelism: int = 128) -> weir.Dataflow:
    """The dataflow; ``input``: JSON lines with a key, a time in ms and a number."""
    flow = weir.Dataflow("states", max_parallelism=max_parallelism)
    lines = weir.JsonLines(input, schema={"k": str, "t": int, "v": int}, event_time="t")
    by_key = flow.source("events", lines).key_by("k")
    by_key.process("states", Reads, COLUMNS, parallelism=2).sink("states_out", weir.Blackhole())
    return flow
