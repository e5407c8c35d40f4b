"""What FROM brings: streams with the columns that a query sees, and how names of columns are found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Literal

import polars as pl
import pyarrow as pa
from sqlglot import exp

from weir.dataflow.streams import Stream
from weir.rows.changes import CHANGE_COLUMN
from weir.specs.canonical import canonical_expression
from weir.specs.window_kinds import Window
from weir.specs.windows import WINDOW_BOUNDS
from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced, start_of
from weir.sql.syntax import in_place_of, meant
from weir.sql.types import Role, Typed, column

#: Words that may follow a table.
_AFTER_TABLES = (
    "LEFT",
    "RIGHT",
    "FULL",
    "INNER",
    "CROSS",
    "SEMI",
    "ANTI",
    "WHERE",
    "GROUP",
    "HAVING",
    "UNION",
)
#: An expression has at most so many nodes for each character of its text.
_NODES_OF_CHARACTER = 4


@dataclass(frozen=True)
class Rank:
    """A ROW_NUMBER or RANK that waits for its bound: ``WHERE place <= 3``."""

    function: Literal["ROW_NUMBER", "RANK"]
    partition: tuple[Typed, ...]
    #: Values, whether they descend, whether NULL comes first.
    order: tuple[tuple[Typed, bool, bool], ...]
    node: exp.Expr
    #: Whether rows were left out or joined since: the places of what is left are other ones.
    is_late: bool = False


@dataclass(frozen=True)
class Column:
    """A column that a query sees.

    Attributes:
        name: as the query calls it.
        value: what it is over the stream; None: it has no value yet, see ``rank`` and :class:`Windowed`.
        source: the alias of what it comes from in FROM.
        rank: the place that it is, if its bound is still to come.
        is_merged: USING has made one column of it and of that of the other side: it is found by its source alone.
    """

    name: str
    value: Typed | None
    source: str = ""
    rank: Rank | None = None
    is_merged: bool = False


@dataclass(frozen=True)
class Windowed:
    """How the rows of a relation belong to windows.

    Attributes:
        window: which.
        is_result: each row is the result of a window. False: rows that are still to be divided (HOP in FROM).
        bounds: beginning and end of the window in ms; None: a row is in several, and has none yet.
        time: type of the bounds as the query sees them.
        node: where the text says so.
        calendar: of windows by the calendar of a time zone, what tells them from others.
    """

    window: Window
    is_result: bool
    bounds: tuple[Typed, Typed] | None
    time: pl.DataType
    node: exp.Expr
    calendar: str = ""

    def check_named(self, bounds: Collection[str], node: exp.Expr) -> None:
        """Refuse bounds that several windows have.

        Raises:
            Unplaced: windows of CUMULATE begin together, and one of SESSION is known by both bounds only.
        """
        wanted = {"cumulative": WINDOW_BOUNDS[1:], "session": WINDOW_BOUNDS}.get(self.window.kind, ())
        missing = [each for each in wanted if each not in bounds]
        if missing:
            raise Unplaced(
                f"several {self.window.kind} windows have this bound; name {missing[0]}, too", node
            )

    def check_left(self) -> None:
        """Refuse to leave windows of which a row is in several: it would count once.

        Raises:
            Unplaced: they overlap, and the rows are not divided among them yet.
        """
        if not self.is_result and self.window.kind in ("sliding", "cumulative"):
            raise Unplaced(
                "a row is in several of these windows, and is divided among them by GROUP BY alone; name window_start "
                "and window_end there, or leave the window out",
                self.node,
            )


@dataclass(frozen=True)
class Relation:
    """A stream, and the columns that a query sees of it."""

    stream: Stream
    columns: tuple[Column, ...]
    windowed: Windowed | None = None

    @property
    def is_changelog(self) -> bool:
        """Whether rows are added and taken away."""
        return self.stream.is_changelog

    def called(self, alias: str) -> Relation:
        """The same with an alias."""
        return replace(self, columns=tuple(replace(each, source=alias) for each in self.columns))

    def filtered(self, name: str, predicate: Typed) -> Relation:
        """The rows for which a condition is true."""
        return Relation(self.stream.filter(name, predicate.expr), without_places(self.columns), self.windowed)


def without_places(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns of other rows than those that ROW_NUMBER is over: its bound is refused from here on."""
    return tuple(
        each if each.rank is None else replace(each, rank=replace(each.rank, is_late=True))
        for each in columns
    )


