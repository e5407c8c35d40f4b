"""A job for rescales under load: every stage but the source can be scaled, and its output can be checked row by row.

0 lines -> 1 count by server (rows of a server in the order of their ids), its state rewritten -> 2 parity, round robin
-> 3 busy work by server and parity -> 4 count by server and parity -> 5 the sink, round robin
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
#: Stages that can be scaled.
STAGES = (1, 2, 3, 4, 5)


class Remember(weir.KeyedProcess):
    """Checks that each event finds what the one before it left in the state, and clears it after every tenth event."""

    #: The number of the key's latest event, once in cells and once as a value of any length.
    latest = weir.ValueState(pl.Int64)
    told = weir.ValueState(pl.String)
    ballast = weir.MapState(pl.Int64, pl.Binary)

    def __init__(self, ballast_bytes: int = 0) -> None:
        """``ballast_bytes``: size of further entries, a hundred of them per key; 0: none."""
        self._ballast = b"." * ballast_bytes

    def process(
        self, key: tuple[str], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterator[dict[str, Any]]:
        """The very row.

        Raises:
            ValueError: the state is not what the event before left.
        """
        count = row["n"]
        found = self.latest.value, self.told.value
        expected = (None, None) if count % 10 == 1 else (count - 1, str(count - 1))
        if found != expected:
            raise ValueError(f"key {key!r}, event {count}: found {found!r}, not {expected!r}")
        if count % 10:
            self.latest.value, self.told.value = count, str(count)
        else:
            self.latest.clear()
            self.told.clear()
        if self._ballast:
            self.ballast[count % 100] = self._ballast
        yield row


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
    last = by_parity.key_by("server", "odd", own_stage=True).aggregate(
        "last", m=weir.count(), highest=weir.max("id")
    )
    last.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
