"""What every spec has: how plans show it, its output schema, and its runtime class."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeGuard

import polars as pl
import pyarrow as pa

from weir.errors import GraphError
from weir.protocol.checkpoints.aggregate_layout import Layout
from weir.rows.row_watermarks import RowWatermarks
from weir.rows.schemas import schema_difference
from weir.specs.conditions import Condition
from weir.specs.source_code import source_of
from weir.specs.window_kinds import WindowTime


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a setting is a number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


#: State of rows that wait in front of a step until all of its inputs have come as far.
IN_ORDER_STATE = "_in_order"


@dataclass(frozen=True)
class SideOutput:
    """An output of a step beside its own."""

    name: str
    #: User columns.
    schema: pa.Schema


@dataclass(frozen=True)
class OperatorSpec:
    """Base of all specs; subclasses set ``kind`` and ``runtime``."""

    kind: ClassVar[str] = "abstract"
    #: "module:name" of what is called with the spec and returns the runtime logic; only task managers load it.
    runtime: ClassVar[str] = ""
    #: What a ``factory`` of the job's author must be, for messages.
    factory_kind: ClassVar[str] = ""
    takes_several_inputs: ClassVar[bool] = False
    #: The operator puts rows aside itself: its context has dead letters.
    rejects_rows: ClassVar[bool] = False
    #: It looks at one row at a time: a row that leaves is made of one row of the input.
    is_by_row: ClassVar[bool] = False
    #: "module:name" of what is called with an ``AskedStep`` and returns the name under which the job has the state, and
    #: its ``StateFormat``; only task managers load it.
    asked_by: ClassVar[str] = ""
    #: Its input may be a changelog (``weir.rows.changes``): it hands each change on, or shows it to the author's code.
    takes_changes: ClassVar[bool] = False
    #: Each row that leaves has the values of all columns of the row that it is made of, by the same names.
    keeps_columns: ClassVar[bool] = False
    #: Each row that leaves has the values of the key columns of the row, or the key, that it is made of.
    keeps_keys: ClassVar[bool] = False

    #: "module:name" of what is called with the spec and returns a ``weir.keys.division.HotRowCombiner``; only task
    #: managers load it, and only if :meth:`combines`.
    combiner: ClassVar[str] = ""

    def combines(self, schema: pa.Schema) -> bool:
        """Whether rows of a hot key may be added up before they are sent to the step, without changing what it says.

        Args:
            schema: user columns of the input.
        """
        return False

    @property
    def waits_for_event_time(self) -> bool:
        """Return whether something happens, or leaves, when a watermark comes: it is worth to send them soon."""
        return False

    @property
    def keeps_rows_of_inputs(self) -> bool:
        """Return whether it keeps rows of an input until others have come as far: backlogs need watermarks soon."""
        return False

    @property
    def row_watermarks(self) -> RowWatermarks:
        """Which batches of the job must say what the watermark is as of each row, for this step."""
        return RowWatermarks.LATE if self.waits_for_event_time else RowWatermarks.NONE

    @property
    def needs_time_order(self) -> bool:
        """Return whether what becomes of a row depends on what was due before it, such as timers."""
        return False

    @property
    def chosen_time_order(self) -> bool | None:
        """Return whether rows are to come to the step in the order of time, also from several channels.

        None: if it needs that, and all sources before it end (``weir.plan.rules.time_order``).
        """
        return None

    @property
    def may_order_time(self) -> bool:
        """Return whether nothing but time says which rows of the step come first."""
        return not self.takes_several_inputs

    @property
    def renamed_states(self) -> dict[str, str]:
        """What states were called before, by name, of those that say it."""
        return {}

    @property
    def time_words(self) -> str | None:
        """The windows of the step, or the times that it pairs, as plans show them; None: it goes by neither."""
        return None

    @property
    def event_time_words(self) -> str | None:
        """Event time and watermark of a step that makes them, as plans show them; None: it does not."""
        return None

    @property
    def window_time(self) -> WindowTime | None:
        """Return by which time the step divides rows into windows; None: it does not."""
        return None

    @property
    def goes_by_event_time(self) -> bool:
        """Return whether the step divides or pairs rows by event time."""
        return False

    @property
    def makes_event_times(self) -> bool:
        """Return whether the event times of rows that leave are made of their own columns."""
        return False

    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        """Whether each version of the rows of an input counts, and not only which of them batches leave.

        The steps before it tell every one then (``weir.plan.rules.versions``). A table is the same in either case, so
        those that make one of a changelog need not.

        Args:
            index: position of the input.
            schema: its user columns.
        """
        return False

    def minds_version_times(self, index: int) -> bool:
        """Whether it also counts which version of an input's rows there was at which event time."""
        return False

    @property
    def takes_back_at_time(self) -> bool:
        """Return whether a row that is taken back leaves with the event time with which it came."""
        return self.makes_event_times

    def hands_on_times(self, index: int) -> bool:
        """Return whether rows that leave may have the event times of this input's rows."""
        return True

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of its states; an empty one stands for the only state of an operator that names none."""
        return ()

    @property
    def asked_names(self) -> tuple[str, ...]:
        """Names of the states that can be asked: not such as ``_held``, which a step keeps for itself."""
        return tuple(name for name in self.state_names if name and not name.startswith("_"))

    def keys_of_input(self, index: int) -> tuple[str, ...]:
        """Key columns by which the rows of an input come in; (): every subtask gets all of them, or any."""
        return ()

    def describe(self) -> dict[str, object]:
        """Describe the step for plans, JSON-able: kind and fields; fingerprints are of ``weir.specs.told_form``."""
        return {"kind": self.kind, **told_fields(self, _shown)}

    def former_form(self) -> dict[str, object]:
        """What fingerprints of version 1 are made of (``weir.plan.fingerprints``)."""
        return {**self.describe(), **raised_defaults(self)}

    @property
    def has_own_cells(self) -> bool:
        """Return whether its state has cells besides those of its aggregates."""
        return False

    def stored_layout(self, given: pa.Schema) -> Layout:
        """Return the aggregates in the order in which its state has them; none of a step that keeps none.

        Args:
            given: user columns of its input.
        """
        return ()

    def laid_out(self, layout: Layout) -> Self:
        """Return the step with its aggregates in this order: another one than :meth:`stored_layout`, of the same."""
        return self

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """User columns of the step's output; called when the step is written down, and when a graph is checked.

        Args:
            step: the step's name, for messages.
            inputs: user columns of each input, at least one; of a source never called.

        Raises:
            GraphError: the step cannot run on these inputs.
        """
        return merged_schema(step, inputs)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Columns of an input that the step reads or passes on to those who read them; all, unless it says otherwise.

        Args:
            wanted: columns of its output that anything after it reads.
            schema: user columns of the input.
        """
        return frozenset(schema.names)

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """Outputs beside the step's own; called after :meth:`output_schema`, with the same arguments."""
        return ()

    def read_for_side(self, output: str, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return the columns that a side output is made of; all, unless the step says otherwise.

        Args:
            output: name of a side output that is read.
            wanted: columns of it that anything reads.
            schema: user columns of an input of the step.
        """
        return frozenset(schema.names)

    def read_columns_of(self, index: int, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return the columns read of the input at this position; for steps whose inputs are not alike."""
        return self.read_columns(wanted, schema)

    def giving(self, wanted: frozenset[str]) -> Self:
        """The step without columns of its output that nothing after it reads; itself, unless it says otherwise."""
        return self

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Returns the names of output columns whose values are those of ``names`` in the input row of each output row.

        By this ``weir.plan.rules.partitioning`` knows where the rows of a key are. None, unless the step says
        otherwise.

        Args:
            names: columns of the input that all have the same value in each row.
            schema: user columns of the input.
        """
        return names if self.keeps_columns else frozenset()

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return what columns of an input are called after the step, if a filter there may drop the input's rows.

        That is so if a row that leaves is made only of rows of the input that have its values in these columns. By this
        ``weir.plan.rules.pushdown`` knows which filters a source may be told of. None, unless the step says otherwise.

        Args:
            index: position of the input.
            names: columns of the input that all have the same value in each row.
            schema: user columns of the input.
        """
        return self.passed_on(names, schema) if self.is_by_row else frozenset()

    def demanded(self, schema: pa.Schema) -> Condition | None:
        """Return what a row must meet to leave the step, of single columns; None: nothing that is known."""
        return None

    def written_columns(self, step: str, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Columns of the input that the step replaces, and those that it adds to them; by name.

        Raises:
            GraphError: the step cannot run on this input.
        """
        return {}


def merged_schema(step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
    """The columns of inputs that have the same ones; a column is nullable if it is so in any of them.

    Raises:
        GraphError: the inputs differ in names or types.
    """
    first = inputs[0]
    for position, other in enumerate(inputs[1:], start=2):
        difference = schema_difference(first, other)
        if difference:
            raise GraphError(f"step {step!r}: input {position} has other columns than input 1: {difference}")
    return pa.schema(
        [field.with_nullable(any(schema.field(field.name).nullable for schema in inputs)) for field in first]
    )


def told_fields(value: Any, form: Callable[[Any], object]) -> dict[str, object]:
    """Fields of a dataclass, in a form.

    One that came later is left out at its default: graphs without it keep their fingerprints. So is what is
    ``derived``: the steps before say it already.
    """
    return {
        f.name: form(getattr(value, f.name))
        for f in dataclasses.fields(value)
        if not f.metadata.get("derived")
        and not (f.metadata.get("came_later") and _is_default(getattr(value, f.name), f.default))
    }


def raised_defaults(value: Any) -> dict[str, object]:
    """Fields whose default was raised, as it was: graphs with it keep their fingerprints.

    The metadata of such a field has ``was``, the first default. Who writes that value down has the same fingerprint, so
    only bounds may have it, which change nothing about state or positions.
    """
    return {
        f.name: f.metadata["was"]
        for f in dataclasses.fields(value)
        if "was" in f.metadata and getattr(value, f.name) == f.default
    }


def _is_default(value: object, default: object) -> bool:
    """Return whether a field has its default; an expression compared with anything is another expression."""
    return value is default or (not isinstance(value, pl.Expr) and value == default)


def _shown(value: Any) -> object:
    """Return a value as plans show it, and as fingerprints of version 1 have it."""
    if isinstance(value, pl.Expr):
        return str(value)
    if isinstance(value, pa.Schema):
        return [f"{field.name}: {field.type}" for field in value]
    if isinstance(value, tuple | list):
        return [_shown(item) for item in value]
    if isinstance(value, OperatorSpec):
        return value.describe()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return told_fields(value, _shown)
    if isinstance(value, functools.partial):  # its settings make it another function
        settings = {name: _shown(item) for name, item in sorted(value.keywords.items())}
        return [_shown(value.func), _shown(value.args), settings]
    if callable(value):
        return _shown_callable(value)
    return value if isinstance(value, str | int | float | bool | None) else str(type(value).__qualname__)


def _shown_callable(function: Callable[..., object]) -> str:
    """Module, qualified name and a digest of the source, so that two versions of a function differ."""
    if isinstance(function, type) or hasattr(function, "__qualname__"):
        target: Any = function
    else:
        target = type(function)
    try:
        digest = hashlib.sha256(source_of(target).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        digest = "no-source"
    return f"{target.__module__}:{target.__qualname__}@{digest}"
