"""Types of SQL and of Polars, and values with their types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl
from sqlglot import exp

from weir.sql.errors import Unplaced
from weir.sql.syntax import meant

#: What a column is beside its values.
Role = Literal["", "time", "window_start", "window_end"]

_T = exp.DataType.Type
_PLAIN: dict[Any, pl.DataType] = {
    _T.BOOLEAN: pl.Boolean(),
    _T.TINYINT: pl.Int8(),
    _T.SMALLINT: pl.Int16(),
    _T.INT: pl.Int32(),
    _T.BIGINT: pl.Int64(),
    _T.FLOAT: pl.Float32(),
    _T.DOUBLE: pl.Float64(),
    _T.VARCHAR: pl.String(),
    _T.CHAR: pl.String(),
    _T.NCHAR: pl.String(),
    _T.NVARCHAR: pl.String(),
    _T.TEXT: pl.String(),
    _T.BINARY: pl.Binary(),
    _T.VARBINARY: pl.Binary(),
    _T.DATE: pl.Date(),
    _T.TIME: pl.Time(),
}
_TIMES = {
    _T.TIMESTAMP: None,
    _T.TIMESTAMPNTZ: None,
    _T.DATETIME: None,
    _T.TIMESTAMPTZ: "UTC",
    _T.TIMESTAMPLTZ: "UTC",
}
#: By the digits of a fraction of a second.
_UNITS: dict[int, Literal["ms", "us", "ns"]] = {
    0: "ms",
    1: "ms",
    2: "ms",
    3: "ms",
    4: "us",
    5: "us",
    6: "us",
    7: "ns",
    8: "ns",
    9: "ns",
}


@dataclass(frozen=True)
class Typed:
    """A value of each row: a Polars expression over the columns of a stream, with its type.

    Attributes:
        expr: of one value for each row.
        dtype: its type.
        name: the stream's column that it is, unchanged; None: it is computed.
        role: what the column is beside its values.
        literal: of a constant: its value in a tuple of one.
    """

    expr: pl.Expr
    dtype: pl.DataType
    name: str | None = None
    role: Role = ""
    literal: tuple[Any] | None = None

    @property
    def is_number(self) -> bool:
        """Whether it is a number of any type."""
        return self.dtype.is_numeric()

    @property
    def is_null(self) -> bool:
        """Whether it is the constant NULL."""
        return isinstance(self.dtype, pl.Null)

    def without_role(self) -> Typed:
        """The same, as a column like any other."""
        return replace(self, role="") if self.role else self


def column(name: str, dtype: pl.DataType, role: Role = "") -> Typed:
    """A column of a stream."""
    return Typed(pl.col(name), dtype, name, role)


def computed(expr: pl.Expr, dtype: pl.DataType) -> Typed:
    """What an expression makes."""
    return Typed(expr, dtype)


def constant(value: Any, dtype: pl.DataType) -> Typed:
    """A constant of a type."""
    return Typed(pl.lit(value, dtype), dtype, literal=(value,))


def polars_type(declared: exp.DataType) -> pl.DataType:
    """The type of a column or of a cast.

    Raises:
        Unplaced: there is none of this name.
    """
    kind = declared.this
    _check_sizes(declared)
    given = [int(each.name) for each in declared.expressions if each.name.isdigit()]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _TIMES:
        return pl.Datetime(_UNITS[given[0]] if given and given[0] in _UNITS else "us", _TIMES[kind])
    if kind in (_T.DECIMAL, _T.BIGDECIMAL):
        precision, scale = [*given, *(38, 0)[len(given) :]][:2]
        if not 1 <= precision <= 38 or scale > precision:
            raise Unplaced(
                f"{declared.sql()}: a decimal has 1 to 38 digits, and its scale at most as many", declared
            )
        return pl.Decimal(precision, scale)
    if kind is _T.ARRAY and len(declared.expressions) == 1:
        return pl.List(polars_type(declared.expressions[0]))
    if kind is _T.STRUCT:
        fields = [_field(each, declared) for each in declared.expressions]
        return pl.Struct(fields)
    raise Unplaced(no_type(declared.sql()), declared)


def _check_sizes(declared: exp.DataType) -> None:
    """Check the numbers in brackets behind a type: sqlglot takes words, too, and two numbers without a comma."""
    for each in declared.expressions:
        if not isinstance(each, exp.DataTypeParam):
            continue
        second, kind = each.args.get("expression"), str(declared.this.value)
        if second is not None and second.name.isdigit():
            raise Unplaced(
                f"a comma is missing in {kind}({each.name} {second.name}); did you mean "
                f"{kind}({each.name}, {second.name})?",
                declared,
            )
        if declared.this in (*_TIMES, _T.DECIMAL, _T.BIGDECIMAL) and not each.name.isdigit():
            raise Unplaced(
                f"{declared.sql()}: in brackets are whole numbers, as in DECIMAL(9, 2) or TIMESTAMP(3)",
                declared,
            )


def check_key(value: Typed, clause: str, node: exp.Expr) -> None:
    """Check that rows can be divided by a value.

    Raises:
        Unplaced: they cannot.
    """
    if value.dtype.is_float():
        raise Unplaced(
            f"{clause} of {type_words(value.dtype)} is not there: equal numbers may differ in their bytes (0.0 and "
            "-0.0, NaN); CAST it to BIGINT or VARCHAR",
            node,
        )


def no_type(text: str) -> str:
    """What is told of a type that is not there: the one that was meant, or all of them."""
    known = [each.value for each in (*_PLAIN, *_TIMES, _T.DECIMAL, _T.ARRAY, _T.STRUCT)]
    near = meant(text, known) or (
        "; there are BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), VARCHAR, VARBINARY, DATE, "
        "TIME, TIMESTAMP(p), TIMESTAMPTZ, ARRAY<...>, STRUCT<...>"
    )
    return f"there is no type {text}{near}"


def _field(part: exp.Expr, declared: exp.DataType) -> pl.Field:
    if isinstance(part, exp.ColumnDef) and isinstance(part.kind, exp.DataType):
        return pl.Field(part.name, polars_type(part.kind))
    raise Unplaced(f"{declared.sql()}: write STRUCT<name TYPE, ...>", declared)


def type_words(dtype: pl.DataType) -> str:
    """What SQL calls a type, for messages."""
    for kind, known in _PLAIN.items():
        if dtype == known and kind not in (_T.CHAR, _T.NCHAR, _T.NVARCHAR, _T.TEXT, _T.BINARY):
            return str(kind.value)
    if isinstance(dtype, pl.Datetime):
        return "TIMESTAMPTZ" if dtype.time_zone else "TIMESTAMP"
    if isinstance(dtype, pl.Decimal):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    return {pl.Null: "NULL", pl.Duration: "INTERVAL"}.get(type(dtype), str(dtype))


def common_type(values: Iterable[Typed], node: exp.Expr) -> pl.DataType:
    """The type of which all these values can be, for CASE, COALESCE, UNION and the like.

    Integers become BIGINT, and decimals with floats DOUBLE. NULL is of any type.

    Raises:
        Unplaced: there is none.
    """
    found: pl.DataType = pl.Null()
    for value in values:
        merged = _merged(found, value.dtype)
        if merged is None:
            raise Unplaced(
                f"{type_words(found)} and {type_words(value.dtype)} have no type in common; CAST one of them",
                node,
            )
        found = merged
    return found


def _merged(one: pl.DataType, other: pl.DataType) -> pl.DataType | None:
    if one == other or isinstance(other, pl.Null):
        return one
    if isinstance(one, pl.Null):
        return other
    if one.is_numeric() and other.is_numeric():
        if one.is_float() or other.is_float():
            return pl.Float64()
        decimals = [each for each in (one, other) if isinstance(each, pl.Decimal)]
        if decimals:
            return pl.Decimal(38, max(each.scale for each in decimals))
        return pl.Int64()
    if isinstance(one, pl.Datetime) and isinstance(other, pl.Datetime) and one.time_zone == other.time_zone:
        order = ("ms", "us", "ns")
        return one if order.index(one.time_unit) >= order.index(other.time_unit) else other
    if {type(one), type(other)} == {pl.Date, pl.Datetime}:
        return one if isinstance(one, pl.Datetime) else other
    return None


def as_type(value: Typed, dtype: pl.DataType) -> Typed:
    """The same value as one of a wider type, from :func:`common_type`."""
    if value.dtype == dtype:
        return value
    if value.is_null:
        return Typed(pl.lit(None, dtype), dtype, literal=(None,))
    return Typed(value.expr.cast(dtype), dtype, literal=value.literal)


def has_whole_ms(time: Typed) -> bool:
    """Whether a time has no more digits than event times, which are of whole ms."""
    return time.dtype.is_integer() or getattr(time.dtype, "time_unit", "") == "ms"
