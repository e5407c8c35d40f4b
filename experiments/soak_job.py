"""A job for rescales under load: every stage but the source can be scaled, and its output can be checked row by row.

0 lines -> 1 count by server (rows of a server in the order of their ids), its state rewritten -> 2 parity, round robin
-> 3 busy work by server and parity -> 4 count by server and parity -> 5 the sink, round robin
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import polars as pl
import pyarrow as pa

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
#: Stages that can be scaled.
STAGES = (1, 2, 3, 4, 5)


class Remember(weir.KeyedProcess):
    """Checks that each batch finds what the one before it left in the state, and deletes it after every tenth event."""

    def __init__(self, ballast_bytes: int = 0) -> None:
        """``ballast_bytes``: size of further entries, a hundred of them per key; 0: none."""
        self._ballast = b"." * ballast_bytes

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The very input.

        Raises:
            ValueError: the state is not what the event before left.
        """
        groups, keys = self.keys(batch)
        counts = batch.column("n").to_pylist()
        first = dict(zip(reversed(keys), range(batch.num_rows - 1, -1, -1), strict=True))
        last = dict(zip(keys, counts, strict=True))
        found = self.keyed_state.get_many(groups[list(first.values())], list(first))
        for (key, row), value in zip(first.items(), found, strict=True):
            expected = None if counts[row] % 10 == 1 else b"%d" % (counts[row] - 1)
            if value != expected:
                raise ValueError(f"key {key!r}, event {counts[row]}: found {value!r}, not {expected!r}")
        kept = [key for key, count in last.items() if count % 10]
        rows = groups[[first[key] for key in kept]]
        self.keyed_state.put_many(rows, kept, [b"%d" % last[key] for key in kept])
        gone = [key for key, count in last.items() if count % 10 == 0]
        self.keyed_state.delete_many(groups[[first[key] for key in gone]], gone)
        if self._ballast:
            entries = [key + b":%d" % (last[key] % 100) for key in last]
            rows = groups[[first[key] for key in last]]
            self.keyed_state.put_many(rows, entries, [self._ballast] * len(entries))
        return (batch,)


def build(
    input: str,
    output: str,
    rate: float | None = None,
    source_parallelism: int = 1,
    load_ms: float = 0.0,
    ballast_bytes: int = 0,
    release: str = "",
    count_parallelism: int = 1,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id`` and ``server``.
        output: directory of the JSON lines with running counts ``n`` (by server) and ``m`` (by server and parity).
        rate: events per second; None: as fast as possible.
        source_parallelism: subtasks of stage 0; with one, the order of rows can be checked.
        load_ms: CPU per event in stage 3.
        ballast_bytes: size of the entries that fill the state of stage 1; 0: none.
        release: the source neither ends nor leaves its rate before this file exists; empty: it need not exist.
        count_parallelism: subtasks of stage 1 at the start.
    """
    flow = weir.Dataflow("soak")
    source = held(weir.JsonLines(input, schema=SCHEMA, rate=rate), release)
    lines = flow.source("lines", source, parallelism=source_parallelism)
    counts = lines.key_by("server").count("counted", "n", parallelism=count_parallelism)
    remembered = counts.process("remember", functools.partial(Remember, ballast_bytes))
    parities = remembered.rebalance().with_columns("parity", odd=pl.col("id") % 2)
    by_parity = parities.key_by("server", "odd").busy("load", load_ms)
    last = by_parity.key_by("server", "odd").aggregate("last", m=weir.count(), highest=weir.max("id"))
    last.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
