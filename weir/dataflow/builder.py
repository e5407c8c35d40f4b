"""The dataflow API: writing a job down. Nothing runs here; :meth:`Dataflow.build` gives the logical graph.

    flow = weir.Dataflow("server_count")
    events = flow.source("events", weir.JsonLines("data/events", schema={"id": int, "server_name": str}))
    counts = events.filter("keep", pl.col("id") % 4 != 0).key_by("server_name").count("count", output="n")
    counts.sink("out", weir.Print())
    graph = flow.build()

Every step has a name: the given one, or, for None, its kind and number ("filter_1"). State, metrics and
messages go by that name, so give one to every step with state. A mistake raises :class:`weir.GraphError`,
with the step's name, in the line that makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import polars as pl

from weir.author.watermarks import WatermarkStrategy, checked_strategy
from weir.dataflow.connectors import AnySource
from weir.dataflow.frame import type_name
from weir.dataflow.lookup_tables import CassandraTable, FileTable
from weir.dataflow.missing_names import MissingNameError, methods_of, missing_name
from weir.dataflow.named_steps import named_steps
from weir.dataflow.streams import KeyedStream, Stream
from weir.dataflow.traceback import calling_line
from weir.errors import GraphError
from weir.plan.checks import (
    check_max_parallelism,
    check_name,
    check_parallelism,
    checked_graph,
)
from weir.plan.graph import Input, LogicalGraph, Node
from weir.plan.step_names import RenamedStep, renamed_step
from weir.specs import SourceSpec

_SOURCE = 'flow.source("name", weir.JsonLines("input.jsonl", schema={"x": int}))'
_RUNS = frozenset({"run", "execute", "start", "submit", "collect", "awaitTermination"})


@named_steps
class Dataflow:
    """A job under construction; ``max_parallelism`` is its number of key groups and must never change."""

    def __init__(self, name: str, *, max_parallelism: int = 128) -> None:
        check_name("job", name)
        check_max_parallelism(name, max_parallelism)
        self.name = name
        self.max_parallelism = max_parallelism
        self._nodes: dict[str, Node] = {}
        self._kinds: dict[str, int] = {}
        #: Queries that have no name of their own.
        self._queries = 0
        #: What steps were called before, by name.
        self._renamed: dict[str, str] = {}
        #: Where each step was written; see :meth:`line_of`.
        self._lines: dict[str, str] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is meant where a dataflow is called as a stream, or as that of another engine, is.

            Raises:
                AttributeError: always.
            """
            if name.startswith("_"):
                raise AttributeError(f"'Dataflow' object has no attribute {name!r}", name=name, obj=self)
            if hasattr(Stream, name):
                raise MissingNameError(f"a dataflow has no {name!r}, its streams have: {_SOURCE}.{name}(...)")
            if name in _RUNS:
                raise MissingNameError(f"a dataflow has no {name!r}; did you mean weir.run(flow)?")
            if name.lower().startswith(("read", "from", "input", "add", "scan")):
                raise MissingNameError(f"a dataflow has no {name!r}; did you mean {_SOURCE}?")
            raise missing_name("a dataflow", name, methods_of(type(self)))

    def source(
        self,
        name: str | None,
        source: AnySource | SourceSpec,
        *,
        parallelism: int = 1,
        event_time: str | pl.Expr | None = None,
        watermark: WatermarkStrategy | None = None,
        renamed_from: str | None = None,
    ) -> Stream:
        """Read records from outside.

        Args:
            name: the step's name.
            source: what to read.
            parallelism: subtasks.
            event_time: integer column with the event time in ms since 1970, or a Polars expression that gives it; None:
                the source's own ``event_time``. A row whose event time is null, or too far ahead of the clock, is a bad
                record.
            watermark: how far event time has come, such as ``weir.bounded_out_of_orderness("2s")``; None: it follows
                the highest event time at ``out_of_order_grace_period`` of config.json.
            renamed_from: what the step was called in the checkpoint that the job starts from: its state goes on.

        Raises:
            GraphError: a setting of the source is wrong.
        """
        name = renamed_step(name, renamed_from)
        if not isinstance(source, AnySource | SourceSpec):
            raise GraphError(
                f"step {name!r}: expected a source such as weir.JsonLines(...), got {type_name(source)}; "
                "give the class of a source of your own to weir.UserSource(...)"
            )
        try:
            spec = source.to_spec() if isinstance(source, AnySource) else source
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error
        spec = _timed(name, spec, event_time, watermark)
        name = self.new_name(name, "source")
        spec.check(name)
        return Stream(self, self.add(Node(name, spec, (), parallelism, spec.schema)))

    def sql(
        self, query: str, /, *, step: str | None = None, **streams: Stream | FileTable | CassandraTable
    ) -> Stream:
        """The stream of a query among streams: ``flow.sql("SELECT id FROM orders WHERE price > 5", orders=orders)``.

        Streams that are changelogs are tables, and so are results that change (docs/sql.md).

        Args:
            query: SELECT.
            step: what the names of the steps begin with, to which their state belongs; None: ``sql``, ``sql_2`` and so
                on, in the order of the calls.
            streams: what the query calls them; and tables that their rows look up.

        Raises:
            GraphError: something in the query is wrong; one line, with line and column.
        """
        if not isinstance(query, str):
            raise GraphError(f"sql: the query is a text, such as 'SELECT ...', and not {query!r}")
        for name, stream in streams.items():
            if isinstance(stream, FileTable | CassandraTable):
                continue
            if not isinstance(stream, Stream) or stream.flow is not self:
                raise GraphError(f"sql: {name} is no stream of this Dataflow")
        if step is None:
            self._queries += 1
            step = "sql" if self._queries == 1 else f"sql_{self._queries}"
        check_name("step", step)
        # SQL stands on this API, so that this file cannot import it.
        made: Stream = import_module("weir.sql.program").stream_of(self, query, step, streams)
        return made

    def build(self) -> LogicalGraph:
        """The validated graph.

        Raises:
            GraphError: no source, or a branch that does not end in a sink.
        """
        with self._telling_lines():
            graph = checked_graph(self.name, list(self._nodes.values()), self.max_parallelism)
        return replace(graph, renamed=self._renamed)

    def build_local(self, last: str | None = None) -> LogicalGraph:
        """The validated graph for a run in this process, where branches need not end in a sink.

        Called by ``weir.run`` and ``weir.testing``.

        Args:
            last: only this step and what leads to it; None: all steps.

        Raises:
            GraphError: no source.
        """
        wanted = set(self._nodes) if last is None else self._leading_to(last)
        nodes = [node for node in self._nodes.values() if node.name in wanted]
        with self._telling_lines():
            graph = checked_graph(self.name, nodes, self.max_parallelism, open_ends=True)
        return replace(graph, renamed={now: then for now, then in self._renamed.items() if now in wanted})

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The steps so far, in the order in which they were written; called by what reads what was built."""
        return tuple(self._nodes.values())

    def node_of(self, step: str) -> Node:
        """The step of this name; called by what reads what was built."""
        return self._nodes[step]

    def line_of(self, step: str) -> str:
        """`` (FILE, line N)`` of the job's code that made a step; empty if that is not known."""
        return self._lines.get(step, "")

    @contextmanager
    def _telling_lines(self) -> Iterator[None]:
        """What is wrong with a step shows only in the whole graph: no line of the job's own code raises it."""
        try:
            yield
        except GraphError as error:
            if line := self.line_of(error.step):
                raise GraphError(f"{error}{line}") from error
            raise

    def _leading_to(self, last: str) -> set[str]:
        found: set[str] = set()
        waiting = [last]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [item.producer for item in self._nodes[name].inputs]
        return found

    def new_name(self, name: str | None, kind: str) -> str:
        """The given name, or the kind and its number in this job; called by streams.

        Raises:
            GraphError: the name is taken or has characters that are not allowed.
        """
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if name is None:
            name = f"{kind}_{self._kinds[kind]}"
        check_name("step", name)
        if isinstance(name, RenamedStep):
            check_name(f"step {str(name)!r}: renamed_from", name.renamed_from)
            self._renamed[str(name)] = name.renamed_from
            name = str(name)
        if name in self._nodes:
            raise GraphError(f"step {name!r}: two steps have this name; names must be unique in a job")
        return name

    def stream_of(self, node: Node, exchange: Input | None = None) -> Stream:
        """Return the stream of a node's rows; called by streams."""
        return Stream(self, node, exchange)

    def keyed_stream_of(
        self, node: Node, exchange: Input | None, key_columns: tuple[str, ...]
    ) -> KeyedStream:
        """Return the stream of a node's rows by key; called by streams."""
        return KeyedStream(self, node, exchange, key_columns)

    def add(self, node: Node) -> Node:
        """Take in a node whose name came from :meth:`new_name`; called by streams."""
        check_parallelism(node.name, node.parallelism)
        self._nodes[node.name] = node
        self._lines[node.name] = calling_line()
        return node


def _timed(name: str | None, spec: SourceSpec, event_time: object, watermark: object) -> SourceSpec:
    """The same source with this event time and this watermark, as far as they are given."""
    try:
        strategy = checked_strategy(watermark)
    except GraphError as error:
        raise GraphError(f"step {name!r}: {error}") from error
    if strategy is not None:
        spec = replace(spec, watermark=strategy)
    if event_time is not None and spec.event_time_column is not None:
        raise GraphError(
            f"step {name!r}: event_time is given to the source, {spec.event_time_column!r}, and beside it; give one of "
            "them"
        )
    if isinstance(event_time, pl.Expr):
        return replace(spec, event_time_column=None, event_time_expression=event_time)
    if event_time is None:
        return spec
    if not isinstance(event_time, str):
        raise GraphError(
            f"step {name!r}: event_time is {event_time!r}; give the name of a column or a Polars expression"
        )
    return replace(spec, event_time_column=event_time, event_time_expression=None)
