"""What the parts of the compiler share: where tables are found, and how steps are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import polars as pl
from sqlglot import exp

from weir.sql.lookup_tables import LookupTable
from weir.sql.names import StepNames
from weir.sql.relations import Relation

Emit = Literal["close", "changes"]


@dataclass(frozen=True)
class PythonFunction:
    """A function of CREATE FUNCTION.

    Attributes:
        name: as the text calls it.
        function: what is called: with a value of each argument, None for NULL; or with a Polars series or
            an Arrow array of each.
        takes_series: whether it is called with series.
        takes_arrays: whether it is called with arrays.
        result: type of what it returns.
        count: how many arguments it takes; None: any number.
    """

    name: str
    function: Callable[..., Any]
    takes_series: bool
    takes_arrays: bool
    result: pl.DataType
    count: int | None


@dataclass(frozen=True)
class Context:
    """Surroundings of a query.

    Attributes:
        find: the relation of a name.
        steps: names of the steps that are made.
        compile: the compiler of queries, for those within others.
        views: queries of WITH.
        emit: when results of windows are told; None: as usual.
        functions: of Python, by name in lower case.
        table: the table outside of a name; None: the name is that of none.
    """

    find: Callable[[exp.Table], Relation]
    steps: StepNames
    compile: Callable[[exp.Expr, Context], Relation]
    views: Mapping[str, Relation] = field(default_factory=dict)
    emit: Emit | None = None
    functions: Mapping[str, PythonFunction] = field(default_factory=dict)
    table: Callable[[exp.Table], LookupTable | None] = lambda _: None

    def within(self, part: str) -> Context:
        """Return the surroundings of a query within this one."""
        return replace(self, steps=self.steps.within(part), emit=None)
