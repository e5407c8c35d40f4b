"""A form of expressions of its own, which says what they do and not how a version of Polars shows them.

Persisted: checkpoints have it of the conditions of aggregates. Where they are known here, names of Weir stand for those
of Polars; ``tests/weir/test_canonical_expressions.py`` has golden texts.
"""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl

#: Names in Polars' own form -> names here. Another version of Polars may call them otherwise: add its names.
_OPERATORS = {
    "Eq": "==",
    "NotEq": "!=",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "And": "&",
    "LogicalAnd": "&",
    "Or": "|",
    "LogicalOr": "|",
    "Xor": "^",
    "Plus": "+",
    "Minus": "-",
    "Multiply": "*",
    "Divide": "/",
    "TrueDivide": "/",
    "RustDivide": "/",
    "FloorDivide": "//",
    "Modulus": "%",
    "EqValidity": "==null",
    "NotEqValidity": "!=null",
}
#: What literals are called that have a type of their own.
_TYPES: dict[Any, str] = {
    pl.Null: "Null",
    pl.Boolean: "Boolean",
    **{getattr(pl, f"{sign}Int{bits}"): f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    pl.Int128: "Int128",
    pl.Float32: "Float32",
    pl.Float64: "Float64",
    pl.Decimal: "Decimal",
    pl.String: "String",
    pl.Binary: "Binary",
    pl.Date: "Date",
    pl.Time: "Time",
    pl.Datetime: "Datetime",
    pl.Duration: "Duration",
    pl.Categorical: "Categorical",
    pl.Enum: "Enum",
    pl.List: "List",
    pl.Array: "Array",
    pl.Struct: "Struct",
}


def canonical_expression(expression: pl.Expr) -> str:
    """The expression as JSON: equal texts for equal expressions, whatever the version of Polars.

    Of a function in Python only its name and place are known, as Polars shows them.
    """
    try:
        tree = json.loads(expression.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):
        return json.dumps({"shown": str(expression)}, sort_keys=True, separators=(",", ":"))
    return json.dumps(_told(tree), sort_keys=True, separators=(",", ":"))


def _told(node: Any) -> Any:
    if isinstance(node, list):
        return [_told(item) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((kind, inner),) = node.items()
        if kind == "Column":
            return {"column": inner}
        if kind == "Literal":
            return {"literal": _literal(node, inner)}
        if kind == "Cast":
            return {"cast": _told(inner["expr"]), "to": inner["dtype"], "options": inner.get("options")}
        if kind == "BinaryExpr":
            return {_OPERATORS.get(inner["op"], inner["op"]): [_told(inner["left"]), _told(inner["right"])]}
        if kind == "Function":
            return {"call": _told(inner["function"]), "of": _told(inner["input"])}
    return {str(name): _told(item) for name, item in node.items()}


def _literal(node: Any, inner: Any) -> Any:
    """The value and its type; integers and floats without a type of their own are plain."""
    if isinstance(inner, dict) and isinstance(inner.get("Dyn"), dict):
        ((_, value),) = inner["Dyn"].items()
        return value
    try:
        column = pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")).to_series()
    except pl.exceptions.PolarsError:
        return inner
    base = column.dtype.base_type()
    return [_TYPES.get(base, base.__name__), [_plain(value) for value in column.to_list()]]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
