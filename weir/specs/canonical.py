"""A form of expressions of its own, which says what they do and not how a version of Polars shows them.

Persisted: checkpoints have it of the conditions of aggregates, and fingerprints are made of it. Where they are known
here, names of Weir stand for those of Polars; ``tests/weir/test_canonical_expressions.py`` has golden texts. Whoever
takes another Polars and sees them fail adds its names here.
"""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import PurePath
from typing import Any

import polars as pl
import pyarrow as pa

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


#: What Polars has in place of a number that is not finite; and a function in Python, as bytes of pickle.
_NO_NUMBER = re.compile(r'"(Float|Float32|Float64)":null')
_PYTHON = '{"AnonymousFunction":'
#: What a stream of Arrow IPC begins with.
_STREAM = [255, 255, 255, 255]


def canonical_expression(expression: pl.Expr) -> str:
    """The expression as JSON: equal texts for equal expressions, whatever the version of Polars.

    Of a function in Python only its place is known, as Polars shows it.
    """
    return json.dumps(_tree(_serialized(expression), expression), sort_keys=True, separators=(",", ":"))


def expression_form(expression: pl.Expr) -> Any:
    """What fingerprints have: :func:`canonical_expression` as a tree, with what that does not tell apart or read."""
    text = _serialized(expression)
    form = {"expression": _portable(_tree(text, expression))}
    if text is not None and _NO_NUMBER.search(text):
        form["not_finite"] = _not_finite(expression)
    return form


def _serialized(expression: pl.Expr) -> str | None:
    """Return an expression in Polars' own form; None: it has none of functions in Python."""
    try:
        text = expression.meta.serialize(format="json")
    except pl.exceptions.PolarsError:
        return None
    return None if _PYTHON in text else text


def _tree(serialized: str | None, expression: pl.Expr) -> Any:
    return {"shown": str(expression)} if serialized is None else _told(json.loads(serialized))


def _not_finite(expression: pl.Expr) -> list[str]:
    """The numbers in it that are not finite; their places the tree has."""
    if expression.meta.is_literal():
        value = pl.select(expression).to_series().to_list()[0]
        return [repr(value)] if isinstance(value, float) and not math.isfinite(value) else []
    return [value for part in reversed(expression.meta.pop()) for value in _not_finite(part)]


def _portable(tree: Any) -> Any:
    """Return a tree with values, not their bytes, which another Polars may write otherwise; plugins lose folders."""
    if isinstance(tree, dict):
        told = {name: _portable(item) for name, item in tree.items()}
        return {**told, "lib": PurePath(tree["lib"]).name} if {"lib", "symbol"} <= tree.keys() else told
    if not isinstance(tree, list):
        return tree
    if tree[:4] == _STREAM:
        (column,) = pa.ipc.open_stream(bytes(tree)).read_all().columns
        return {"values": [_plain(value) for value in column.to_pylist()]}
    return [_portable(item) for item in tree]


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
        # Functions have names of their own, some of which are these.
        parts = inner.keys() if isinstance(inner, dict) else ()
        if kind == "Cast" and "dtype" in parts:
            return {"cast": _told(inner["expr"]), "to": inner["dtype"], "options": inner.get("options")}
        if kind == "BinaryExpr" and "op" in parts:
            return {_OPERATORS.get(inner["op"], inner["op"]): [_told(inner["left"]), _told(inner["right"])]}
        if kind == "Function" and "function" in parts:
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
