"""Keys and values of other types than whole numbers, and what steps must say of them."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from benchmarks.law.table_join_steps import as_changes, tables
from benchmarks.law.window_steps import SIZE_MS, Windows, tumbling

APART_MS = 3_000
#: A key of a type for each number of a key.
Make = Callable[[int], Any]


def _time(k: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=k - 3)


KINDS: dict[str, tuple[Any, Make]] = {
    "dates": (pl.Date, lambda k: dt.date(1, 1, 1) + dt.timedelta(days=k)),
    "times": (pl.Datetime("us"), _time),
    "times of a zone": (pl.Datetime("ns", "Europe/Berlin"), lambda k: _time(k).replace(tzinfo=dt.UTC)),
    "bytes": (pl.Binary, lambda k: b"\0" * k),
    "texts": (pl.String, lambda k: "\0é" * k),
    "null and numbers": (pl.Int8, lambda k: k - 1 if k else None),
}


def _typed(stream: Any, kind: str, name: str) -> Any:
    """The rows by keys of this kind."""
    dtype, make = KINDS[kind]

    def with_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = pl.Series("key", [make(k) for k in batch["k"].to_pylist()], dtype=dtype)
        return batch.append_column("key", keys.to_arrow())

    schema = {"k": int, "at": int, "v": int, "to": int, "key": weir.Nullable(dtype)}
    return stream.map_batches(name, with_key, schema).key_by("key")


def _without_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(["key"])


def _windows(kind: str) -> Build:
    schema = {"window_start": int, "window_end": int, "k": int, "n": int, "total": int}
    aggregates = {"k": weir.max("k"), "n": weir.count(), "total": weir.sum("v")}
    return lambda streams, parallelism: (
        _typed(streams[0], kind, "typed")
        .window(weir.tumbling(SIZE_MS))
        .aggregate("windows", **aggregates, parallelism=parallelism)
        .map_batches("out", _without_key, schema)
    )


def _of_windows(streams: list[list[Seen]]) -> list[Result]:
    found = Windows(tumbling).run(streams[0])
    return [(start, end, k, n, total, at) for k, start, end, n, total, at in found]


def _totals(kind: str) -> Build:
    aggregates = {"number": weir.max("k"), "n": weir.count(), "total": weir.sum("v")}
    return lambda streams, parallelism: (
        _typed(streams[0], kind, "typed")
        .aggregate("totals", **aggregates, parallelism=parallelism)
        .select("out", "number", "n", "total")
    )


def _of_totals(streams: list[list[Seen]]) -> list[Result]:
    totals: dict[int, list[int]] = defaultdict(list)
    said: list[Result] = []
    for row in streams[0]:
        totals[row.k].append(row.v)
        said.append((row.k, len(totals[row.k]), sum(totals[row.k]), row.at))
    return said


def _join(kind: str) -> Build:
    def made(streams: list[Any], parallelism: int) -> Any:
        left = _typed(streams[0], kind, "left")
        right = _typed(streams[1], kind, "right")
        joined = left.join("joined", right, within=(-APART_MS, APART_MS), parallelism=parallelism)
        names = ("k", "at", "v", "to")
        schema = {name: int for suffix in ("", "_right") for name in (f"{each}{suffix}" for each in names)}
        return joined.map_batches("out", _without_key, schema)

    return made


def _of_join(streams: list[list[Seen]]) -> list[Result]:
    lefts, rights = ([row for row in rows if not row.late] for rows in streams)
    return [
        (*(left.k, left.at, left.v, left.to), *(right.k, right.at, right.v, right.to), max(left.at, right.at))
        for left, right in product(lefts, rights)
        if left.k == right.k and abs(left.at - right.at) <= APART_MS
    ]


def _nested(stream: Any, name: str) -> Any:
    """A table with a number or null within a record; what lies under null differs from row to row."""

    def with_record(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch["v"].to_numpy()
        valid = pa.py_buffer(np.packbits(numbers % 3 > 0, bitorder="little"))
        values = np.where(numbers % 3 > 0, numbers % 3, numbers)
        x = pa.Array.from_buffers(pa.int64(), len(numbers), [valid, pa.py_buffer(values)])
        return batch.append_column("x", pa.StructArray.from_arrays([x], names=["x"]))

    schema = {"k": int, "at": int, "v": int, "to": int, "x": pl.Struct({"x": pl.Int64})}
    rows = stream.map_batches(name, with_record, schema)
    changed = as_changes(rows, f"changes_{name}", pl.col("v") // 3 % 4)
    return changed.select(f"table_{name}", "k", "x", "_change").key_by("k")


def _nested_tables(streams: list[Any], parallelism: int) -> Any:
    left, right = (_nested(stream, f"side{number}") for number, stream in enumerate(streams))
    joined = left.join("joined", right, parallelism=parallelism)
    numbers = (pl.col(name).struct.field("x").fill_null(0).alias(name) for name in ("x", "x_right"))
    return joined.with_columns("out", *numbers)


def _steps() -> Iterator[Step]:
    for kind in KINDS:
        yield Step(f"windows by {kind}", _windows(kind), _of_windows, one="rows")
        yield Step(f"totals by {kind}", _totals(kind), _of_totals, one="rows", own_keys=True, late_keys=True)
        if "null" not in kind:
            yield Step(f"join by {kind}", _join(kind), _of_join, one="rows", streams=2)
    yield Step(
        "join of changed tables with records",
        _nested_tables,
        tables("inner", is_changed=True),
        one="folded",
        several="folded",
        streams=2,
        own_keys=True,
    )


STEPS = tuple(_steps())
