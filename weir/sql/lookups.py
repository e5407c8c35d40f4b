"""Lookup joins: ``JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() ON ...`` of a table outside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlglot import exp

from weir.sql.conditions import Match, match_of
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at
from weir.sql.joins import How, side_of
from weir.sql.lookup_tables import LookupTable
from weir.sql.relations import Column, Relation, Scope, polars_types, without_places
from weir.sql.scalars import condition
from weir.sql.types import column, type_words


def looked_up(
    left: Relation,
    outside: LookupTable,
    right: Scope,
    how: How,
    conditions: list[exp.Expr],
    context: Context,
    node: exp.Join,
) -> Relation:
    """The rows with those of the table.

    Args:
        left: the rows.
        outside: the table.
        right: its columns.
        how: inner or left.
        conditions: of ON.
        context: of the query.
        node: place of messages.

    Raises:
        Unplaced: the two cannot be joined so.
    """
    _check(left, outside, how, node)
    # Times are columns as others here: the table has none.
    plain = [
        replace(each, value=None if each.value is None else each.value.without_role())
        for each in left.columns
    ]
    match = match_of(conditions, Scope(plain, _sources(plain)), right)
    keys = _keys(match, how, node)
    if match.left_only:
        left = left.filtered(context.steps.step("filter"), _all(match.left_only, left.columns))
    side = side_of(left, [one for one, _ in match.pairs], keeps_keys=False, context=context)
    suffix = _suffix(side.relation, right)
    with at(node):
        stream = side.relation.stream.lookup_join(
            context.steps.step("lookup"),
            outside.table,
            dict(zip(side.keys, keys, strict=True)),
            how="left" if how == "left" else "inner",
            columns=[each.name for each in right.columns],
            suffix=suffix,
            **outside.settings,
        )
    taken, types = side.relation.stream.schema.names, polars_types(stream.schema)
    names = {each.name: f"{each.name}{suffix}" if each.name in taken else each.name for each in right.columns}
    added = [replace(each, value=column(names[each.name], types[names[each.name]])) for each in right.columns]
    columns = without_places([*side.relation.columns, *added])
    made = Relation(stream, columns, side.relation.windowed)
    for each in [*match.right_only, *match.rest]:
        made = made.filtered(context.steps.step("filter"), _all([each], made.columns))
    return made


def _check(left: Relation, outside: LookupTable, how: How, node: exp.Join) -> None:
    version = node.this.args.get("version")
    call = None if version is None else version.expression
    if not (isinstance(call, exp.Anonymous) and str(call.this).upper() == "PROCTIME"):
        if version is None:
            raise Unplaced(outside.refusal, node.this)
        raise Unplaced(
            f"{outside.name!r} is looked up as it is now, without versions; write FOR SYSTEM_TIME AS OF PROCTIME()",
            node.this,
        )
    if how not in ("inner", "left"):
        raise Unplaced(
            f"a {how} join with a table that rows look up is not there; there are JOIN and LEFT JOIN", node
        )
    if left.is_changelog:
        raise Unplaced(
            "rows that are taken back cannot look up a table, which may have changed meanwhile; join before GROUP BY, "
            "or results of windows",
            node,
        )


def _keys(match: Match, how: How, node: exp.Join) -> list[str]:
    """Columns of the table that are equal to values of rows."""
    found: list[str] = []
    for one, other in match.pairs:
        if other.name is None:
            raise Unplaced(
                f"rows are looked up by columns of the table as they are; CAST the other side, which is "
                f"{type_words(one.dtype)}",
                node,
            )
        if other.name in found:
            raise Unplaced(f"column {other.name!r} of the table is compared twice; put one into WHERE", node)
        found.append(other.name)
    if not found:
        raise Unplaced(
            "a join with a table that rows look up needs an equality, such as ON c.id = o.customer", node
        )
    others = [*match.left_only, *match.right_only, *match.rest]
    if how == "left" and others:
        raise Unplaced(
            "a LEFT JOIN with a table that rows look up takes equalities only; put this into CASE or a view",
            others[0],
        )
    return found


def _all(nodes: list[exp.Expr], columns: tuple[Column, ...]) -> Any:
    whole = nodes[0] if len(nodes) == 1 else exp.and_(*nodes, copy=False, wrap=True)
    return condition(whole, Scope(columns, _sources(columns)), "ON")


def _sources(columns: list[Column] | tuple[Column, ...]) -> list[str]:
    return list(dict.fromkeys(each.source for each in columns if each.source))


def _suffix(left: Relation, right: Scope) -> str:
    """What columns of the table get whose names are taken, so that no two are equal."""
    names = {*left.stream.schema.names, *(each.name for each in right.columns)}
    suffix, number = "_right", 1
    while any(f"{each.name}{suffix}" in names for each in right.columns):
        number += 1
        suffix = f"_right{number}"
    return suffix
