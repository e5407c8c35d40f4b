"""What a filter demands of single columns at least, so that a source can pass over rows of which only ranges are known.

A condition is weaker than its filter, or equal: where it does not hold the filter does not, never the other way round.
The filter itself stays a step of the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import polars as pl
import pyarrow as pa

#: Least and greatest value of a column that is not null in some rows; None: not known.
Range: TypeAlias = "tuple[int, int] | tuple[str, str] | None"
Operator = Literal["Eq", "Lt", "LtEq", "Gt", "GtEq"]
_TURNED: Mapping[str, Operator] = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_SIGNS = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Int")


@dataclass(frozen=True)
class Comparison:
    """A column beside a value of its kind: integers or strings. Floats have NaN, which no range tells of."""

    column: str
    operator: Operator
    value: int | str


@dataclass(frozen=True)
class AllOf:
    """Every part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """A condition of several parts, of which at least one holds."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | AllOf | AnyOf


def condition_of(predicate: pl.Expr, schema: pa.Schema) -> Condition | None:
    """What a predicate over columns of ``schema`` demands; None: nothing that is understood for certain."""
    try:
        return _condition(json.loads(predicate.meta.serialize(format="json")), schema)
    except (ValueError, TypeError, KeyError, IndexError, pl.exceptions.PolarsError):
        # Polars' form of expressions is its own business and may change.
        return None


def columns_of(condition: Condition) -> frozenset[str]:
    """The columns that a condition is about."""
    if isinstance(condition, Comparison):
        return frozenset([condition.column])
    return frozenset().union(*(columns_of(part) for part in condition.parts))


def renamed(condition: Condition, names: Mapping[str, str]) -> Condition | None:
    """The same about columns of other names: ``names`` has the other by each name; None: nothing of it is left."""
    if isinstance(condition, Comparison):
        column = names.get(condition.column)
        return None if column is None else replace(condition, column=column)
    parts = [renamed(part, names) for part in condition.parts]
    known = [part for part in parts if part is not None]
    if isinstance(condition, AllOf):
        return _all(known)
    return AnyOf(tuple(known)) if len(known) == len(parts) else None


def may_hold(condition: Condition, ranges: Mapping[str, Range]) -> bool:
    """Return whether rows can meet a condition whose columns have values in these ranges; absent ones are not known."""
    if isinstance(condition, AllOf):
        return all(may_hold(part, ranges) for part in condition.parts)
    if isinstance(condition, AnyOf):
        return any(may_hold(part, ranges) for part in condition.parts)
    found: Any = ranges.get(condition.column)
    value: Any = condition.value
    if found is None or type(found[0]) is not type(value):
        return True
    low, high = found
    match condition.operator:
        case "Eq":
            return bool(low <= value <= high)
        case "Lt":
            return bool(low < value)
        case "LtEq":
            return bool(low <= value)
        case "Gt":
            return bool(high > value)
        case "GtEq":
            return bool(high >= value)


def condition_text(condition: Condition) -> str:
    """Return a condition as a person writes it."""
    if isinstance(condition, Comparison):
        return f"{condition.column} {_SIGNS[condition.operator]} {condition.value!r}"
    word = " and " if isinstance(condition, AllOf) else " or "
    return "(" + word.join(condition_text(part) for part in condition.parts) + ")"


def _condition(tree: Mapping[str, Any], schema: pa.Schema) -> Condition | None:
    if "BinaryExpr" in tree:
        node = tree["BinaryExpr"]
        if node["op"] in ("And", "Or"):
            return _joined(node["op"] == "And", [node["left"], node["right"]], schema)
        return _comparison(node["left"], node["op"], node["right"], schema)
    if "Function" in tree:
        node = tree["Function"]
        kind = node["function"]["Boolean"]
        if kind == "AllHorizontal":
            return _joined(True, node["input"], schema)
        if isinstance(kind, dict) and "IsBetween" in kind:
            column, low, high = node["input"]
            bounds = (_comparison(column, "GtEq", low, schema), _comparison(column, "LtEq", high, schema))
            return _all([bound for bound in bounds if bound is not None])
    return None


def _joined(is_and: bool, trees: list[Mapping[str, Any]], schema: pa.Schema) -> Condition | None:
    parts = [_condition(tree, schema) for tree in trees]
    known = [part for part in parts if part is not None]
    if is_and:
        return _all(known)
    return AnyOf(tuple(known)) if len(known) == len(parts) else None


def _all(parts: list[Condition]) -> Condition | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return AllOf(tuple(parts))


def _comparison(
    left: Mapping[str, Any], operator: str, right: Mapping[str, Any], schema: pa.Schema
) -> Comparison | None:
    if operator not in _TURNED:
        return None
    if "Column" in right:
        left, operator, right = right, _TURNED[operator], left
    if "Column" not in left or "Literal" not in right:
        return None
    name, value = str(left["Column"]), _value(right["Literal"])
    index = schema.get_field_index(name)
    if index < 0 or value is None:
        return None
    dtype = schema.field(index).type
    # Beside a signed integer Polars takes uint64 for a float.
    is_number = pa.types.is_integer(dtype) and dtype != pa.uint64()
    fits = pa.types.is_string(dtype) if isinstance(value, str) else is_number
    return Comparison(name, cast(Operator, operator), value) if fits else None


def _value(literal: Mapping[str, Any]) -> int | str | None:
    [(form, inner)] = literal.items()
    if form not in ("Dyn", "Scalar") or not isinstance(inner, dict):
        return None
    [(kind, value)] = inner.items()
    if kind in _INTEGERS and type(value) is int:
        return value
    return value if kind == "String" and isinstance(value, str) else None
