"""What becomes of each step's state when a changed job starts from a checkpoint: the answer of ``weir plan``.

What is refused here is refused by the start: both ask :func:`weir.plan.savepoint_fit.fitted_to`, and the operators
(``ChecksRestored``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from weir.author.operator import ChecksRestored, Json, OperatorContext
from weir.errors import CheckpointError, WeirError
from weir.operators.registry import create_operator
from weir.plan.change_conditions import changed_makers
from weir.plan.graph import LogicalGraph, Node
from weir.plan.savepoint_fit import fitted_to, renamed_keys, with_names_of
from weir.plan.stages import physical_graph
from weir.plan.stored_aggregates import fitted_layouts
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.checkpoints.renames import names_now
from weir.protocol.checkpoints.savepoint import state_text
from weir.protocol.watermarks.input_times import is_times_key
from weir.specs.base import IN_ORDER_STATE
from weir.specs.windows import LATE_STATE


class Verdict(Enum):
    """What becomes of the state of a step."""

    KEPT = "kept"
    #: It goes on, and not all of it is as it was.
    CONVERTED = "converted"
    EMPTY = "begins empty"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True)
class StepChange:
    """The verdict on one step of the job, or of the checkpoint."""

    step: str
    verdict: Verdict
    reason: str = ""


def step_changes(
    graph: LogicalGraph, manifest: Manifest, *, allow_dropped: bool, whole: Collection[str] = ()
) -> list[StepChange]:
    """What becomes of each step that has state now or had state then; none that is REFUSED: the job would start.

    Args:
        graph: the job, as it was written.
        manifest: of a savepoint, or of a checkpoint of a running job.
        allow_dropped: as the start would be told.
        whole: steps of which the start keeps columns that no step reads; see :func:`weir.plan.stages.physical_graph`.
    """
    try:
        told = with_names_of(graph, manifest)
    except CheckpointError as error:
        return [StepChange(graph.name, Verdict.REFUSED, str(error))]
    restored, called = _restored(told), _were_called(graph, manifest, told)
    made = changed_makers(graph, told)
    changes = [
        change
        for node in graph.nodes
        if (
            change := _change(
                graph,
                node,
                told,
                restored.get(node.name, {}),
                called.get(node.name, []),
                allow_dropped=allow_dropped,
                whole=whole,
            )
        )
    ]
    changes = [_of_other_rows(change, made.get(change.step, [])) for change in changes]
    refused = {change.step for change in changes if change.verdict is Verdict.REFUSED}
    steps = {node.name for node in graph.nodes}
    for step in sorted({*restored, *(name.partition("/")[0] for name in told.state_ids)} - steps):
        verdict = Verdict.DROPPED if allow_dropped else Verdict.REFUSED
        mend = (
            ""
            if allow_dropped
            else "; name it in renamed_from= of a step, or let it go with --allow-dropped-state"
        )
        changes.append(StepChange(step, verdict, f"the job has no such step{mend}"))
        refused |= set() if allow_dropped else {step}
    if not refused:
        # What is said of the whole job, such as its key groups.
        try:
            fitted_to(graph, manifest, allow_dropped=allow_dropped)
        except CheckpointError as error:
            changes.append(StepChange(graph.name, Verdict.REFUSED, str(error)))
    return changes


def _of_other_rows(change: StepChange, makers: list[str]) -> StepChange:
    """The verdict with a word about steps before that make other rows of a changelog than those that are kept."""
    if not makers or change.verdict not in (Verdict.KEPT, Verdict.CONVERTED):
        return change
    steps = f"step{'s' if len(makers) > 1 else ''} {', '.join(map(repr, makers))}"
    word = (
        f"what makes its rows of a changelog has changed ({steps}): a row that it was told of is taken back as it is "
        "made now, so what it keeps of the old one may stay; let it begin empty under another name if that matters"
    )
    return replace(change, reason="; ".join(filter(None, (change.reason, word))))


def _restored(manifest: Manifest) -> dict[str, dict[int, Json]]:
    """Return, by step, what its subtasks told the checkpoint."""
    found: dict[str, dict[int, Json]] = {}
    for part in manifest.parts:
        for step, value in part.operators.items():
            if value is not None and not is_times_key(step):
                kept = found.setdefault(step, {})
                index = part.subtask.subtask_index
                kept[-1 - len(kept) if index in kept else index] = value
    return found


def _were_called(graph: LogicalGraph, before: Manifest, told: Manifest) -> dict[str, list[str]]:
    """Return, by step, what it, its key columns and aggregates were called in the checkpoint, where a job says so."""
    known = {name for names in before.operator_names.values() for name in names}
    steps = names_now("steps", graph.renamed, known)
    found = {step: [f"was called {then}"] for then, step in steps.items()}
    for step, columns in renamed_keys(graph).items():
        found.setdefault(step, []).extend(
            f"key column {now} was called {then}" for now, then in columns.items()
        )
    for then, layout in before.layouts.items():
        step = steps.get(then, then)
        pairs = zip(told.layouts[step], layout, strict=True)
        found.setdefault(step, []).extend(
            f"{now.output} was called {old.output}" for now, old in pairs if now != old
        )
    return found


def _change(
    graph: LogicalGraph,
    node: Node,
    manifest: Manifest,
    kept: dict[int, Json],
    called: list[str],
    *,
    allow_dropped: bool,
    whole: Collection[str],
) -> StepChange | None:
    step = node.name
    had_state = any(name.partition("/")[0] == step for name in manifest.state_ids)
    if not node.states and not kept and not had_state:
        return None
    if not kept and not had_state:
        return StepChange(step, Verdict.EMPTY, "the checkpoint has no such step")
    notes = list(called)
    alone = _only(graph, step, manifest)
    try:
        fitted = fitted_layouts(graph, alone, allow_dropped=allow_dropped).get(step)
        # What leave to drop state does not mend is said first.
        laid_out, _ = fitted_to(graph, alone, allow_dropped=True)
        _check_operator(laid_out, step, kept, whole)
        fitted_to(graph, alone, allow_dropped=allow_dropped)
    except WeirError as error:
        return StepChange(step, Verdict.REFUSED, str(error).removeprefix(f"step {step!r}: "))
    if fitted is not None and fitted.added:
        notes.append(f"{', '.join(fitted.added)}: begins at its first value, also for keys that there are")
    if fitted is not None and fitted.dropped:
        notes.append(f"{', '.join(fitted.dropped)}: dropped")
    had = {name for name in manifest.state_ids if name.partition("/")[0] == step}
    now = set(laid_out.node(step).states.values())
    # What aggregates keep besides numbers goes with them.
    begun, gone = (
        {
            name
            for name in names
            # Nothing waits there, or it is refused.
            if name != f"{step}/{IN_ORDER_STATE}" and (fitted is None or name == f"{step}/{LATE_STATE}")
        }
        for names in (now - had, had - now)
    )
    if had and begun:
        notes.append(f"{_shown(step, begun)}: begins empty")
    if gone:
        notes.append(f"{_shown(step, gone)}: dropped")
    return StepChange(step, Verdict.CONVERTED if notes else Verdict.KEPT, "; ".join(notes))


def _shown(step: str, states: set[str]) -> str:
    told = {
        state_text(name).removeprefix(f"{step} (").removeprefix(f"{step}/").removesuffix(")")
        for name in states
    }
    return ", ".join(sorted(told))


def _only(graph: LogicalGraph, step: str, manifest: Manifest) -> Manifest:
    """What the checkpoint has of one step: what is wrong with others is said of them."""
    parts = tuple(
        replace(part, operators={name: value for name, value in part.operators.items() if name == step})
        for part in manifest.parts
    )
    return replace(
        manifest,
        parts=parts,
        max_parallelism=graph.max_parallelism,
        routing={},
        state_ids={
            name: number for name, number in manifest.state_ids.items() if name.partition("/")[0] == step
        },
        layouts={name: layout for name, layout in manifest.layouts.items() if name == step},
        origins={name: inputs for name, inputs in manifest.origins.items() if name == step},
        conditions={name: inputs for name, inputs in manifest.conditions.items() if name == step},
        computed={name: inputs for name, inputs in manifest.computed.items() if name == step},
    )


def _check_operator(graph: LogicalGraph, step: str, kept: dict[int, Json], whole: Collection[str]) -> None:
    node = graph.node(step)
    if node.is_source or not kept or not node.states:
        return
    # Its columns are those that somebody reads.
    running = (each for stage in physical_graph(graph, whole).stages for each in stage.nodes)
    node = next((each for each in running if each.name == step), node)
    context = OperatorContext(
        graph.name,
        step,
        0,
        0,
        node.parallelism,
        graph.max_parallelism,
        restored=kept,
        schema=node.schema,
        input_schema=graph.schema_into(node),
    )
    operator = create_operator(node.spec)
    if isinstance(operator, ChecksRestored):
        operator.check_restored(context)
