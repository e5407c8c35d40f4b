"""A whole text: sources, tables, views and sinks, as a dataflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace

import polars as pl
from sqlglot import exp

from weir.dataflow.builder import Dataflow
from weir.dataflow.lookup_tables import CassandraTable, FileTable
from weir.dataflow.streams import Stream
from weir.errors import GraphError
from weir.plan.graph import Node
from weir.specs import AssignEventTimeSpec, SourceSpec
from weir.spelling import did_you_mean
from weir.sql.connectors import DRIFT, sink_of, source_of, table_of
from weir.sql.context import Context, PythonFunction
from weir.sql.errors import Place, Unplaced, at
from weir.sql.lookup_tables import LookupTable
from weir.sql.names import StepNames
from weir.sql.python_functions import python_function
from weir.sql.queries import compiled, solid_result
from weir.sql.relations import Relation, columns_read, polars_types, relation_of
from weir.sql.statements import Statement, statement_of
from weir.sql.text import first_words, parse_query, statements_of, tokens_of
from weir.sql.watermarks import event_time_of


@dataclass
class Program:
    """Statements by name, and what became of them.

    Attributes:
        flow: gets the steps.
        parallelism: of sources that do not say theirs.
        functions: of CREATE FUNCTION, by name in lower case.
        other: finds a table that no statement declares; None: there are no others.
    """

    flow: Dataflow
    parallelism: int = 1
    functions: dict[str, PythonFunction] = field(default_factory=dict)
    other: Callable[[exp.Table], Relation | None] | None = None
    statements: dict[str, Statement] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)
    tables: dict[str, LookupTable] = field(default_factory=dict)
    order: list[Statement] = field(default_factory=list)

    def add(self, statement: Statement) -> None:
        """Take in a statement.

        Raises:
            Unplaced: its name is taken, or INSERT names no sink.
        """
        name = statement.name.lower()
        if statement.kind == "INSERT":
            self._insert(statement, name)
            return
        if statement.kind == "FUNCTION":
            if name in self.functions:
                raise Unplaced(f"function {statement.name!r} is there twice", statement.start)
            self.functions[name] = python_function(
                statement.name, statement.target, statement.returns, statement.start, statement.target_start
            )
            return
        if name in self.statements:
            raise Unplaced(f"{statement.name!r} is there twice", statement.start)
        self.statements[name] = statement
        self.order.append(statement)

    def _insert(self, statement: Statement, name: str) -> None:
        sink = self.statements.get(name)
        sinks = [each.name for each in self.order if each.kind == "SINK"]
        if sink is None or sink.kind != "SINK":
            raise Unplaced(
                f"there is no sink {statement.name!r}{did_you_mean(statement.name, sinks)}", statement.start
            )
        if sink.query is not None:
            raise Unplaced(
                f"sink {sink.name!r} has a query already; write both as one, with UNION ALL", statement.start
            )
        sink.query, sink.emit = statement.query, statement.emit
        # What it reads may be declared between the two.
        self.order.remove(sink)
        self.order.append(sink)

    def build(self, place: Place, *, only_sinks: bool) -> None:
        """Make the steps of all sinks, and of what they read.

        Args:
            place: of the text.
            only_sinks: leave out views that no sink reads.

        Raises:
            SqlError: something is wrong; with its place.
        """
        if not any(each.kind == "SINK" for each in self.order):
            raise place.error(
                "the text has no sink; write CREATE SINK name WITH (connector = 'print') AS SELECT ...", 0
            )
        for statement in self.order:
            with place.telling(statement.start):
                if statement.kind == "SINK":
                    self._sink(statement)
                elif not only_sinks:
                    self.check(statement)

    def unread(self) -> list[str]:
        """Sources, tables and views that no sink reads."""
        read = {*self.relations, *self.tables}
        return [each.name for each in self.order if each.kind != "SINK" and each.name.lower() not in read]

    def check(self, statement: Statement) -> None:
        """Refuse a source, a table or a view that is wrong.

        Raises:
            Unplaced: something in it is.
        """
        if statement.kind == "TABLE":
            self._table(statement)
        else:
            self.relation(statement)

    def _table(self, statement: Statement) -> LookupTable:
        name = statement.name.lower()
        if name not in self.tables:
            self.tables[name] = LookupTable(statement.name, *table_of(statement))
        return self.tables[name]

    def _sink(self, statement: Statement) -> None:
        if statement.query is None:
            raise Unplaced(
                f"sink {statement.name!r} has no query; write AS SELECT ..., or INSERT INTO", statement.start
            )
        relation = self._compiled(statement)
        step = f"{statement.name}.result"
        stream = solid_result(relation, step, statement.query)
        sink, parallelism = sink_of(statement)
        with at(statement.start):
            if parallelism is not None and parallelism != stream.node.parallelism:
                stream = stream.rebalance()
            stream.sink(statement.name, sink, parallelism=parallelism)

    def relation(self, statement: Statement) -> Relation:
        """What a source or a view brings; its steps are made once.

        Raises:
            Unplaced: something is wrong.
        """
        name = statement.name.lower()
        if name not in self.relations:
            if statement.kind == "SOURCE":
                self.relations[name] = self._source(statement)
            else:
                self.relations[name] = self._compiled(statement)
                self._keep(statement, self.relations[name])
        return self.relations[name]

    def _keep(self, view: Statement, relation: Relation) -> None:
        """Let the state of a view be of its own text: of all its columns and rows, also of those that nobody reads yet.

        Else a statement that comes to read them would find nothing of the time before.
        """
        nodes = [node for node in self.flow.nodes if node.name.startswith(f"{view.name}.")]
        if any(node.states for node in nodes):
            last = self.flow.node_of(relation.stream.node.name)
            self.flow.add(replace(last, kept_columns=columns_read(relation)))

    def _compiled(self, statement: Statement) -> Relation:
        assert statement.query is not None
        before = self.order.index(statement)

        def find(node: exp.Table) -> Relation:
            known = {each.name.lower(): each for each in self.order[:before] if each.kind != "SINK"}
            found = known.get(node.name.lower())
            if found is None:
                other = self.other(node) if self.other is not None else None
                if other is not None:
                    return other
                later = self.statements.get(node.name.lower())
                if later is not None and later.name == statement.name:
                    raise Unplaced(f"{node.name!r} reads itself; a stream has no fixed point", node)
                if later is not None and later.kind != "SINK":
                    raise Unplaced(f"{node.name!r} is declared below; put it before {statement.name!r}", node)
                names = [*(each.name for each in known.values())]
                raise Unplaced(
                    f"there is no source or view {node.name!r}{did_you_mean(node.name, names)}", node
                )
            if found.kind == "TABLE":
                raise Unplaced(self._table(found).refusal, node)
            return self.relation(found)

        def table(node: exp.Table) -> LookupTable | None:
            found = self.statements.get(node.name.lower())
            if found is None or found.kind != "TABLE" or self.order.index(found) > before:
                return None
            return self._table(found)

        context = Context(
            find,
            StepNames(statement.name),
            compiled,
            emit=statement.emit,
            functions=self.functions,
            table=table,
        )
        return compiled(statement.query, context)

    def _source(self, statement: Statement) -> Relation:
        source, parallelism = source_of(statement)
        if not any(each.name == "parallelism" for each in statement.options):
            parallelism = self.parallelism
        with at(statement.start):
            spec = source if isinstance(source, SourceSpec) else source.to_spec()
            types = polars_types(spec.schema)
            times: list[str] = []
            event_time, strategy = None, None
            drift = next((each for each in statement.options if each.name == DRIFT), None)
            if drift is not None and statement.watermark is None:
                raise Unplaced(f"{DRIFT} needs WATERMARK FOR among the columns", drift.start)
            if statement.watermark is not None:
                name, time, strategy = event_time_of(statement.watermark, types, drift)
                times = [name]
                event_time = None if spec.event_time_column == name else time
            elif spec.event_time_column is not None:
                times = [spec.event_time_column]
            made = self.flow.source(
                statement.name, spec, parallelism=parallelism, event_time=event_time, watermark=strategy
            )
        return relation_of(made, times)


def build_program(file: str, text: str, name: str, parallelism: int = 1) -> Dataflow:
    """The dataflow of a text.

    Args:
        file: what the text is called in messages.
        text: the statements.
        name: of the job.
        parallelism: of sources that do not say theirs.

    Raises:
        SqlError: something is wrong; one line with file, line and column.
    """
    place = Place(file, text)
    statements = []
    for tokens in statements_of(tokens_of(place, text)):
        with place.telling(tokens[0].start):
            statements.append(statement_of(tokens, text))
    program = _built(place, statements, Dataflow(name), parallelism, only_sinks=True)
    if program.unread():
        # Nothing runs of what no sink reads, but it has to be right.
        _built(place, statements, Dataflow(name), parallelism, only_sinks=False)
    try:
        program.flow.build()
    except GraphError as error:
        # What shows in the whole graph alone is told at the statement that has made the step.
        made = program.statements.get(str(error.step).partition(".")[0].lower())
        raise place.error(str(error), 0 if made is None else made.start) from error
    return program.flow


def _built(
    place: Place, statements: list[Statement], flow: Dataflow, parallelism: int, *, only_sinks: bool
) -> Program:
    """The steps of the statements."""
    program = Program(flow, parallelism)
    for each in statements:
        with place.telling(each.start):
            program.add(copy(each))
    program.build(place, only_sinks=only_sinks)
    return program


def stream_of(
    flow: Dataflow, text: str, step: str, streams: dict[str, Stream | FileTable | CassandraTable]
) -> Stream:
    """The stream of a query among streams, which may look up tables; see ``weir.Dataflow.sql``.

    Raises:
        SqlError: something is wrong.
    """
    place = Place("SQL", text)
    statements = statements_of(tokens_of(place, text))
    if len(statements) != 1:
        raise place.error("give one query, SELECT ...", 0)
    known = {
        name.lower(): relation_of(each, times_of(flow, each))
        for name, each in streams.items()
        if isinstance(each, Stream)
    }
    tables = {
        name.lower(): LookupTable(name, each)
        for name, each in streams.items()
        if not isinstance(each, Stream)
    }

    def find(node: exp.Table) -> Relation:
        found = known.get(node.name.lower())
        if node.name.lower() in tables:
            raise Unplaced(tables[node.name.lower()].refusal, node)
        if found is None:
            near = did_you_mean(node.name, streams)
            raise Unplaced(f"there is no stream {node.name!r}{near}; give it as {node.name}=stream", node)
        return found

    with place.telling(0):
        if statements[0][0].text.upper() not in ("SELECT", "WITH", "("):
            raise Unplaced(f"expected SELECT, not {first_words(statements[0])}", 0)
        query = parse_query(statements[0], text)
        context = Context(find, StepNames(step), compiled, table=lambda node: tables.get(node.name.lower()))
        relation = compiled(query, context)
        return solid_result(relation, f"{step}.result", query)


def times_of(flow: Dataflow, stream: Stream) -> list[str]:
    """Columns of a stream that are its event time, as far as its steps by row say."""
    node, names = stream.node, set(stream.schema.names)
    while True:
        spec = node.spec
        if isinstance(spec, SourceSpec):
            time = spec.event_time_column
            if spec.event_time_expression is not None:
                return _columns_of(spec.event_time_expression, names)
            return [time] if time is not None and time in names else []
        if isinstance(spec, AssignEventTimeSpec):
            return _columns_of(spec.event_time, names)
        if len(node.inputs) != 1 or not spec.is_by_row:
            return []
        before: Node = flow.node_of(node.inputs[0].producer)
        names -= set(spec.written_columns(node.name, before.schema))
        node = before


def _columns_of(time: pl.Expr, names: Iterable[str]) -> list[str]:
    """The columns that an event time is: whole ms, or a timestamp, as of which it is ``dt.epoch("ms")``."""
    forms = {name: (pl.col(name), pl.col(name).dt.epoch("ms")) for name in names}
    return [name for name, listed in forms.items() if any(time.meta.eq(form) for form in listed)]
