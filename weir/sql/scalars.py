"""Scalar expressions as Polars expressions, with the meaning of the standard where that of Polars is another one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import polars as pl
from sqlglot import exp

from weir.sql import casts
from weir.sql.errors import Unplaced, name_of
from weir.sql.functions import call
from weir.sql.intervals import shifted
from weir.sql.numbers import quotient, remainder
from weir.sql.patterns import like
from weir.sql.relations import Scope
from weir.sql.syntax import meant
from weir.sql.types import Typed, as_type, common_type, computed, constant, type_words
from weir.sql.zones import at_zone, zone_of

_COMPARISONS: dict[type[exp.Expr], Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    exp.EQ: lambda one, other: one == other,
    exp.NEQ: lambda one, other: one != other,
    exp.GT: lambda one, other: one > other,
    exp.GTE: lambda one, other: one >= other,
    exp.LT: lambda one, other: one < other,
    exp.LTE: lambda one, other: one <= other,
    exp.NullSafeEQ: lambda one, other: one.eq_missing(other),
    exp.NullSafeNEQ: lambda one, other: one.ne_missing(other),
}
#: Those that say something else of the values in the other order, and what says the same of them.
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv)
BOOLEAN = pl.Boolean()


def scalar(node: exp.Expr, scope: Scope) -> Typed:
    """The value of an expression.

    Raises:
        Unplaced: it has no meaning here, or one that is not there; with its place.
    """
    known = scope.known_value(node)
    if known is not None:
        return known
    if node.args.get("negate"):
        plain = node.copy()
        plain.set("negate", None)
        return computed(~scalar(plain, scope).expr, BOOLEAN)
    if isinstance(node, exp.Column):
        if isinstance(node.this, exp.Star):
            raise Unplaced("* stands for columns in SELECT and in COUNT(*) only", node)
        return scope.value(node)
    if isinstance(node, exp.Paren):
        return scalar(node.this, scope)
    if isinstance(node, exp.Literal):
        return _literal(node)
    if isinstance(node, exp.Null):
        return constant(None, pl.Null())
    if isinstance(node, exp.Boolean):
        return constant(bool(node.this), BOOLEAN)
    if isinstance(node, tuple(_COMPARISONS)):
        return _comparison(node, scope)
    if isinstance(node, (exp.And, exp.Or, exp.Not)):
        return _logic(node, scope)
    if isinstance(node, (exp.Neg, *_ARITHMETIC)):
        return _arithmetic(node, scope)
    return _other(node, scope)


def condition(node: exp.Expr, scope: Scope, where: str) -> Typed:
    """The value of a condition.

    Raises:
        Unplaced: it is no truth value.
    """
    value = scalar(node, scope)
    if value.is_null:
        return as_type(value, BOOLEAN)
    if value.dtype != BOOLEAN:
        raise Unplaced(f"{where} needs a condition, and this is {type_words(value.dtype)}", node)
    return value


def _literal(node: exp.Literal) -> Typed:
    if node.is_string:
        return constant(str(node.this), pl.String())
    text = str(node.this)
    try:
        if text.isdigit():
            number = int(text)
            if number >= 1 << 63:
                raise Unplaced(f"{text} is beyond BIGINT; write CAST('{text}' AS DECIMAL(38, 0))", node)
            return constant(number, pl.Int64())
        return constant(float(text), pl.Float64())
    except ValueError:
        raise Unplaced(f"{text} is no number", node) from None


def _other(node: exp.Expr, scope: Scope) -> Typed:
    if isinstance(node, exp.Is):
        return _is(node, scope)
    if isinstance(node, exp.Between):
        if node.args.get("symmetric"):
            raise Unplaced("BETWEEN SYMMETRIC is not there; give the lower bound first", node)
        low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
        high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
        return scalar(exp.And(this=low, expression=high), scope)
    if isinstance(node, exp.In):
        return _in(node, scope)
    if isinstance(node, (exp.Like, exp.ILike, exp.Escape)):
        return like(node, lambda part: scalar(part, scope))
    if isinstance(node, (exp.Case, exp.If)):
        return _case(node, scope)
    if isinstance(node, (exp.Cast, exp.TryCast)):
        return casts.cast(node, scalar(node.this, scope), is_strict=not isinstance(node, exp.TryCast))
    if isinstance(node, exp.Coalesce):
        return _first_of(node, [scalar(each, scope) for each in (node.this, *node.expressions)])
    if isinstance(node, exp.Nullif):
        one, other = comparable(scalar(node.this, scope), scalar(node.expression, scope), node)
        equal = _compared(exp.EQ, one, other)
        return computed(pl.when(equal).then(None).otherwise(one.expr), one.dtype)
    if isinstance(node, (exp.Greatest, exp.Least)):
        values = [scalar(each, scope) for each in (node.this, *node.expressions)]
        dtype = common_type(values, node)
        parts = [as_type(each, dtype).expr for each in values]
        return computed(_extreme(parts, dtype, is_greatest=isinstance(node, exp.Greatest)), dtype)
    if isinstance(node, exp.Window):
        raise Unplaced(
            f"{name_of(node.this)}() OVER belongs into SELECT; bound it in a query around it, or with QUALIFY",
            node,
        )
    if isinstance(node, (exp.Placeholder, exp.Parameter)):
        raise Unplaced(f"{node.sql()} is no value; a text has no parameters", node)
    if isinstance(node, exp.AtTimeZone):
        return at_zone(scalar(node.this, scope), zone_of(node.args.get("zone"), node), node)
    if isinstance(node, (exp.RowNumber, exp.Lag, exp.Lead)):
        raise Unplaced(f"{name_of(node)} needs OVER (PARTITION BY ... ORDER BY ...)", node)
    if isinstance(node, (exp.AggFunc, exp.Filter, exp.WithinGroup)):
        raise Unplaced(f"{short(node)} is not possible here; aggregates belong into SELECT and HAVING", node)
    if isinstance(node, (exp.All, exp.Any)):
        raise Unplaced(
            f"{node.key.upper()} (SELECT ...) is not there; write EXISTS, or join with MAX or MIN", node
        )
    if isinstance(node, (exp.Subquery, exp.Select, exp.Exists)):
        raise Unplaced(
            "a query as a value is not there; join with it instead (EXISTS and IN may stand in WHERE, joined with AND)",
            node,
        )
    return call(node, lambda part: scalar(part, scope))


def comparable(one: Typed, other: Typed, node: exp.Expr) -> tuple[Typed, Typed]:
    """Return both values as such of one type; a text constant becomes what it is compared with.

    Raises:
        Unplaced: they cannot be compared.
    """
    text = pl.String()
    if one.dtype == text and one.literal is not None and other.dtype != text and not other.is_null:
        one = casts.converted(one, other.dtype, node, is_strict=True)
    if other.dtype == text and other.literal is not None and one.dtype != text and not one.is_null:
        other = casts.converted(other, one.dtype, node, is_strict=True)
    if one.is_number and other.is_number and not (one.dtype.is_decimal() or other.dtype.is_decimal()):
        return one, other
    try:
        dtype = common_type((one, other), node)
    except Unplaced:
        raise Unplaced(
            f"{type_words(one.dtype)} and {type_words(other.dtype)} cannot be compared; CAST one of them",
            node,
        ) from None
    if isinstance(dtype, pl.Null):
        return as_type(one, BOOLEAN), as_type(other, BOOLEAN)
    return as_type(one, dtype), as_type(other, dtype)


def _comparison(node: exp.Expr, scope: Scope) -> Typed:
    modulo = _remainder_is_zero(node, scope)
    if modulo is not None:
        return modulo
    one, other = comparable(scalar(node.this, scope), scalar(node.expression, scope), node)
    return computed(_compared(type(node), one, other), BOOLEAN)


def _compared(kind: type[exp.Expr], one: Typed, other: Typed) -> pl.Expr:
    """Whether a comparison is true of each row.

    A constant stands on the right. On the left of a value that Polars has found to be the same for all rows, as
    ``COALESCE(0, n)``, the comparison has one row only, and a step with other columns beside it fails.
    """
    left, right = one.expr, other.expr
    if not left.meta.root_names():
        kind, left, right = _MIRRORED.get(kind, kind), right, left
    return _COMPARISONS[kind](left, right)


def _remainder_is_zero(node: exp.Expr, scope: Scope) -> Typed | None:
    """``a % b = 0``, where the sign of the remainder does not matter; None: it is something else."""
    if not (isinstance(node, (exp.EQ, exp.NEQ)) and isinstance(node.this, exp.Mod)):
        return None
    if not (isinstance(node.expression, exp.Literal) and node.expression.this == "0"):
        return None
    one, other = scalar(node.this.this, scope), scalar(node.this.expression, scope)
    if not (one.dtype.is_integer() and other.dtype.is_integer()):
        return None
    return computed(_COMPARISONS[type(node)](one.expr % other.expr, pl.lit(0)), BOOLEAN)


def _logic(node: exp.Expr, scope: Scope) -> Typed:
    if isinstance(node, exp.Not):
        return computed(~condition(node.this, scope, "NOT").expr, BOOLEAN)
    word = "AND" if isinstance(node, exp.And) else "OR"
    parts = [condition(each, scope, word).expr for each in _chain(node)]
    return computed(_balanced(parts, is_and=isinstance(node, exp.And)), BOOLEAN)


def _chain(node: exp.Expr) -> list[exp.Expr]:
    """The parts that the same word joins, from left to right: thousands, in a text that a program wrote."""
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        if type(each) is type(node):
            waiting += [each.expression, each.this]
        else:
            found.append(each)
    return found


def _balanced(parts: list[pl.Expr], *, is_and: bool) -> pl.Expr:
    """Return all parts, joined as a tree that is no deeper than it must be."""
    while len(parts) > 1:
        pairs = [parts[start : start + 2] for start in range(0, len(parts), 2)]
        parts = [
            pair[0] if len(pair) == 1 else pair[0] & pair[1] if is_and else pair[0] | pair[1]
            for pair in pairs
        ]
    return parts[0]


def _arithmetic(node: exp.Expr, scope: Scope) -> Typed:
    if isinstance(node, exp.Neg):
        return _negated(node, scope)
    if isinstance(node, (exp.Add, exp.Sub)):
        for interval, other in ((node.expression, node.this), (node.this, node.expression)):
            if isinstance(interval, exp.Interval):
                sign = -1 if isinstance(node, exp.Sub) else 1
                return shifted(scalar(other, scope), interval, sign, node)
    one, other = scalar(node.this, scope), scalar(node.expression, scope)
    for value in (one, other):
        _check_number(value, node)
    dtype = common_type((one, other), node)
    if dtype.is_integer():
        return _of_integers(node, as_type(one, pl.Int64()).expr, as_type(other, pl.Int64()))
    if isinstance(node, exp.IntDiv):
        raise Unplaced("DIV is of whole numbers; CAST both AS BIGINT, or write FLOOR(x / y)", node)
    left, right = as_type(one, pl.Float64()).expr, as_type(other, pl.Float64()).expr
    if isinstance(dtype, pl.Decimal) and isinstance(node, (exp.Add, exp.Sub)):
        # What Polars makes of two decimals has all digits.
        dtype = pl.Decimal(38, dtype.scale)
        left, right = as_type(one, dtype).expr, as_type(other, dtype).expr
        return computed(left + right if isinstance(node, exp.Add) else left - right, dtype)
    if isinstance(node, exp.Add):
        return computed(left + right, pl.Float64())
    if isinstance(node, exp.Sub):
        return computed(left - right, pl.Float64())
    if isinstance(node, exp.Mul):
        return computed(left * right, pl.Float64())
    # Division by zero is NULL for all types, as in Spark SQL and DuckDB; a job cannot stop for one row.
    divisor = right if other.literal is not None and other.literal[0] else pl.when(right != 0).then(right)
    if isinstance(node, exp.Mod):
        return computed(remainder(left, divisor), pl.Float64())
    return computed(quotient(left, divisor), pl.Float64())


def _negated(node: exp.Neg, scope: Scope) -> Typed:
    if isinstance(node.this, exp.Literal) and str(node.this.this) == str(1 << 63):
        # The least BIGINT: without its sign it is beyond the greatest.
        return constant(-(1 << 63), pl.Int64())
    value = scalar(node.this, scope)
    _check_number(value, node)
    if value.is_null:
        return value
    if value.literal is not None and value.literal[0] is not None and value.literal[0] != -(1 << 63):
        return constant(-value.literal[0], value.dtype)
    if value.dtype.is_integer():
        value = as_type(value, pl.Int64())
    return computed(-value.expr, value.dtype)


def _of_integers(node: exp.Expr, left: pl.Expr, other: Typed) -> Typed:
    right = other.expr
    if isinstance(node, exp.Add):
        made = left + right
    elif isinstance(node, exp.Sub):
        made = left - right
    elif isinstance(node, exp.Mul):
        made = left * right
    else:
        # Polars rounds down, the standard towards zero: the remainder has the sign of the dividend.
        below = left % right
        differs = (below != 0) & ((left < 0) != (right < 0))
        if isinstance(node, exp.Mod):
            made = pl.when(differs).then(below - right).otherwise(below)
        else:
            made = left // right + differs.cast(pl.Int64)
    return computed(made, pl.Int64())


def _check_number(value: Typed, node: exp.Expr) -> None:
    if value.dtype.is_temporal():
        raise Unplaced(
            f"{short(node)} needs numbers, and one of them is {type_words(value.dtype)}; take EPOCH_MS(...) of times, "
            "or add an INTERVAL",
            node,
        )
    if not value.is_number and not value.is_null:
        raise Unplaced(
            f"{short(node)} needs numbers, and one of them is {type_words(value.dtype)}; CAST it", node
        )


def _is(node: exp.Is, scope: Scope) -> Typed:
    value = scalar(node.this, scope)
    other = node.expression
    if isinstance(other, exp.Null):
        return computed(value.expr.is_null(), BOOLEAN)
    if isinstance(other, exp.Boolean):
        return computed(condition(node.this, scope, "IS").expr.eq_missing(pl.lit(bool(other.this))), BOOLEAN)
    if isinstance(other, exp.Not) and isinstance(other.this, exp.Null):
        return computed(value.expr.is_not_null(), BOOLEAN)
    near = meant(other.name, ("NULL", "TRUE", "FALSE")) if isinstance(other, exp.Column) else ""
    raise Unplaced(f"IS takes NULL, TRUE, FALSE and DISTINCT FROM{near}", node)


def _in(node: exp.In, scope: Scope) -> Typed:
    if node.args.get("query") is not None or node.args.get("unnest") is not None:
        raise Unplaced(
            "IN (SELECT ...) may stand in WHERE, joined with AND; elsewhere join with the query", node
        )
    value = scalar(node.this, scope)
    pairs = [comparable(value, scalar(each, scope), each) for each in node.expressions]
    dtypes = {each.dtype for pair in pairs for each in pair}
    plain = [other.literal[0] for _, other in pairs if other.literal is not None]
    if (
        len(plain) == len(pairs)
        and len(dtypes) == 1
        and None not in plain
        and not any(isinstance(each, (pl.Expr, dt.date)) for each in plain)
    ):
        return computed(pairs[0][0].expr.is_in(plain), BOOLEAN)
    if not pairs:
        raise Unplaced("IN needs values: x IN (1, 2)", node)
    return computed(_balanced([_compared(exp.EQ, *pair) for pair in pairs], is_and=False), BOOLEAN)


def _case(node: exp.Expr, scope: Scope) -> Typed:
    tested = node.args.get("this") if isinstance(node, exp.Case) else None
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    default = node.args.get("default" if isinstance(node, exp.Case) else "false")
    conditions, values = [], []
    for branch in branches:
        when = branch.this
        if tested is not None:
            when = exp.EQ(this=tested.copy(), expression=when.copy())
        conditions.append(condition(when, scope, "WHEN").expr)
        values.append(scalar(branch.args["true"], scope))
    values.append(constant(None, pl.Null()) if default is None else scalar(default, scope))
    dtype = common_type(values, node)
    parts = [as_type(each, dtype).expr for each in values]
    made = parts[-1]
    for when_true, value in zip(reversed(conditions), reversed(parts[:-1]), strict=True):
        made = pl.when(when_true).then(value).otherwise(made)
    return computed(made, dtype)


def _first_of(node: exp.Expr, values: list[Typed]) -> Typed:
    dtype = common_type(values, node)
    parts = [as_type(each, dtype).expr for each in values]
    if not any(type(each) is exp.Cast for each in node.walk()):
        return computed(pl.coalesce(parts), dtype)
    # What a later value fails for does not count where an earlier one is there.
    made = parts[-1]
    for part in reversed(parts[:-1]):
        made = pl.when(part.is_not_null()).then(part).otherwise(made)
    return computed(made, dtype)


def _extreme(parts: list[pl.Expr], dtype: pl.DataType, *, is_greatest: bool) -> pl.Expr:
    """The largest or the least value that is not NULL."""
    if not is_greatest:
        return pl.min_horizontal(parts)
    most = pl.max_horizontal(parts)
    if not dtype.is_float():
        return most
    # NaN is above all numbers, and Polars leaves it out.
    return pl.when(pl.any_horizontal([each.is_nan() for each in parts])).then(float("nan")).otherwise(most)


def short(node: exp.Expr) -> str:
    """A part of the text in SQL, cut to what a message can hold."""
    text = node.sql()
    return text if len(text) <= 60 else f"{text[:57]}..."
