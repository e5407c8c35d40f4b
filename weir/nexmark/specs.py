"""The description of a stream of the auction, for a job's graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from weir.errors import GraphError
from weir.nexmark.model import SCHEMAS, STREAMS, StreamName
from weir.rows.schemas import to_schema
from weir.specs import UserSourceSpec
from weir.spelling import did_you_mean

#: 2015-07-15 00:00 UTC, as in the reference.
FIRST_MS = 1_436_918_400_000


@dataclass(frozen=True)
class NexmarkSpec(UserSourceSpec):
    """A stream of the auction; ``events`` are those of all three."""

    kind: ClassVar[str] = "nexmark_source"
    runtime: ClassVar[str] = "weir.nexmark.source:create_reader"
    stream: StreamName = "bid"
    events: int = 0
    seed: int = 0
    first_ms: int = FIRST_MS
    events_per_second: int = 10_000
    #: Parts that can be read by different subtasks.
    splits: int = 8
    #: Columns that are made; None: all.
    reads: tuple[str, ...] | None = field(default=None, metadata={"came_later": True})


def Nexmark(
    stream: StreamName,
    *,
    events: int,
    seed: int = 0,
    first_ms: int = FIRST_MS,
    events_per_second: int = 10_000,
    splits: int = 8,
    rate: float | None = None,
) -> NexmarkSpec:
    """A source of ``"person"``, ``"auction"`` or ``"bid"`` rows of an online auction, for tests and benchmarks.

    The rows depend on nothing but the arguments. Of 50 events one is a person, three are auctions and 46 are bids; all
    have their event time in ``date_time`` (ms since 1970). See ``weir.nexmark``.

    Args:
        stream: which rows.
        events: of all three streams together: a job that reads them all reads as many rows.
        seed: another one makes other rows.
        first_ms: event time of the first event.
        events_per_second: of event time, over all streams.
        splits: subtasks of the source that can have something to do.
        rate: rows of this stream a second, by the clock; None: as fast as possible.

    Raises:
        GraphError: there is no such stream, or a number is out of range.
    """
    if stream not in STREAMS:
        raise GraphError(
            f"{stream!r} is no stream of the auction; there are {', '.join(STREAMS)}"
            f"{did_you_mean(str(stream), STREAMS)}"
        )
    for name, value, least in (
        ("events", events, 0),
        ("seed", seed, 0),
        ("events_per_second", events_per_second, 1),
        ("splits", splits, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise GraphError(f"{name} is {value!r}; it must be a whole number from {least} on")
    return NexmarkSpec(
        schema=to_schema(SCHEMAS[stream]),
        event_time_column="date_time",
        rate=rate,
        stream=stream,
        events=events,
        seed=seed,
        first_ms=first_ms,
        events_per_second=events_per_second,
        splits=splits,
    )
