"""Scalar functions by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl
from sqlglot import exp

from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced
from weir.sql.types import Typed, computed, type_words

ValueOf = Callable[[exp.Expr], Typed]
_TEXT, _LONG, _DOUBLE, _TRUTH = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
_MS_TIME = pl.Datetime("ms")
#: What is not there, and the nearest thing that is.
_ABSENT = {
    "NOW": "which differs with every run; use the event time of the rows",
    "CURRENT_TIMESTAMP": "which differs with every run; use the event time of the rows",
    "CURRENT_DATE": "which differs with every run; use the event time of the rows",
    "RAND": "which differs with every run; use a hash of a column",
    "RANDOM": "which differs with every run; use a hash of a column",
    "LAG": "without OVER; write LAG(x) OVER (PARTITION BY k ORDER BY at)",
    "LEAD": "since rows that follow are not known; tell a row with LAG when the next one has come",
    "UNNEST": "use stream.explode in Python",
    "EXPLODE": "use stream.explode in Python",
}


@dataclass(frozen=True)
class Function:
    """A function of values: how many it takes, of which kind, and what it makes of them.

    Attributes:
        make: from the expressions of its values.
        kinds: of each value: ``t`` text, ``n`` number, ``i`` integer, ``d`` date or time, ``b`` truth, ``c`` a
            constant whole number from 0 on.
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
        return _formatted(node, name, [value_of(each) for each in parts])
    if isinstance(node, exp.Trim):
        return _trimmed(node, value_of)
    function = FUNCTIONS.get(name)
    if function is None:
        if name in _ABSENT:
            raise Unplaced(f"{name} is not there, {_ABSENT[name]}", node)
        raise Unplaced(f"there is no function {name}{did_you_mean(name, FUNCTIONS)}", node)
    least = len(function.kinds) - function.optional
    if not least <= len(parts) <= len(function.kinds):
        wanted = str(least) if not function.optional else f"{least} to {len(function.kinds)}"
        raise Unplaced(f"{name} takes {wanted} values, not {len(parts)}", node)
    values = [value_of(each) for each in parts]
    for value, kind, part in zip(values, function.kinds, parts, strict=False):
        _check_kind(name, value, kind, part)
    dtype = values[0].dtype if function.result is None else function.result
    arguments = [
        each.expr.cast(_TEXT) if kind == "t" and each.is_null else each.expr
        for each, kind in zip(values, function.kinds, strict=False)
    ]
    return computed(function.make(*arguments), dtype)


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
        "n": dtype.is_numeric(),
        "i": dtype.is_integer(),
        "d": isinstance(dtype, (pl.Date, pl.Datetime)),
        "b": isinstance(dtype, pl.Boolean),
        "c": value.literal is not None and isinstance(value.literal[0], int) and value.literal[0] >= 0,
    }[kind]
    if not is_right and (kind == "c" or not value.is_null):
        wanted = {
            "t": "a text",
            "n": "a number",
            "i": "a whole number",
            "d": "a date or a time",
            "b": "a condition",
            "c": "a constant whole number from 0 on",
        }
        found = "" if kind == "c" else f", and this is {type_words(dtype)}; CAST it"
        raise Unplaced(f"{name} takes {wanted[kind]} here{found}", node)


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
    return computed(_FIELDS[part](value.expr).cast(_LONG), _LONG)


def _truncated(node: exp.Expr, value: Typed, part: str) -> Typed:
    if part not in _TRUNCATIONS:
        raise Unplaced(f"DATE_TRUNC has no {part}{did_you_mean(part, _TRUNCATIONS)}", node)
    _check_kind("DATE_TRUNC", value, "d", node)
    return computed(value.expr.dt.truncate(_TRUNCATIONS[part]), value.dtype)


_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%3f", "DDD": "%j"
}  # fmt: skip


def _formatted(node: exp.Expr, name: str, values: list[Typed]) -> Typed:
    if len(values) != 2 or values[1].literal is None or not isinstance(values[1].literal[0], str):
        raise Unplaced(f"{name} takes a time and a constant form, such as 'yyyy-MM-dd'", node)
    _check_kind(name, values[0], "d", node)
    form = values[1].literal[0]
    if "%" not in form:
        unknown = [
            each for each in re.findall(r"([A-Za-z])\1*", re.sub("|".join(_LETTERS), "", form)) if each
        ]
        if unknown:
            raise Unplaced(f"the form {form!r} has {unknown[0]!r}; there are {', '.join(_LETTERS)}", node)
        form = re.sub("|".join(_LETTERS), lambda found: _LETTERS[found[0]], form)
    return computed(values[0].expr.dt.strftime(form), _TEXT)


def _trimmed(node: exp.Trim, value_of: ValueOf) -> Typed:
    value = value_of(node.this)
    _check_kind("TRIM", value, "t", node.this)
    characters = value_of(node.expression).expr if node.expression is not None else pl.lit(" ")
    side = str(node.args.get("position") or "BOTH").upper()
    text = value.expr.cast(_TEXT).str
    made = {"LEADING": text.strip_chars_start, "TRAILING": text.strip_chars_end}.get(side, text.strip_chars)
    return computed(made(characters), _TEXT)


def _substring(text: pl.Expr, start: pl.Expr, length: pl.Expr | None = None) -> pl.Expr:
    """Return what begins at the character ``start``, from 1 on; what is before the first one counts in ``length``."""
    first = pl.max_horizontal(start - 1, pl.lit(0))
    if length is None:
        return text.str.slice(first)
    return text.str.slice(first, pl.max_horizontal(start - 1 + length - first, pl.lit(0)).cast(pl.UInt64))


