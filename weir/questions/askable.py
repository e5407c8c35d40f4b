"""Which states of a job can be asked, by their names in questions; formats are in ``weir.operators.queries``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.plan.graph import LogicalGraph
from weir.protocol.queries import QueryError
from weir.specs import DeduplicateSpec, KeyedAggregateSpec, KeyedProcessSpec, TopSpec
from weir.specs.base import OperatorSpec
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.changelog_aggregates import ChangelogAggregateSpec
from weir.specs.joins import JoinSpec
from weir.specs.window_process import WindowProcessSpec
from weir.specs.windows import WindowAggregateSpec, WindowTopSpec

#: Of steps with a single one.
_SINGLE: dict[type[OperatorSpec], str] = {
    ChangelogAggregateSpec: "totals",
    DeduplicateSpec: "seen",
    TopSpec: "top",
    WindowTopSpec: "rows",
}


def asked_names(spec: OperatorSpec) -> tuple[str, ...]:
    """Names of the states of a step that can be asked; none if it keeps nothing by key."""
    if isinstance(spec, KeyedAggregateSpec | WindowAggregateSpec):
        kept = [spec.form] if isinstance(spec, WindowProcessSpec) else []
        return tuple(dict.fromkeys([*kept, *(aggregate.output for aggregate in spec.aggregates)]))
    if isinstance(spec, KeyedProcessSpec):
        rules = ("broadcast",) if isinstance(spec, BroadcastProcessSpec) else ()
        return (*rules, *(state.name for state in spec.states if state.kind != "timers"))
    if isinstance(spec, JoinSpec):
        return ("rows",)
    return tuple(name for kind, name in _SINGLE.items() if isinstance(spec, kind))


def askable(graph: LogicalGraph) -> dict[str, list[str]]:
    """Of each step of a job its states that can be asked."""
    return {node.name: list(asked_names(node.spec)) for node in graph.nodes}


def asked_pairs(known: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Steps and their states, in order."""
    return sorted((step, state) for step, states in known.items() for state in states)


def refused_step(step: str, known: Mapping[str, Sequence[str]]) -> QueryError:
    """Why nothing can be asked of a step, and what can be.

    Args:
        step: without state, or not there.
        known: see :func:`askable`.
    """
    there_is = ", ".join("/".join(pair) for pair in asked_pairs(known)) or "nothing"
    why = f"step {step!r} keeps nothing by key" if step in known else f"the job has no step {step!r}"
    return QueryError(404, f"{why}; what can be asked, as STEP/STATE: {there_is}")
