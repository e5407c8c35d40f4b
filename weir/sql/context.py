"""What the parts of the compiler share: where tables are found, and how steps are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from weir.sql.names import StepNames
from weir.sql.relations import Relation

Emit = Literal["close", "changes"]


@dataclass(frozen=True)
class Context:
    """Surroundings of a query.

    Attributes:
        find: the relation of a name.
        steps: names of the steps that are made.
        compile: the compiler of queries, for those within others.
        views: queries of WITH.
        emit: when results of windows are told; None: as usual.
    """

    find: Callable[[exp.Table], Relation]
    steps: StepNames
    compile: Callable[[exp.Expr, Context], Relation]
    views: Mapping[str, Relation] = field(default_factory=dict)
    emit: Emit | None = None

    def within(self, part: str) -> Context:
        """Return the surroundings of a query within this one."""
        return replace(self, steps=self.steps.within(part), emit=None)
