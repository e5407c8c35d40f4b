"""How long a declared state keeps a value: ``weir.ValueState(pl.Int64, ttl=weir.Ttl("1h"))``.

Called when a job is built. The bytes of such values are described in ``weir.state.tables.expiry``.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Literal, get_args

from weir.errors import GraphError

TtlTime = Literal["event", "processing"]
TtlRefresh = Literal["write", "access"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+)(ms|[smhdw])")
#: Ten thousand years: what is added to a time still fits.
_MS_MAX = 10_000 * 366 * 86_400_000


def duration_ms(value: object) -> int:
    """Milliseconds of a ``timedelta``, or of text such as "250ms", "90s", "1h30m", "7d" (units ms, s, m, h, d, w).

    Raises:
        GraphError: it is neither, not a whole number of milliseconds, or not positive.
    """
    found: int | None = None
    if isinstance(value, dt.timedelta):
        whole = value % dt.timedelta(milliseconds=1) == dt.timedelta(0)
        found = value // dt.timedelta(milliseconds=1) if whole else None
    elif isinstance(value, str) and re.fullmatch(f"({_PART.pattern})+", value.strip()):
        found = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(value))
    if found is None or not 0 < found <= _MS_MAX:
        raise GraphError(
            f"{value!r} is not a duration; write it as '250ms', '90s', '1h30m' or '7d', or as a datetime.timedelta of "
            "whole milliseconds above 0"
        )
    return found


@dataclass(frozen=True, init=False)
class Ttl:
    """Time to live of the values of one declared state, of the elements of a list, or of the items of a map.

    A value expires when ``duration`` has passed since it was written (``refreshed_by="access"``: or read). From then on
    it is as if it had been cleared, also after a restore or a rescale; its space is given back later.
    """

    duration_ms: int
    refreshed_by: TtlRefresh
    time: TtlTime

    def __init__(
        self, duration: str | dt.timedelta, *, refreshed_by: TtlRefresh = "write", time: TtlTime = "event"
    ) -> None:
        """Declare it.

        Args:
            duration: see :func:`duration_ms`.
            refreshed_by: what lets the time begin anew.
            time: "event": the time is the step's watermark, so a job that stands still forgets nothing; before the
                first watermark nothing expires, and what is written then counts as written at the first one.
                "processing": the machine's clock, so a longer outage than ``duration`` expires everything.

        Raises:
            GraphError: one of them has no such form.
        """
        for name, value, allowed in (
            ("refreshed_by", refreshed_by, get_args(TtlRefresh)),
            ("time", time, get_args(TtlTime)),
        ):
            if value not in allowed:
                raise GraphError(
                    f"Ttl: {name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}"
                )
        object.__setattr__(self, "duration_ms", duration_ms(duration))
        object.__setattr__(self, "refreshed_by", refreshed_by)
        object.__setattr__(self, "time", time)


def checked_ttl(ttl: object) -> Ttl | None:
    """What was declared as the TTL of a state.

    Raises:
        GraphError: it is neither a :class:`Ttl` nor None.
    """
    if ttl is None or isinstance(ttl, Ttl):
        return ttl
    raise GraphError(f"the ttl of a state is {ttl!r}; write ttl=weir.Ttl('1h')")
