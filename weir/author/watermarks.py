"""How far event time has come: what a source, or ``assign_event_time``, is told about its rows.

    flow.source("bids", weir.JsonLines(...), event_time="at_ms", watermark=weir.bounded_out_of_orderness("2s"))

Called when a job is built; ``weir.operators.event_times`` and the sources act on it.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from weir.errors import GraphError
from weir.state.ttl import duration_ms

#: Event times further ahead of the clock are bad, unless said otherwise: seconds taken for milliseconds and the like.
FUTURE_MS_MAX = 86_400_000
#: Event times outside -2^61 to 2^61 ms are bad in any case: ends of windows and sums of durations must fit.
EVENT_TIME_MS_MAX = 2**61


class WatermarkGenerator(ABC):
    """Makes watermarks of your own; see :func:`custom_watermarks`. Only what it said last survives a restart."""

    @abstractmethod
    def on_batch(self, batch: pa.RecordBatch) -> int | None:
        """Called with each batch in order, before it goes on: user columns, then both time columns.

        Returns:
            The watermark after these rows, ms since 1970: no row with an earlier event time is expected. None: as
            before. One that is lower than before changes nothing.
        """


@dataclass(frozen=True)
class WatermarkAlignment:
    """Made by :func:`watermark_alignment`."""

    group: str
    #: A subtask whose watermark is further ahead of the lowest one of its group does not read.
    max_drift_ms: int


@dataclass(frozen=True)
class WatermarkStrategy:
    """Made by :func:`bounded_out_of_orderness` and :func:`custom_watermarks`."""

    #: The watermark follows the highest event time at this distance; None: at ``out_of_order_grace_period``.
    out_of_orderness_ms: int | None = None
    #: Instead of that: makes a :class:`WatermarkGenerator`.
    generator: Callable[[], WatermarkGenerator] | None = None
    #: Without rows for so long a split or a subtask does not hold the watermark back; None: ``idle_timeout_ms``.
    idle_timeout_ms: int | None = None
    #: Rows whose event time is further ahead of the clock are put aside; None: none are.
    future_ms_max: int | None = FUTURE_MS_MAX
    #: Of sources: not to run ahead of others; None: it may.
    alignment: WatermarkAlignment | None = field(default=None, metadata={"came_later": True})


#: Of sources and steps that are not told.
DEFAULT_STRATEGY = WatermarkStrategy()


def bounded_out_of_orderness(
    bound: str | dt.timedelta,
    *,
    idle_timeout: str | dt.timedelta | None = None,
    future_max: str | dt.timedelta | None = "1d",
    alignment: WatermarkAlignment | None = None,
) -> WatermarkStrategy:
    """Watermarks that follow the highest event time at a distance: rows later than that are late.

    Args:
        bound: how much earlier than a row before it a row may be; "0s" if they come in order.
        idle_timeout: a split or a subtask without rows for so long does not hold back the others; None: as
            ``idle_timeout_ms`` of config.json.
        future_max: a row whose event time is further ahead of the clock is a bad record and goes to the dead letters,
            so that a single one does not make all others late; None: any time is good.
        alignment: of a source, not to run ahead of others; see :func:`watermark_alignment`.

    Raises:
        GraphError: one of them is no duration.
    """
    return WatermarkStrategy(
        out_of_orderness_ms=_duration_ms("bound", bound, zero=True),
        idle_timeout_ms=None if idle_timeout is None else _duration_ms("idle_timeout", idle_timeout),
        future_ms_max=None if future_max is None else _duration_ms("future_max", future_max, zero=True),
        alignment=_checked_alignment(alignment),
    )


def custom_watermarks(
    factory: Callable[[], WatermarkGenerator],
    *,
    idle_timeout: str | dt.timedelta | None = None,
    future_max: str | dt.timedelta | None = "1d",
    alignment: WatermarkAlignment | None = None,
) -> WatermarkStrategy:
    """Watermarks that a :class:`WatermarkGenerator` makes.

    ``factory()`` is called for each split of a source (a file, for example), and for each subtask of a step; these are
    combined.

    Args:
        factory: the class, or a ``functools.partial`` of it.
        idle_timeout: see :func:`bounded_out_of_orderness`.
        future_max: see there.
        alignment: see there.

    Raises:
        GraphError: the factory cannot be called, or one of the others is no duration.
    """
    if not callable(factory):
        raise GraphError(
            f"custom_watermarks takes the class of a weir.WatermarkGenerator, not {type(factory).__name__}"
        )
    if isinstance(factory, type) and not callable(getattr(factory, "on_batch", None)):
        raise GraphError(
            f"custom_watermarks takes the class of a weir.WatermarkGenerator; {factory.__name__} has no "
            "on_batch(self, batch), which returns a watermark in ms or None"
        )
    return WatermarkStrategy(
        generator=factory,
        idle_timeout_ms=None if idle_timeout is None else _duration_ms("idle_timeout", idle_timeout),
        future_ms_max=None if future_max is None else _duration_ms("future_max", future_max, zero=True),
        alignment=_checked_alignment(alignment),
    )


def watermark_alignment(max_drift: str | dt.timedelta, *, group: str = "default") -> WatermarkAlignment:
    """Keep sources whose event times are far apart together, so that what waits for the slower ones stays little.

    A subtask whose watermark is more than ``max_drift`` ahead of the lowest one of the group reads nothing until that
    has followed. Subtasks that are idle, or at their end, do not count. Subtasks learn of each other with the
    heartbeats of task managers, every 0.05 s while one waits: a drift that is read in less time slows them down.

    Args:
        max_drift: how far ahead, such as "1m", of event time.
        group: sources of the same group wait for each other.

    Raises:
        GraphError: ``max_drift`` is no duration, or the group has no name.
    """
    if not isinstance(group, str) or not group:
        raise GraphError(f"group is {group!r}; it must be the name of a group of sources")
    return WatermarkAlignment(group, _duration_ms("max_drift", max_drift))


def _checked_alignment(alignment: object) -> WatermarkAlignment | None:
    if alignment is None or isinstance(alignment, WatermarkAlignment):
        return alignment
    raise GraphError(f"alignment is {alignment!r}; write alignment=weir.watermark_alignment('1m')")


def checked_strategy(watermark: object) -> WatermarkStrategy | None:
    """What was given as ``watermark=``.

    Raises:
        GraphError: it is neither a strategy nor None.
    """
    if watermark is None or isinstance(watermark, WatermarkStrategy):
        return watermark
    raise GraphError(f"watermark is {watermark!r}; write watermark=weir.bounded_out_of_orderness('2s')")


def _duration_ms(name: str, value: object, *, zero: bool = False) -> int:
    if zero and isinstance(value, str | dt.timedelta) and value in ("0ms", "0s", dt.timedelta(0)):
        return 0
    try:
        return duration_ms(value)
    except GraphError as error:
        raise GraphError(f"watermarks: {name}: {error}") from error
