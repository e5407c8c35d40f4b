"""What all keyed streams of the dataflow API have: the key, which no step may change."""

from __future__ import annotations

from typing import Any, Generic, Self

from weir.dataflow.frame import GraphUnderConstruction, KeyedT, StreamFrame, StreamT
from weir.errors import GraphError
from weir.plan.graph import Exchange, Input, Node
from weir.specs import OperatorSpec


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
