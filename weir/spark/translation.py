"""What each step of a job becomes on Spark: pure, from the graph alone. ``weir plan --runner spark`` prints it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from weir.errors import GraphError
from weir.plan.graph import LogicalGraph, Node
from weir.plan.rules.pre_aggregation import with_all_rows
from weir.plan.rules.projection import without_unread_columns
from weir.plan.stages import physical_graph
from weir.spark.differences import difference
from weir.spark.modes import Mode
from weir.spark.native import native_step
from weir.spark.refusals import refusal
from weir.spark.streams import has_state, spark_keeps_state
from weir.spark.types import foreign_column
from weir.specs import SinkSpec


class Way(Enum):
    """How a step runs on Spark."""

    #: As a step of Spark's own.
    SPARK = "Spark"
    #: By Weir's operator within Spark's tasks, rows as Arrow.
    TASKS = "Weir in Spark's tasks"
    #: Not at all: the job is refused.
    REFUSED = "refused"


@dataclass(frozen=True)
class StepOnSpark:
    """How one step runs.

    Attributes:
        node: the step, without columns that nobody reads.
        way: how.
        reason: why it is refused; empty: it is not.
        differs: what it may say otherwise than elsewhere; empty: nothing that is known before.
    """

    node: Node
    way: Way
    reason: str = ""
    differs: str = ""


@dataclass(frozen=True)
class JobOnSpark:
    """How all steps of a job run, in topological order."""

    name: str
    max_parallelism: int
    mode: Mode
    steps: tuple[StepOnSpark, ...]
    #: In a stream steps with state are Weir's, on the state that Spark keeps of keys.
    keeps_state: bool = False

    @property
    def refused(self) -> list[StepOnSpark]:
        """Steps that do not run."""
        return [step for step in self.steps if step.way is Way.REFUSED]

    @property
    def needs_order(self) -> bool:
        """Whether a step minds in which order rows of one event time come."""
        return any(step.way is Way.TASKS and step.node.inputs for step in self.steps)

    def check(self) -> None:
        """Check that each step runs.

        Raises:
            GraphError: one does not; names the first one, with the reason.
        """
        if self.refused:
            first = self.refused[0]
            others = len(self.refused) - 1
            more = f" (and {others} more; weir plan --runner spark lists them)" if others else ""
            raise GraphError(f"step {first.node.name!r} does not run on Spark: {first.reason}{more}")


def job_on_spark(graph: LogicalGraph, mode: Mode = "batch", whole: Collection[str] = ()) -> JobOnSpark:
    """Say how each step of a job runs on Spark.

    Args:
        graph: the job as it was written.
        mode: whether its sources are read once, to their ends, or followed.
        whole: steps whose whole output is looked at from outside.
    """
    nodes: Sequence[Node] = graph.nodes
    if mode == "streaming":
        # Rows of a batch are never late.
        nodes = with_all_rows(nodes)
    nodes = without_unread_columns(nodes, whole)
    physical = physical_graph(graph, whole)
    keeps_state = mode == "streaming" and not spark_keeps_state(nodes)
    steps = []
    for node in nodes:
        step = _step(node, mode, refusal(physical, node, mode), _given(nodes, node))
        if keeps_state and step.way is Way.SPARK and has_state(node):
            step = replace(step, way=Way.TASKS)
        if step.way is not Way.REFUSED:
            step = replace(step, differs=difference(nodes, node, mode))
        steps.append(step)
    return JobOnSpark(graph.name, graph.max_parallelism, mode, tuple(steps), keeps_state)


def _given(nodes: Sequence[Node], node: Node) -> tuple[object, ...]:
    by_name = {each.name: each for each in nodes}
    return tuple(by_name[item.producer].schema_of(item.output) for item in node.inputs)


def _step(node: Node, mode: Mode, reason: str | None, given: tuple[object, ...]) -> StepOnSpark:
    if reason is None:
        foreign = foreign_column(node.schema)
        if foreign is not None and not isinstance(node.spec, SinkSpec):
            reason = f"{foreign}, for which Spark has no type; cast it in a step before, or where it is read"
    if reason is not None:
        return StepOnSpark(node, Way.REFUSED, reason)
    return StepOnSpark(node, Way.SPARK if native_step(node, given, mode) else Way.TASKS)
