"""GROUP BY, with windows and without, and aggregates of all rows."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from sqlglot import exp

from weir.dataflow.aggregates import count
from weir.dataflow.streams import Stream
from weir.dataflow.windows import tumbling
from weir.rows.changes import CHANGE_COLUMN, CHANGES
from weir.specs.windows import WINDOW_BOUNDS
from weir.sql.aggregates import Aggregate, check_of_windows, check_takes_back, check_values, named
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at
from weir.sql.relations import (
    Column,
    Relation,
    Scope,
    Windowed,
    bound_value,
    polars_types,
    relation_of,
    selected,
    values_of,
)
from weir.sql.scalars import condition, scalar
from weir.sql.types import Typed, as_type, check_key, column, computed

_ALL = "_all"
#: Bounds of windows where they are keys of a further window.
_KEY_BOUNDS = ("of_window_start", "of_window_end")
_INSERT = CHANGES[0]


@dataclass(frozen=True)
class _Group:
    """A part of GROUP BY: its text, its value, the name of its column in the stream, and what the query calls it."""

    node: exp.Expr
    value: Typed
    name: str
    label: str


def grouped(
    relation: Relation,
    scope: Scope,
    groups: Sequence[exp.Expr],
    aggregates: Sequence[Aggregate],
    aliases: dict[str, str],
    context: Context,
    node: exp.Expr,
) -> tuple[Relation, Scope]:
    """Return a row for each group.

    Args:
        relation: the rows.
        scope: their columns.
        groups: what GROUP BY names.
        aggregates: all of the query.
        aliases: by the text of an expression of SELECT: what it is called there.
        context: of the query.
        node: place of messages.

    Returns: the groups, and the scope in which SELECT and HAVING see them.

    Raises:
        Unplaced: an aggregate or a group cannot be computed.
    """
    plain: list[_Group] = []
    is_windowed = False
    bounds = set()
    for each in groups:
        if isinstance(each, exp.Column) and scope.has(each):
            found = scope.find(each)
            role = found.value.role if found.value is not None else found.name
            if relation.windowed is not None and role in WINDOW_BOUNDS and found.rank is None:
                is_windowed = is_windowed or found.value is None or context.emit != "changes"
                if is_windowed:
                    bounds.add(role)
                    continue
        value = scalar(each, scope)
        check_key(value, "GROUP BY", each)
        label = value.name or aliases.get(each.sql()) or _name_of(each, len(plain))
        # A column of this name may be that of an aggregate, or of another group.
        taken = {*relation.stream.schema.names, *(group.name for group in plain)}
        plain.append(_Group(each, value, value.name or _free(label, taken), label))
    if context.emit == "close" and not is_windowed:
        raise Unplaced(
            "EMIT ON WINDOW CLOSE needs a window: FROM TUMBLE(...) ... GROUP BY window_start, window_end",
            node,
        )
    if context.emit == "changes" and is_windowed:
        raise Unplaced("EMIT CHANGES is of TUMBLE and of groups without a window; leave it out here", node)
    if relation.windowed is not None and is_windowed:
        relation.windowed.check_named(bounds, node)
    elif relation.windowed is not None:
        relation.windowed.check_left()
    made = _Aggregation(relation, scope, tuple(plain), tuple(aggregates), aliases, context, node)
    return made.over_windows() if is_windowed else made.running()


def _free(wanted: str, taken: Container[str]) -> str:
    names = (wanted, *(f"{wanted}_{number}" for number in range(2, 1000)))
    return next(each for each in names if each not in taken)


def _name_of(node: exp.Expr, number: int) -> str:
    return node.name if isinstance(node, exp.Column) else f"group_{number + 1}"


@dataclass(frozen=True)
class _Aggregation:
    relation: Relation
    scope: Scope
    groups: tuple[_Group, ...]
    aggregates: tuple[Aggregate, ...]
    aliases: dict[str, str]
    context: Context
    node: exp.Expr

    @property
    def _all(self) -> str:
        """The key of all rows, where a query has no groups; a column of the rows may be called so."""
        return _free(_ALL, self.relation.stream.schema.names)

    def over_windows(self) -> tuple[Relation, Scope]:
        """A row for each group and window."""
        windowed = self.relation.windowed
        assert windowed is not None
        for each in self.aggregates:
            check_of_windows(each)
        extra: list[tuple[str, Typed]] = []
        window = windowed.window
        has_one_time = windowed.is_result or bool(windowed.calendar)
        if has_one_time:
            # Results of a window have one time, so a window of a millisecond has those of one window alone.
            assert windowed.bounds is not None
            extra, window = list(zip(_KEY_BOUNDS, windowed.bounds, strict=True)), tumbling(1)
        stream, calls = self._input(extra, of_windows=True)
        calls = calls or _counted()
        name = self.context.steps.step("window")
        keys = [*(each for each, _ in extra), *(each.name for each in self.groups)]
        with at(self.node):
            if keys:
                made: Stream = stream.key_by(*keys).window(window).aggregate(name, **calls)
            else:
                made = stream.window_all(window).aggregate(name, **calls)
            if has_one_time:
                names = [each for each in made.schema.names if each not in (*WINDOW_BOUNDS, *_KEY_BOUNDS)]
                bounds = [pl.col(each).alias(to) for each, to in zip(_KEY_BOUNDS, WINDOW_BOUNDS, strict=True)]
                made = made.select(f"{name}.bounds", *names, *bounds)
        bounds_now = (column("window_start", pl.Int64()), column("window_end", pl.Int64()))
        told = replace(windowed, is_result=True, bounds=bounds_now)
        added = [Column(each, bound_value(each, windowed.time)) for each in WINDOW_BOUNDS]
        last = bound_value("window_end", windowed.time)
        if windowed.window.kind != "session":
            unit = pl.duration(milliseconds=1, time_unit=getattr(windowed.time, "time_unit", None))
            moment = last.expr - (unit if isinstance(windowed.time, pl.Datetime) else 1)
            last = Typed(moment, last.dtype)
        added.append(Column("window_time", replace(last, name=None, role="time")))
        return self._told(made, added, told)

    def running(self) -> tuple[Relation, Scope]:
        """A row for each group, as a changelog."""
        for each in self.aggregates:
            check_takes_back(each)
        extreme = self._extreme()
        if extreme is not None:
            return extreme
        extra = [] if self.groups else [(self._all, computed(pl.lit(0, pl.Int64), pl.Int64()))]
        if not self.relation.is_changelog:
            extra.append((CHANGE_COLUMN, computed(pl.lit(_INSERT), pl.String())))
        stream, calls = self._input(extra, of_windows=False)
        name = self.context.steps.step("group")
        keys = [each.name for each in self.groups] or [self._all]
        with at(self.node):
            made = stream.key_by(*keys).aggregate(name, **(calls or _counted()))
        return self._told(made, [], None)

    def _extreme(self) -> tuple[Relation, Scope] | None:
        """The only aggregate is the least or greatest value of rows that are never taken back: one row of each group.

        An aggregate over a changelog keeps all values, since the greatest may be taken back. None: it is another case.
        """
        each = self.aggregates[0] if len(self.aggregates) == 1 else None
        if each is None or each.function not in ("MIN", "MAX") or self.relation.is_changelog:
            return None
        if each.argument is None or each.filter is not None:
            return None
        value = scalar(each.argument, self.scope)
        if not (value.dtype.is_integer() or value.dtype.is_temporal()):
            return None
        if value.dtype.is_integer():
            value = as_type(value, pl.Int64())
        output = self._output(each, {})
        wanted = {group.name: group.value for group in self.groups}
        wanted |= {} if self.groups else {self._all: computed(pl.lit(0, pl.Int64), pl.Int64())}
        listed = [*wanted.items(), (output, value.without_role())]
        stream = selected(self.relation, self.context.steps.step("input"), listed)
        with at(each.node):
            made = stream.key_by(*wanted).top(
                self.context.steps.step("group"), by=output, rows=1, ascending=each.function == "MIN"
            )
        return self._told(made, [], None)

    def _input(self, extra: list[tuple[str, Typed]], *, of_windows: bool) -> tuple[Stream, dict[str, Any]]:
        """The stream with the columns that are read, and the aggregates over it."""
        wanted = {each.name: each.value for each in self.groups} | dict(extra)
        calls: dict[str, Any] = {}
        predicates: dict[str, str] = {}
        filtered: list[tuple[Aggregate, str, str | None, pl.Expr | None]] = []
        for each in self.aggregates:
            output = self._output(each, {**calls, **{made: None for _, made, *_ in filtered}})
            name: str | None = None
            predicate: pl.Expr | None = None
            if each.argument is not None:
                value = scalar(each.argument, self.scope)
                check_values(each, value, of_windows=of_windows)
                name = value.name or f"of_{output}"
                wanted[name] = value
            if each.filter is not None:
                predicate = condition(each.filter, self.scope, "FILTER").expr
            filtered.append((each, output, name, predicate))
        # A condition goes over the columns of the stream, where these keep their names.
        roots = {
            root
            for *_, predicate in filtered
            if predicate is not None
            for root in predicate.meta.root_names()
        }
        types = polars_types(self.relation.stream.schema)
        keeps = all(
            root in types and (root not in wanted or wanted[root].name == root) for root in sorted(roots)
        )
        if keeps:
            wanted |= {root: column(root, types[root]) for root in sorted(roots)}
        for each, output, name, predicate in filtered:
            if predicate is not None and not keeps:
                text = str(each.filter.sql() if each.filter is not None else "")
                predicates.setdefault(text, f"where_{len(predicates) + 1}")
                wanted[predicates[text]] = computed(predicate, pl.Boolean())
                predicate = pl.col(predicates[text])
            with at(each.node):
                calls[output] = each.call(name, predicate)
        names = set(self.relation.stream.schema.names)
        if all(value.name == output and output in names for output, value in wanted.items()):
            return self.relation.stream, calls
        if not wanted:
            return self.relation.stream, calls
        return selected(self.relation, self.context.steps.step("input"), list(wanted.items())), calls

    def _output(self, aggregate: Aggregate, calls: dict[str, Any]) -> str:
        """The name of the column of an aggregate: that of SELECT, else one of what it computes."""
        text = aggregate.node.sql()
        value = None
        if isinstance(aggregate.argument, exp.Column):
            value = self.scope.value(aggregate.argument)
        wanted = self.aliases.get(text) or named(aggregate, value)
        taken = {*calls, *(each.name for each in self.groups), *WINDOW_BOUNDS, *_KEY_BOUNDS, self._all}
        return _free(wanted, taken)

    def _told(self, made: Stream, added: list[Column], windowed: Windowed | None) -> tuple[Relation, Scope]:
        types = polars_types(made.schema)
        known, columns = {}, []
        for each in self.groups:
            value = column(each.name, types[each.name])
            known[each.node.sql()] = value
            if isinstance(each.node, exp.Column):
                found = self.scope.find(each.node)
                columns.append(replace(found, value=value))
            else:
                columns.append(Column(each.label, value))
        outputs = [
            name
            for name in made.schema.names
            if name not in {*WINDOW_BOUNDS, CHANGE_COLUMN, self._all, *(each.name for each in self.groups)}
        ]
        for aggregate, output in zip(self.aggregates, outputs, strict=False):
            known[aggregate.node.sql()] = column(output, types[output])
        sources = {each.source for each in self.scope.columns if each.source}
        source = next(iter(sources)) if len(sources) == 1 else ""
        columns += [replace(each, source=source) for each in added]
        relation = Relation(made, tuple(columns), windowed)
        scope = Scope(relation.columns, self.scope.sources, known, self.scope)
        return relation, scope


def _counted() -> dict[str, Any]:
    """What a group without aggregates keeps: whether it has rows."""
    return {"rows_of_group": count()}


def distinct(relation: Relation, context: Context, node: exp.Expr) -> Relation:
    """Return each different row once.

    Raises:
        Unplaced: a column cannot be a key, or has no value yet.
    """
    values = values_of(relation, node)
    stream = selected(relation, context.steps.step("input"), values)
    names = [name for name, _ in values]
    for _, value in values:
        check_key(value, "DISTINCT", node)
    step = context.steps.step("distinct")
    with at(node):
        if not relation.is_changelog:
            return relation_of(stream.key_by(*names).deduplicate(step))
        return relation_of(
            stream.key_by(*names)
            .aggregate(step, **_counted())
            .select(f"{step}.columns", *names, CHANGE_COLUMN)
        )
