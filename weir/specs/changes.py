"""Specs of steps by key that keep whole rows: the first or the last one of a key, the top ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.rows.changes import CHANGE_COLUMN, changelog_schema, is_changelog
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.aggregate_functions import decimal_mend
from weir.specs.key_checks import check_is_name
from weir.specs.keyed import ExpiringSpec, VersionedSpec
from weir.specs.row_order import OrderColumn, check_row_order
from weir.specs.words import duration_words
from weir.spelling import did_you_mean

#: A key's rows are one value in the store, which is written as a whole.
TOP_ROWS_MAX = 10_000


@dataclass(frozen=True)
class DeduplicateSpec(ExpiringSpec):
    """Pass on the first row of each key, and the next one when ``within_ms`` of event time have passed since."""

    kind: ClassVar[str] = "deduplicate"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.keyed.deduplicate:DeduplicateOperator"
    asked_by: ClassVar[str] = "weir.operators.queries.formats:deduplicate_format"
    is_by_key: ClassVar[bool] = True
    #: None: a key is passed on once, and remembered for ever.
    within_ms: int | None = None

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return True

    @property
    def state_names(self) -> tuple[str, ...]:
        """The event time of the row that was passed on last."""
        return ("seen",)

    @property
    @override
    def time_words(self) -> str | None:
        return None if self.within_ms is None else f"within {duration_words(self.within_ms)}"

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, and what is wanted; see :class:`OperatorSpec`."""
        return wanted | {*self.key_columns}


@dataclass(frozen=True)
class TopSpec(VersionedSpec):
    """The first ``rows`` rows of each key in the order of a column, or of several, as a changelog."""

    kind: ClassVar[str] = "top"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.keyed.top:TopOperator"
    asked_by: ClassVar[str] = "weir.operators.queries.rows:top_format"
    is_by_key: ClassVar[bool] = True
    #: None: the event time.
    by: str | None
    rows: int
    ascending: bool = False
    #: Column of the place of a row, from 1 on; None: it is not told.
    rank: str | None = None
    #: Of rows that are equal in the column, those that come later go first.
    prefers_later: bool = False
    #: Columns of any type in place of ``by``, which is the first of them then.
    order: tuple[OrderColumn, ...] = field(default=(), metadata={"came_later": True})

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        # Rows that a function has made of changes are never taken away.
        return True

    @property
    def state_names(self) -> tuple[str, ...]:
        """The rows."""
        return ("top",)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns, the rank and ``_change``; see :class:`OperatorSpec`."""
        schema = inputs[0]
        if (
            isinstance(self.rows, bool)
            or not isinstance(self.rows, int)
            or not 1 <= self.rows <= TOP_ROWS_MAX
        ):
            raise GraphError(
                f"step {step!r}: rows is {self.rows!r}; it must be a whole number from 1 to {TOP_ROWS_MAX:,}"
            )
        if self.order:
            check_row_order(step, self.order, schema)
        elif self.by is not None:
            _check_order(step, self.by, schema)
        for column in schema:
            _check_kept(step, column)
        ranks = []
        if self.rank is not None:
            if not isinstance(self.rank, str) or self.rank in SYSTEM_COLUMNS:
                raise GraphError(f"step {step!r}: rank is {self.rank!r}; it must be the name of a new column")
            ranks = [pa.field(self.rank, pa.int64(), nullable=False)]
        return changelog_schema(step, [*schema, *ranks])

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, the order, and what is wanted; see :class:`OperatorSpec`."""
        order = {each.name for each in self.order} | (set() if self.by is None else {self.by})
        return wanted.intersection(schema.names) | {*self.key_columns} | order

    @property
    def waits_for_event_time(self) -> bool:
        """Not; see :class:`OperatorSpec`."""
        return False


@dataclass(frozen=True)
class ChangelogTopSpec(TopSpec):
    """The first rows of each key of a changelog, whose rows come and go; all rows of a key are kept."""

    kind: ClassVar[str] = "changelog_top"
    runtime: ClassVar[str] = "weir.operators.keyed.changelog_top:ChangelogTopOperator"
    is_by_key: ClassVar[bool] = False
    takes_changes: ClassVar[bool] = True

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return False

    @property
    def state_names(self) -> tuple[str, ...]:
        """The rows, and those that were taken away before they came."""
        return ("top", "owed")

    @property
    def asked_names(self) -> tuple[str, ...]:
        """The rows; see :class:`OperatorSpec`."""
        return ("top",)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Return the schema as of rows that are never updated; see :class:`OperatorSpec`."""
        schema = inputs[0]
        return super().output_schema(step, (schema.remove(schema.get_field_index(CHANGE_COLUMN)),))

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """How rows change the input's table, too; see :class:`OperatorSpec`."""
        return super().read_columns(wanted, schema) | {CHANGE_COLUMN}