def relation_of(stream: Stream, times: Iterable[str] = ()) -> Relation:
    """Return a stream with all of its columns; ``times``: those that are its event time."""
    found = tuple(times)
    return Relation(
        stream,
        tuple(
            Column(name, column(name, dtype, "time" if name in found else ""))
            for name, dtype in polars_types(stream.schema).items()
            if name != CHANGE_COLUMN
        ),
    )


def columns_read(relation: Relation) -> frozenset[str]:
    """Columns of the stream of which the columns of a relation are made."""
    values = [each.value for each in relation.columns if each.value is not None]
    values += relation.windowed.bounds or () if relation.windowed is not None else ()
    for each in relation.columns:
        if each.rank is not None:
            values += [*each.rank.partition, *(value for value, *_ in each.rank.order)]
    roots = {root for value in values for root in value.expr.meta.root_names()}
    return frozenset(roots & set(relation.stream.schema.names))


def polars_types(schema: pa.Schema) -> dict[str, pl.DataType]:
    """The Polars types of the columns of a stream."""
    return dict(pl.Schema(pl.DataFrame(schema.empty_table()).schema))


def selected(
    relation: Relation, name: str, values: Sequence[tuple[str, Typed]], *, is_result: bool = False
) -> Stream:
    """The stream of these columns alone, by a step of this name; without a step if it has just these.

    Args:
        relation: the rows.
        name: of the step.
        values: names and values of the columns.
        is_result: they are for whoever reads the query; else for a step that may keep them in its state.
    """
    names = [output for output, _ in values]
    is_same = all(value.name == output for output, value in values)
    present = [each for each in relation.stream.schema.names if each != CHANGE_COLUMN]
    if is_same and present == names:
        return relation.stream
    columns: list[str | pl.Expr] = [
        output if value.name == output else value.expr.alias(output) for output, value in values
    ]
    if relation.is_changelog:
        columns.append(CHANGE_COLUMN)
    stream = relation.stream.select(name, *columns)
    if is_result:
        return stream
    computed = {output: value.name or canonical_expression(value.expr) for output, value in values}
    node = stream.flow.add(replace(stream.node, computed=computed))
    made: Stream = stream.flow.stream_of(node)
    return made


@dataclass
class Scope:
    """The columns that an expression may name, and those of queries around it."""

    columns: Sequence[Column]
    #: Aliases that FROM has, for messages.
    sources: Sequence[str] = ()
    #: Other values by their text, such as aggregates that are computed.
    known: dict[str, Typed] = field(default_factory=dict)
    #: Of a grouped query: the columns before it, for messages.
    ungrouped: Scope | None = None

    def known_value(self, node: exp.Expr) -> Typed | None:
        """The value of ``known`` that has the text of an expression; None: there is none."""
        if not self.known:
            return None
        # The text of each expression within a deep one would take a time that grows with the square.
        if next(islice(node.walk(), _NODES_OF_CHARACTER * self._known_length, None), None) is not None:
            return None
        return self.known.get(node.sql())

    @cached_property
    def _known_length(self) -> int:
        """Characters of the longest text that is known."""
        return max(map(len, self.known))

    def has(self, node: exp.Column) -> bool:
        """Whether it can be found here."""
        return bool(self._found(node))

    def find(self, node: exp.Column) -> Column:
        """The column that the text names.

        Raises:
            Unplaced: there is none, or several.
        """
        found = self._found(node)
        table = node.table
        if not found:
            self._refuse(node, table)
        if len(found) > 1:
            whose = ", ".join(f"{each.source}.{each.name}" for each in found)
            raise Unplaced(f"column {node.name!r} may be {whose}; say which", node)
        return found[0]

    def value(self, node: exp.Column) -> Typed:
        """The value of the column that the text names.

        Raises:
            Unplaced: there is none, or it has no value yet.
        """
        found = self.find(node)
        if found.value is not None:
            return found.value
        if found.rank is not None:
            what = found.rank.function
            raise Unplaced(
                f"{found.name!r} is {what}(), which goes to ever more rows; give it a bound right after, as in "
                f"SELECT ... FROM (SELECT *, {what}() OVER (...) AS {found.name} FROM ...) WHERE {found.name} <= 10",
                node,
            )
        raise Unplaced(
            f"{found.name!r} is a bound of windows that overlap; use it in GROUP BY, together with window_end",
            node,
        )

    def _found(self, node: exp.Column) -> list[Column]:
        table, name = node.table, node.name
        quoted = bool(node.this.args.get("quoted")) if isinstance(node.this, exp.Identifier) else False
        found = [
            each
            for each in self.columns
            if (each.name == name if quoted else each.name.lower() == name.lower())
            and (each.source.lower() == table.lower() if table else not each.is_merged)
        ]
        exact = [each for each in found if each.name == name]
        return exact or found

    def _refuse(self, node: exp.Column, table: str) -> None:
        if self.ungrouped is not None and self.ungrouped.has(node):
            raise Unplaced(
                f"column {node.name!r} is neither in GROUP BY nor in an aggregate, such as MAX({node.name})",
                node,
            )
        if table and table.lower() not in {each.lower() for each in self.sources}:
            if any(each.name.lower() == table.lower() for each in self.columns):
                raise Unplaced(
                    f"{table!r} is a column: fields of structs are not there in SQL; take {node.name!r} out "
                    "of it with a function of Python",
                    node,
                )
            # A word that is spelled wrong is read as the alias of the table before it.
            wrong = [(each, meant(each, _AFTER_TABLES)) for each in self.sources]
            near = next((in_place_of(each, near) for each, near in wrong if near), "")
            raise Unplaced(
                f"there is no table {table!r} in FROM{near or did_you_mean(table, self.sources)}", node
            )
        known = [each.name for each in self.columns if not table or each.source.lower() == table.lower()]
        whose = f" of {table!r}" if table else ""
        near = did_you_mean(node.name, dict.fromkeys(known))
        if "did you mean" not in near and not table:
            # A word of SQL that is spelled wrong is read as a column.
            near = meant(node.name, ("DISTINCT", "CASE", "EXISTS", "NULL", "TRUE", "FALSE")) or near
        quotes = "; a text is in single quotes" if node.this.args.get("quoted") and not table else ""
        raise Unplaced(f"there is no column {node.name!r}{whose}{near}{quotes}", node)


