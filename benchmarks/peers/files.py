"""The files that all systems read: the same rows as JSON lines and as Parquet.

A stream of Nexmark is two files, whose rows take turns: Flink's readers take files in no order, and each of two readers
has one here that is in the order of time. Spark takes a file whole in one trigger, so its copy of the rows is cut by
event time. The server counts have the parts of ``workgen.py`` for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq

import weir
from benchmarks.events_file import DATA_DIRECTORY, events_directory, made_if_absent
from benchmarks.peers.texts import EVENT_TIME, TABLES
from weir.nexmark.model import EVENTS_PER_EPOCH, PLACES, STREAMS, StreamName
from weir.nexmark.source import NexmarkSource
from weir.nexmark.specs import FIRST_MS

Format = Literal["json", "parquet"]
FORMATS: tuple[Format, ...] = ("json", "parquet")
#: Files of a stream that are read at the same time; also the parallelism of all systems.
PARALLELISM = 2
#: Events of all three streams that Spark takes in one trigger, at most.
EVENTS_PER_TRIGGER = 500_000
#: And it has several triggers, so that state goes from one to the next.
_TRIGGERS_MIN = 4
#: Different servers of the flat lines.
SERVERS = 100_000


@dataclass(frozen=True)
class Input:
    """What one run reads."""

    #: Directories of files, by table.
    tables: Mapping[str, Path]
    #: The same rows for Spark.
    cuts: Mapping[str, Path]
    #: Rows of all these tables.
    rows: int


def nexmark_input(
    tables: tuple[str, ...],
    events: int,
    events_per_second: int,
    form: Format,
    *,
    root: Path = DATA_DIRECTORY,
) -> Input:
    """Streams of an auction, written when they are not there yet.

    Args:
        tables: which streams.
        events: people, auctions and bids together; a multiple of 50.
        events_per_second: of event time.
        form: of the files.
        root: where directories of inputs are kept.
    """
    places = {}
    rows = 0
    for table in STREAMS:
        if table in tables:
            places[table] = made_if_absent(
                root / f"{table}-of-{events}-per-second-{events_per_second}",
                partial(_write_stream, table, events, events_per_second),
            )
            first, stop = PLACES[table]
            rows += (events // EVENTS_PER_EPOCH) * (stop - first)
    return Input(
        {table: place / "turns" / form for table, place in places.items()},
        {table: place / "cuts" / form for table, place in places.items()},
        rows,
    )


def events_input(events: int, form: Format, *, root: Path = DATA_DIRECTORY) -> Input:
    """The flat lines of the server count, as JSON lines or as Parquet."""
    lines = events_directory(events, SERVERS, root=root)
    if form == "parquet":

        def convert(fresh: Path) -> None:
            for path in sorted(lines.glob("*.jsonl")):
                pl.read_ndjson(path).write_parquet(fresh / f"{path.stem}.parquet", compression="snappy")

        lines = made_if_absent(root / f"{lines.name}-parquet", convert)
    return Input({"events": lines}, {"events": lines}, events)


def _write_stream(stream: StreamName, events: int, events_per_second: int, directory: Path) -> None:
    with ExitStack() as stack:
        turns = [_Part(directory / "turns", stream, number, stack) for number in range(PARALLELISM)]
        for rows in _rows(stream, events, events_per_second):
            for number, part in enumerate(turns):
                part.add(rows.gather_every(PARALLELISM, offset=number))
    cut_ms = max(min(EVENTS_PER_TRIGGER, events // _TRIGGERS_MIN) * 1000 // events_per_second, 1)
    last = -1
    with ExitStack() as stack:
        for rows in _rows(stream, events, events_per_second):
            groups = rows.group_by((pl.col(EVENT_TIME) - FIRST_MS) // cut_ms, maintain_order=True)
            for (value,), group in groups:
                number = int(str(value))
                if number != last:
                    stack.close()
                    last, part = number, _Part(directory / "cuts", stream, number, stack)
                part.add(group)


def _rows(stream: StreamName, events: int, events_per_second: int) -> Iterator[pl.DataFrame]:
    """Blocks of a stream in the order of event time, with the columns of its table."""
    spec = weir.Nexmark(stream, events=events, events_per_second=events_per_second, splits=1)
    for batch, _ in NexmarkSource(spec).read(0, None):
        found = pl.from_arrow(batch)
        assert isinstance(found, pl.DataFrame)
        yield found.select(list(TABLES[stream]))


class _Part:
    """One file in both forms; open until the stack ends."""

    def __init__(self, directory: Path, stream: str, number: int, stack: ExitStack) -> None:
        names = {form: directory / form for form in FORMATS}
        for folder in names.values():
            folder.mkdir(parents=True, exist_ok=True)
        schema = pl.DataFrame(schema=_in_files(stream)).to_arrow().schema
        self._lines = stack.enter_context((names["json"] / f"part-{number:05d}.jsonl").open("wb"))
        self._parquet = stack.enter_context(
            pq.ParquetWriter(names["parquet"] / f"part-{number:05d}.parquet", schema)
        )

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows at the end."""
        rows.write_ndjson(self._lines)
        self._parquet.write_table(rows.to_arrow())


def _in_files(table: str) -> dict[str, pl.DataType]:
    """The columns of a table as they are in its files."""
    return {
        name: pl.String() if kind == "STRING" else pl.Float64() if kind == "DOUBLE" else pl.Int64()
        for name, kind in TABLES[table].items()
    }
