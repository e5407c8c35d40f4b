"""The spec of joins of several streams over one key, as one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from weir.errors import GraphError
from weir.records import SYSTEM_COLUMNS
from weir.specs.base import SideOutput
from weir.specs.joins import JoinSpec, check_keys

#: Each further stream multiplies the rows of the result.
INPUTS_MAX = 16


@dataclass(frozen=True)
class MultiJoinSpec(JoinSpec):
    """Rows of three streams or more with equal keys, one of each; its state are the rows of all, and nothing else.

    What ``JoinSpec`` calls left and right are the first two.
    """

    kind: ClassVar[str] = "join_all"
    runtime: ClassVar[str] = "weir.operators.joins.multi_join_operator:MultiJoinOperator"
    persisted_fields: ClassVar[tuple[str, ...]] = ("span_ms", "window_ms", "offset_ms")
    late_outputs: ClassVar[tuple[str, ...]] = tuple(f"late_{number}" for number in range(1, INPUTS_MAX + 1))
    #: Of the third stream and those after it.
    more_key_columns: tuple[tuple[str, ...], ...]
    more_columns: tuple[tuple[tuple[str, str], ...], ...]
    #: The earliest and the latest event time of a combination are no farther apart; None: they may be.
    span_ms: int | None = None
    #: All are in the same tumbling window of this length; None: they need not be.
    window_ms: int | None = None
    offset_ms: int = 0

    @property
    def inputs_count(self) -> int:
        """How many streams are joined."""
        return 2 + len(self.more_key_columns)

    @property
    def is_bounded(self) -> bool:
        """Whether rows can match no more when the watermark has passed them."""
        return self.span_ms is not None or self.window_ms is not None

    @property
    def state_names(self) -> tuple[str, ...]:
        """The rows that are kept, and when they can match no more."""
        return ("rows", "_expiry") if self.is_bounded else ("rows",)

    def keys_of_input(self, index: int) -> tuple[str, ...]:
        """See :class:`KeyedSpec`."""
        return (self.key_columns, self.right_key_columns, *self.more_key_columns)[index]

    def columns_of_input(self, index: int) -> tuple[tuple[str, str], ...]:
        """Columns that are not keys: name in the input, name in the result."""
        return (self.left_columns, self.right_columns, *self.more_columns)[index]

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Key columns, then the columns of each input; without those that inputs lack."""
        if len(inputs) != self.inputs_count:
            raise GraphError(f"step {step!r}: this join has {self.inputs_count} inputs, not {len(inputs)}")
        numbers = [f"{number}." for number in range(1, len(inputs) + 1)]
        keys = [self.keys_of_input(index) for index in range(len(inputs))]
        check_keys(step, numbers, keys, inputs)
        fields = [inputs[0].field(name).with_nullable(False) for name in self.key_columns]
        for index, schema in enumerate(inputs):
            for name, output in self.columns_of_input(index):
                if name in schema.names:
                    fields.append(schema.field(name).with_name(output))
        return pa.schema(fields)

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """Late rows of each input as they come in, where there can be some."""
        if not self.is_bounded:
            return ()
        return tuple(
            SideOutput(name, schema) for name, schema in zip(self.late_outputs, inputs, strict=False)
        )

    def giving(self, wanted: frozenset[str]) -> MultiJoinSpec:
        """Without columns that are not wanted; see :class:`JoinSpec`."""
        first, second, *more = (
            tuple(pair for pair in self.columns_of_input(index) if pair[1] in wanted)
            for index in range(self.inputs_count)
        )
        return replace(self, left_columns=first, right_columns=second, more_columns=tuple(more))


def columns_of_all(
    step: str, schemas: Sequence[pa.Schema], keys: Sequence[tuple[str, ...]], suffixes: Sequence[str]
) -> list[tuple[tuple[str, str], ...]]:
    """What the columns of each stream that are not keys are called in the result.

    Args:
        step: for messages.
        schemas: of the streams.
        keys: their key columns.
        suffixes: for each stream but the first: what is added to a name that is there already.

    Raises:
        GraphError: a name is there twice all the same.
    """
    taken = {*keys[0]}
    found = []
    for number, (schema, own_keys, suffix) in enumerate(
        zip(schemas, keys, ("", *suffixes), strict=True), start=1
    ):
        columns = []
        for name in schema.names:
            if name in own_keys:
                continue
            output = name + suffix if name in taken else name
            if output in taken or output in SYSTEM_COLUMNS:
                raise GraphError(
                    f"step {step!r}: column {name!r} of stream {number} would be called {output!r}, which is there "
                    "already; give other suffixes, or rename or drop one of them before the join"
                )
            taken.add(output)
            columns.append((name, output))
        found.append(tuple(columns))
    return found
