"""What all streams of the dataflow API have: a place in the graph that is built, and how steps are added to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar

import pyarrow as pa

from weir.dataflow.missing_names import MissingNameError, methods_of, missing_name
from weir.dataflow.named_steps import named_steps
from weir.errors import GraphError
from weir.plan.checks import check_name, check_takes_changes
from weir.plan.graph import Exchange, Input, Node
from weir.rows.changes import is_changelog
from weir.rows.schemas import to_schema
from weir.specs import OperatorSpec, SideOutput

#: The stream that a step returns whose rows may be of any key: ``weir.Stream``, whose module needs this one.
StreamT = TypeVar("StreamT")
#: The stream that a step by key returns: ``weir.KeyedStream``.
KeyedT = TypeVar("KeyedT")
#: Column name -> type, or an Arrow schema; see ``weir.rows.schemas.to_schema``.
Columns: TypeAlias = Mapping[str, object] | pa.Schema


class GraphUnderConstruction(Protocol):
    """What a stream needs of ``weir.Dataflow``."""

    def new_name(self, name: str | None, kind: str) -> str:
        """The given name, or one derived from the kind."""

    def add(self, node: Node) -> Node:
        """Take in a node."""

    def stream_of(self, node: Node, exchange: Input | None = None) -> Any:
        """Return the ``weir.Stream`` of a node's rows."""

    def keyed_stream_of(self, node: Node, exchange: Input | None, key_columns: tuple[str, ...]) -> Any:
        """Return the ``weir.KeyedStream`` of a node's rows."""


class StreamFrame(Generic[StreamT]):
    """The output of a step, with the exchange that leads to the next one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        named_steps(cls)

    def __init__(self, flow: GraphUnderConstruction, node: Node, exchange: Input | None = None) -> None:
        self.flow = flow
        self.node = node
        self.input = exchange or Input(node.name)

    @property
    def schema(self) -> pa.Schema:
        """User columns."""
        return self.node.schema_of(self.input.output)

    @property
    def is_changelog(self) -> bool:
        """Return whether its rows say what is added to a table and what is taken away (``weir.rows.changes``)."""
        return is_changelog(self.schema)

    def _exchange(self, exchange: Exchange, columns: tuple[str, ...] = ()) -> Input:
        self._refuse_second_exchange(exchange.name)
        return Input(self.node.name, exchange, columns, output=self.input.output)

    def _side_outputs(
        self, name: str | None, declared: Mapping[str, Columns | None] | None
    ) -> tuple[SideOutput, ...]:
        found = []
        for output, schema in (declared or {}).items():
            check_name(f"step {name!r}: side output", output)
            found.append(SideOutput(output, self._schema(name, schema)))
        return tuple(found)

    def _refuse_second_exchange(self, what: str) -> None:
        if self.input != Input(self.node.name, output=self.input.output):
            raise GraphError(
                f"step {self.node.name!r}: {what} follows another exchange with no step between; "
                "drop one of the two"
            )

    def _schema(self, name: str | None, schema: Columns | None) -> pa.Schema:
        try:
            return self.schema if schema is None else to_schema(schema)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error

    def _like(self, node: Node, exchange: Input | None = None) -> Self:
        return type(self)(self.flow, node, exchange)

    def _same_kind(self, name: str | None, spec: OperatorSpec, parallelism: int | None) -> Self:
        """Add a step that leaves rows where they are, so that a keyed stream stays one."""
        return self._like(self._node(name, spec, parallelism))

    def added_step(self, name: str | None, spec: OperatorSpec, parallelism: int | None = None) -> StreamT:
        """Add a step; for modules that make one of several."""
        return self._step(name, spec, parallelism)

    def _step(
        self,
        name: str | None,
        spec: OperatorSpec,
        parallelism: int | None,
        others: tuple[StreamFrame[Any], ...] = (),
    ) -> StreamT:
        made: StreamT = self.flow.stream_of(self._node(name, spec, parallelism, others))
        return made

    def _node(
        self,
        name: str | None,
        spec: OperatorSpec,
        parallelism: int | None,
        others: tuple[StreamFrame[Any], ...] = (),
    ) -> Node:
        name = self.flow.new_name(name, spec.kind)
        streams = (self, *others)
        schemas = tuple(stream.schema for stream in streams)
        check_takes_changes(name, spec, schemas)
        schema = spec.output_schema(name, schemas)
        sides = spec.sides(name, schemas)
        inputs = tuple(stream.input for stream in streams)
        wanted = self.node.parallelism if parallelism is None else parallelism
        return self.flow.add(Node(name, spec, inputs, wanted, schema, sides))


class InWindows:
    """Base of streams in windows: says what makes rows of them where a method of a stream is called."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        named_steps(cls)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for what is not there.

            Raises:
                AttributeError: always; of what other engines, or streams, have, with what to write.
            """
            stream = self.__dict__.get("_stream")
            if name.startswith("_") or stream is None:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            whose = f"window after step {stream.node.name!r}: "
            if name in _OF_WINDOWS or name in NEEDS_KEY or hasattr(type(stream), name):
                raise MissingNameError(
                    f"{whose}{name} is not of windows but of streams; first make one row of each window: "
                    '.window(...).aggregate("name", n=weir.count(), total=weir.sum("x"))'
                )
            raise missing_name(f"{whose}it", name, methods_of(type(self)))


#: Methods of keyed streams alone.
NEEDS_KEY = frozenset(
    {
        "aggregate",
        "connect_broadcast",
        "count",
        "count_window",
        "deduplicate",
        "join",
        "join_all",
        "join_as_of",
        "process",
        "top",
        "triggered_window",
        "window",
    }
)
#: Called on windows in other engines.
_OF_WINDOWS = frozenset({"sum", "min", "max", "mean", "reduce", "fold", "apply", "trigger", "agg"})


@contextmanager
def after_step(what: str, step: str) -> Iterator[None]:
    """What is wrong with ``window`` and the like, which have no names, is told as of what comes after a step.

    Raises:
        GraphError: with ``what`` and the step, in place of one that names the step.
    """
    try:
        yield
    except GraphError as error:
        if not str(error).startswith(f"step {step!r}: "):
            raise
        raise GraphError(f"{what} after {error}") from None


def checked_callable(step: str | None, function: Any) -> Any:
    """The function, if it is one.

    Raises:
        GraphError: it cannot be called.
    """
    if not callable(function):
        raise GraphError(f"step {step!r}: expected a function or a class, got {type_name(function)}")
    return function


def checked_arguments(step: str | None, function: Any, arguments: str) -> Any:
    """The function, if it is one that can be called with these arguments, such as ``window, rows``.

    Raises:
        GraphError: it cannot.
    """
    try:
        inspect.signature(checked_callable(step, function)).bind(*arguments.split(", "))
    except TypeError as error:
        name = getattr(function, "__qualname__", type_name(function))
        raise GraphError(
            f"step {step!r}: {name} is called as function({arguments}), and takes other arguments: {error}"
        ) from error
    except ValueError:
        # What is not written in Python may not say what it takes.
        pass
    return function


def type_name(value: object) -> str:
    """The name of a value's class, for messages."""
    return type(value).__name__


