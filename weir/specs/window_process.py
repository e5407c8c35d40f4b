"""The spec of windows whose rows an author's code gets: all at once, or for accumulators of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.protocol.checkpoints.aggregate_layout import KEPT_ROWS, Layout
from weir.rows.changes import CHANGE_COLUMN
from weir.specs.arrow_form import arrow_form
from weir.specs.base import OperatorSpec
from weir.specs.changelog_aggregates import check_retractable
from weir.specs.window_kinds import Window
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WINDOW_BOUNDS, WINDOW_PART, WindowAggregate, WindowAggregateSpec, window_schema
from weir.state.types import describe, value_type

ProcessForm = Literal["rows", "aggregator"]


_NO_COLUMNS = pa.schema([])


def _nothing() -> None:
    """What stands for an author's code where there is none."""


@dataclass(frozen=True)
class WindowProcessSpec(WindowAggregateSpec):
    """Windows that keep rows, or accumulators of the author; ``aggregates`` is the number of rows."""

    kind: ClassVar[str] = "window_process"
    runtime: ClassVar[str] = "weir.operators.windows.rows.process_windows:make_process_operator"
    asked_by: ClassVar[str] = "weir.operators.queries.formats:kept_format"
    is_by_key: ClassVar[bool] = False
    factory_kind: ClassVar[str] = "a weir.Aggregator class, or a function of key, window and rows"
    factory: Callable[..., Any] = _nothing
    #: Columns that the author's code gives.
    schema: pa.Schema = _NO_COLUMNS
    form: ProcessForm = "rows"

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return ("", self.form, *self.late_states)

    @override
    def stored_layout(self, given: pa.Schema) -> Layout:
        return ()

    @property
    def asked_names(self) -> tuple[str, ...]:
        """What is kept, and the aggregates; see :class:`OperatorSpec`."""
        return tuple(dict.fromkeys([self.form, *super().asked_names]))

    @property
    def kept_form(self) -> str:
        """What is kept of rows, as text; part of snapshots."""
        if self.form == "rows":
            return "rows"
        return f"accumulators of {describe(value_type(self.factory().accumulator).form)}"

    @property
    def kept_schema(self) -> pa.Schema:
        """Columns of rows that are kept: of windows over all rows without what the step before adds to them."""
        return self.input_schema if self.late_schema is None else self.late_schema

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Key columns, start and end of the window, and what the author's code gives; see :class:`OperatorSpec`."""
        bounded = window_schema(step, self.shown_keys, self.aggregates, inputs[0])
        first = [bounded.field(name) for name in (*self.shown_keys, *WINDOW_BOUNDS)]
        taken = [field.name for field in first if field.name in self.schema.names]
        if taken:
            raise GraphError(
                f"step {step!r}: every result has column {taken[0]!r}; leave it out of the schema and the result"
            )
        return pa.schema([*first, *self.schema])

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return all columns: the author's code gets the rows; see :class:`OperatorSpec`."""
        return frozenset(schema.names) - ({WINDOW_PART} if self.is_keyless else set())


@dataclass(frozen=True)
class KeptTextsSpec(WindowProcessSpec):
    """Aggregates of texts that go on with state of before, which has rows; ``factory`` computes them."""

    @override
    def stored_layout(self, given: pa.Schema) -> Layout:
        return (KEPT_ROWS,)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What the aggregates read; see :class:`OperatorSpec`."""
        return frozenset(self.input_schema.names)


def with_kept_rows(step: str, spec: OperatorSpec) -> KeptTextsSpec:
    """The same aggregates as they were computed before: of all rows of a window."""
    assert isinstance(spec, WindowAggregateSpec), "a layout of kept rows is of windows only"
    assert spec.of_rows is not None, "it has aggregates of texts"
    schema = window_schema(step, spec.key_columns, spec.aggregates, spec.input_schema, takes_texts=True)
    columns = pa.schema([schema.field(each.output) for each in spec.aggregates])
    return KeptTextsSpec(
        spec.key_columns,
        spec.window,
        (WindowAggregate("rows", "count"),),
        spec.input_schema,
        spec.updates,
        factory=spec.of_rows(spec.aggregates, columns),
        schema=columns,
        form="rows",
    )


@dataclass(frozen=True)
class ChangelogWindowSpec(WindowProcessSpec):
    """Aggregates of the rows of a changelog that are there when a window is complete; ``factory`` computes them."""

    kind: ClassVar[str] = "changelog_window"
    runtime: ClassVar[str] = "weir.operators.windows.panes.changelog_windows:ChangelogWindowOperator"
    takes_changes: ClassVar[bool] = True

    @property
    def kept_form(self) -> str:
        """Columns of the changes, which are kept together; see :class:`WindowProcessSpec`."""
        return f"changes of {', '.join(f'{field.name}: {arrow_form(field.type)}' for field in self.input_schema)}"


def check_takes_back(
    step: str,
    window: Window,
    updates: WindowUpdates,
    aggregates: tuple[WindowAggregate, ...],
    *,
    pre_aggregate: bool,
) -> None:
    """Check that rows can be taken back from these windows over a changelog.

    Raises:
        GraphError: they cannot.
    """
    check_retractable(step, aggregates)
    if window.kind in ("session", "global") or window.time == "processing":
        what = "windows by the clock" if window.time == "processing" else f"a {window.kind} window"
        raise GraphError(
            f"step {step!r}: its input is a changelog (it has column {CHANGE_COLUMN!r}), and {what} cannot take rows "
            "back; tumbling, sliding and cumulative windows of event time can"
        )
    if updates != WindowUpdates() or pre_aggregate:
        raise GraphError(
            f"step {step!r}: its input is a changelog (it has column {CHANGE_COLUMN!r}), of which a window is told "
            "once, when it is complete; leave out early, allowed_lateness, results and pre_aggregate, and let the "
            "watermark wait: assign_event_time(..., watermark=weir.bounded_out_of_orderness(...))"
        )
