"""What steps and key columns were called before, where a job says so: ``renamed_from=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

from weir.errors import GraphError


class RenamedStep(str):
    """The name of a step that had another one in the checkpoint from which the job starts."""

    __slots__ = ("renamed_from",)
    #: Its name then.
    renamed_from: str


@overload
def renamed_step(name: str, renamed_from: str | None) -> str: ...
@overload
def renamed_step(name: str | None, renamed_from: str | None) -> str | None: ...
def renamed_step(name: str | None, renamed_from: str | None) -> str | None:
    """The name of a step, which the flow takes with what the step was called before; None: as it is called now."""
    if renamed_from is None or not isinstance(name, str):
        return name
    step = RenamedStep(name)
    step.renamed_from = renamed_from
    return step


class RenamedColumn(str):
    """A key column, or that of an aggregate, which had another name in the checkpoint from which the job starts."""

    __slots__ = ("renamed_from",)
    #: Its name then.
    renamed_from: str


def renamed_column(name: str, renamed_from: str | None) -> str:
    """A column, with what it was called before; None: as it is called now."""
    if renamed_from is None:
        return name
    column = RenamedColumn(name)
    column.renamed_from = renamed_from
    return column


def renamed_columns(columns: tuple[str, ...], renamed_from: Mapping[str, str] | None) -> tuple[str, ...]:
    """Key columns, with what they were called before.

    Raises:
        GraphError: it tells of a column that is none of them, or is no dict of names.
    """
    if not renamed_from:
        return columns
    if not isinstance(renamed_from, Mapping) or not all(
        isinstance(old, str) for old in renamed_from.values()
    ):
        raise GraphError(
            f"renamed_from is {renamed_from!r}; it is a dict from names now to names then: {{'user': 'k'}}"
        )
    unknown = [name for name in renamed_from if name not in columns]
    if unknown:
        raise GraphError(
            f"renamed_from tells of {unknown[0]!r}, which is no key column; those are {', '.join(columns)}"
        )
    return tuple(renamed_column(name, renamed_from.get(name)) for name in columns)
