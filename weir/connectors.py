"""Sources and sinks as job authors write them. Inert: nothing is opened here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from weir.errors import GraphError
from weir.schemas import to_schema
from weir.specs import (
    BlackholeSpec,
    JsonLinesSinkSpec,
    JsonLinesSpec,
    LatencySinkSpec,
    OnBadRecord,
    ParquetSinkSpec,
    ParquetSpec,
    PrintSpec,
    SourceSpec,
    UserSinkSpec,
)

Blackhole = BlackholeSpec
Print = PrintSpec
JsonLinesSink = JsonLinesSinkSpec
ParquetSink = ParquetSinkSpec
LatencySink = LatencySinkSpec
UserSink = UserSinkSpec


@dataclass(frozen=True, kw_only=True)
class FileSource(ABC):
    """Settings that all file sources have.

    Attributes:
        schema: column name -> Polars type, Python type or :class:`weir.Nullable` of one; or an Arrow schema.
            A null or missing value in a column that is not nullable makes the record a bad one.
        rate: events per second over all subtasks; None: as fast as possible.
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
        if not self.interval_ms > 0:
            raise GraphError(f"interval_ms is {self.interval_ms}; it must be above 0")
        return 1000.0 / self.interval_ms

    def _check(self, path: object) -> str:
        if not isinstance(path, str) or not path:
            raise GraphError(f"path is {path!r}; give a file, a directory of parts or a glob")
        if self.on_bad_record not in ("dead_letter", "fail"):
            raise GraphError(f"on_bad_record is {self.on_bad_record!r}; it is 'dead_letter' or 'fail'")
        return path


@dataclass(frozen=True)
class JsonLines(FileSource):
    """JSON objects, one a line: a file, a directory of parts, or a glob; ``.gz`` is read too.

    Attributes:
        path: where they are.
        line_bytes_max: a longer line is a bad record and is not parsed.
    """

    path: str
    line_bytes_max: int = 8 << 20

    def to_spec(self) -> JsonLinesSpec:
        """The frozen description that the graph holds."""
        if self.line_bytes_max < 1:
            raise GraphError(f"line_bytes_max is {self.line_bytes_max!r}; it must be at least 1")
        return JsonLinesSpec(
            schema=to_schema(self.schema),
            event_time_column=self.event_time,
            rate=self._events_per_second(),
            events_max=self.events,
            path=self._check(self.path),
            on_bad_record=self.on_bad_record,
            line_bytes_max=self.line_bytes_max,
        )


@dataclass(frozen=True)
class Parquet(FileSource):
    """Parquet: a file, a directory of parts, or a glob.

    A column may have a narrower type than the schema says, if none of its values is changed by that (int32 where int
    is declared, float32 or int32 where float is).

    Attributes:
        path: where it is.
    """

    path: str

    def to_spec(self) -> ParquetSpec:
        """The frozen description that the graph holds."""
        return ParquetSpec(
            schema=to_schema(self.schema),
            event_time_column=self.event_time,
            rate=self._events_per_second(),
            events_max=self.events,
            path=self._check(self.path),
            on_bad_record=self.on_bad_record,
        )
