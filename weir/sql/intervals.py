"""INTERVAL: as milliseconds, and added to times."""

from __future__ import annotations

import re

import polars as pl
from sqlglot import exp

from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced
from weir.sql.types import Typed, computed, type_words

_UNITS_MS = {
    "MILLISECOND": 1,
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 604_800_000,
}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_MONTH_MS = 30 * 86_400_000
#: Times have years of four digits.
_LONGEST_MS = 10_000 * 366 * 86_400_000
_SHORT = {
    "MS": "MILLISECOND",
    "S": "SECOND",
    "SEC": "SECOND",
    "MIN": "MINUTE",
    "H": "HOUR",
    "D": "DAY",
    "W": "WEEK",
}


def interval_ms(node: exp.Expr | None, parent: exp.Expr, what: str) -> int:
    """The length of an interval that is the same at all times.

    Args:
        node: ``INTERVAL '10' SECOND``.
        parent: what it belongs to, for the place of messages.
        what: what it is there.

    Raises:
        Unplaced: it is none, or one of months.
    """
    if not isinstance(node, exp.Interval):
        raise Unplaced(
            f"{what} is an interval, such as INTERVAL '10' SECOND", parent if node is None else node
        )
    count, unit = interval_parts(node)
    if unit not in _UNITS_MS:
        raise Unplaced(f"{what} cannot be in {unit}S, which differ in length; give DAYS, HOURS, ...", node)
    return count * _UNITS_MS[unit]


def shifted(value: Typed, interval: exp.Interval, sign: int, node: exp.Expr) -> Typed:
    """A time that is an interval later (``sign`` 1) or earlier (-1).

    Raises:
        Unplaced: it is no time.
    """
    count, unit = interval_parts(interval)
    if isinstance(value.dtype, pl.Date):
        value = computed(value.expr.cast(pl.Datetime("us")), pl.Datetime("us"))
    if value.dtype.is_integer() and unit in _UNITS_MS:
        return computed(value.expr.cast(pl.Int64) + sign * count * _UNITS_MS[unit], pl.Int64())
    if not isinstance(value.dtype, pl.Datetime):
        raise Unplaced(f"an interval can be added to a time, and this is {type_words(value.dtype)}", node)
    if unit in _MONTHS:
        return computed(value.expr.dt.offset_by(f"{sign * count * _MONTHS[unit]}mo"), value.dtype)
    added = pl.duration(milliseconds=sign * count * _UNITS_MS[unit], time_unit=value.dtype.time_unit)
    return computed(value.expr + added, value.dtype)


def interval_parts(node: exp.Interval) -> tuple[int, str]:
    """How many of which unit.

    Raises:
        Unplaced: there is no such unit, or no whole number of it.
    """
    text = str(node.this.name if node.this is not None else "").strip()
    if isinstance(node.args.get("unit"), exp.IntervalSpan):
        raise Unplaced("an INTERVAL of several units is not there; add one of each", node)
    unit = str(node.args["unit"].name).upper() if node.args.get("unit") is not None else ""
    if not unit:
        found = re.fullmatch(r"([+-]?\d+)\s*([A-Za-z]+)", text)
        if found is None:
            raise Unplaced(f"INTERVAL {text!r} has no unit; write INTERVAL '10' SECOND", node)
        text, unit = found[1], found[2].upper()
    unit = _SHORT.get(unit, unit.removesuffix("S"))
    unit = _SHORT.get(unit, unit)
    if not re.fullmatch(r"[+-]?\d{1,12}", text):
        raise Unplaced(f"INTERVAL {text!r} is no whole number of {unit or 'units'}", node)
    if unit not in _UNITS_MS and unit not in _MONTHS:
        raise Unplaced(f"INTERVAL has no unit {unit}{did_you_mean(unit, [*_UNITS_MS, *_MONTHS])}", node)
    count = int(text)
    if abs(count) * _UNITS_MS.get(unit, _MONTH_MS * _MONTHS.get(unit, 0)) > _LONGEST_MS:
        raise Unplaced(f"INTERVAL {text!r} {unit} is longer than 10,000 years", node)
    return count, unit