def values_of(relation: Relation, node: exp.Expr) -> list[tuple[str, Typed]]:
    """Return all columns with their values; ``node`` is the place of messages.

    Raises:
        Unplaced: one has no value yet.
    """
    scope, found = Scope(relation.columns), []
    for each in relation.columns:
        named = exp.column(each.name, quoted=True)
        named.this.meta["start"] = start_of(node)
        found.append((each.name, scope.value(named) if each.value is None else each.value))
    return found


def solid(relation: Relation, name: str, extra: Sequence[tuple[str, Typed]] = ()) -> Relation:
    """The same rows with every column of the query as a column of the stream.

    Bounds of windows become columns ``window_start`` and ``window_end`` in ms. There is no step if all are there.

    Args:
        relation: whose columns have values.
        name: of the step.
        extra: further columns of the stream that the query does not see.
    """
    taken: dict[str, Typed] = dict(extra)
    found: list[Column] = []
    windowed = relation.windowed
    if windowed is not None and windowed.bounds is not None:
        taken |= dict(zip(WINDOW_BOUNDS, windowed.bounds, strict=True))
        made = tuple(column(each, pl.Int64()) for each in WINDOW_BOUNDS)
        windowed = replace(windowed, bounds=(made[0], made[1]))
    for each in relation.columns:
        value = each.value
        if value is None:
            found.append(each)
        elif value.role in WINDOW_BOUNDS and windowed is not None and windowed.bounds is not None:
            found.append(replace(each, value=bound_value(value.role, windowed.time)))
        else:
            physical = _free_name(each, value, taken)
            taken[physical] = value
            found.append(replace(each, value=column(physical, value.dtype, value.role)))
    present = set(relation.stream.schema.names)
    if all(value.name == output and output in present for output, value in taken.items()):
        return replace(relation, columns=tuple(found), windowed=windowed)
    stream = selected(relation, name, list(taken.items()))
    return Relation(stream, tuple(found), windowed)


def bound_value(role: str, time: pl.DataType) -> Typed:
    """A bound of a window as the query sees it, over the stream's column of that name."""
    known: Role = "window_start" if role == "window_start" else "window_end"
    if isinstance(time, pl.Datetime):
        moment = pl.from_epoch(pl.col(role), "ms").dt.cast_time_unit(time.time_unit)
        shown = moment if time.time_zone is None else moment.dt.replace_time_zone(time.time_zone)
        return Typed(shown, time, None, known)
    return Typed(pl.col(role), pl.Int64(), role, known)


def _free_name(each: Column, value: Typed, taken: Mapping[str, Typed]) -> str:
    """A name of the stream that is not taken by another value."""
    wanted = value.name or each.name
    for name in (
        wanted,
        each.name,
        f"{each.source}_{each.name}",
        *(f"{each.name}_{n}" for n in range(2, 1000)),
    ):
        if name not in taken or (value.name is not None and taken[name].name == value.name):
            return name
    return wanted