def deduplicate_spec(
    step: str,
    key_columns: tuple[str, ...],
    schema: pa.Schema,
    keep: str,
    within_ms: int | None,
    by: str | None,
) -> DeduplicateSpec | TopSpec:
    """What ``deduplicate`` of the dataflow API is; called when the step is written down.

    A row of a changelog has the event time of what changed it, which differs with how batches are cut, and a row that
    is taken away has another one than when it came. So only a column can say which row of a key is the first.

    Args:
        step: its name, for messages.
        key_columns: of the stream,
        schema: and its user columns.
        keep: "first" or "last".
        within_ms: see :class:`DeduplicateSpec`.
        by: column of the order; None: rows go by event time, or by how they come.

    Raises:
        GraphError: these do not go together.
    """
    if keep not in ("first", "last"):
        raise GraphError(f"step {step!r}: keep is {keep!r}; it is 'first' or 'last'")
    if within_ms is not None:
        _check_within(step, schema, keep, by)
        return DeduplicateSpec(key_columns, within_ms)
    is_last = keep == "last"
    if is_changelog(schema):
        if by is None:
            raise GraphError(
                f"step {step!r}: its input is a changelog (it has column {CHANGE_COLUMN!r}), whose rows have the event "
                "time of what changed them and not their own; say which column has their time: "
                f"deduplicate(..., keep={keep!r}, by=<the column>)"
            )
        return ChangelogTopSpec(key_columns, by, 1, ascending=not is_last, prefers_later=is_last)
    if by is None and not is_last:
        return DeduplicateSpec(key_columns)
    return TopSpec(key_columns, by, 1, ascending=not is_last, prefers_later=is_last)


def _check_within(step: str, schema: pa.Schema, keep: str, by: str | None) -> None:
    if is_changelog(schema):
        raise GraphError(
            f"step {step!r}: within takes no changelog (the input has column {CHANGE_COLUMN!r}): each row that is "
            "passed on decides which later ones are, so one that is taken away would change all that follow; put the "
            "step before the one whose result is updated, or write by=<a column with the time> in place of within"
        )
    if keep == "last":
        raise GraphError(f"step {step!r}: within goes only with keep='first'")
    if by is not None:
        raise GraphError(
            f"step {step!r}: within goes by event time; leave out by={by!r}, or leave out within"
        )


def _check_order(step: str, name: str, schema: pa.Schema) -> None:
    check_is_name(f"step {step!r}: by", name)
    if name not in schema.names:
        raise GraphError(
            f"step {step!r}: there is no column {name!r} to go by{did_you_mean(str(name), schema.names)}"
        )
    dtype = schema.field(name).type
    if not is_number_or_time(dtype):
        raise GraphError(
            f"step {step!r}: it goes by column {name!r}, which is {dtype}; order by a number, a date or a time"
            + (f"; {decimal_mend(name, dtype)}" if pa.types.is_decimal(dtype) else "")
        )


def is_number_or_time(dtype: pa.DataType) -> bool:
    """Return whether values of a type are in the order of 64-bit integers, which a state has of rows."""
    number = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_floating(dtype)
    return bool((number or pa.types.is_temporal(dtype)) and not pa.types.is_interval(dtype))


def _check_kept(step: str, field: pa.Field) -> None:
    dtype = field.type
    text = pa.types.is_string(dtype) or pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype)
    number = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype) or pa.types.is_floating(dtype)
    nested = pa.types.is_nested(dtype) or pa.types.is_decimal(dtype)
    if not (text or number or nested or pa.types.is_temporal(dtype)) or pa.types.is_interval(dtype):
        raise GraphError(
            f"step {step!r}: it keeps whole rows, and column {field.name!r} is {dtype}; rows are kept of numbers, "
            "text, bytes, Booleans, dates, times, and lists and structs of these: leave the column out with drop, or "
            "encode it as text"
        )