def _split_part(text: pl.Expr, delimiter: pl.Expr, place: pl.Expr) -> pl.Expr:
    """The part at a place from 1 on, or from -1 on before the end; an empty text beyond the last, null of null."""
    if delimiter.meta.is_literal() and place.meta.is_literal():
        text_between, number = pl.select(delimiter).item(), pl.select(place).item()
        if text_between and number is not None and number > 0:
            # Not into a list of all parts; of several places of a text the same expression, which is computed once.
            parts = text.str.splitn(text_between, max(number + 1, 8))
            return pl.when(text.is_not_null()).then(parts.struct.field(f"field_{number - 1}").fill_null(""))
    index = pl.when(place > 0).then(place - 1).otherwise(place)
    found = text.str.split(delimiter).list.get(index, null_on_oob=True)
    return pl.when(text.is_not_null()).then(found.fill_null(""))


def _extract_pattern(text: pl.Expr, pattern: pl.Expr, group: pl.Expr | None = None) -> pl.Expr:
    """The match, or a group of it; an empty text where there is none, as in Spark and DuckDB."""
    number = 0 if group is None else int(pl.select(group).item())
    return pl.when(text.is_not_null()).then(text.str.extract(pattern, number).fill_null(""))


def _round(number: pl.Expr, digits: pl.Expr | None = None) -> pl.Expr:
    """Halves go away from zero."""
    count = 0 if digits is None else int(pl.select(digits).item())
    return number.cast(_DOUBLE).round(count, mode="half_away_from_zero")


def _safe_log(number: pl.Expr, base: float | None) -> pl.Expr:
    value = pl.when(number > 0).then(number.cast(_DOUBLE))
    return value.log() if base is None else value.log(base)


def _positive(count: pl.Expr) -> pl.Expr:
    return pl.max_horizontal(count, pl.lit(0)).cast(pl.UInt64)


FUNCTIONS: Mapping[str, Function] = {
    "UPPER": Function(lambda x: x.str.to_uppercase(), "t", _TEXT),
    "LOWER": Function(lambda x: x.str.to_lowercase(), "t", _TEXT),
    "LENGTH": Function(lambda x: x.str.len_chars().cast(_LONG), "t", _LONG),
    "CHAR_LENGTH": Function(lambda x: x.str.len_chars().cast(_LONG), "t", _LONG),
    "REVERSE": Function(lambda x: x.str.reverse(), "t", _TEXT),
    "REPLACE": Function(lambda x, old, new: x.str.replace_all(old, new, literal=True), "ttt", _TEXT),
    "LEFT": Function(lambda x, n: x.str.slice(0, _positive(n)), "ti", _TEXT),
    "RIGHT": Function(
        lambda x, n: x.str.slice(pl.max_horizontal(x.str.len_chars().cast(_LONG) - n, pl.lit(0))), "ti", _TEXT
    ),
    "SUBSTRING": Function(_substring, "tii", _TEXT, 1),
    "STR_POSITION": Function(
        lambda x, part: (
            x.str.find(part, literal=True).cast(_LONG).fill_null(-1) + 1 + (x + part).str.len_chars() * 0
        ),
        "tt",
        _LONG,
    ),
    "STARTS_WITH": Function(lambda x, part: x.str.starts_with(part), "tt", _TRUTH),
    "ENDS_WITH": Function(lambda x, part: x.str.ends_with(part), "tt", _TRUTH),
    "CONTAINS": Function(lambda x, part: x.str.contains(part, literal=True), "tt", _TRUTH),
    "SPLIT_PART": Function(_split_part, "tti", _TEXT),
    "REGEXP_EXTRACT": Function(_extract_pattern, "ttc", _TEXT, 1),
    "REGEXP_LIKE": Function(lambda x, pattern: x.str.contains(pattern), "tt", _TRUTH),
    "ABS": Function(lambda x: x.abs(), "n", None),
    "CEIL": Function(lambda x: x.cast(_DOUBLE).ceil(), "n", _DOUBLE),
    "FLOOR": Function(lambda x: x.cast(_DOUBLE).floor(), "n", _DOUBLE),
    "ROUND": Function(_round, "nc", _DOUBLE, 1),
    "SIGN": Function(lambda x: x.cast(_DOUBLE).sign().cast(_LONG), "n", _LONG),
    "SQRT": Function(lambda x: pl.when(x >= 0).then(x.cast(_DOUBLE)).sqrt(), "n", _DOUBLE),
    "EXP": Function(lambda x: x.cast(_DOUBLE).exp(), "n", _DOUBLE),
    "LN": Function(lambda x: _safe_log(x, None), "n", _DOUBLE),
    "LOG10": Function(lambda x: _safe_log(x, 10.0), "n", _DOUBLE),
    "POWER": Function(lambda x, y: x.cast(_DOUBLE) ** y.cast(_DOUBLE), "nn", _DOUBLE),
    "YEAR": Function(lambda x: x.dt.year().cast(_LONG), "d", _LONG),
    "MONTH": Function(lambda x: x.dt.month().cast(_LONG), "d", _LONG),
    "DAY": Function(lambda x: x.dt.day().cast(_LONG), "d", _LONG),
    "HOUR": Function(lambda x: x.dt.hour().cast(_LONG), "d", _LONG),
    "MINUTE": Function(lambda x: x.dt.minute().cast(_LONG), "d", _LONG),
    "SECOND": Function(lambda x: x.dt.second().cast(_LONG), "d", _LONG),
    "TIMESTAMP_MILLIS": Function(lambda x: pl.from_epoch(x.cast(_LONG), "ms"), "i", _MS_TIME),
    "EPOCH_MS": Function(lambda x: x.dt.epoch("ms"), "d", _LONG),
}
