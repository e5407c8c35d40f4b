"""CAST and TRY_CAST."""

from __future__ import annotations

import polars as pl
from sqlglot import exp

from weir.sql.errors import Unplaced
from weir.sql.types import Typed, computed, constant, polars_type, type_words

#: By digits of TIMESTAMP(p) that no unit of Polars has: to what times are cut.
_CUT = {"0": "1s", "1": "100ms", "2": "10ms", "4": "100us", "5": "10us", "7": "100ns", "8": "10ns"}
#: Digits behind those of a decimal by which a text is rounded.
_MORE_DIGITS = 10
#: How a text ends that says how far its time is from UTC.
_ZONE = r"(Z|z|[+-]\d{2}(:?\d{2})?)$"


def cast(node: exp.Expr, value: Typed, *, is_strict: bool) -> Typed:
    """The value as one of the type that the text names.

    Raises:
        Unplaced: there is no such type, or no way to it.
    """
    declared = node.args["to"]
    made = converted(value, polars_type(declared), node, is_strict=is_strict)
    digits = next((str(each.name) for each in declared.expressions), "")
    if isinstance(made.dtype, pl.Datetime) and digits in _CUT:
        return computed(made.expr.dt.truncate(_CUT[digits]), made.dtype)
    return made


def converted(value: Typed, dtype: pl.DataType, node: exp.Expr, *, is_strict: bool) -> Typed:
    """The value as one of a type; what does not fit raises in the job, or is NULL where ``is_strict`` is False.

    Raises:
        Unplaced: there is no way.
    """
    if value.dtype == dtype:
        return value.without_role()
    if value.is_null:
        return constant(None, dtype)
    made = _conversion(value, dtype, is_strict=is_strict)
    if made is None:
        raise Unplaced(f"there is no CAST from {type_words(value.dtype)} to {type_words(dtype)}", node)
    if value.literal is not None:
        return _of_constant(made, value, dtype, node)
    return computed(made, dtype)


def _of_constant(made: pl.Expr, value: Typed, dtype: pl.DataType, node: exp.Expr) -> Typed:
    """A constant is converted when the text is read: what is wrong with it is told at its place."""
    try:
        found = pl.select(made.alias("x")).to_series()
    except pl.exceptions.PolarsError:
        raise Unplaced(f"{value.literal and value.literal[0]!r} is no {type_words(dtype)}", node) from None
    return Typed(pl.lit(found.item(), dtype), dtype, literal=(found.item(),))


def _conversion(value: Typed, dtype: pl.DataType, *, is_strict: bool) -> pl.Expr | None:
    expr, source = value.expr, value.dtype
    if isinstance(source, pl.String):
        return _of_text(expr, dtype, is_strict=is_strict)
    if isinstance(dtype, pl.String):
        if isinstance(source, pl.Datetime):
            # A fraction is told where there is one, as the standard has it, without zeros at its end.
            return expr.dt.to_string("%Y-%m-%d %H:%M:%S%.9f").str.replace(r"\.?0+$", "")
        if isinstance(source, pl.Time):
            return expr.dt.to_string("%H:%M:%S%.9f").str.replace(r"\.?0+$", "")
        if isinstance(source, (pl.Boolean, pl.Date, pl.Binary)) or source.is_numeric():
            return expr.cast(pl.String, strict=is_strict)
        return None
    if isinstance(source, pl.Decimal) and isinstance(dtype, pl.Decimal):
        return _rounded(expr, dtype, is_strict=is_strict)
    if source.is_numeric() and (dtype.is_numeric() or isinstance(dtype, pl.Boolean)):
        # Fractions are cut towards zero, as in Spark SQL; the standard leaves that open.
        return expr.cast(dtype, strict=is_strict)
    if isinstance(source, pl.Boolean) and dtype.is_integer():
        return expr.cast(dtype)
    if isinstance(source, pl.Datetime) and isinstance(dtype, pl.Datetime):
        if source.time_zone != dtype.time_zone:
            # A time without a zone is one of UTC.
            expr = expr.dt.replace_time_zone(dtype.time_zone)
        return expr.dt.cast_time_unit(dtype.time_unit)
    if isinstance(source, pl.Datetime) and isinstance(dtype, (pl.Date, pl.Time)):
        return expr.dt.date() if isinstance(dtype, pl.Date) else expr.dt.time()
    if isinstance(source, pl.Date) and isinstance(dtype, pl.Datetime) and dtype.time_zone is None:
        return expr.cast(dtype)
    return None


def _of_text(expr: pl.Expr, dtype: pl.DataType, *, is_strict: bool) -> pl.Expr | None:
    text = expr.str.strip_chars(" ")
    if isinstance(dtype, pl.Boolean):
        low = text.str.to_lowercase()
        is_true, is_false = (
            low.is_in(["true", "t", "1", "yes", "y"]),
            low.is_in(["false", "f", "0", "no", "n"]),
        )
        # A text that is none has no number either, so that a strict cast raises for it.
        other = pl.when(~(is_true | is_false)).then(text).cast(pl.Int64, strict=is_strict)
        known = pl.when(is_true).then(True).when(is_false).then(False)
        return known.otherwise(other.cast(pl.Boolean) & pl.lit(None, pl.Boolean))
    if isinstance(dtype, pl.Date):
        return text.str.to_date("%Y-%m-%d", strict=is_strict)
    if isinstance(dtype, pl.Time):
        return text.str.to_time("%H:%M:%S%.f", strict=is_strict)
    if isinstance(dtype, pl.Datetime):
        return _time_of(text, dtype, is_strict=is_strict)
    if isinstance(dtype, pl.Decimal):
        # With more digits first, so that halves go away from zero, and not to the even digit.
        more = min(_MORE_DIGITS, 38 - dtype.precision)
        wide = text.cast(pl.Decimal(38, dtype.scale + more), strict=is_strict)
        return _rounded(wide, dtype, is_strict=is_strict)
    if dtype.is_numeric():
        return text.cast(dtype, strict=is_strict)
    if isinstance(dtype, pl.Binary):
        return expr.cast(pl.Binary)
    return None


def _rounded(expr: pl.Expr, dtype: pl.Decimal, *, is_strict: bool) -> pl.Expr:
    """A decimal with fewer digits of the fraction: halves go away from zero, as in ROUND."""
    return expr.round(dtype.scale, mode="half_away_from_zero").cast(dtype, strict=is_strict)


def _time_of(text: pl.Expr, dtype: pl.Datetime, *, is_strict: bool) -> pl.Expr:
    """A day alone is its midnight; a text of any other form has no seconds and is refused."""
    whole = pl.when(text.str.len_chars() == 10).then(text + " 00:00:00").otherwise(text.str.replace("T", " "))
    form = "%Y-%m-%d %H:%M:%S%.f"
    if dtype.time_zone is None:
        return whole.str.to_datetime(form, time_unit=dtype.time_unit, strict=is_strict)
    # A text without a distance from UTC is a time of UTC.
    zoned = pl.when(whole.str.contains(_ZONE)).then(whole).otherwise(whole + "Z")
    return zoned.str.to_datetime(
        f"{form}%#z", time_unit=dtype.time_unit, time_zone=dtype.time_zone, strict=is_strict
    )
