"""Queries of SQL run by Weir in random cuts, with restarts, against DuckDB over the same rows.

Used by ``tests/weir/sql`` and by ``python -m benchmarks sql``. Files are those of sqllogictest, without results: DuckDB
says what is right. A record is ``query NAME``, the text, and after a line ``judge`` the text for DuckDB, where that is
another one.
"""

from __future__ import annotations

import functools
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

import weir
from weir import testing
from weir.rows.schemas import to_schema

#: A table that rows look up: a file, which is there before the first row comes.
_LOOKED_UP = re.compile(r"\bJOIN (\w+) FOR SYSTEM_TIME AS OF PROCTIME\(\)")
#: Rows of a table lie at most so far apart from the order of their times.
_DISORDER_MS = 1_500
TABLES: dict[str, dict[str, object]] = {
    "t": {
        "id": int,
        "k": weir.Nullable(str),
        "a": weir.Nullable(int),
        "b": weir.Nullable(int),
        "x": weir.Nullable(float),
        "f": weir.Nullable(bool),
        "ts": int,
    },
    "u": {"id": int, "k": weir.Nullable(str), "c": weir.Nullable(int), "ts": int},
}


@dataclass(frozen=True)
class Record:
    """A query of a file.

    Attributes:
        name: of the query.
        text: for Weir.
        judge: for DuckDB.
        place: file and line.
    """

    name: str
    text: str
    judge: str
    place: str


def records_of(path: Path) -> Iterator[Record]:
    """The queries of a file; empty lines divide them, ``#`` begins a comment."""
    for found in re.finditer(r"(?m)^query (.+)\n((?:.+\n?)+)", path.read_text("utf-8")):
        text, _, judge = found[2].partition("\njudge\n")
        line = path.read_text("utf-8")[: found.start()].count("\n") + 1
        yield Record(found[1].strip(), text.strip(), judge.strip() or for_duckdb(text), f"{path.name}:{line}")


def for_duckdb(text: str) -> str:
    """The same query for DuckDB: windows as arithmetic, division of integers as ``//``, lookups as joins."""
    text = _LOOKED_UP.sub(r"JOIN \1", text)

    def tumbled(found: re.Match[str]) -> str:
        size = int(found[2]) * 1_000
        return (
            f"(SELECT *, ts - ts % {size} AS window_start, ts - ts % {size} + {size} AS window_end FROM {found[1]}) "
            f"AS {found[1]}"
        )

    def hopped(found: re.Match[str]) -> str:
        slide, size = int(found[2]) * 1_000, int(found[3]) * 1_000
        starts = f"generate_series(ts - ts % {slide} - {size - slide}, ts - ts % {slide}, {slide})"
        return (
            f"(SELECT *, window_start + {size} AS window_end FROM (SELECT *, unnest({starts}) AS window_start FROM "
            f"{found[1]})) AS {found[1]}"
        )

    text = re.sub(r"TUMBLE\((\w+), ts, INTERVAL '(\d+)' SECOND\)", tumbled, text)
    text = re.sub(r"HOP\((\w+), ts, INTERVAL '(\d+)' SECOND, INTERVAL '(\d+)' SECOND\)", hopped, text)
    text = re.sub(
        r"INTERVAL '(\d+)' SECOND PRECEDING", lambda found: f"{int(found[1]) * 1000} PRECEDING", text
    )
    text = re.sub(r"([+-]) INTERVAL '(\d+)' SECOND", lambda found: f"{found[1]} {int(found[2]) * 1000}", text)
    return text.replace(" / ", " // ")


