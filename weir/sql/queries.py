"""Queries: FROM, WHERE, GROUP BY, HAVING, SELECT, DISTINCT, UNION ALL and WITH, in that order of meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import polars as pl
from sqlglot import exp

from weir.dataflow.streams import Stream
from weir.rows.changes import CHANGE_COLUMN, CHANGES
from weir.sql.aggregates import aggregates_in
from weir.sql.conditions import conjuncts
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at
from weir.sql.grouping import distinct, grouped
from weir.sql.over import overs_in, with_overs
from weir.sql.python_functions import with_calls
from weir.sql.ranking import rank_bound, rank_of, ranked
from weir.sql.relations import Column, Rank, Relation, Scope, relation_of, selected, values_of
from weir.sql.scalars import condition, scalar
from weir.sql.sources import from_clause, scope_of
from weir.sql.types import Typed, as_type, common_type, computed

#: Parts of a query that are not there, and the nearest thing that is.
_ABSENT = {
    "order": "ORDER BY of a stream is not there, since no row is the last; for the first rows of each group use "
    "ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) with a bound",
    "limit": "LIMIT is not there; bound ROW_NUMBER() OVER (ORDER BY ...), or give a source events = '10'",
    "offset": "OFFSET is not there; bound ROW_NUMBER() OVER (ORDER BY ...)",
    "laterals": "LATERAL is not there; use stream.explode or stream.lookup in Python",
    "pivots": "PIVOT is not there; use aggregates with FILTER",
    "connect": "CONNECT BY is not there; use a weir.KeyedProcess in Python",
    "match": "MATCH_RECOGNIZE is not there; use a weir.KeyedProcess in Python",
    "sample": "TABLESAMPLE is not there; filter by a hash of a column",
    "into": "SELECT INTO is not there; write CREATE SINK name WITH (...) AS SELECT ...",
    "sort": "SORT BY is not there",
    "cluster": "CLUSTER BY is not there",
    "distribute": "DISTRIBUTE BY is not there",
    "windows": "a WINDOW clause is not there; write it after OVER",
}


def compiled(node: exp.Expr, context: Context) -> Relation:
    """The relation of a query.

    Raises:
        Unplaced: something in it is not there, or wrong.
    """
    for key, words in _ABSENT.items():
        part = node.args.get(key)
        if part:
            raise Unplaced(words, part[0] if isinstance(part, list) else part)
    if isinstance(node, exp.Subquery):
        return compiled(node.this, context)
    context = _with_views(node, context)
    if isinstance(node, exp.SetOperation):
        return _union(node, context)
    if isinstance(node, exp.Select):
        return _select(node, context)
    raise Unplaced(f"{type(node).__name__.upper()} is not there; write SELECT ...", node)


def _with_views(node: exp.Expr, context: Context) -> Context:
    clause = node.args.get("with_") or node.args.get("with")
    if clause is None:
        return context
    if clause.args.get("recursive"):
        raise Unplaced("WITH RECURSIVE is not there; a stream has no fixed point", clause)
    for each in clause.expressions:
        if each.args["alias"].args.get("columns"):
            raise Unplaced("name columns in the SELECT of the view, with AS", each)
        made = compiled(each.this, context.within(each.alias))
        context = replace(context, views={**context.views, each.alias.lower(): made})
    return context


def _select(node: exp.Select, context: Context) -> Relation:
    if node.args.get("from_") is None and node.args.get("from") is None:
        raise Unplaced("FROM is missing: a query reads a stream", node)
    if not node.expressions:
        raise Unplaced("SELECT names no columns; write SELECT * or SELECT who, price", node)
    relation, left = from_clause(node, context)
    relation, scope = with_calls(relation, scope_of(relation), left, context)
    relation = _filtered(relation, left, node, context, scope.known)
    scope = scope_of(relation)
    items = list(_items(node, scope))
    relation, scope = with_calls(
        relation,
        scope,
        [*_groups(node, items, scope), *(each for _, each in items if isinstance(each, exp.Expr))],
        context,
    )
    items = list(_items(node, scope))
    having = _having(node, items, scope)
    groups = _groups(node, items, scope)
    roots = [value for _, value in items if isinstance(value, exp.Expr)]
    aggregates = aggregates_in([*roots, *([having] if having is not None else [])])
    is_distinct = node.args.get("distinct") is not None
    if node.args.get("distinct") is not None and node.args["distinct"].args.get("on"):
        raise Unplaced(
            "DISTINCT ON is not there; use ROW_NUMBER() OVER (PARTITION BY ...) with the bound 1", node
        )
    qualify = node.args.get("qualify")
    overs = overs_in([*roots, *([qualify.this] if qualify is not None else [])])
    if overs and (groups or aggregates):
        raise Unplaced(
            "OVER beside GROUP BY is not there; make a view of the groups, and query that", overs[0]
        )
    if overs:
        if relation.windowed is not None:
            relation.windowed.check_left()
        relation, scope = with_overs(relation, scope, overs, context)
        items = list(_items(node, scope))
    if groups or aggregates:
        aliases = {value.sql(): name for name, value in items if isinstance(value, exp.Expr)}
        relation, scope = grouped(relation, scope, groups, aggregates, aliases, context, _place(node))
        if having is not None:
            relation = relation.filtered(context.steps.step("having"), condition(having, scope, "HAVING"))
    elif having is not None:
        raise Unplaced(
            "HAVING needs GROUP BY or an aggregate; without groups write WHERE", node.args["having"]
        )
    elif context.emit is not None:
        raise Unplaced("EMIT is of results of GROUP BY; leave it out here", node)
    columns = tuple(Column(name, *_told(value, scope)) for name, value in items)
    if relation.windowed is not None and all(
        each.value is not None or each.rank is not None for each in columns
    ):
        relation.windowed.check_left()
    made = replace(relation, columns=columns)
    if node.args.get("qualify") is not None:
        made = _qualified(made, node, scope, context)
    return distinct(made, context, node) if is_distinct else made


def _place(node: exp.Select) -> exp.Expr:
    group = node.args.get("group")
    return group if group is not None else node


def _told(value: exp.Expr | Column, scope: Scope) -> tuple[Typed | None, str, Rank | None]:
    """What a column of SELECT is: its value, no source, and the rank that it may be."""
    if isinstance(value, Column):
        return value.value, "", value.rank
    if (
        isinstance(value, exp.Column)
        and not isinstance(value.this, exp.Star)
        and scope.known_value(value) is None
    ):
        found = scope.find(value)
        return found.value, "", found.rank
    if isinstance(value, exp.Window) and scope.known_value(value) is None:
        return None, "", rank_of(value, scope)
    return scalar(value, scope), "", None


def _items(node: exp.Select, scope: Scope) -> Iterable[tuple[str, exp.Expr | Column]]:
    """Names and values of SELECT; stars as the columns for which they stand."""
    taken: set[str] = set()
    for number, item in enumerate(node.expressions, start=1):
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            source = "" if isinstance(item, exp.Star) else item.table
            found = [
                each
                for each in scope.columns
                if (each.source.lower() == source.lower() if source else not each.is_merged)
            ]
            if not found:
                raise Unplaced(f"there is no table {source!r} in FROM", item)
            star = item if isinstance(item, exp.Star) else item.this
            for key in ("replace", "rename", "ilike"):
                if star.args.get(key):
                    raise Unplaced(f"* {key.upper()} is not there; name the columns, or use EXCLUDE", item)
            excluded = star.args.get("except_") or star.args.get("except") or ()
            for each in excluded:
                Scope(found).find(exp.column(each.this if isinstance(each, exp.Column) else each))
            left_out = {each.name.lower() for each in excluded}
            for each in found:
                if each.name.lower() not in left_out:
                    yield _once(each.name, taken, item), each
            continue
        value = item.this if isinstance(item, exp.Alias) else item
        name = item.alias if isinstance(item, exp.Alias) else _own_name(item, number)
        # The time of a window is there after GROUP BY only.
        if isinstance(value, exp.Column) and not isinstance(item, exp.Alias) and scope.has(value):
            name = scope.find(value).name
        yield _once(name, taken, item), value


def _once(name: str, taken: set[str], node: exp.Expr) -> str:
    if name in taken:
        raise Unplaced(f"two columns are called {name!r}; give one another name with AS", node)
    taken.add(name)
    return name


def _own_name(item: exp.Expr, number: int) -> str:
    if isinstance(item, exp.Column):
        return item.name
    inner = item
    while isinstance(inner, (exp.Filter, exp.WithinGroup)):
        inner = inner.this
    return inner.sql_name().lower() if isinstance(inner, exp.AggFunc) else f"column_{number}"


def _groups(node: exp.Select, items: list[tuple[str, exp.Expr | Column]], scope: Scope) -> list[exp.Expr]:
    """What GROUP BY names; numbers and names of SELECT stand for its values."""
    group = node.args.get("group")
    if group is None:
        return []
    for key in ("rollup", "cube", "grouping_sets", "totals", "all"):
        if group.args.get(key):
            raise Unplaced(
                f"{key.upper().replace('_', ' ')} is not there; write UNION ALL of several GROUP BY", group
            )
    if not group.expressions:
        raise Unplaced("GROUP BY names nothing; leave it out, or write GROUP BY who", group)
    values = {name.lower(): value for name, value in items}
    found = []
    for each in group.expressions:
        if isinstance(each, (exp.GroupingSets, exp.Rollup, exp.Cube)):
            raise Unplaced(f"{each.key.upper()} is not there; write UNION ALL of several GROUP BY", each)
        value: exp.Expr | Column | None = None
        if isinstance(each, exp.Literal) and not each.is_string:
            number = int(each.this) if str(each.this).isdigit() else 0
            if not 1 <= number <= len(items):
                raise Unplaced(f"GROUP BY {each.this}: SELECT has {len(items)} columns", each)
            value = items[number - 1][1]
        elif isinstance(each, exp.Column) and not each.table and not scope.has(each):
            value = values.get(each.name.lower())
        if isinstance(value, Column):
            value = exp.column(value.name, table=value.source or None)
        found.append(each if value is None else value)
    return found


def _having(node: exp.Select, items: list[tuple[str, exp.Expr | Column]], scope: Scope) -> exp.Expr | None:
    """The condition of HAVING, where names of SELECT that are no columns stand for its values; None: there is none."""
    if node.args.get("having") is None:
        return None
    values = {name.lower(): value for name, value in items if isinstance(value, exp.Expr)}

    def value_of(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column) or part.table or scope.has(part):
            return part
        value = values.get(part.name.lower())
        return part if value is None else exp.Paren(this=value.copy())

    made: exp.Expr = node.args["having"].this.transform(value_of)
    return made


def _filtered(
    relation: Relation,
    nodes: list[exp.Expr],
    select: exp.Select,
    context: Context,
    known: Mapping[str, Typed] | None = None,
    told: Collection[str] = (),
) -> Relation:
    """The rows that meet all conditions; bounds of places come first.

    Args:
        relation: the rows.
        nodes: the conditions.
        select: the query.
        context: of the query.
        known: values by their text.
        told: columns that the query tells in any case.
    """
    rest = []
    for node in nodes:
        bound = rank_bound(node, scope_of(relation))
        if bound is None:
            rest.append(node)
            continue
        name = bound[0].name
        is_read = name in told or _reads(select, name, node)
        relation = ranked(relation, *bound, context, is_read=is_read)
    if rest:
        scope = replace(scope_of(relation), known=dict(known or {}))
        whole = rest[0] if len(rest) == 1 else exp.and_(*rest, copy=False, wrap=True)
        for node in rest:
            condition(node, scope, "WHERE")
        relation = relation.filtered(context.steps.step("filter"), condition(whole, scope, "WHERE"))
    return relation


def _reads(select: exp.Select, name: str, but: exp.Expr) -> bool:
    """Whether a query reads a column elsewhere than in one condition."""
    if any(isinstance(each, exp.Star) for each in select.expressions):
        return True
    places = [each for each in select.find_all(exp.Column) if each.name.lower() == name.lower()]
    return len(places) > len([each for each in but.find_all(exp.Column) if each.name.lower() == name.lower()])


def _qualified(made: Relation, node: exp.Select, scope: Scope, context: Context) -> Relation:
    """``QUALIFY ROW_NUMBER() OVER (...) <= 3``, or of a column that SELECT names so."""
    # A text may be compiled twice: its tree stays as it is.
    tree = node.args["qualify"].this.copy()
    columns = list(made.columns)
    selected = {each.this.sql(): each.alias for each in node.expressions if isinstance(each, exp.Alias)}
    for number, window in enumerate(list(tree.find_all(exp.Window)), start=1):
        if window.sql() in selected and window is not tree:
            # What SELECT has calculated already.
            window.replace(exp.column(selected[window.sql()], quoted=True))
            continue
        name = f"_place_{number}"
        known = scope.known_value(window)
        columns.append(Column(name, known, "", None if known is not None else rank_of(window, scope)))
        if window is tree:
            raise Unplaced("QUALIFY needs a bound, such as <= 3", window)
        window.replace(exp.column(name))
    # Columns that SELECT leaves out may stand there, too.
    here = Scope(tuple(columns))
    named = [each for each in tree.find_all(exp.Column) if scope.has(each) and not here.has(each)]
    others = {(found.name, found.source): found for found in map(scope.find, named)}
    columns += others.values()
    names = {each.name for each in made.columns}
    found = _filtered(replace(made, columns=tuple(columns)), conjuncts(tree), node, context, told=names)
    kept = (each for each in found.columns if each.name in names and (each.name, each.source) not in others)
    return replace(found, columns=tuple(kept))


def _union(node: exp.SetOperation, context: Context) -> Relation:
    if not isinstance(node, exp.Union):
        name = type(node).__name__.upper()
        near = "NOT EXISTS" if isinstance(node, exp.Except) else "EXISTS"
        raise Unplaced(f"{name} is not there; write WHERE {near} (SELECT ...)", node)
    if node.args.get("by_name"):
        raise Unplaced("UNION BY NAME is not there; both sides have equal columns in one order", node)
    parts = [
        compiled(each, context.within(f"part_{number}"))
        for number, each in enumerate((node.this, node.expression), 1)
    ]
    width = len(parts[0].columns)
    if len(parts[1].columns) != width:
        raise Unplaced(f"UNION of {width} and {len(parts[1].columns)} columns; both have equally many", node)
    is_changelog = any(each.is_changelog for each in parts)
    values = [[value for _, value in values_of(each, node)] for each in parts]
    names = [each.name for each in parts[0].columns]
    dtypes = [common_type(pair, node) for pair in zip(*values, strict=True)]
    streams = []
    for part, listed in zip(parts, values, strict=True):
        told = [(name, as_type(each, dtype)) for name, each, dtype in zip(names, listed, dtypes, strict=True)]
        if is_changelog and not part.is_changelog:
            told.append((CHANGE_COLUMN, computed(pl.lit(CHANGES[0]), pl.String())))
        streams.append(_nullable(part, context.steps.step("columns"), told))
    roles = [
        (name, "time")
        for name, pair in zip(names, zip(*values, strict=True), strict=True)
        if {v.role for v in pair} == {"time"}
    ]
    with at(node):
        stream = streams[0].union(context.steps.step("union"), streams[1])
    made = relation_of(stream, [name for name, _ in roles])
    return distinct(made, context, node) if node.args.get("distinct") else made


def _nullable(part: Relation, name: str, values: list[tuple[str, Typed]]) -> Stream:
    """The columns, all of which may be null, so that both sides of a union are equal."""
    forced = [(output, replace(value, name=None)) for output, value in values]
    return selected(part, name, forced)


def solid_result(relation: Relation, name: str, node: exp.Expr) -> Stream:
    """The stream of a query's result: its columns alone, under their names.

    Raises:
        Unplaced: a column has no value.
    """
    values = values_of(relation, node)
    for output, value in values:
        if value.is_null:
            raise Unplaced(
                f"column {output!r} is NULL in every row; give it a type: CAST(NULL AS BIGINT)", node
            )
    with at(node):
        return selected(relation, name, values, is_result=True)
