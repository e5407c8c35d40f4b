"""Changelogs: rows that say what is added to a table and what is taken away, because a result was updated.

A stream is a changelog if it has the text column ``_change``, whose value is one of :data:`CHANGES`. An update is two
rows: the row before it, then the row after it. The table is the multiset of rows that were added and not taken away.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from weir.errors import GraphError

#: The column; a user column like any other, which sinks write.
CHANGE_COLUMN = "_change"
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = CHANGES = ("insert", "update_before", "update_after", "delete")
#: What to write where a step refuses a changelog, by the beginning of its kind.
_INSTEAD = {
    "window": (
        "key_by(...).window(...).aggregate(...) takes changes, or add the window as a column (with_columns), and use "
        "key_by and aggregate"
    ),
    "join_all": "without within= and window= join_all takes changes",
    "join": "a join without bounds takes changes",
}
_OTHERWISE = "put it before the step whose result is updated, or send the changes to a sink"
CHANGE_FIELD = pa.field(CHANGE_COLUMN, pa.string(), nullable=False)


def is_changelog(schema: pa.Schema) -> bool:
    """Return whether rows of these columns are changes."""
    index = schema.get_field_index(CHANGE_COLUMN)
    return index >= 0 and bool(pa.types.is_string(schema.field(index).type))


def changelog_schema(step: str, fields: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of these columns and ``_change``; called by specs of steps whose result is updated.

    Raises:
        GraphError: a column is there twice.
    """
    names = [field.name for field in fields]
    for name in names:
        if name == CHANGE_COLUMN or names.count(name) > 1:
            raise GraphError(f"step {step!r}: output column {name!r} exists already; choose another name")
    return pa.schema([*fields, CHANGE_FIELD])


def refuse_changes(step: str, kind: str, inputs: Sequence[pa.Schema]) -> None:
    """Refuse a changelog; ``kind``: what the step does.

    Raises:
        GraphError: names the step and what to do.
    """
    if any(is_changelog(schema) for schema in inputs):
        instead = next((text for begin, text in _INSTEAD.items() if kind.startswith(begin)), _OTHERWISE)
        raise GraphError(
            f"step {step!r}: its input is a changelog (it has column {CHANGE_COLUMN!r}), and {kind} takes only "
            f"rows that are never updated; {instead}"
        )


def check_keeps_changes(step: str, given: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse to leave out, rename or replace what says how a row changes the table.

    Raises:
        GraphError: names the step.
    """
    if is_changelog(given) and CHANGE_COLUMN not in columns:
        raise GraphError(
            f"step {step!r}: without column {CHANGE_COLUMN!r} nobody could tell rows that were added from rows that "
            "were taken away; keep it, or make plain rows of the changelog in a map_batches step"
        )


def folded(changes: pl.DataFrame) -> pl.DataFrame:
    """The table that a changelog leads to: each row as often as it was added more than it was taken away.

    Args:
        changes: all rows of the changelog, in any order; with column ``_change``.

    Raises:
        ValueError: a value of ``_change`` is none of :data:`CHANGES`, or more was taken away than was ever added.
    """
    counted = _counted(changes)
    below = counted.filter(pl.col(CHANGE_COLUMN) < 0)
    if below.height:
        raise ValueError(
            f"the row {below.drop(CHANGE_COLUMN).row(0, named=True)} was taken away, but never added"
        )
    return _repeated(counted)


def rows_there(changes: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are there after a part of a changelog: one taken away and never added is not.

    Raises:
        ValueError: a value of ``_change`` is none of :data:`CHANGES`.
    """
    return _repeated(_counted(changes).filter(pl.col(CHANGE_COLUMN) > 0))


def _counted(changes: pl.DataFrame) -> pl.DataFrame:
    """Return each different row once, with ``_change``: how often it was added more than it was taken away."""
    unknown = changes.filter(~pl.col(CHANGE_COLUMN).is_in(CHANGES))
    if unknown.height:
        raise ValueError(f"{CHANGE_COLUMN} is {unknown[CHANGE_COLUMN][0]!r}; it must be one of {CHANGES}")
    names = [name for name in changes.columns if name != CHANGE_COLUMN]
    is_added = pl.col(CHANGE_COLUMN).is_in([INSERT, UPDATE_AFTER])
    return changes.group_by(names, maintain_order=True).agg(
        pl.when(is_added).then(1).otherwise(-1).sum().alias(CHANGE_COLUMN)
    )


def _repeated(counted: pl.DataFrame) -> pl.DataFrame:
    """Return each row as often as ``_change`` says, without that column."""
    times = counted[CHANGE_COLUMN].to_numpy()
    positions = pl.int_range(counted.height, eager=True).repeat_by(pl.Series(times)).explode().drop_nulls()
    return counted.drop(CHANGE_COLUMN)[positions]
