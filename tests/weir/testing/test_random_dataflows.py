"""Random dataflows, with branches, second readers, unions and ``forward()``: restarts change nothing.

Each is run at some parallelism, through checkpoints, restarts and starts from savepoints at random places, and once at
parallelism 1 without any fault: every branch says the same.

What a step makes of the rows of one key depends on their order, and that is known where all of them come one way. So a
stream that is made of several, or is keyed anew, has nothing but its key: rows of a key are alike then.
"""

from __future__ import annotations

import os
import random

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from weir import testing

#: ``WEIR_DATAFLOWS=2000`` for a longer run.
DATAFLOWS = int(os.environ.get("WEIR_DATAFLOWS", cases(10)))
SCHEMA = {"k": int, "at": int}
ROWS = 120
KINDS = ["filter", "columns", "columns", "count", "count", "process", "batches", "window", "union"]


class Counted(weir.KeyedProcess):
    """Hands on the key with how many rows of it there were."""

    n = weir.ValueState(int, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        yield {"k": key[0], "n": self.n.value}


class Remembered(weir.KeyedProcess):
    """Tells the first value of each key again and again."""

    first = weir.ValueState(int)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        numbers = batch["n"].to_pylist()
        before = self.first.get(keys).to_arrow().to_pylist()
        known = {}
        for key, number, first in zip(keys.inverse.tolist(), numbers, before, strict=True):
            known.setdefault(key, number if first is None else first)
        firsts = [known[key] for key in keys.inverse.tolist()]
        self.first.put(keys, firsts, last=True)
        yield pa.record_batch({"k": batch["k"], "n": pa.array(firsts, pa.int64())})


class Drawn:
    """Draws a dataflow of streams of the columns ``k`` and ``n``."""

    def __init__(self, seed: int, parallelism: int | None) -> None:
        """``parallelism``: of all steps; None: as drawn."""
        self.chance = random.Random(seed)
        self.fixed = parallelism
        self.flow = weir.Dataflow("drawn", max_parallelism=16)
        source = self.flow.source(
            "events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"), parallelism=1
        )
        #: The steps so far, each with whether it was spread by ``k`` before.
        self.streams = [source.with_columns("begin", n=pl.col("k")).select("columns", "k", "n")]
        self.read: set[str] = set()
        for number in range(self.chance.randrange(3, 9)):
            self._step(f"step_{number}")
        for stream in self.streams:
            if stream.node.name not in self.read:
                stream.sink(f"out_{stream.node.name}", weir.Collect())

    def _step(self, name: str) -> None:
        chance = self.chance
        # Mostly the last one, so that there are chains; else a branch with a second reader.
        stream = self.streams[-1] if chance.random() < 0.6 else chance.choice(self.streams)
        self.read.add(stream.node.name)
        # Mostly as many as before: only then an exchange may be left out.
        drawn = stream.node.parallelism if chance.random() < 0.8 else chance.choice([1, 2, 3])
        parallelism = self.fixed or drawn
        is_forward = chance.random() < 0.4
        kind = chance.choice(KINDS)
        if kind in ("filter", "columns"):
            before = stream.forward() if is_forward else stream
            if kind == "filter":
                made = before.filter(name, pl.col("n") % 7 != 3)
            else:
                made = before.with_columns(name, n=pl.col("n") + 1)
        elif kind == "union":
            other = chance.choice(self.streams)
            self.read.add(other.node.name)
            # Other ways for one row or another: only the key is the same whatever comes first.
            parts = [part.rebalance() for part in (stream, other)]
            union = parts[0].union(f"{name}_all", parts[1], parallelism=parallelism)
            made = union.select(name, "k", n=pl.lit(1, pl.Int64))
        else:
            if chance.random() < 0.1:
                # By another key: rows of one are alike.
                stream = stream.select(f"{name}_key", k=pl.col("n") % 11, n=pl.col("n") % 11)
            made = self._keyed(name, kind, stream, parallelism, is_forward)
        self.streams.append(made)

    def _keyed(self, name, kind, stream, parallelism, is_forward):
        keyed = stream.key_by("k", own_stage=is_forward and self.chance.random() < 0.2)
        if kind == "count":
            return keyed.count(f"{name}_count", "c", parallelism=parallelism).select(
                name, "k", n=pl.col("c") + pl.col("n") * 1000
            )
        if kind == "window":
            windows = keyed.window(weir.tumbling("1s")).aggregate(
                f"{name}_window", c=weir.count(), parallelism=parallelism
            )
            return windows.select(name, "k", n=pl.col("c"))
        process = Counted if kind == "process" else Remembered
        return keyed.process(name, process, {"k": int, "n": int}, parallelism=parallelism)

    @property
    def sinks(self) -> list[str]:
        return [f"out_{stream.node.name}" for stream in self.streams if stream.node.name not in self.read]


def given(seed):
    chance = random.Random(-seed)
    return [{"k": chance.randrange(12), "at": number * 73} for number in range(ROWS)]


def rows_of(rows, sinks):
    return {sink: sorted((row["k"], row["n"]) for row in rows(sink)) for sink in sinks}


def run_with_restarts(seed, rows):
    """The rows of each sink; a start from a savepoint is of the dataflow made anew, whose sinks are empty."""
    chance, savepoint, at, found = random.Random(seed + 0.5), None, 0, {}
    while at < len(rows) or savepoint is not None:
        drawn = Drawn(seed, None)
        inputs = {"events": []}
        with testing.start(
            drawn.flow, inputs, watermarks="follow_rows", seed=seed, from_savepoint=savepoint
        ) as job:
            savepoint = None
            while at < len(rows) and savepoint is None:
                size = chance.choice([1, 10, 30])
                job.push("events", rows[at : at + size])
                at += size
                if (what := chance.random()) < 0.5:
                    job.checkpoint(chance.choice(["prepared", "complete", "committed"]))
                elif what < 0.7:
                    job.restart()
                elif what < 0.8:
                    savepoint = job.savepoint()
            told = job.rows if savepoint is not None else job.finish().__getitem__
            for sink, part in rows_of(told, drawn.sinks).items():
                found.setdefault(sink, []).extend(part)
    return {sink: sorted(told) for sink, told in found.items()}


@pytest.mark.parametrize("seed", range(DATAFLOWS))
def test_restarts_and_parallelism_change_nothing(seed):
    rows = given(seed)
    plain = Drawn(seed, 1)
    expected = rows_of(testing.run(plain.flow, {"events": rows}).__getitem__, plain.sinks)
    assert run_with_restarts(seed, rows) == expected
