"""Polars expressions in Spark SQL, those whose meaning is the same for every value; the others run in Polars.

The table of docs/runners.md lists them; ``tests/weir/spark/test_expressions.py`` compares both value by value, with
nulls, NaN, infinities, zeros of either sign and the ends of whole numbers. The text holds for a session with
``spark.sql.ansi.enabled=false`` (whole numbers wrap around, as in Polars) and ``spark.sql.caseSensitive=true``.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from weir.rows.schemas import arrow_type, empty_frame
from weir.spark.types import literal, quoted, spark_type, wire_type

_Tree: TypeAlias = Any

_NUMBERS = {
    pl.Int8: "TINYINT",
    pl.Int16: "SMALLINT",
    pl.Int32: "INT",
    pl.Int64: "BIGINT",
    pl.Float32: "FLOAT",
    pl.Float64: "DOUBLE",
}
_ARITHMETIC = {"Plus": "+", "Minus": "-", "Multiply": "*"}
_COMPARISONS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_LOGIC = {"And": "AND", "Or": "OR"}
_ORDERED = (pl.String, pl.Boolean, pl.Date)


class _Untranslated(Exception):
    """A part of an expression has no equal in Spark SQL that is known to be one."""


def translated(expression: pl.Expr, schema: pa.Schema) -> str | None:
    """The expression in Spark SQL, of the type that Polars gives it; None: it runs in Polars.

    Args:
        expression: of one column, checked against the schema.
        schema: user columns of the input.
    """
    try:
        tree = json.loads(expression.meta.serialize(format="json"))
        frame = empty_frame(schema)
        kinds = frame.select(expression).dtypes
        if len(kinds) != 1:
            return None
        return _Translator(schema, frame).cast(tree, kinds[0])
    except (_Untranslated, ValueError, TypeError, KeyError, IndexError, pl.exceptions.PolarsError):
        # Polars' form of expressions is its own business and may change: then they run in Polars.
        return None


class _Translator:
    def __init__(self, schema: pa.Schema, frame: pl.DataFrame) -> None:
        self._schema = schema
        self._frame = frame

    def cast(self, tree: _Tree, wanted: pl.DataType | type[pl.DataType]) -> str:
        """A part, of this type."""
        text, kind = self.part(tree), self.kind(tree)
        if kind == wanted:
            return text
        if kind == pl.Null:
            return f"CAST(NULL AS {_sql_type(wanted)})"
        if kind in _NUMBERS and wanted in _NUMBERS:
            return f"CAST({text} AS {_NUMBERS[_base(wanted)]})"
        raise _Untranslated

    def kind(self, tree: _Tree) -> pl.DataType:
        """The type that Polars gives a part."""
        return self._frame.select(_expression(tree)).dtypes[0]

    def part(self, tree: _Tree) -> str:
        """A part in Spark SQL."""
        if not isinstance(tree, dict) or len(tree) != 1:
            raise _Untranslated
        [(name, node)] = tree.items()
        maker: Callable[[Any], str] | None = getattr(self, f"_{name.lower()}", None)
        if maker is None:
            raise _Untranslated
        return maker(node)

    def _column(self, node: _Tree) -> str:
        field = self._schema.field(node)
        if wire_type(field.type) != field.type:
            # It travels in another type than Polars knows it by.
            raise _Untranslated
        return quoted(node)

    def _alias(self, node: _Tree) -> str:
        return self.part(node[0])

    def _literal(self, node: _Tree) -> str:
        value = pl.select(_expression({"Literal": node})).to_series()
        if len(value) != 1:
            raise _Untranslated
        return _value(value[0], value.dtype)

    def _cast(self, node: _Tree) -> str:
        before = self.kind(node["expr"])
        after = self.kind({"Cast": node})
        whole = {pl.Int8: 8, pl.Int16: 16, pl.Int32: 32, pl.Int64: 64}
        widens = (
            _base(before) in whole and _base(after) in whole and whole[_base(before)] <= whole[_base(after)]
        )
        to_float = after == pl.Float64 and _base(before) in (*whole, pl.Float32)
        if before == pl.Boolean and after == pl.Float64:
            return f"CAST({self.boolean(node['expr'])} AS DOUBLE)"
        if not (before == after or widens or to_float):
            raise _Untranslated
        return self.cast(node["expr"], after)

    def _ternary(self, node: _Tree) -> str:
        kind = self.kind({"Ternary": node})
        return (
            f"CASE WHEN {self.boolean(node['predicate'])} THEN {self.cast(node['truthy'], kind)} "
            f"ELSE {self.cast(node['falsy'], kind)} END"
        )

    def boolean(self, tree: _Tree) -> str:
        """A part that is true, false or null."""
        return self.cast(tree, pl.Boolean)

    def _binaryexpr(self, node: _Tree) -> str:
        operator, left, right = node["op"], node["left"], node["right"]
        if operator in _LOGIC:
            return f"({self.boolean(left)} {_LOGIC[operator]} {self.boolean(right)})"
        if operator in _COMPARISONS:
            kind = self._common(left, right)
            return f"({self.cast(left, kind)} {_COMPARISONS[operator]} {self.cast(right, kind)})"
        result = self.kind({"BinaryExpr": node})
        if _base(result) not in _NUMBERS:
            raise _Untranslated
        name = _NUMBERS[_base(result)]
        if operator in _ARITHMETIC:
            text = f"{self.cast(left, result)} {_ARITHMETIC[operator]} {self.cast(right, result)}"
            return f"CAST(({text}) AS {name})"
        if operator == "TrueDivide" and result == pl.Float64:
            return self._quotient(left, right)
        divisor = _whole(right)
        if result.is_integer() and divisor is not None and divisor > 0:
            number, by = self.cast(left, result), f"CAST({divisor} AS {name})"
            if operator == "Modulus":
                return f"CAST(pmod({number}, {by}) AS {name})"
            if operator == "FloorDivide":
                # Not (number - rest) / divisor: the lowest number has no room for that.
                short = f"CASE WHEN pmod({number}, {by}) <> 0 AND {number} < 0 THEN 1 ELSE 0 END"
                return f"CAST(({number} div {by}) - ({short}) AS {name})"
        raise _Untranslated

    def _quotient(self, left: _Tree, right: _Tree) -> str:
        """A number divided by another one, both as floats."""
        dividend, divisor = self.cast(left, pl.Float64), self.cast(right, pl.Float64)
        constant = _constant(right)
        if constant is not None and _constant(left) is None:
            # Polars multiplies by the reciprocal, which has another last digit where it is rounded.
            reciprocal = math.copysign(math.inf, constant) if constant == 0 else 1.0 / constant
            return f"({dividend} * {_value(reciprocal, pl.Float64())})"
        # By zero Spark has NULL.
        infinity = f"CASE WHEN CAST({divisor} AS STRING) = '-0.0' THEN -1 ELSE 1 END * {_value(math.inf, pl.Float64())}"
        return f"(CASE WHEN {divisor} = 0 THEN {dividend} * ({infinity}) ELSE {dividend} / {divisor} END)"

    def _common(self, *parts: _Tree) -> pl.DataType | type[pl.DataType]:
        """The type as which values are compared."""
        kinds = [kind for kind in map(self.kind, parts) if kind != pl.Null]
        if not kinds:
            raise _Untranslated
        bases = {_base(kind) for kind in kinds}
        if len(bases) == 1 and (bases < {*_NUMBERS, *_ORDERED}):
            return kinds[0]
        if not bases <= _NUMBERS.keys():
            raise _Untranslated
        if all(kind.is_integer() for kind in kinds):
            return pl.Int64
        if bases & {pl.Float32}:
            # A number in the text is of the column's width there.
            raise _Untranslated
        return pl.Float64

    def _function(self, node: _Tree) -> str:
        function, given = node["function"], node["input"]
        family, name, settings = _named(function)
        maker = _FUNCTIONS.get((family, name))
        if maker is None:
            raise _Untranslated
        return maker(self, {"Function": node}, given, settings)


def _not(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    return f"(NOT {self.boolean(given[0])})"


def _is_null(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    return f"({self.part(given[0])} IS NULL)"


def _is_not_null(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    return f"({self.part(given[0])} IS NOT NULL)"


def _is_between(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    low, high = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}[
        settings["closed"]
    ]
    kind = self._common(*given)
    value, least, most = (self.cast(part, kind) for part in given)
    return f"({value} {low} {least} AND {value} {high} {most})"


def _is_in(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    found = pl.select(_expression(given[1])).to_series()
    kind = self.kind(given[0])
    values = found[0] if len(found) == 1 and isinstance(found.dtype, pl.List) else None
    if settings.get("nulls_equal") or values is None or not len(values) or values.null_count():
        raise _Untranslated
    is_whole = kind.is_integer() and values.dtype.is_integer()
    if not (is_whole or (kind == pl.String and values.dtype == pl.String)):
        raise _Untranslated
    listed = ", ".join(_value(value, values.dtype) for value in values)
    return f"({self.cast(given[0], pl.Int64 if is_whole else kind)} IN ({listed}))"


def _coalesce(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    kind = self.kind(tree)
    return f"coalesce({', '.join(self.cast(part, kind) for part in given)})"


def _text_test(name: str) -> Callable[..., str]:
    def make(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
        if name == "contains" and not settings.get("literal"):
            raise _Untranslated
        return f"{name}({self.cast(given[0], pl.String)}, {self.cast(given[1], pl.String)})"

    return make


def _joined(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    if settings.get("ignore_nulls"):
        raise _Untranslated
    parts = [self.cast(part, pl.String) for part in given]
    delimiter = settings.get("delimiter", "")
    between = f", {literal(delimiter)}, " if delimiter else ", "
    return f"concat({between.join(parts)})"


def _field(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    _sql_type(self.kind(tree))
    return f"{self.part(given[0])}.{quoted(str(settings['']))}"


def _since_1970(self: _Translator, tree: _Tree, given: Sequence[_Tree], settings: Mapping[str, Any]) -> str:
    # Both round down. A time without a zone is one of UTC, as the session is.
    if settings.get("") != "Milliseconds" or _base(self.kind(given[0])) is not pl.Datetime:
        raise _Untranslated
    return f"unix_millis(CAST({self.part(given[0])} AS TIMESTAMP))"


_FUNCTIONS: Mapping[tuple[str, str], Callable[..., str]] = {
    ("Boolean", "Not"): _not,
    ("Boolean", "IsNull"): _is_null,
    ("Boolean", "IsNotNull"): _is_not_null,
    ("Boolean", "IsBetween"): _is_between,
    ("Boolean", "IsIn"): _is_in,
    ("", "FillNull"): _coalesce,
    ("", "Coalesce"): _coalesce,
    ("StringExpr", "Contains"): _text_test("contains"),
    ("StringExpr", "StartsWith"): _text_test("startswith"),
    ("StringExpr", "EndsWith"): _text_test("endswith"),
    ("StringExpr", "ConcatHorizontal"): _joined,
    ("StructExpr", "FieldByName"): _field,
    ("TemporalExpr", "TimeStamp"): _since_1970,
}


def _named(function: _Tree) -> tuple[str, str, Mapping[str, Any]]:
    """Family, name and settings of a function, as Polars writes it."""
    if isinstance(function, str):
        return "", function, {}
    [(family, inner)] = function.items()
    if isinstance(inner, str):
        return family, inner, {}
    if not isinstance(inner, dict):
        raise _Untranslated
    [(name, settings)] = inner.items()
    return family, name, settings if isinstance(settings, dict) else {"": settings}


def _expression(tree: _Tree) -> pl.Expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def _base(kind: pl.DataType | type[pl.DataType]) -> Any:
    return kind if isinstance(kind, type) else type(kind)


def _sql_type(kind: pl.DataType | type[pl.DataType]) -> str:
    travels = wire_type(arrow_type(pl.Series([], dtype=kind)))
    if travels is None or not (_base(kind) in _NUMBERS or _base(kind) in _ORDERED):
        raise _Untranslated
    return spark_type(travels)


def _value(value: object, kind: pl.DataType) -> str:
    """A value in the text of an expression."""
    if value is None:
        return "NULL" if kind == pl.Null else f"CAST(NULL AS {_sql_type(kind)})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int) and kind.is_integer() and -(2**63) <= value < 2**63:
        # The lowest number cannot be written as minus the highest and one.
        return f"CAST('{value}' AS {_NUMBERS.get(_base(kind), 'BIGINT')})"
    if isinstance(value, float):
        name = "NaN" if math.isnan(value) else "Infinity" if value == math.inf else repr(value)
        name = "-Infinity" if value == -math.inf else name
        return f"CAST('{name}' AS {_NUMBERS[_base(kind)]})"
    if isinstance(value, str) and "\x00" not in value:
        return literal(value)
    raise _Untranslated


def _whole(tree: _Tree) -> int | None:
    """The whole number that a part is; None: it is none."""
    found = _constant(tree)
    return found if isinstance(found, int) else None


def _constant(tree: _Tree) -> int | float | None:
    """The number that a part is in the text; None: it is none."""
    if not isinstance(tree, dict) or "Literal" not in tree:
        return None
    value = pl.select(_expression(tree)).to_series()
    found = value[0] if len(value) == 1 else None
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None
