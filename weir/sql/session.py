"""Statements one after the other, as ``weir sql`` has them: what is declared stays, and queries are answered at once.

Queries run in this process, from the beginning of their sources to the end, or so many seconds where a source has none.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from sqlglot import exp
from sqlglot.tokenizer_core import Token

import weir.local.running
from weir.clock import SystemClock
from weir.dataflow.builder import Dataflow
from weir.errors import WeirError
from weir.local.result import Result
from weir.plan.graph import LogicalGraph
from weir.questions.client import connect
from weir.rows.changes import CHANGE_COLUMN, rows_there
from weir.specs import SourceSpec
from weir.sql.errors import Place, Unplaced, at
from weir.sql.program import Program
from weir.sql.relations import Column, Relation, Scope
from weir.sql.scalars import scalar
from weir.sql.statements import Option, Statement, statement_of
from weir.sql.tables import OutsideTables
from weir.sql.text import parse_query, statements_of, tokens_of
from weir.sql.types import column

#: The sink that a query writes to.
_RESULT = "_result"
#: Rows of a query that are kept at most, where nothing bounds them.
ROWS_MAX = 1_000_000
#: How long a source is read that does not end.
ENDLESS_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What a statement was answered with; one of these is there.

    Attributes:
        message: that something was declared.
        frame: rows.
        graph: a plan.
        notes: what else is to be known, such as rows that could not be read.
    """

    message: str = ""
    frame: pl.DataFrame | None = None
    graph: LogicalGraph | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _End:
    """What a query of a prompt may end with: the order of its rows, and which of them are shown."""

    order: tuple[exp.Expr, ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass
class Session:
    """What was declared so far.

    Attributes:
        address: HTTP address of the job whose states are tables.
        for_s: how long sources are read; None: to their end, those that have none for :data:`ENDLESS_S`.
    """

    address: str = "localhost:9008"
    for_s: float | None = None
    _kept: dict[str, Statement] = field(default_factory=dict)

    def run(self, text: str, file: str = "SQL") -> Iterator[Answer]:
        """Answer all statements of a text.

        Args:
            text: statements with semicolons between them.
            file: what messages call it.

        Raises:
            SqlError: one is wrong; those before it were answered.
            WeirError: an input cannot be read.
        """
        place = Place(file, text)
        for tokens in statements_of(tokens_of(place, text)):
            with place.telling(tokens[0].start):
                yield self._answer(tokens, text, place)

    def _answer(self, tokens: list[Token], text: str, place: Place) -> Answer:
        words = [token.text.upper() for token in tokens[:2]]
        if words[0] == "EXPLAIN":
            # sqlglot takes what follows as one text; spaces keep the places of messages.
            start, stop = int(tokens[0].end) + 1, int(tokens[-1].end) + 1
            inner = tokens_of(place, " " * start + text[start:stop])
            return self._query(inner, text, place, explains=True)
        if words == ["SHOW", "TABLES"] and len(tokens) == 2:
            return self._tables()
        if words[0] == "SHOW":
            raise Unplaced("SHOW is SHOW TABLES", tokens[0].start)
        if words[0] in ("SELECT", "WITH", "("):
            return self._query(tokens, text, place, explains=False)
        statement = statement_of(tokens, text)
        if statement.kind in ("SINK", "INSERT"):
            raise Unplaced(
                "the prompt answers queries and writes nothing; put the text into a file and run it: weir run FILE",
                tokens[0].start,
            )
        self._declare(statement)
        return Answer(f"{statement.kind.lower()} {statement.name}")

    def _declare(self, statement: Statement) -> None:
        """Keep a statement, in place of one of the same name; it has to be right."""
        name = statement.name.lower()
        kept = {key: each for key, each in self._kept.items() if key != name}
        with tempfile.TemporaryDirectory(prefix="weir-sql-") as directory:
            program = self._program([*kept.values(), statement], Path(directory))
            if statement.kind != "FUNCTION":
                program.check(program.statements[name])
        self._kept = {**kept, name: statement}

    def _program(self, statements: Sequence[Statement], directory: Path) -> Program:
        flow = Dataflow("sql")
        outside = OutsideTables(flow, self.address, directory)

        def other(node: exp.Table) -> Relation | None:
            return outside.find(node.name, node)

        program = Program(flow, other=other)
        for each in statements:
            program.add(copy(each))
        return program

    def _tables(self) -> Answer:
        rows = [(each.name, each.kind.lower()) for each in self._kept.values()]
        notes: tuple[str, ...] = ()
        try:
            with connect(self.address, timeout_s=2.0, patience_s=0.0) as job:
                rows += [(f"state/{step}/{state}", "state") for step, state in job.states()]
        except WeirError as error:
            notes = (f"no states: {error}",)
        frame = pl.DataFrame(rows, schema={"table": pl.String, "kind": pl.String}, orient="row")
        return Answer(frame=frame, notes=notes)

    def _query(self, tokens: list[Token], text: str, place: Place, *, explains: bool) -> Answer:
        if not tokens:
            raise Unplaced("EXPLAIN takes a query, SELECT ...", None)
        tree = parse_query(tokens, text)
        end = _end_of(tree)
        start = int(tokens[0].start)
        query = Statement("SINK", _RESULT, start, options=[Option("connector", "collect", start)], query=tree)
        with tempfile.TemporaryDirectory(prefix="weir-sql-") as directory:
            program = self._program([*self._kept.values(), query], Path(directory))
            program.build(place, only_sinks=True)
            with at(start):
                graph = program.flow.build()
            if explains:
                return Answer(graph=graph)
            found, notes = self._run(program.flow, graph, end)
        return Answer(frame=_ended(found, end), notes=tuple(notes))

    def _run(self, flow: Dataflow, graph: LogicalGraph, end: _End) -> tuple[pl.DataFrame, list[str]]:
        """Return all rows of a query, and what is to be said of them."""
        is_endless = any(isinstance(node.spec, SourceSpec) and not node.spec.ends for node in graph.nodes)
        is_changelog = CHANGE_COLUMN in graph.node(_RESULT).schema.names
        most = ROWS_MAX
        if end.limit is not None and not end.order and not is_changelog:
            most = min(most, end.limit + end.offset)
        for_s = self.for_s if self.for_s is not None or not is_endless else ENDLESS_S

        def is_enough(result: Result) -> bool:
            return len(result[_RESULT]) >= most

        clock = SystemClock()
        began_s = clock.monotonic_s()
        result = weir.local.running.run(flow, for_s=for_s, until=is_enough)
        found = result[_RESULT].to_polars()
        notes = []
        if found.height >= ROWS_MAX:
            notes.append(
                f"stopped at {ROWS_MAX:,} rows: this is a part of the result; narrow it with WHERE or LIMIT"
            )
        elif result.was_stopped and found.height < most:
            notes.append(
                f"a source has no end and was read for {for_s:g} s; --for says how long"
                if is_endless and clock.monotonic_s() - began_s >= (for_s or 0)
                else "stopped before the sources ended: this is a part of the result"
            )
        if result.dead_letters:
            first = result.dead_letters[0]
            notes.append(f"{len(result.dead_letters):,} records could not be read, the first: {first.reason}")
        notes += [f"step {step}: {rows:,} rows came too late" for step, rows in result.late_rows.items()]
        return (rows_there(found) if is_changelog else found), notes


def _end_of(tree: exp.Expr) -> _End:
    """Take the last clauses off a query, which a stream has not, but its answer has.

    Raises:
        Unplaced: LIMIT or OFFSET is no number.
    """
    order, limit, offset = (tree.args.get(key) for key in ("order", "limit", "offset"))
    for key in ("order", "limit", "offset"):
        tree.set(key, None)
    counts = []
    for word, node in (("LIMIT", limit), ("OFFSET", offset)):
        value = None if node is None else node.args.get("expression") or node.this
        text = str(value.this) if isinstance(value, exp.Literal) and not value.is_string else ""
        if node is not None and not text.isdigit():
            raise Unplaced(f"{word} takes a whole number", node)
        counts.append(min(int(text), sys.maxsize) if text else None)
    return _End(() if order is None else tuple(order.expressions), counts[0], counts[1] or 0)


def _ended(frame: pl.DataFrame, end: _End) -> pl.DataFrame:
    """Rows in the order that a query asks for, and those that it asks for."""
    if end.order:
        scope = Scope([Column(name, column(name, dtype)) for name, dtype in frame.schema.items()])
        keys = [f"\1order_{number}" for number in range(len(end.order))]
        ordered = frame
        for key, each in zip(keys, end.order, strict=True):
            try:
                ordered = ordered.with_columns(_order_key(each.this, frame, scope).alias(key))
            except pl.exceptions.PolarsError as error:
                told = str(error).splitlines()[0]
                raise Unplaced(f"ORDER BY cannot be computed: {told}", each.this) from error
        frame = ordered.sort(
            keys,
            descending=[bool(each.args.get("desc")) for each in end.order],
            nulls_last=[not each.args.get("nulls_first") for each in end.order],
            maintain_order=True,
        ).drop(keys)
    return frame.slice(end.offset, end.limit)


def _order_key(node: exp.Expr, frame: pl.DataFrame, scope: Scope) -> pl.Expr:
    """A part of ORDER BY: a column by its number, or an expression of columns of the result."""
    if isinstance(node, exp.Literal) and not node.is_string:
        number = int(node.this) if str(node.this).isdigit() else 0
        if not 1 <= number <= frame.width:
            raise Unplaced(f"ORDER BY {node.this}: SELECT has {frame.width} columns", node)
        return pl.col(frame.columns[number - 1])
    # A table before a name is gone in the result.
    plain = node.copy()
    for found in plain.find_all(exp.Column):
        found.set("table", None)
    try:
        return scalar(plain, scope).expr
    except Unplaced as error:
        raise Unplaced(f"{error.message}; ORDER BY takes columns of the result", error.start) from error
