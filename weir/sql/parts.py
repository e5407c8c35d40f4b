"""Which parts of a query are read at all: sqlglot takes those of many engines, and one that is not read is refused.

Else a text would mean less than it says.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from weir.sql.errors import Unplaced, name_of

#: Parts that queries read, or refuse themselves with the nearest thing that is there.
_OF_QUERIES = frozenset(
    {
        *(
            "this",
            "expression",
            "by_name",
            "alias",
            "with_",
            "expressions",
            "distinct",
            "into",
            "from_",
            "joins",
        ),
        *(
            "laterals",
            "pivots",
            "sample",
            "match",
            "connect",
            "where",
            "group",
            "having",
            "qualify",
            "windows",
        ),
        *("order", "sort", "cluster", "distribute", "limit", "offset"),
    }
)
_KNOWN: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.Select: _OF_QUERIES,
    exp.Union: _OF_QUERIES,
    exp.Except: _OF_QUERIES,
    exp.Intersect: _OF_QUERIES,
    exp.Subquery: frozenset({"this", "alias", "order", "limit", "offset"}),
    exp.Table: frozenset({"this", "alias", "db", "catalog", "pivots", "sample", "version"}),
    exp.TableAlias: frozenset({"this"}),
    exp.CTE: frozenset({"this", "alias", "materialized"}),
    exp.Join: frozenset({"this", "on", "side", "kind", "using", "method"}),
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
    exp.Cast: frozenset({"this", "to", "safe"}),
    exp.TryCast: frozenset({"this", "to", "safe", "requires_string"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "over", "alias"}),
    exp.Interval: frozenset({"this", "unit"}),
    exp.In: frozenset({"this", "expressions", "query", "unnest"}),
    exp.Trim: frozenset({"this", "expression", "position"}),
    exp.DateTrunc: frozenset({"this", "unit"}),
    exp.TimestampTrunc: frozenset({"this", "unit"}),
    exp.ApproxQuantile: frozenset({"this", "quantile"}),
    exp.ApproxDistinct: frozenset({"this"}),
    exp.First: frozenset({"this"}),
    exp.Last: frozenset({"this"}),
    exp.RowNumber: frozenset(),
    exp.Rank: frozenset(),
}
#: What another part is called, where its name in the tree does not say it.
_WORDS = {
    "locks": "FOR UPDATE",
    "hint": "a hint",
    "hints": "a hint",
    "joins": "a join in parentheses",
    "default": "DEFAULT ... ON CONVERSION ERROR",
    "global_": "GLOBAL",
    "for_": "FOR",
}


def check_parts(query: exp.Expr) -> None:
    """Refuse what would be passed over.

    Raises:
        Unplaced: a part is not read.
    """
    for node in query.walk():
        if isinstance(node, exp.Values):
            raise Unplaced("VALUES is not there; a stream reads a source, CREATE SOURCE ...", node)
        known = _KNOWN.get(type(node))
        if known is None:
            continue
        for name, value in node.args.items():
            if value and name not in known:
                # Places within a hint begin anew.
                place = (
                    node.expressions[0] if name == "hint" else value if isinstance(value, exp.Expr) else node
                )
                raise Unplaced(_refusal(node, name, value), place)
    _check_versions(query)


def _refusal(node: exp.Expr, name: str, value: object) -> str:
    if isinstance(node, exp.TableAlias):
        return f"names of columns after {node.name!r} are not there; name them in the SELECT, with AS"
    if isinstance(node, exp.SetOperation) and isinstance(value, str):
        return f"{value} {node.key.upper()} is not there; write UNION ALL"
    if isinstance(node, exp.Func) and name not in _WORDS:
        return f"{name_of(node)} takes no such value here: {_text(value)}; leave it out"
    word = _WORDS.get(name, name.upper().strip("_"))
    return f"{word} is not there; leave it out, or put the query into a view"


def _text(value: object) -> str:
    value = value[0] if isinstance(value, list) else value
    return value.sql() if isinstance(value, exp.Expr) else str(value)


def _check_versions(query: exp.Expr) -> None:
    """``FOR SYSTEM_TIME AS OF`` is of the right side of a join."""
    for table in query.find_all(exp.Table):
        if table.args.get("version") and not isinstance(table.parent, exp.Join):
            raise Unplaced(
                "FOR SYSTEM_TIME AS OF is of a join: FROM o JOIN p FOR SYSTEM_TIME AS OF o.at ON ...", table
            )