class KeyedFrame(StreamFrame[StreamT], Generic[StreamT, KeyedT]):
    """A stream whose rows of one key are all on one subtask."""

    def __init__(
        self,
        flow: GraphUnderConstruction,
        node: Node,
        exchange: Input | None = None,
        key_columns: tuple[str, ...] = (),
    ) -> None:
        super().__init__(flow, node, exchange)
        self.key_columns = key_columns

    def partitioned(self) -> Self:
        """Return this stream, whose rows go to the next step by HASH."""
        if self.input.exchange is Exchange.HASH:
            return self
        return self._like(self.node, self._exchange(Exchange.HASH, self.key_columns))

    def keyed_step(
        self,
        name: str | None,
        spec: OperatorSpec,
        parallelism: int | None,
        others: tuple[StreamFrame[Any], ...] = (),
    ) -> KeyedT:
        """Add a step whose result keeps the key columns, perhaps not the others."""
        node = self._node(name, spec, parallelism, others)
        made: KeyedT = self.flow.keyed_stream_of(node, None, self.key_columns)
        return made

    def _like(self, node: Node, exchange: Input | None = None) -> Self:
        return type(self)(self.flow, node, exchange, self.key_columns)

    def _same_kind(self, name: str | None, spec: OperatorSpec, parallelism: int | None) -> Self:
        written = spec.written_columns(str(name), self.schema)
        replaced = [column for column in self.key_columns if column in written]
        if replaced:
            raise GraphError(f"step {name!r}: it replaces key column {replaced[0]!r}; do that before key_by")
        made = super()._same_kind(name, spec, parallelism)
        absent = [column for column in self.key_columns if column not in made.schema.names]
        if absent:
            raise GraphError(f"step {name!r}: it leaves out key column {absent[0]!r}; do that before key_by")
        return made
