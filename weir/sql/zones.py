"""Time zones by name, and ``AT TIME ZONE``."""

from __future__ import annotations

import zoneinfo

import polars as pl
from sqlglot import exp

from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced
from weir.sql.types import Typed, computed, type_words


def zone_of(node: exp.Expr | None, parent: exp.Expr) -> str:
    """The name of a time zone.

    Raises:
        Unplaced: it is no constant text, or no zone has that name.
    """
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise Unplaced("the time zone is a text, such as 'Europe/Berlin'", parent if node is None else node)
    name, known = str(node.this), zoneinfo.available_timezones()
    if name not in known:
        raise Unplaced(f"there is no time zone {name!r}{did_you_mean(name, sorted(known))}", node)
    return name


def at_zone(value: Typed, zone: str, node: exp.Expr) -> Typed:
    """The time of a zone's clocks at a moment (of a TIMESTAMPTZ), or the moment at which they tell a time.

    Where clocks go back, a time that is told twice is the later one. A time that clocks leave out is as the clock of
    the day before would tell it.

    Raises:
        Unplaced: it is no time.
    """
    if not isinstance(value.dtype, pl.Datetime):
        raise Unplaced(f"AT TIME ZONE is of times, and this is {type_words(value.dtype)}; CAST it", node)
    unit = value.dtype.time_unit
    if value.dtype.time_zone is not None:
        told = value.expr.dt.convert_time_zone(zone).dt.replace_time_zone(None)
        return computed(told, pl.Datetime(unit))
    day = pl.duration(days=1, time_unit=unit)
    moments = [_moment(value.expr, zone), _moment(value.expr - day, zone) + day]
    return computed(pl.coalesce(moments), pl.Datetime(unit, "UTC"))


def _moment(told: pl.Expr, zone: str) -> pl.Expr:
    return told.dt.replace_time_zone(zone, ambiguous="latest", non_existent="null").dt.convert_time_zone(
        "UTC"
    )
