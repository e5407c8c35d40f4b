"""The spec of joins of several streams over one key, as one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.rows.changes import CHANGE_COLUMN
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.base import SideOutput
from weir.specs.joins import ChangeJoinSpec, JoinSpec, check_keys
from weir.specs.words import duration_words, same_window_words

#: Each further stream multiplies the rows of the result.
INPUTS_MAX = 16


@dataclass(frozen=True)
class MultiJoinSpec(JoinSpec):
    """Rows of three streams or more with equal keys, one of each; its state are the rows of all, and nothing else.

    What ``JoinSpec`` calls left and right are the first two. With ``how`` "left" each row of the first stream is in the
    result: of a stream that has none for it the columns are null.
    """

    kind: ClassVar[str] = "join_all"
    runtime: ClassVar[str] = "weir.operators.joins.multi_join_operator:MultiJoinOperator"
    hows: ClassVar[tuple[str, ...]] = ("inner", "left")
    persisted_fields: ClassVar[tuple[str, ...]] = ("how", "span_ms", "window_ms", "offset_ms")
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
        """Return whether rows can match no more when the watermark has passed them."""
        return self.span_ms is not None or self.window_ms is not None

    @property
    def time_words(self) -> str | None:
        """The times that belong together; see :class:`OperatorSpec`."""
        if self.window_ms is not None:
            return same_window_words(self.window_ms, None)
        return None if self.span_ms is None else f"all within {duration_words(self.span_ms)}"

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return none; see :class:`OperatorSpec`."""
        return frozenset()

    @property
    def state_names(self) -> tuple[str, ...]:
        """The rows that are kept, and when they can match no more."""
        return ("rows", "_expiry") if self.is_bounded else ("rows",)

    @override
    def keys_of_input(self, index: int) -> tuple[str, ...]:
        return (self.key_columns, self.right_key_columns, *self.more_key_columns)[index]

    def columns_of_input(self, index: int) -> tuple[tuple[str, str], ...]:
        """Columns that are not keys: name in the input, name in the result."""
        return (self.left_columns, self.right_columns, *self.more_columns)[index]

    @override
    def check(self, step: str, inputs: tuple[pa.Schema, ...]) -> None:
        if len(inputs) != self.inputs_count:
            raise GraphError(f"step {step!r}: this join has {self.inputs_count} inputs, not {len(inputs)}")
        if self.how not in self.hows:
            raise GraphError(
                f"step {step!r}: how is {self.how!r}; join_all takes {' and '.join(self.hows)}: write other joins one "
                "after the other, with join"
            )
        if self.how == "left" and self.span_ms is not None:
            raise GraphError(
                f"step {step!r}: how='left' does not go with within=: where a row goes with each of two others that do "
                "not go together, the order of the joins decides which of them it gets; write left joins one after the "
                'other, with join(within=, how="left"), or give join_all a window='
            )
        numbers = [f"{number}." for number in range(1, len(inputs) + 1)]
        keys = [self.keys_of_input(index) for index in range(len(inputs))]
        check_keys(step, numbers, keys, inputs)

    @override
    def joined_fields(self, inputs: tuple[pa.Schema, ...]) -> list[pa.Field]:
        is_left = self.how == "left"
        fields = []
        for name in self.key_columns:
            found = inputs[0].field(name)
            fields.append(found.with_nullable(is_left and found.nullable))
        for index, schema in enumerate(inputs):
            may_lack = is_left and index > 0
            for name, output in self.columns_of_input(index):
                if name in schema.names:
                    found = schema.field(name)
                    fields.append(found.with_name(output).with_nullable(found.nullable or may_lack))
        return fields

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """Late rows of each input as they come in, where there can be some."""
        if not self.is_bounded:
            return ()
        return tuple(
            SideOutput(name, schema) for name, schema in zip(self.late_outputs, inputs, strict=False)
        )

    def giving(self, wanted: frozenset[str]) -> MultiJoinSpec:
        """Return the join without columns that are not wanted; see :class:`JoinSpec`."""
        first, second, *more = (
            tuple(pair for pair in self.columns_of_input(index) if pair[1] in wanted)
            for index in range(self.inputs_count)
        )
        return replace(self, left_columns=first, right_columns=second, more_columns=tuple(more))


@dataclass(frozen=True)
class ChangeMultiJoinSpec(ChangeJoinSpec, MultiJoinSpec):
    """A join of several streams without bounds whose result is updated: a left one, or one of changelogs."""

    kind: ClassVar[str] = "join_all_changes"
    hows: ClassVar[tuple[str, ...]] = MultiJoinSpec.hows


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
            if name in own_keys or name == CHANGE_COLUMN:
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
