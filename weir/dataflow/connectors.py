"""Sources and sinks as job authors write them. Inert: nothing is opened here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import pyarrow as pa

from weir.dataflow.csv_settings import check_csv_format, csv_fields
from weir.errors import GraphError
from weir.rows.nested_paths import GivenPath, check_json_types, column_paths, given_paths
from weir.rows.schemas import to_schema
from weir.specs import (
    LINE_BYTES_MAX,
    ArrowIpcSpec,
    BlackholeSpec,
    CollectSpec,
    Compression,
    CsvSinkSpec,
    CsvSpec,
    DeadLettersSpec,
    DeltaSinkSpec,
    FileOrder,
    JsonLinesSinkSpec,
    JsonLinesSpec,
    LatencySinkSpec,
    OnBadRecord,
    ParquetSinkSpec,
    ParquetSpec,
    PrintSpec,
    SourceSpec,
    UserSinkSpec,
    UserSourceSpec,
)
from weir.specs.base import is_number

Blackhole = BlackholeSpec
DeadLetters = DeadLettersSpec
Collect = CollectSpec
Print = PrintSpec
CsvSink = CsvSinkSpec
DeltaSink = DeltaSinkSpec
JsonLinesSink = JsonLinesSinkSpec
ParquetSink = ParquetSinkSpec
LatencySink = LatencySinkSpec
UserSink = UserSinkSpec


@dataclass(frozen=True, kw_only=True)
class AnySource(ABC):
    """Settings that all sources have.

    Attributes:
        schema: column name -> Polars type, Python type or :class:`weir.Nullable` of one; or an Arrow schema.
            A null or missing value in a column that is not nullable makes the record a bad one.
        rate: events per second over all subtasks; None: as fast as possible. The schedule does not wait for rows: those
            that come late are due at once, with the times at which they were due.
        interval_ms: instead of ``rate``: time between two events, over all subtasks.
        event_time: integer column with the event time in ms since 1970; None: the time the event is read.
        on_bad_record: "dead_letter" writes it to the dead-letter file and goes on, "fail" fails the job.
        events: stop after this many good rows over all subtasks; None: read everything.
    """

    schema: Mapping[str, object] | pa.Schema
    rate: float | None = None
    interval_ms: float | None = None
    event_time: str | None = None
    on_bad_record: OnBadRecord = "dead_letter"
    events: int | None = None

    @abstractmethod
    def to_spec(self) -> SourceSpec:
        """The frozen description that the graph holds; called by ``Dataflow.source``.

        Raises:
            GraphError: a setting is wrong; the message has no step.
        """

    def _events_per_second(self) -> float | None:
        if self.interval_ms is None:
            return self.rate
        if self.rate is not None:
            raise GraphError("rate and interval_ms are both given; they say the same, so give one of them")
        if not (is_number(self.interval_ms) and self.interval_ms > 0):
            raise GraphError(
                f"interval_ms is {self.interval_ms!r}; it must be a number of milliseconds above 0, or None"
            )
        return 1000.0 / self.interval_ms

    def _settings(self) -> dict[str, Any]:
        """What the specs of all sources take."""
        return {
            "schema": to_schema(self.schema),
            "event_time_column": self.event_time,
            "rate": self._events_per_second(),
            "events_max": self.events,
            "on_bad_record": self.on_bad_record,
        }

    def _check(self) -> None:
        if self.on_bad_record not in ("dead_letter", "fail"):
            raise GraphError(f"on_bad_record is {self.on_bad_record!r}; it is 'dead_letter' or 'fail'")


def check_discover_ms(value: object) -> None:
    """How often to look for what is new.

    Raises:
        GraphError: it is no time.
    """
    if value is not None and not (is_number(value) and value > 0):
        raise GraphError(f"discover_ms is {value!r}; it must be a number of milliseconds above 0, or None")


@dataclass(frozen=True, kw_only=True)
class FileSource(AnySource):
    """Settings that all file sources have, besides those of all sources.

    Attributes:
        follow: never end, but take in files that turn up in the directory, or that match the glob, while the job runs;
            those that are there already too. Each is read once, also after restarts. A file must be complete when
            it appears: write it under a name that begins with a dot, or elsewhere, and rename it. With ``events`` each
            subtask has an equal share of the limit, whatever files it finds.
        order: with ``follow``: whether files that are found at the same time are read in the order of their names
            ("name") or of the times at which they were changed last ("modified").
        ordered: one subtask reads all of a file, so that rows of a key that are in one file keep their order.
            Without it several subtasks may read parts of a file at the same time.
    """

    follow: bool = False
    ordered: bool = False
    order: FileOrder = "name"

    def _file_settings(self, path: object) -> dict[str, Any]:
        """What the specs of all file sources take."""
        return {
            **self._settings(),
            "path": self._checked_path(path),
            "follow": self.follow,
            "ordered": self.ordered,
            "order": self.order,
        }

    def _checked_path(self, path: object) -> str:
        self._check()
        if not isinstance(path, str) or not path:
            raise GraphError(f"path is {path!r}; give a file, a directory of parts or a glob")
        if not isinstance(self.follow, bool):
            raise GraphError(f"follow is {self.follow!r}; it is True or False")
        if self.order not in get_args(FileOrder):
            raise GraphError(f"order is {self.order!r}; it is 'name' or 'modified'")
        return path


@dataclass(frozen=True, kw_only=True)
class LineFileSource(FileSource):
    """Settings of the sources of lines, besides those of all file sources.

    Attributes:
        compression: "auto": as a file's name ends (``.gz``, ``.zst``, ``.bz2``, ``.lz4``); "gzip", "zstd", "bz2" or
            "lz4" whatever the name; None: plain. A compressed file is read by one subtask.
        grows: with ``follow``: what is added to a file later is read too, line by line as lines become whole. The
            files are plain, and keep their names. Each is read by one subtask.
    """

    compression: Compression | None = "auto"
    grows: bool = False

    def _line_settings(self, path: object) -> dict[str, Any]:
        """What the specs of all sources of lines take."""
        return {
            **self._file_settings(path),
            "compression": self._checked_compression(),
            "grows": self._checked_growth(),
        }

    def _checked_growth(self) -> bool:
        if self.grows and not self.follow:
            raise GraphError("grows=True is for a directory that is followed; give follow=True, too")
        if self.grows and self.compression not in ("auto", None):
            raise GraphError(
                f"grows=True is for plain files, and compression is {self.compression!r}; leave it out"
            )
        return self.grows

    def _checked_compression(self) -> Compression:
        # Nobody can add to the middle of a compressed stream.
        chosen: Compression = "none" if self.compression is None or self.grows else self.compression
        if chosen not in get_args(Compression):
            known = ", ".join(repr(name) for name in get_args(Compression) if name != "none")
            raise GraphError(f"compression is {chosen!r}; it is one of {known}, or None")
        return chosen


@dataclass(frozen=True)
class JsonLines(LineFileSource):
    """JSON objects, one a line: a file, a directory of parts, or a glob.

    A column whose name is in those of a file's folders (``day=2026-11-22``) has their value where a line has none.

    Attributes:
        path: where they are.
        line_bytes_max: a longer line (32 MiB) is a bad record and is not parsed.
        paths: where the values of a column are, if its name does not say so: ``{"domain": "meta.domain"}``. A column
            whose name has dots, such as ``length.new``, is the value at that path. Brackets hold the place of a value
            in a list, from 0 on: ``commits[0].author``; it is null where the list is shorter. A list of keys is taken
            as it is: ``{"x": ["a.b"], "y": ["commits", 0, "author"]}`` are the field ``a.b`` and the same as above.
    """

    path: str
    line_bytes_max: int = LINE_BYTES_MAX
    paths: Mapping[str, GivenPath] = field(default_factory=dict)

    def to_spec(self) -> JsonLinesSpec:
        """The frozen description that the graph holds."""
        if self.line_bytes_max < 1:
            raise GraphError(f"line_bytes_max is {self.line_bytes_max!r}; it must be at least 1")
        schema = to_schema(self.schema)
        check_json_types(schema)
        paths = column_paths(schema, self.paths)
        return JsonLinesSpec(
            paths=paths, line_bytes_max=self.line_bytes_max, **self._line_settings(self.path)
        )


@dataclass(frozen=True)
class Csv(LineFileSource):
    """CSV (RFC 4180): a file, a directory of parts, or a glob.

    Fields go to columns by name. A record is good if it has as many fields as the header, its quotes and its UTF-8 are
    right, and the values of the schema's columns have their types: no spaces around a number, ``true`` and ``false``
    for bools, dates and times in ISO 8601. Empty lines are passed over.
    A column that a file does not have may be in the names of its folders: ``day=2026-11-22``.

    Attributes:
        path: where it is.
        delimiter: the character between fields.
        quote: the character around fields that hold delimiters, quotes (doubled) or newlines; None: there is none.
        escape: the character that stands before quotes, and before itself, in such fields: the backslash in those of
            Spark. Doubled quotes are read, too. None: there is none.
        header: whether the first record of each file names the fields, in any order.
        columns: where ``header`` is False: the names of all fields, in order; those of the schema unless given.
        null_values: fields that are null. In quotes they are so only in columns that are no texts: ``""`` is an empty
            text, but a missing number.
        quoted_newlines: whether a field in quotes may hold a newline. Then each file is read by one subtask, because
            nobody can tell from its middle where a record begins. False: a newline ends a record, and files are
            divided.
        line_bytes_max: a longer record (32 MiB) is a bad one and is not parsed.
    """

    path: str
    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    columns: Sequence[str] | None = None
    null_values: Sequence[str] = ("",)
    quoted_newlines: bool = True
    line_bytes_max: int = LINE_BYTES_MAX
    escape: str | None = None

    def to_spec(self) -> CsvSpec:
        """The frozen description that the graph holds."""
        schema = to_schema(self.schema)
        if self.grows and self.quoted_newlines and self.quote:
            raise GraphError(
                "grows=True is for records of one line, since a quote that is open at the end of a file may be closed "
                "later; give quoted_newlines=False, too"
            )
        check_csv_format(
            schema, self.delimiter, self.quote, self.escape, self.null_values, self.line_bytes_max
        )
        return CsvSpec(
            delimiter=self.delimiter,
            quote=self.quote or "",
            escape=self.escape or "",
            header=self.header,
            columns=csv_fields(schema, self.header, self.columns, self.path),
            null_values=tuple(self.null_values),
            quoted_newlines=self.quoted_newlines and bool(self.quote),
            line_bytes_max=self.line_bytes_max,
            **self._line_settings(self.path),
        )


@dataclass(frozen=True)
class Parquet(FileSource):
    """Parquet: a file, a directory of parts, or a glob.

    A column may have a narrower type than the schema says, if none of its values is changed by that (int32 where int
    is declared, float32 or int32 where float is, milliseconds where microseconds are). That holds within lists and
    structs, too. A map is a list of structs ``key``, ``value``; a column of JSON a text, of UUIDs bytes. A column that
    a file does not have may be in the names of its folders, as partitioned sinks write them: ``day=2026-11-22``; else
    it is null, if it may be.

    Attributes:
        path: where it is.
        paths: where the values of a column are, as in :class:`JsonLines`. A column that is not in ``paths`` is that
            of its name, if a file has it; else the value at the path that the name is.
    """

    path: str
    paths: Mapping[str, GivenPath] = field(default_factory=dict)

    def to_spec(self) -> ParquetSpec:
        """The frozen description that the graph holds."""
        settings = self._file_settings(self.path)
        return ParquetSpec(paths=given_paths(settings["schema"], self.paths), **settings)


@dataclass(frozen=True)
class ArrowIpc(FileSource):
    """Arrow IPC, files (also called Feather) or streams: a file, a directory of parts, or a glob.

    A column may have a narrower type than the schema says, as in :class:`Parquet`, or be dictionary-encoded. Record
    batches of a file are divided among subtasks; a stream is read by one.

    Attributes:
        path: where it is.
        paths: see :class:`Parquet`.
    """

    path: str
    paths: Mapping[str, GivenPath] = field(default_factory=dict)

    def to_spec(self) -> ArrowIpcSpec:
        """The frozen description that the graph holds."""
        settings = self._file_settings(self.path)
        return ArrowIpcSpec(paths=given_paths(settings["schema"], self.paths), **settings)


@dataclass(frozen=True)
class UserSource(AnySource):
    """A source of your own.

    With ``events`` each subtask that has a split has an equal share of the limit; fewer come if its splits hold fewer.

    Attributes:
        factory: makes a :class:`weir.Source` per subtask (the class itself, or a ``functools.partial`` of it); or a
            generator function ``read(position)`` that yields ``(rows, position)``, for a source with one split.
        discover_ms: how often to ask the source for new splits, and never end; None: only at the start.
    """

    factory: Callable[..., Any]
    discover_ms: float | None = None

    def to_spec(self) -> UserSourceSpec:
        """The frozen description that the graph holds."""
        self._check()
        if not callable(self.factory):
            raise GraphError(
                f"expected a class, or a function that makes a weir.Source, got {type(self.factory).__name__}"
            )
        check_discover_ms(self.discover_ms)
        return UserSourceSpec(factory=self.factory, discover_ms=self.discover_ms, **self._settings())
