"""Scalar functions by name."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import polars as pl
from sqlglot import exp

from weir.spelling import did_you_mean
from weir.sql import strings
from weir.sql.errors import NAME, Unplaced, name_of
from weir.sql.numbers import power
from weir.sql.types import Typed, as_type, computed, constant, type_words

ValueOf = Callable[[exp.Expr], Typed]
_TEXT, _LONG, _DOUBLE, _TRUTH = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
_MS_TIME = pl.Datetime("ms")
#: What is not there, and the nearest thing that is.
_ABSENT = {
    **dict.fromkeys(
        ("NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE"),
        "which differs with every run; use the event time of the rows",
    ),
    **dict.fromkeys(("RAND", "RANDOM", "UUID"), "which differs with every run; use a hash of a column"),
    "DATE_PART": "write EXTRACT(YEAR FROM t)",
    "DATEDIFF": "subtract EPOCH_MS(...) of both",
    "DATE_ADD": "write t + INTERVAL '1' DAY",
    "DATE_SUB": "write t - INTERVAL '1' DAY",
    "TO_TIMESTAMP": "write TIMESTAMP_MILLIS of a number, or CAST(text AS TIMESTAMP)",
    "TRUNC": "write CAST(x AS BIGINT)",
    "LOG": "write LN or LOG10",
    "LAG": "without OVER; write LAG(x) OVER (PARTITION BY k ORDER BY at)",
    "LEAD": "since rows that follow are not known; tell a row with LAG when the next one has come",
    "UNNEST": "use stream.explode in Python",
    "EXPLODE": "use stream.explode in Python",
}
#: Functions that are read elsewhere, and may have been meant.
_OTHERS = (
    "EXISTS",
    *("COUNT", "SUM", "AVG", "MIN", "MAX", "APPROX_QUANTILE", "MEDIAN", "LAG", "ROW_NUMBER", "RANK"),
    *(
        "COALESCE",
        "NULLIF",
        "GREATEST",
        "LEAST",
        "EXTRACT",
        "DATE_TRUNC",
        "DATE_FORMAT",
        "TRIM",
        "CONCAT",
        "POSITION",
    ),
)


@dataclass(frozen=True)
class Function:
    """A function of values: how many it takes, of which kind, and what it makes of them.

    Attributes:
        make: from the expressions of its values.
        kinds: of each value: ``t`` text, ``r`` regular expression, ``n`` number, ``i`` integer, ``d`` date or time,
            ``m`` a time, or the midnight of a date, ``b`` truth, ``c`` a constant whole number from 0 on.
        result: its type; None: that of the first value.
        optional: how many of the values, at the end, may be left out.
    """

    make: Callable[..., pl.Expr]
    kinds: str
    result: pl.DataType | None
    optional: int = 0


def call(node: exp.Expr, value_of: ValueOf) -> Typed:
    """The value of a function.

    Raises:
        Unplaced: there is none of this name, or it takes other values.
    """
    name, parts = _name_of(node), _parts_of(node)
    if isinstance(node, exp.Log) and node.expression and node.this.name == "10":
        # So LOG10(x) is read.
        name, parts = "LOG10", [node.expression]
    if isinstance(node, exp.Concat) and not isinstance(node, exp.ConcatWs):
        return _joined(node, [value_of(each) for each in node.expressions])
    if isinstance(node, exp.DPipe):
        return _joined(node, [value_of(node.this), value_of(node.expression)])
    if isinstance(node, exp.Extract):
        return _extracted(node, value_of(node.expression), str(node.this.name).upper())
    if isinstance(node, (exp.DateTrunc, exp.TimestampTrunc)):
        return _truncated(node, value_of(node.this), str(node.args["unit"].name).upper())
    if name in ("DATE_FORMAT", "TIME_TO_STR", "STRFTIME"):
        return _formatted(node, name, parts, value_of)
    if isinstance(node, exp.Trim):
        return _trimmed(node, value_of)
    function = FUNCTIONS.get(name)
    if function is None:
        _refuse(node, name)
    least = len(function.kinds) - function.optional
    if not least <= len(parts) <= len(function.kinds):
        wanted = str(least) if not function.optional else f"{least} to {len(function.kinds)}"
        raise Unplaced(f"{name} takes {wanted} values, not {len(parts)}", node)
    values = [value_of(each) for each in parts]
    for value, kind, part in zip(values, function.kinds, parts, strict=False):
        _check_kind(name, value, kind, part)
    dtype = values[0].dtype if function.result is None else function.result
    if any(each.is_null for each in values):
        return constant(None, dtype)
    if name in ("ABS", "ROUND", "CEIL", "FLOOR") and values[0].dtype.is_integer():
        # As all whole numbers; a DOUBLE has no place for large ones.
        number = as_type(values[0], _LONG).expr
        return computed(number.abs() if name == "ABS" else number, _LONG)
    if name == "ROUND" and isinstance(values[0].dtype, pl.Decimal):
        # A half of a decimal is none of a DOUBLE.
        return computed(_round(values[0].expr, *(each.expr for each in values[1:])).cast(_DOUBLE), _DOUBLE)
    arguments = [_argument(each, kind) for each, kind in zip(values, function.kinds, strict=False)]
    return computed(function.make(*arguments), dtype)


def _argument(value: Typed, kind: str) -> pl.Expr:
    if kind == "m":
        return _moment(value)
    if kind == "r":
        return strings.patterns(value.expr, None if value.literal is None else value.literal[0])
    return value.expr


def _refuse(node: exp.Expr, name: str) -> NoReturn:
    """Refuse a function, or another sign, by what the text calls it."""
    called = name_of(node)
    for each in (called, name):
        if each in _ABSENT:
            raise Unplaced(f"{called} is not there, {_ABSENT[each]}", node)
    if not isinstance(node, exp.Anonymous) and NAME not in node.meta:
        raise Unplaced(f"{node.sql()[:60]} is not there; CREATE FUNCTION names a function of Python", node)
    raise Unplaced(f"there is no function {called}{did_you_mean(called, [*FUNCTIONS, *_OTHERS])}", node)


def _moment(value: Typed) -> pl.Expr:
    """A time; of a date its midnight, since Polars has no hours of dates."""
    return value.expr.cast(pl.Datetime("us")) if isinstance(value.dtype, pl.Date) else value.expr


def _name_of(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).upper()
    return (
        "DATE_FORMAT"
        if isinstance(node, exp.TimeToStr)
        else node.sql_name().upper()
        if isinstance(node, exp.Func)
        else type(node).__name__.upper()
    )


def _parts_of(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    found: list[exp.Expr] = []
    for key in node.arg_types:
        value = node.args.get(key)
        if isinstance(value, exp.Expr):
            found.append(value)
        elif isinstance(value, list):
            found += [each for each in value if isinstance(each, exp.Expr)]
    return found


def _check_kind(name: str, value: Typed, kind: str, node: exp.Expr) -> None:
    dtype = value.dtype
    is_right = {
        "t": isinstance(dtype, pl.String),
        "r": isinstance(dtype, pl.String),
        "n": dtype.is_numeric(),
        "i": dtype.is_integer(),
        "d": isinstance(dtype, (pl.Date, pl.Datetime)),
        "m": isinstance(dtype, (pl.Date, pl.Datetime)),
        "b": isinstance(dtype, pl.Boolean),
        "c": value.literal is not None and isinstance(value.literal[0], int) and value.literal[0] >= 0,
    }[kind]
    if not is_right and (kind == "c" or not value.is_null):
        wanted = {
            "t": "a text",
            "r": "a regular expression",
            "n": "a number",
            "i": "a whole number",
            "d": "a date or a time",
            "m": "a date or a time",
            "b": "a condition",
            "c": "a constant whole number from 0 on",
        }
        found = "" if kind == "c" else f", and this is {type_words(dtype)}; CAST it"
        raise Unplaced(f"{name} takes {wanted[kind]} here{found}", node)
    if kind == "r" and value.literal is not None and isinstance(value.literal[0], str):
        try:
            strings.check_pattern(value.literal[0])
        except Unplaced as error:
            raise Unplaced(error.message, node) from error


def _joined(node: exp.Expr, values: list[Typed]) -> Typed:
    for value in values:
        if not isinstance(value.dtype, (pl.String, pl.Null)) and not value.is_number:
            raise Unplaced(f"|| joins texts, and this is {type_words(value.dtype)}; CAST it AS VARCHAR", node)
    return computed(pl.concat_str([each.expr.cast(_TEXT) for each in values]), _TEXT)


_FIELDS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "YEAR": lambda x: x.dt.year(),
    "QUARTER": lambda x: x.dt.quarter(),
    "MONTH": lambda x: x.dt.month(),
    "WEEK": lambda x: x.dt.week(),
    "DAY": lambda x: x.dt.day(),
    "DOY": lambda x: x.dt.ordinal_day(),
    "DOW": lambda x: x.dt.weekday() % 7,
    "HOUR": lambda x: x.dt.hour(),
    "MINUTE": lambda x: x.dt.minute(),
    "SECOND": lambda x: x.dt.second(),
    "EPOCH": lambda x: x.dt.epoch("s"),
}
_TRUNCATIONS = {
    "YEAR": "1y", "QUARTER": "1q", "MONTH": "1mo", "WEEK": "1w", "DAY": "1d", "HOUR": "1h", "MINUTE": "1m",
    "SECOND": "1s",
}  # fmt: skip


def _extracted(node: exp.Expr, value: Typed, part: str) -> Typed:
    if part not in _FIELDS:
        raise Unplaced(f"EXTRACT has no {part}{did_you_mean(part, _FIELDS)}", node)
    _check_kind("EXTRACT", value, "d", node)
    return computed(_FIELDS[part](_moment(value)).cast(_LONG), _LONG)


def _truncated(node: exp.Expr, value: Typed, part: str) -> Typed:
    if part not in _TRUNCATIONS:
        raise Unplaced(f"DATE_TRUNC has no {part}{did_you_mean(part, _TRUNCATIONS)}", node)
    _check_kind("DATE_TRUNC", value, "d", node)
    return computed(value.expr.dt.truncate(_TRUNCATIONS[part]), value.dtype)


_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%3f",
    "SSSSSS": "%6f", "DDD": "%j",
}  # fmt: skip
#: Codes of STRFTIME that all engines read alike, and what they are for Polars.
_CODES = {each: each for each in "%YymdHIMSpjUWuwVGaAbBX"} | {"f": "6f"}


def _formatted(node: exp.Expr, name: str, parts: list[exp.Expr], value_of: ValueOf) -> Typed:
    values = [value_of(each) for each in parts]
    if len(values) != 2 or values[1].literal is None or not isinstance(values[1].literal[0], str):
        raise Unplaced(f"{name} takes a time and a constant form, such as 'yyyy-MM-dd'", node)
    _check_kind(name, values[0], "d", node)
    form = values[1].literal[0]
    form = _of_codes(form, node) if "%" in form else _of_letters(form, node)
    try:
        pl.select(pl.lit(dt.datetime(2000, 1, 1)).dt.strftime(form))
    except pl.exceptions.PolarsError as error:
        raise Unplaced(f"no time can be told in the form {form!r}", parts[1]) from error
    return computed(_moment(values[0]).dt.strftime(form), _TEXT)


def _of_letters(form: str, node: exp.Expr) -> str:
    """``yyyy-MM-dd``: as many of a letter as there are together say what it is."""

    def code(found: re.Match[str]) -> str:
        if found[0] not in _LETTERS:
            raise Unplaced(f"the form {form!r} has {found[0]!r}; there are {', '.join(_LETTERS)}", node)
        return _LETTERS[found[0]]

    return re.sub(r"([A-Za-z])\1*", code, form)


def _of_codes(form: str, node: exp.Expr) -> str:
    def code(found: re.Match[str]) -> str:
        if found[2] not in _CODES:
            known = ", ".join(f"%{each}" for each in _CODES)
            raise Unplaced(f"no time can be told in the form {form!r}: {found[0]!r}; there are {known}", node)
        return f"%{found[1]}{_CODES[found[2]]}"

    return re.sub("(?s)%(-?)(.?)", code, form)


def _trimmed(node: exp.Trim, value_of: ValueOf) -> Typed:
    value = value_of(node.this)
    _check_kind("TRIM", value, "t", node.this)
    characters = value_of(node.expression).expr if node.expression is not None else pl.lit(" ")
    side = str(node.args.get("position") or "BOTH").upper()
    text = value.expr.cast(_TEXT).str
    made = {"LEADING": text.strip_chars_start, "TRAILING": text.strip_chars_end}.get(side, text.strip_chars)
    return computed(strings.where_known(made(characters), characters), _TEXT)


def _round(number: pl.Expr, digits: pl.Expr | None = None) -> pl.Expr:
    """Halves go away from zero."""
    count = 0 if digits is None else int(pl.select(digits).item())
    return number.round(count, mode="half_away_from_zero")


def _safe_log(number: pl.Expr, base: float | None) -> pl.Expr:
    value = pl.when(number > 0).then(number.cast(_DOUBLE))
    return value.log() if base is None else value.log(base)


FUNCTIONS: Mapping[str, Function] = {
    "UPPER": Function(lambda x: x.str.to_uppercase(), "t", _TEXT),
    "LOWER": Function(lambda x: x.str.to_lowercase(), "t", _TEXT),
    "LENGTH": Function(lambda x: x.str.len_chars().cast(_LONG), "t", _LONG),
    "CHAR_LENGTH": Function(lambda x: x.str.len_chars().cast(_LONG), "t", _LONG),
    "REVERSE": Function(lambda x: x.str.reverse(), "t", _TEXT),
    "REPLACE": Function(strings.replaced, "ttt", _TEXT),
    "LEFT": Function(strings.left, "ti", _TEXT),
    "RIGHT": Function(strings.right, "ti", _TEXT),
    "SUBSTRING": Function(strings.substring, "tii", _TEXT, 1),
    "STR_POSITION": Function(strings.position, "tt", _LONG),
    "STARTS_WITH": Function(lambda x, part: x.str.starts_with(part), "tt", _TRUTH),
    "ENDS_WITH": Function(lambda x, part: x.str.ends_with(part), "tt", _TRUTH),
    "CONTAINS": Function(lambda x, part: x.str.contains(part, literal=True), "tt", _TRUTH),
    "SPLIT_PART": Function(strings.split_part, "tti", _TEXT),
    "REGEXP_EXTRACT": Function(strings.extracted, "trc", _TEXT, 1),
    "REGEXP_LIKE": Function(lambda x, pattern: x.str.contains(pattern), "tr", _TRUTH),
    "ABS": Function(lambda x: x.abs(), "n", None),
    "CEIL": Function(lambda x: x.cast(_DOUBLE).ceil(), "n", _DOUBLE),
    "FLOOR": Function(lambda x: x.cast(_DOUBLE).floor(), "n", _DOUBLE),
    "ROUND": Function(lambda x, *digits: _round(x.cast(_DOUBLE), *digits), "nc", _DOUBLE, 1),
    "SIGN": Function(lambda x: x.cast(_DOUBLE).sign().fill_nan(0).cast(_LONG), "n", _LONG),
    "SQRT": Function(lambda x: pl.when(x >= 0).then(x.cast(_DOUBLE)).sqrt(), "n", _DOUBLE),
    "EXP": Function(lambda x: x.cast(_DOUBLE).exp(), "n", _DOUBLE),
    "LN": Function(lambda x: _safe_log(x, None), "n", _DOUBLE),
    "LOG10": Function(lambda x: _safe_log(x, 10.0), "n", _DOUBLE),
    "POWER": Function(power, "nn", _DOUBLE),
    "YEAR": Function(lambda x: x.dt.year().cast(_LONG), "d", _LONG),
    "MONTH": Function(lambda x: x.dt.month().cast(_LONG), "d", _LONG),
    "DAY": Function(lambda x: x.dt.day().cast(_LONG), "d", _LONG),
    "HOUR": Function(lambda x: x.dt.hour().cast(_LONG), "m", _LONG),
    "MINUTE": Function(lambda x: x.dt.minute().cast(_LONG), "m", _LONG),
    "SECOND": Function(lambda x: x.dt.second().cast(_LONG), "m", _LONG),
    "TIMESTAMP_MILLIS": Function(lambda x: x.cast(_LONG).cast(_MS_TIME), "i", _MS_TIME),
    "EPOCH_MS": Function(lambda x: x.dt.epoch("ms"), "d", _LONG),
}