def rows_of(table: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Rows of a table, the same for a seed, nearly in the order of their times, each of which is there once."""
    chance = random.Random(f"{table}-{seed}")
    rows, times = [], set[int]()
    for number in range(count):
        row: dict[str, Any] = {"id": number}
        for name in TABLES[table]:
            if name in ("id", "ts"):
                continue
            row[name] = None if chance.random() < 0.12 else _value(name, chance)
        time_ms = 1_000_000 + number * 700 + chance.randrange(_DISORDER_MS)
        row["ts"] = next(each for each in range(time_ms, time_ms + count + 1) if each not in times)
        times.add(row["ts"])
        rows.append(row)
    return rows


def _value(name: str, chance: random.Random) -> object:
    if name == "k":
        return chance.choice(["ann", "bob", "Cy", "", "d%d", "naïve"])
    if name == "x":
        return chance.randrange(-40, 40) / 4
    if name == "f":
        return chance.random() < 0.5
    return chance.randrange(-9, 10)


def judged(text: str, tables: dict[str, list[dict[str, Any]]]) -> Counter[tuple[object, ...]]:
    """What DuckDB makes of a query."""
    database = _database()
    try:
        for name, rows in tables.items():
            database.register("given", pa.Table.from_pylist(rows, to_schema(TABLES[name])))
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        return Counter(_plain(row) for row in database.execute(text).fetchall())
    finally:
        # The next query sees no rows but its own.
        for name in tables:
            database.execute(f"DROP TABLE IF EXISTS {name}")


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """DuckDB in memory, of one thread: to open it anew, or to start threads, takes longer than a query."""
    database = duckdb.connect(config={"threads": 1})
    database.execute("SET error_on_division_by_zero = false")
    return database


def streamed(
    text: str, tables: dict[str, list[dict[str, Any]]], seed: int, parallelism: int, *, restarts: bool
) -> Counter[tuple[object, ...]]:
    """What Weir makes of a query, of rows that come in random cuts; perhaps with a restart in the middle."""
    with tempfile.TemporaryDirectory(prefix="weir-judge-") as directory:
        return _streamed(text, tables, random.Random(seed), parallelism, Path(directory), restarts=restarts)


def _streamed(
    text: str,
    tables: dict[str, list[dict[str, Any]]],
    chance: random.Random,
    parallelism: int,
    directory: Path,
    *,
    restarts: bool,
) -> Counter[tuple[object, ...]]:
    flow = weir.Dataflow("judged", max_parallelism=16)
    looked_up = set(_LOOKED_UP.findall(text))
    read = [
        name
        for name in tables
        if name not in looked_up
        and re.search(rf"\b(FROM|JOIN|TUMBLE\(|HOP\(|CUMULATE\(|SESSION\(|,) ?(TABLE )?{name}\b", text)
    ]
    streams: dict[str, weir.Stream | weir.FileTable] = {
        name: _file_of(name, tables[name], directory, chance) for name in sorted(looked_up)
    }
    for name in read:
        source = weir.JsonLines("unused", schema=TABLES[name], event_time="ts")
        watermark = weir.bounded_out_of_orderness(f"{_DISORDER_MS + len(tables[name]) + 1}ms")
        streams[name] = flow.source(name, source, parallelism=parallelism, watermark=watermark)
    flow.sql(text, step=None, **streams).sink("out", weir.Blackhole())
    left = {name: list(tables[name]) for name in read}
    with testing.start(flow, watermarks="follow_rows", collect_sinks=True) as job:
        while any(left.values()):
            name = chance.choice([each for each, rows in left.items() if rows])
            count = chance.choice([1, 2, 5, 20])
            job.push(name, left[name][:count])
            del left[name][:count]
            if restarts and chance.random() < 0.1:
                job.checkpoint()
            if restarts and chance.random() < 0.05:
                job.restart()
        found = job.finish()["out"].to_polars()
    if "_change" in found.columns:
        found = testing.folded(found)
    return Counter(_plain(row) for row in found.rows())


def _file_of(name: str, rows: list[dict[str, Any]], directory: Path, chance: random.Random) -> weir.FileTable:
    """A table as a file of some form, of which rows are looked up."""
    frame = pl.DataFrame(pa.Table.from_pylist(rows, to_schema(TABLES[name])))
    suffix = chance.choice((".parquet", ".jsonl", ".arrow"))
    path = directory / f"{name}{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_ipc(path)
    return weir.FileTable(str(path), schema=TABLES[name])


def difference(record: Record, seed: int, parallelism: int, *, restarts: bool, count: int = 60) -> str:
    """What is wrong with the result of a query; empty: nothing."""
    tables = {name: rows_of(name, seed, count) for name in TABLES}
    wanted = judged(record.judge, tables)
    found = streamed(record.text, tables, seed, parallelism, restarts=restarts)
    if found == wanted:
        return ""
    missing, extra = wanted - found, found - wanted
    what = f"{record.place} {record.name}"
    return f"{what}: missing {_some(missing)}, too many {_some(extra)}, seed {seed}\n{record.text}"


def _some(rows: Counter[tuple[object, ...]]) -> str:
    listed = sorted(rows.elements(), key=repr)
    return f"{len(listed)} {listed[:4]}"


def _plain(row: Sequence[object]) -> tuple[object, ...]:
    """Values as both engines write them."""
    told: list[object] = []
    for value in row:
        if isinstance(value, bool) or value is None:
            told.append(value)
        elif isinstance(value, (int, float)) or type(value).__name__ == "Decimal":
            number = round(float(value), 9)  # type: ignore[arg-type]
            told.append(0.0 if number == 0 else number)
        else:
            told.append(str(value))
    return tuple(told)
