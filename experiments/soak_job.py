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

SCHEMA = {"id": int, "server": str}
#: Stages that can be scaled.
STAGES = (1, 2, 3, 4, 5)


class Remember(weir.KeyedProcess):
    """Checks that each row finds what the row before it left in the state, and deletes it every tenth time."""

    def __init__(self, ballast_bytes: int = 0) -> None:
        """``ballast_bytes``: size of a further entry per row, a thousand of them per key; 0: none."""
        self._ballast = b"." * ballast_bytes

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The very input.

        Raises:
            ValueError: the state is not what the event before left.
        """
        groups, keys = self.keys(batch)
        for row, (key, count) in enumerate(zip(keys, batch.column("n").to_pylist(), strict=True)):
            group = groups[row : row + 1]
            found = self.keyed_state.get_many(group, [key])[0]
            expected = None if count % 10 == 1 else b"%d" % (count - 1)
            if found != expected:
                raise ValueError(f"key {key!r}, event {count}: found {found!r}, not {expected!r}")
            if count % 10:
                self.keyed_state.put_many(group, [key], [b"%d" % count])
            else:
                self.keyed_state.delete_many(group, [key])
            if self._ballast:
                self.keyed_state.put_many(group, [key + b":%d" % (count % 1000)], [self._ballast])
        return (batch,)


def build(
    input: str,
    output: str,
    rate: float | None = None,
    source_parallelism: int = 1,
    load_ms: float = 0.0,
    ballast_bytes: int = 0,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id`` and ``server``.
        output: directory of the JSON lines with running counts ``n`` (by server) and ``m`` (by server and parity).
        rate: events per second; None: as fast as possible.
        source_parallelism: subtasks of stage 0; with one, the order of rows can be checked.
        load_ms: CPU per event in stage 3.
        ballast_bytes: size of the entries that fill the state of stage 1; 0: none.
    """
    flow = weir.Dataflow("soak")
    source = weir.JsonLines(input, schema=SCHEMA, rate=rate)
    lines = flow.source("lines", source, parallelism=source_parallelism)
    counts = lines.key_by("server").count("counted", "n")
    remembered = counts.process("remember", functools.partial(Remember, ballast_bytes))
    parities = remembered.rebalance().with_columns("parity", odd=pl.col("id") % 2)
    by_parity = parities.key_by("server", "odd").busy("load", load_ms)
    last = by_parity.key_by("server", "odd").aggregate("last", m=weir.count(), highest=weir.max("id"))
    last.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
