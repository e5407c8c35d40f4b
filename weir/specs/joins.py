"""Specs of joins: which columns leave them, and which rows of both sides belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.rows.changes import CHANGE_COLUMN, changelog_schema, is_changelog
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.base import SideOutput
from weir.specs.keyed import KeyedSpec, VersionedSpec
from weir.specs.words import same_window_words
from weir.spelling import did_you_mean

#: What of both sides leaves a join: see docs/joins.md.
JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]
JOIN_TYPES: tuple[str, ...] = get_args(JoinType)
SIDES = ("left", "right")
#: Of the result of a join in sliding windows: which window a pair is of.
WINDOW_COLUMNS = ("window_start", "window_end")
#: The state of joins that have their rows in memory as a rule.
RECENT_STATE = "_recent"
#: Of each side, columns that are not keys: name in the input, name in the result.
JoinedColumns = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class JoinBounds:
    """Which times of one side (the other than ``side``) belong to a row of ``side``: an interval, both ends included.

    Its ends are the row's own event time plus so many milliseconds, or those of columns. A window's are the first and
    the last millisecond of the windows that the row is in.
    """

    #: 0: rows of the left side have intervals, 1: those of the right.
    side: int
    #: Milliseconds to add to the event time.
    lower_ms: int | None = None
    upper_ms: int | None = None
    #: Columns, of integer ms or of timestamps.
    lower_column: str | None = None
    upper_column: str | None = None
    #: Length of a window, and where one begins.
    window_ms: int | None = None
    offset_ms: int = 0
    #: Of a sliding window: from the beginning of one to that of the next.
    slide_ms: int | None = field(default=None, metadata={"came_later": True})

    def columns(self, side: int) -> frozenset[str]:
        """Columns of a side that are read."""
        if side != self.side:
            return frozenset()
        return frozenset(name for name in (self.lower_column, self.upper_column) if name is not None)

    @property
    def words(self) -> str:
        """The interval or window, as plans show it."""
        if self.window_ms is not None:
            return same_window_words(self.window_ms, self.slide_ms)
        ends = [
            column if column is not None else "any" if added is None else f"{added:+d} ms"
            for column, added in ((self.lower_column, self.lower_ms), (self.upper_column, self.upper_ms))
        ]
        return f"from {ends[0]} to {ends[1]} of the {SIDES[self.side]} row"


@dataclass(frozen=True)
class JoinSpec(KeyedSpec):
    """Rows of two inputs with equal keys, and with times that belong together."""

    kind: ClassVar[str] = "join"
    runtime: ClassVar[str] = "weir.operators.joins.pair_join_operator:PairJoinOperator"
    takes_several_inputs: ClassVar[bool] = True
    asked_by: ClassVar[str] = "weir.operators.queries.joined_rows:join_format"
    #: Sides whose rows leave alone or in pairs, and never to fill a gap; by ``how``.
    free_sides: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "inner": (0, 1),
        "left": (0,),
        "semi": (0,),
        "anti": (0,),
        "right": (1,),
        "full": (),
    }
    #: What ``how`` may be; and without bounds.
    hows: ClassVar[tuple[str, ...]] = JOIN_TYPES
    hows_without_bounds: ClassVar[tuple[str, ...]] = ("inner", "semi")
    #: Rows of the second input are versions, of which one counts at a time.
    has_versions: ClassVar[bool] = False
    #: Its result is updated.
    tells_changes: ClassVar[bool] = False
    #: Key columns of the second input; ``key_columns`` are those of the first one, and of the result.
    right_key_columns: tuple[str, ...]
    how: JoinType
    #: None: all rows with equal keys belong together, whatever their times.
    bounds: JoinBounds | None
    #: Columns that are not keys, of each input: name there, name in the result.
    left_columns: tuple[tuple[str, str], ...]
    right_columns: tuple[tuple[str, str], ...]

    #: Fields that say what the state means, beside the columns.
    persisted_fields: ClassVar[tuple[str, ...]] = ("how", "bounds")
    #: Names of the side outputs of late rows, by input.
    late_outputs: ClassVar[tuple[str, ...]] = tuple(f"late_{side}" for side in SIDES)

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return True

    @property
    def inputs_count(self) -> int:
        """How many streams are joined."""
        return len(SIDES)

    @property
    def is_bounded(self) -> bool:
        """Return whether rows can match no more when the watermark has passed them."""
        return self.bounds is not None

    @property
    def keeps_rows_of_inputs(self) -> bool:
        """Return whether rows go when all inputs have passed them."""
        return self.is_bounded

    @property
    def time_words(self) -> str | None:
        """The times that belong together; see :class:`OperatorSpec`."""
        return None if self.bounds is None else self.bounds.words

    @property
    def goes_by_event_time(self) -> bool:
        """Where it has bounds; see :class:`OperatorSpec`."""
        return self.is_bounded

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Key columns, and others of a side whose rows leave never to fill a gap; see :class:`OperatorSpec`."""
        keys = zip(self.keys_of_input(index), self.key_columns, strict=True)
        found = {output for name, output in keys if name in names}
        if index in self.free_sides[self.how]:
            found |= {output for name, output in self.columns_of_input(index) if name in names}
        return frozenset(found)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The rows that are kept, when they can match no more, and those that are in memory as a rule."""
        if self.bounds is None:
            return ("rows",)
        return ("rows", "_expiry", RECENT_STATE) if self.how == "inner" else ("rows", "_expiry")

    @override
    def keys_of_input(self, index: int) -> tuple[str, ...]:
        return self.right_key_columns if index else self.key_columns

    def columns_of_input(self, index: int) -> tuple[tuple[str, str], ...]:
        """Columns that are not keys: name in the input, name in the result."""
        return self.right_columns if index else self.left_columns

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Key columns, then those of each input; without those that inputs lack."""
        self.check(step, inputs)
        return pa.schema(self.joined_fields(inputs))

    def check(self, step: str, inputs: tuple[pa.Schema, ...]) -> None:
        """Refuse what cannot be joined.

        Raises:
            GraphError: one line that names the step, the column and the mend.
        """
        check_join(step, self, inputs)

    def joined_fields(self, inputs: tuple[pa.Schema, ...]) -> list[pa.Field]:
        """Return the fields of the columns of the result."""
        left, right = inputs
        left_may_lack, right_may_lack = self.how in ("right", "full"), self.how in ("left", "full")
        fields = []
        for name, right_name in zip(self.key_columns, self.right_key_columns, strict=True):
            nullable = {
                "right": right.field(right_name).nullable,
                "full": left.field(name).nullable or right.field(right_name).nullable,
            }.get(self.how, left.field(name).nullable and self.how in ("left", "anti"))
            fields.append(left.field(name).with_nullable(nullable))
        for schema, columns, may_lack in (
            (left, self.left_columns, left_may_lack),
            (right, self.right_columns, right_may_lack),
        ):
            for name, output in columns:
                if name in schema.names:
                    found = schema.field(name)
                    fields.append(pa.field(output, found.type, found.nullable or may_lack))
        if self.bounds is not None and self.bounds.slide_ms is not None:
            fields += [pa.field(name, pa.int64(), nullable=False) for name in WINDOW_COLUMNS]
        return fields

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """Late rows of each input as they come in, where there can be some."""
        if self.bounds is None:
            return ()
        return tuple(SideOutput(name, schema) for name, schema in zip(self.late_outputs, inputs, strict=True))

    def read_columns_of(self, index: int, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, bounds, and what is wanted."""
        read = {name for name, output in self.columns_of_input(index) if output in wanted}
        if self.bounds is not None:
            read |= self.bounds.columns(index)
        return frozenset(read) | {*self.keys_of_input(index)}

    def giving(self, wanted: frozenset[str]) -> JoinSpec:
        """Return the join without columns that are not wanted: they are not kept, either. Key columns stay."""
        lefts, rights = (
            tuple(pair for pair in columns if pair[1] in wanted)
            for columns in (self.left_columns, self.right_columns)
        )
        return replace(self, left_columns=lefts, right_columns=rights)


@dataclass(frozen=True)
class ChangeJoinSpec(VersionedSpec, JoinSpec):
    """A join without bounds whose result is updated when a row gets its first partner, or when a row is taken away."""

    kind: ClassVar[str] = "join_changes"
    runtime: ClassVar[str] = "weir.operators.joins.change_join_operator:ChangeJoinOperator"
    takes_changes: ClassVar[bool] = True
    tells_changes: ClassVar[bool] = True
    hows_without_bounds: ClassVar[tuple[str, ...]] = JOIN_TYPES

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        # The table that it makes is that of two tables.
        return False

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return none: what a row once made is taken back; see :class:`OperatorSpec`."""
        return frozenset()

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Return the schema of every join, and ``_change``."""
        self.check(step, inputs)
        return changelog_schema(step, self.joined_fields(inputs))

    def read_columns_of(self, index: int, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What other joins read, and what says how a row changes its table."""
        read = super().read_columns_of(index, wanted, schema)
        return read | {CHANGE_COLUMN} if is_changelog(schema) else read


@dataclass(frozen=True)
class AsOfJoinSpec(JoinSpec):
    """Rows of the first input, each with the latest row of the second that is not after it."""

    kind: ClassVar[str] = "join_as_of"
    runtime: ClassVar[str] = "weir.operators.joins.as_of_operator:AsOfJoinOperator"
    hows: ClassVar[tuple[str, ...]] = ("inner", "left")
    hows_without_bounds: ClassVar[tuple[str, ...]] = ("inner", "left")
    has_versions: ClassVar[bool] = True
    #: A version that is left out would give its place to an older one.
    free_sides: ClassVar[Mapping[str, tuple[int, ...]]] = {"inner": (0,), "left": (0,)}
    takes_changes: ClassVar[bool] = True

    @property
    def goes_by_event_time(self) -> bool:
        """Always; see :class:`OperatorSpec`."""
        return True

    @override
    def minds_version_times(self, index: int) -> bool:
        return index == 1

    def hands_on_times(self, index: int) -> bool:
        """Only of the first input; see :class:`OperatorSpec`."""
        return index == 0

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Return the schema of every join; only the second input may be a changelog."""
        if inputs and is_changelog(inputs[0]):
            raise GraphError(
                f"step {step!r}: the left side is a changelog (it has column {CHANGE_COLUMN!r}), and join_as_of leaves "
                "its rows as they are once they are told; put it before the step whose result is updated"
            )
        return super().output_schema(step, inputs)

    def read_columns_of(self, index: int, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What other joins read, and what says how a version changes the table."""
        read = super().read_columns_of(index, wanted, schema)
        return read | {CHANGE_COLUMN} if is_changelog(schema) else read

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """Late rows of the first input: a version is never late."""
        return (SideOutput("late_left", inputs[0]),)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Versions and rows that wait, and when they are complete."""
        return ("rows", "_expiry")


def joined_columns(
    step: str,
    left: pa.Schema,
    right: pa.Schema,
    keys: tuple[str, ...],
    right_keys: tuple[str, ...],
    how: str,
    suffix: str,
) -> JoinedColumns:
    """What columns of both sides are called in the result; those of the right that clash get the suffix.

    Raises:
        GraphError: a name is there twice all the same.
    """
    lefts = tuple((name, name) for name in left.names if name not in (*keys, CHANGE_COLUMN))
    if how in ("semi", "anti"):
        return lefts, ()
    taken = {*keys, *(output for _, output in lefts)}
    rights = []
    for name in right.names:
        if name in right_keys or name == CHANGE_COLUMN:
            continue
        output = name + suffix if name in taken else name
        if output in taken or output in SYSTEM_COLUMNS:
            raise GraphError(
                f"step {step!r}: column {name!r} of the right side would be called {output!r}, which is there already; "
                "give another suffix, or rename or drop one of them before the join"
            )
        taken.add(output)
        rights.append((name, output))
    return lefts, tuple(rights)


def check_join(step: str, spec: JoinSpec, inputs: tuple[pa.Schema, ...]) -> None:
    """Refuse what cannot be joined.

    Raises:
        GraphError: one line that names the step, the column and the mend.
    """
    if len(inputs) != len(SIDES):
        raise GraphError(f"step {step!r}: a join has 2 inputs, not {len(inputs)}")
    if spec.how not in spec.hows:
        raise GraphError(f"step {step!r}: how is {spec.how!r}; it is one of {', '.join(spec.hows)}")
    check_keys(step, SIDES, (spec.key_columns, spec.right_key_columns), inputs)
    if spec.bounds is None:
        if spec.how not in spec.hows_without_bounds:
            raise GraphError(
                f"step {step!r}: how={spec.how!r} needs to know when a row can match no more; give within=, between= "
                "or window="
            )
    else:
        if spec.bounds.slide_ms is not None:
            _check_sliding(step, spec)
        _check_bounds(step, spec.bounds, inputs[spec.bounds.side])


def check_keys(
    step: str, names: Sequence[str], keys: Sequence[tuple[str, ...]], inputs: Sequence[pa.Schema]
) -> None:
    """Refuse keys of different types, or that an input lacks; ``names`` are what inputs are called in messages.

    Raises:
        GraphError: one line that names the step, the columns and the mend.
    """
    for own in keys:
        if len(own) != len(keys[0]):
            raise GraphError(
                f"step {step!r}: the {names[0]} side has {len(keys[0])} key columns ({', '.join(keys[0])}), the "
                f"{names[keys.index(own)]} one {len(own)} ({', '.join(own)}); give all sides as many in key_by"
            )
    for place in range(len(keys[0])):
        for side, (own, schema) in enumerate(zip(keys, inputs, strict=True)):
            if own[place] not in schema.names:
                raise GraphError(
                    f"step {step!r}: the {names[side]} side has no key column {own[place]!r}"
                    f"{did_you_mean(own[place], schema.names)}"
                )
            found, first = schema.field(own[place]).type, inputs[0].field(keys[0][place]).type
            if found != first:
                raise GraphError(
                    f"step {step!r}: key column {keys[0][place]!r} of the {names[0]} side is {first}, {own[place]!r} "
                    f"of the {names[side]} one is {found}; cast one of them before key_by"
                )


def _check_sliding(step: str, spec: JoinSpec) -> None:
    if spec.how != "inner":
        raise GraphError(
            f"step {step!r}: how={spec.how!r} goes with tumbling windows; in sliding ones a row is in several windows "
            'and may have a partner in some of them: join with how="inner", or say within= how far apart rows may be'
        )
    outputs = (
        *spec.key_columns,
        *(output for index in range(2) for _, output in spec.columns_of_input(index)),
    )
    for name in WINDOW_COLUMNS:
        if name in outputs:
            raise GraphError(f"step {step!r}: column {name!r} is there already; rename it before the join")


def _check_bounds(step: str, bounds: JoinBounds, schema: pa.Schema) -> None:
    lower, upper = bounds.lower_ms, bounds.upper_ms
    if lower is not None and upper is not None and lower > upper:
        raise GraphError(
            f"step {step!r}: within is from {lower} ms to {upper} ms: its lower bound is above its upper one; exchange "
            "them"
        )
    for name in (bounds.lower_column, bounds.upper_column):
        if name is None:
            continue
        if name not in schema.names:
            raise GraphError(
                f"step {step!r}: the {SIDES[bounds.side]} side has no column {name!r}{did_you_mean(name, schema.names)}"
            )
        dtype = schema.field(name).type
        if not (pa.types.is_integer(dtype) or pa.types.is_timestamp(dtype)):
            raise GraphError(
                f"step {step!r}: column {name!r}, a bound, is {dtype}; it must be integer ms since 1970 or a timestamp"
            )
