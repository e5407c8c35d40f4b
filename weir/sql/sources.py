"""Clauses FROM: tables, queries, window functions and joins of them; the conditions of WHERE that belong to joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from sqlglot import exp

from weir.spelling import did_you_mean
from weir.sql.aggregates import aggregates_in
from weir.sql.conditions import Match, conjuncts, match_of
from weir.sql.context import Context
from weir.sql.errors import Unplaced
from weir.sql.joins import How, joined, merged
from weir.sql.lookups import looked_up
from weir.sql.numbers import in_whole_ms
from weir.sql.relations import Column, Relation, Scope
from weir.sql.scalars import comparable, condition, scalar
from weir.sql.syntax import quotes_missing
from weir.sql.tables import is_table
from weir.sql.text import WINDOW_FUNCTIONS
from weir.sql.types import computed, has_whole_ms
from weir.sql.windows import windowed_relation


def scope_of(relation: Relation) -> Scope:
    """The columns of a relation, as expressions see them."""
    return Scope(
        relation.columns, [each for each in dict.fromkeys(each.source for each in relation.columns) if each]
    )


def from_clause(node: exp.Select, context: Context) -> tuple[Relation, list[exp.Expr]]:
    """What FROM and the joins of WHERE bring, and the conditions of WHERE that are left.

    Raises:
        Unplaced: something is not there.
    """
    start = node.args.get("from_") or node.args["from"]
    where = node.args.get("where")
    left = conjuncts(where.this if where is not None else None)
    relation = _item(start.this, context)
    joins = node.args.get("joins") or []
    hows = [_how(each) for each in joins]
    inner_only = all(how == "inner" for how in hows)
    for number, each in enumerate(joins, start=1):
        if {"right", "full"} & set(hows[number:]):
            # WHERE is of the rows, too, that the later join adds with NULL on this side.
            relation, _ = _joined(relation, each, [], context, inner_only=False)
        else:
            relation, left = _joined(relation, each, left, context, inner_only=inner_only)
    rest = []
    for each in left:
        made = _existing(relation, each, context)
        if made is None:
            rest.append(each)
        else:
            relation = made
    return relation, rest


def _item(node: exp.Expr, context: Context) -> Relation:
    """A table, a query or a window function, with its alias."""
    if isinstance(node, exp.Subquery):
        made = context.compile(node.this, context.within(node.alias or "query"))
        return made.called(node.alias)
    if isinstance(node, exp.Lateral):
        raise Unplaced("LATERAL is not there; use stream.explode or stream.lookup in Python", node)
    if isinstance(node, exp.Unnest):
        raise Unplaced("UNNEST is not there; use stream.explode in Python", node)
    if not isinstance(node, exp.Table):
        raise Unplaced(f"FROM takes a table, a query or {', '.join(WINDOW_FUNCTIONS)}", node)
    if node.args.get("pivots") or node.args.get("sample"):
        raise Unplaced("PIVOT and TABLESAMPLE are not there; filter and aggregate instead", node)
    call = node.this
    if isinstance(call, (exp.Anonymous, exp.Func)):
        return _window_function(node, call, context)
    if node.db and is_table(f"{node.db}.{node.name}"):
        raise Unplaced(quotes_missing(f"{node.db}.{node.name}"), node)
    if node.db:
        raise Unplaced(f"tables have one name here, without {node.db!r} before it", node)
    name = node.name.lower()
    made = context.views[name] if name in context.views else context.find(node)
    return made.called(node.alias or node.name)


def _window_function(node: exp.Table, call: exp.Expr, context: Context) -> Relation:
    name = str(call.this).upper() if isinstance(call, exp.Anonymous) else type(call).__name__.upper()
    if not isinstance(call, exp.Anonymous) or name not in WINDOW_FUNCTIONS:
        raise Unplaced(f"there is no function {name} in FROM{did_you_mean(name, WINDOW_FUNCTIONS)}", node)
    if not call.expressions:
        raise Unplaced(f"{name} takes a table first", node)
    first = call.expressions[0]
    if isinstance(first, exp.Column) and not first.table:
        table: exp.Expr = exp.Table(this=first.this.copy())
        alias = first.name
    elif isinstance(first, exp.Subquery):
        table, alias = first, node.alias
    else:
        raise Unplaced(f"the first argument of {name} is a table or a query", first)
    inner = _item(table, context)
    made = windowed_relation(call, inner, context)
    return made.called(node.alias or alias)


def _how(node: exp.Join) -> How:
    side, kind = node.side.upper(), node.kind.upper()
    if node.method:
        raise Unplaced(f"{node.method.upper()} JOIN is not there; write ON", node)
    if kind in ("SEMI", "ANTI"):
        if side not in ("", "LEFT"):
            raise Unplaced(f"{side} {kind} JOIN is not there; put the other table first", node)
        return "semi" if kind == "SEMI" else "anti"
    if side in ("LEFT", "RIGHT", "FULL"):
        return {"LEFT": "left", "RIGHT": "right", "FULL": "full"}[side]  # type: ignore[return-value]
    if kind in ("", "INNER", "CROSS"):
        return "inner"
    raise Unplaced(
        f"{side} {kind} JOIN is not there; there are INNER, LEFT, RIGHT, FULL, SEMI and ANTI", node
    )


def _joined(
    left: Relation, node: exp.Join, where: list[exp.Expr], context: Context, *, inner_only: bool
) -> tuple[Relation, list[exp.Expr]]:
    how = _how(node)
    version = node.this.args.get("version") if isinstance(node.this, exp.Table) else None
    is_named = isinstance(node.this, exp.Table) and isinstance(node.this.this, exp.Identifier)
    outside = context.table(node.this) if is_named and node.this.name.lower() not in context.views else None
    if outside is not None:
        other = outside.scope(node.this.alias or node.this.name)
        _check_alias(left, other.columns, node)
        conditions = _on(node, scope_of(left), other, context)
        made = looked_up(left, outside, other, how, conditions, context, node)
        return merged(made, node, how, other.sources), where
    right = _item(node.this, context)
    scope, other = scope_of(left), scope_of(right)
    _check_alias(left, other.columns, node)
    conditions = _on(node, scope, other, context)
    later: list[exp.Expr] = []
    conditions_of_on = list(conditions)
    if how == "inner":
        # Conditions of WHERE are those of the join.
        both = Scope([*scope.columns, *other.columns], [*scope.sources, *other.sources])
        using = {each.name.lower() for each in node.args.get("using") or ()}
        for each in where:
            # Of USING there is one column of both after the join.
            names = {column.name.lower() for column in each.find_all(exp.Column) if not column.table}
            here = (
                _is_within(each, both) and (inner_only or not _is_within(each, scope)) and not names & using
            )
            if version is not None:
                # It is of the version that the row has, and does not choose another one.
                here = here and not _is_within(each, other)
                here = here and (_is_within(each, scope) or not conditions_of_on)
            (conditions if here and not each.find(exp.Query) else later).append(each)
    else:
        for each in where:
            # Of a name that is on both sides nobody knows which is meant: that is told later.
            is_early = (
                how in ("left", "semi", "anti")
                and _is_within(each, scope)
                and not (how == "left" and _is_on_both(each, other, node))
                and not each.find(exp.Query)
            )
            if is_early and not any(each_column.rank for each_column in left.columns):
                left = left.filtered(context.steps.step("filter"), condition(each, scope, "WHERE"))
            else:
                later.append(each)
    match = match_of(conditions, scope, other, keeps_rest=how == "inner")
    if version is not None:
        if how not in ("inner", "left"):
            raise Unplaced(
                f"a {how} join FOR SYSTEM_TIME AS OF is not there; there are JOIN and LEFT JOIN", node
            )
        _check_version(version, scope)
        if match.right_only or match.rest or match.lower_ms is not None or match.upper_ms is not None:
            raise Unplaced(
                "a join FOR SYSTEM_TIME AS OF takes equalities only; what the version has to meet belongs into WHERE, "
                "and which rows are versions into a view",
                node,
            )
    if version is not None or match.goes_by_ms:
        left, right = (
            _in_whole_ms(side, number, match, context) for number, side in enumerate((left, right))
        )
    left, right = _one_sided(left, right, match, how, context)
    made = joined(left, right, match, how, context, node, as_of=version is not None)
    return merged(made, node, how, other.sources), later


def _on(node: exp.Join, left: Scope, right: Scope, context: Context) -> list[exp.Expr]:
    """The conditions of ON or USING."""
    if node.args.get("using"):
        return [_using(each, left, right) for each in node.args["using"]]
    conditions = conjuncts(node.args.get("on"))
    _check_calls(conditions, context)
    return conditions


def _check_calls(conditions: list[exp.Expr], context: Context) -> None:
    for each in (call for node in conditions for call in node.find_all(exp.Anonymous)):
        if str(each.this).lower() in context.functions:
            raise Unplaced(f"{each.this}() in ON is not there; join a view that has it as a column", each)


def _one_sided(
    left: Relation, right: Relation, match: Match, how: How, context: Context
) -> tuple[Relation, Relation]:
    """Filter a side before the join, where that means the same."""
    for nodes, is_allowed, number in (
        (match.left_only, how in ("inner", "right", "semi"), 0),
        (match.right_only, how in ("inner", "left", "semi", "anti"), 1),
    ):
        for node in nodes:
            if not is_allowed:
                raise Unplaced(
                    f"a {how} join takes no condition on this side alone; put it into WHERE or a view", node
                )
            side = (left, right)[number]
            made = side.filtered(context.steps.step("filter"), condition(node, scope_of(side), "ON"))
            left, right = (made, right) if number == 0 else (left, made)
    return left, right


def _check_alias(left: Relation, right: Sequence[Column], node: exp.Join) -> None:
    taken = {each.source.lower() for each in left.columns if each.source}
    for each in right:
        if each.source and each.source.lower() in taken:
            raise Unplaced(
                f"{each.source!r} is in FROM twice; give one of them another name with AS", node.this
            )


def _using(name: exp.Expr, left: Scope, right: Scope) -> exp.Expr:
    found = []
    for side in (left, right):
        column = exp.column(name.name)
        column.this.meta.update(name.meta)
        where = side.find(column)
        found.append(exp.column(where.name, table=where.source or None))
    return exp.EQ(this=found[0], expression=found[1])


def _is_within(node: exp.Expr, scope: Scope) -> bool:
    return all(scope.has(each) for each in node.find_all(exp.Column))


def _is_on_both(node: exp.Expr, right: Scope, join: exp.Join) -> bool:
    """Whether a condition on the left side has names alone that are on the right one, too; USING makes one of both."""
    using = {each.name.lower() for each in join.args.get("using") or ()}
    names = [each for each in node.find_all(exp.Column) if not each.table and each.name.lower() not in using]
    return any(right.has(each) for each in names)


def _check_version(version: exp.Expr, scope: Scope) -> None:
    node = version.expression
    value = scope.value(node) if isinstance(node, exp.Column) else None
    if value is None or value.role != "time":
        raise Unplaced("FOR SYSTEM_TIME AS OF takes the event time of the left side, such as o.at", node)


def _in_whole_ms(side: Relation, number: int, match: Match, context: Context) -> Relation:
    """A side of a join that goes by whole ms; a row whose time has more digits fails: it is put aside, not cut."""
    times = [each.value for each in side.columns if each.value is not None and each.value.role == "time"][:1]
    if match.between is not None and match.between[0] == number:
        times.append(match.between[2])
    for value in times:
        if not has_whole_ms(value):
            check = computed(in_whole_ms(value.expr), pl.Boolean())
            side = side.filtered(context.steps.step("filter"), check)
    return side


def _existing(relation: Relation, node: exp.Expr, context: Context) -> Relation | None:
    """EXISTS and IN as semi joins, NOT EXISTS as an anti join; None: the condition is another one."""
    how: How = "semi"
    inner = node
    while isinstance(inner, (exp.Not, exp.Paren)):
        if isinstance(inner, exp.Not):
            how = "anti" if how == "semi" else "semi"
        inner = inner.this
    if isinstance(inner, exp.Exists):
        return _exists(relation, inner, how, context)
    if isinstance(inner, exp.In) and inner.args.get("query") is not None:
        if how == "anti":
            raise Unplaced(
                "NOT IN (SELECT ...) is not there, since one NULL would empty it; write NOT EXISTS", node
            )
        query = inner.args["query"]
        right = context.compile(query, context.within("query"))
        if len(right.columns) != 1:
            raise Unplaced(f"IN takes a query of one column, and this has {len(right.columns)}", query)
        value = right.columns[0].value
        if value is None:
            raise Unplaced("the column of the query has no value", query)
        pair = comparable(scalar(inner.this, scope_of(relation)), value, inner)
        return joined(relation, right, Match(pairs=[pair]), how, context, inner)
    return None


def _exists(relation: Relation, node: exp.Exists, how: How, context: Context) -> Relation:
    query = node.this
    if isinstance(query, exp.Subquery):
        query = query.this
    if (
        not isinstance(query, exp.Select)
        or any(query.args.get(key) for key in ("group", "having", "qualify", "offset"))
        or aggregates_in(query.expressions)
    ):
        raise Unplaced(
            "EXISTS takes SELECT ... FROM ... WHERE ..., without groups and aggregates; make a view of those",
            node,
        )
    inner = query.copy()
    where = inner.args.get("where")
    start = inner.args.get("from_") or inner.args["from"]
    sources = {
        each.alias_or_name.lower() for each in (start.this, *(j.this for j in inner.args.get("joins") or []))
    }
    below = context.within("query")
    own: list[exp.Expr] = []
    of_both: list[exp.Expr] = []
    outer = scope_of(relation)
    bare = inner.copy()
    bare.set("where", None)
    probe, _ = from_clause(bare, below)
    names = scope_of(probe)
    for each in conjuncts(where.this if where is not None else None):
        is_own = all(
            names.has(column) and (not column.table or column.table.lower() in sources)
            for column in each.find_all(exp.Column)
        )
        (own if is_own else of_both).append(each)
    right = probe
    for each in own:
        right = right.filtered(below.steps.step("filter"), condition(each, names, "WHERE"))
    for each in of_both:
        for column in each.find_all(exp.Column):
            # A name that is on both sides is that of the inner query.
            if not column.table and names.has(column):
                column.set("table", exp.to_identifier(names.find(column).source))
    match = match_of(of_both, outer, names, keeps_rest=False)
    left = relation
    if match.goes_by_ms:
        left, right = (
            _in_whole_ms(side, number, match, context) for number, side in enumerate((left, right))
        )
    left, right = _one_sided(left, replace(right), match, how, context)
    if not match.pairs:
        raise Unplaced("EXISTS needs an equality with the outer query, such as WHERE b.id = a.id", node)
    return joined(left, right, match, how, context, node)
