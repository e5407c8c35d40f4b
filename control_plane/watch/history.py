"""What the page draws when it is opened: the last minutes by the second, the rest of an hour by ten, and marks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weir.protocol.job.load import JobLoad

#: Points by the second, and by ten seconds before them: five minutes and an hour.
_FINE_MAX, _COARSE_MAX, _COARSE = 300, 360, 10
_MARKS_MAX = 200

#: A value that may be unknown.
Value = float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, on the axis of time."""

    #: Wall clock, ms since the epoch.
    time_ms: int
    #: restart, rescale or takeover.
    kind: str
    text: str


#: Wall clock in ms, and a value for each column.
Point = tuple[int, tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """What outlives a process; :mod:`~control_plane.watch.kept_history` writes it."""

    #: Of the columns.
    names: tuple[str, ...]
    #: Oldest first.
    points: tuple[Point, ...]
    marks: tuple[Mark, ...]


class History:
    """Values of the last hour, bounded whatever the job does; used in the event loop."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._fine: deque[Point] = deque(maxlen=_FINE_MAX)
        self._coarse: deque[Point] = deque(maxlen=_COARSE_MAX)
        self._gathered: list[Point] = []
        self.marks: deque[Mark] = deque(maxlen=_MARKS_MAX)

    def add(self, time_ms: int, load: JobLoad) -> None:
        """Note a moment; called once a second."""
        names, values = zip(*_columns(load), strict=True)
        if names != self._names:
            # Another job has other stages; this one's stay.
            self._names = names
            self._fine.clear()
            self._coarse.clear()
            self._gathered.clear()
        self._fine.append((time_ms, values))
        self._gathered.append((time_ms, values))
        if len(self._gathered) == _COARSE:
            self._coarse.append(_mean(self._gathered))
            self._gathered.clear()

    def kept(self) -> KeptHistory:
        """What another control plane process goes on with: the hour by ten seconds, and the marks."""
        points = list(self._coarse)
        if self._gathered:
            points.append(_mean(self._gathered))
        return KeptHistory(self._names, tuple(points), tuple(self.marks))

    def resume(self, kept: KeptHistory, now_ms: int) -> None:
        """Go on with what an earlier process kept, but for what lies in the future by this clock; called first."""
        self._names = kept.names
        self._coarse.extend(point for point in kept.points if point[0] < now_ms)
        self.marks.extend(mark for mark in kept.marks if mark.time_ms < now_ms)

    def latest(self) -> dict[str, Any]:
        """The last moment, as one more point for a page that has the others."""
        if not self._fine:
            return {"time_ms": None, "values": {}}
        time_ms, values = self._fine[-1]
        return {"time_ms": time_ms, "values": dict(zip(self._names, values, strict=True))}

    def document(self) -> dict[str, Any]:
        """Return all moments, oldest first: ``times_ms``, a list as long by the name of each column, and ``marks``."""
        fine = list(self._fine)
        points = [item for item in self._coarse if not fine or item[0] < fine[0][0]] + fine
        columns = zip(*(values for _, values in points), strict=True) if points else ((),) * len(self._names)
        return {
            "times_ms": [time_ms for time_ms, _ in points],
            "columns": {name: list(column) for name, column in zip(self._names, columns, strict=True)},
            "marks": [asdict(mark) for mark in self.marks],
        }


def _columns(load: JobLoad) -> Sequence[tuple[str, Value]]:
    found: list[tuple[str, Value]] = [
        ("rows_per_s", _short(load.rows_per_s)),
        ("latency_p50_ms", _short(load.latency_p50_ms)),
        ("latency_p99_ms", _short(load.latency_p99_ms)),
    ]
    for stage in load.stages:
        found += [
            (f"rows_in_per_s/{stage.stage}", _short(stage.rows_in_per_s)),
            (f"busy/{stage.stage}", _short(stage.busy)),
            (f"blocked/{stage.stage}", _short(stage.blocked)),
            (f"watermark_lag_ms/{stage.stage}", _short(stage.watermark_lag_ms)),
        ]
    return found


def _short(value: float | None) -> Value:
    """Few digits: an hour of them goes to the browser."""
    return None if value is None else round(value, 2) if abs(value) < 100 else round(value)


def _mean(points: Sequence[Point]) -> Point:
    means: list[Value] = []
    for column in zip(*(values for _, values in points), strict=True):
        known = [value for value in column if value is not None]
        means.append(_short(sum(known) / len(known)) if known else None)
    return points[len(points) // 2][0], tuple(means)
