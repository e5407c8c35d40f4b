"""Windows over time, as authors write them: ``stream.key_by("user").window(weir.tumbling("60s"))``."""

from __future__ import annotations

import datetime as dt
from typing import get_args

from weir.errors import GraphError
from weir.specs.window_kinds import Window, WindowTime
from weir.state.ttl import duration_ms

#: Text such as "250ms", "90s", "1h30m", "7d", a ``timedelta``, or whole milliseconds.
Duration = str | int | dt.timedelta
#: A window of at most a hundred years: its end is a time, too.
_SIZE_MS_MAX = 100 * 366 * 86_400_000
#: Panes of one sliding or cumulative window; more cost more than they tell.
PANES_MAX = 100_000
#: Length of a window that never ends: it has all times that are of use.
GLOBAL_MS = 1 << 60


def tumbling(size: Duration, *, offset: Duration = 0, time: WindowTime = "event") -> Window:
    """Windows of ``size``, one after the other, aligned to 1970: ``tumbling("1h")`` begins at every full hour of UTC.

    Args:
        size: length of a window.
        offset: by how much the windows begin later; less than ``size``.
        time: "event": a row belongs to the window of its event time. "processing": to that of the machine's clock.

    Raises:
        GraphError: a duration or a time cannot be used.
    """
    size_ms = _positive_ms("tumbling", "size", size)
    return _window(Window("tumbling", size_ms, size_ms, _offset_ms("tumbling", offset, size_ms), time))


def sliding(size: Duration, slide: Duration, *, offset: Duration = 0, time: WindowTime = "event") -> Window:
    """Windows of ``size`` of which one begins at every ``slide``: a row belongs to ``size / slide`` of them.

    Args:
        size: length of a window.
        slide: from the beginning of a window to that of the next; at most ``size``, and a divisor of it.
        offset: by how much the windows begin later; less than ``slide``.
        time: as for :func:`tumbling`.

    Raises:
        GraphError: a duration or a time cannot be used.
    """
    size_ms, slide_ms = _positive_ms("sliding", "size", size), _positive_ms("sliding", "slide", slide)
    _check_parts("sliding", "slide", size, size_ms, slide, slide_ms)
    return _window(Window("sliding", size_ms, slide_ms, _offset_ms("sliding", offset, slide_ms), time))


def cumulative(size: Duration, step: Duration, *, offset: Duration = 0, time: WindowTime = "event") -> Window:
    """Windows that begin every ``size`` and have a result at every ``step`` since: of 10 s, 20 s, up to ``size``.

    Args:
        size: length of the longest window.
        step: how much longer each window is than the one before; at most ``size``, and a divisor of it.
        offset: by how much the windows begin later; less than ``size``.
        time: as for :func:`tumbling`.

    Raises:
        GraphError: a duration or a time cannot be used.
    """
    size_ms, step_ms = _positive_ms("cumulative", "size", size), _positive_ms("cumulative", "step", step)
    _check_parts("cumulative", "step", size, size_ms, step, step_ms)
    return _window(Window("cumulative", size_ms, step_ms, _offset_ms("cumulative", offset, size_ms), time))


def session(gap: Duration, *, time: WindowTime = "event") -> Window:
    """Rows of a key none of which is more than ``gap`` after the one before; the window ends ``gap`` after the last.

    Args:
        gap: what has to pass without a row.
        time: as for :func:`tumbling`.

    Raises:
        GraphError: a duration or a time cannot be used.
    """
    gap_ms = _positive_ms("session", "gap", gap)
    return _window(Window("session", gap_ms, gap_ms, 0, time))


def global_window() -> Window:
    """Make one window for each key, which never ends: it tells when ``early`` says, and at the end of the input.

    The bounds of a result are the event times of its first row, and the ms after that of its last row.
    """
    return Window("global", GLOBAL_MS, GLOBAL_MS, -GLOBAL_MS // 2)


def _positive_ms(kind: str, name: str, value: object) -> int:
    found = _duration_ms(kind, name, value)
    if not 0 < found <= _SIZE_MS_MAX:
        raise GraphError(f"weir.{kind}: {name} is {value!r}; it must be above 0 and at most a hundred years")
    return found


def _duration_ms(kind: str, name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str | dt.timedelta) and value in ("0s", "0ms", dt.timedelta(0)):
        return 0
    try:
        return duration_ms(value)
    except GraphError as error:
        raise GraphError(f"weir.{kind}: {name}: {error}") from error


def lateness_ms(step: str | None, value: object) -> int:
    """Milliseconds of ``allowed_lateness``.

    Raises:
        GraphError: it is negative, or no duration.
    """
    try:
        found = _duration_ms("window", "allowed_lateness", value)
    except GraphError as error:
        raise GraphError(f"step {step!r}: {error}") from error
    if not 0 <= found <= _SIZE_MS_MAX:
        raise GraphError(
            f"step {step!r}: allowed_lateness is {value!r}; it must be 0 or more, and at most a hundred years"
        )
    return found


def _offset_ms(kind: str, offset: object, period_ms: int) -> int:
    found = _duration_ms(kind, "offset", offset)
    if not 0 <= found < period_ms:
        raise GraphError(
            f"weir.{kind}: offset is {offset!r}; it must be 0 or more, and less than the {period_ms:,} ms from one "
            "window to the next"
        )
    return found


def _check_parts(kind: str, name: str, size: object, size_ms: int, part: object, part_ms: int) -> None:
    if part_ms > size_ms:
        raise GraphError(
            f"weir.{kind}: {name} {part!r} is larger than size {size!r}; rows between two windows would belong to none"
        )
    if size_ms % part_ms:
        raise GraphError(f"weir.{kind}: size {size!r} is not a multiple of {name} {part!r}")
    if size_ms // part_ms > PANES_MAX:
        raise GraphError(
            f"weir.{kind}: size {size!r} has {size_ms // part_ms:,} times {name} {part!r}; at most {PANES_MAX:,}"
        )


def _window(window: Window) -> Window:
    if window.time not in get_args(WindowTime):
        raise GraphError(f"weir.{window.kind}: time is {window.time!r}; it is 'event' or 'processing'")
    return window
