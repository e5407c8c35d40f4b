"""Logical graph (operators) and physical graph (stages, subtasks, channels). Inert: nothing here runs.

``weir.dataflow.builder`` makes a :class:`LogicalGraph`; both processes turn it into the same :class:`PhysicalGraph`,
and compare fingerprints before any data flows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import pyarrow as pa

from weir.author.watermarks import DEFAULT_STRATEGY, WatermarkStrategy
from weir.errors import GraphError
from weir.rows.row_watermarks import RowWatermarks
from weir.rows.side_outputs import output_id
from weir.specs import OperatorSpec, SideOutput, SinkSpec, SourceSpec
from weir.specs.base import IN_ORDER_STATE
from weir.spelling import did_you_mean
from weir.subtask_names import CHAINED, in_step
from weir.types import ChannelId, SubtaskId


class Exchange(Enum):
    """How rows of a producer stage are spread over the subtasks of a consumer stage."""

    #: Subtask i sends to subtask i; the same parallelism on both sides.
    FORWARD = "forward"
    #: By key group of the key columns; rows of one key keep their order.
    HASH = "hash"
    #: Batches in turn.
    ROUND_ROBIN = "round_robin"
    #: Every row to every subtask.
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class Input:
    """An input of a node: the producer's name and how its rows reach this node."""

    producer: str
    exchange: Exchange = Exchange.FORWARD
    #: Only with HASH.
    key_columns: tuple[str, ...] = ()
    #: True: never chain, even if the exchange is FORWARD or moves no row (a stage boundary asked for by the job).
    stage_boundary: bool = False
    #: A side output of the producer; empty: its own output.
    output: str = ""
    #: User columns that are sent to a step that begins a stage, in order; None: not known, as in a graph that was
    #: written.
    columns: tuple[str, ...] | None = None

    @property
    def is_boundary(self) -> bool:
        """Return whether the next step begins a stage only because the job asks for it."""
        return self.stage_boundary and self.exchange is Exchange.FORWARD

    @property
    def output_id(self) -> str:
        """The producer's output, as the whole job calls it."""
        return output_id(self.producer, self.output)


@dataclass(frozen=True)
class Node:
    """An operator of the logical graph."""

    name: str
    spec: OperatorSpec
    inputs: tuple[Input, ...]
    parallelism: int
    #: User columns of this node's output.
    schema: pa.Schema
    side_outputs: tuple[SideOutput, ...] = ()
    #: Rows that come by key wait until all inputs have come as far (``weir.plan.rules.time_order``).
    orders_time: bool = False
    #: They do so in the order of their event times, not of their watermarks (``weir.plan.rules.versions``).
    sorts_times: bool = False
    #: Columns of its output that count as read, whoever reads it: what steps before it keep must not hang on that.
    kept_columns: frozenset[str] = frozenset()
    #: Of a step that a text of SQL has made for the one behind it: what each of its columns is computed of
    #: (``weir.plan.computed_columns``).
    computed: Mapping[str, str] = field(default_factory=dict)

    def schema_of(self, output: str) -> pa.Schema:
        """User columns of a side output, or for an empty name of the node's own.

        Raises:
            GraphError: there is no such side output.
        """
        if not output:
            return self.schema
        for item in self.side_outputs:
            if item.name == output:
                return item.schema
        names = [item.name for item in self.side_outputs]
        raise GraphError(
            f"step {self.name!r}: there is no side output {output!r}{did_you_mean(output, names)}"
        )

    @property
    def source(self) -> SourceSpec | None:
        """The spec of a node that reads from outside; None: this one does not."""
        return self.spec if isinstance(self.spec, SourceSpec) else None

    @property
    def is_source(self) -> bool:
        """Return whether this node reads from outside."""
        return self.source is not None

    @property
    def is_sink(self) -> bool:
        """Return whether this node ends a branch."""
        return isinstance(self.spec, SinkSpec)

    @property
    def watermark(self) -> WatermarkStrategy:
        """What this node says of its watermarks, if it is a source or assigns event times."""
        return getattr(self.spec, "watermark", None) or DEFAULT_STRATEGY

    @property
    def is_keyed(self) -> bool:
        """Return whether this node keeps keyed state."""
        return bool(self.states)

    @property
    def key_columns(self) -> list[list[str]]:
        """Return by input the key columns that a keyed step goes by; other steps have none."""
        found = [list(self.spec.keys_of_input(index)) for index in range(len(self.inputs))]
        return found if any(found) else []

    @property
    def states(self) -> dict[str, str]:
        """What each state of this node is called in the job, by its name in the step.

        ``{"total": "step/total"}`` for declared ones; ``{"": "step"}`` for a step with one state without a name.
        """
        names = (*self.spec.state_names, *((IN_ORDER_STATE,) if self.orders_time else ()))
        return {name: f"{self.name}/{name}" if name else self.name for name in names}


@dataclass(frozen=True)
class Edge:
    """The channels between two stages; ``index`` counts the consumer's input edges from 0."""

    producer_stage: int
    consumer_stage: int
    exchange: Exchange
    key_columns: tuple[str, ...]
    index: int
    #: User columns that are sent, in order; None: not known.
    columns: tuple[str, ...] | None = None
    #: The producer has more columns than are sent.
    is_narrowed: bool = False
    #: The side output of a step of the producer stage (``step/output``); empty: what leaves the last step.
    output: str = ""
    #: The step that the rows go to, if those of hot keys may be added up before they are sent.
    combining: OperatorSpec | None = field(default=None, compare=False)

    @property
    def sent_columns(self) -> tuple[str, ...] | None:
        """The user columns that a batch of the producer is cut to; None: it is sent as it is."""
        return self.columns if self.is_narrowed else None


@dataclass(frozen=True)
class Stage:
    """A chain of operators with one parallelism; the unit of placement and of ``/scale``."""

    index: int
    nodes: tuple[Node, ...]
    #: Indices of its subtasks, ascending; not contiguous when one was retired by a rescale.
    subtask_indices: tuple[int, ...]
    inputs: tuple[Edge, ...]

    @property
    def parallelism(self) -> int:
        """Number of subtasks now."""
        return len(self.subtask_indices)

    @property
    def name(self) -> str:
        """Names of the chained operators."""
        return CHAINED.join(node.name for node in self.nodes)

    @property
    def is_source(self) -> bool:
        """Return whether the chain starts with a source."""
        return self.nodes[0].is_source

    @property
    def is_keyed(self) -> bool:
        """Return whether an operator of the chain keeps keyed state."""
        return any(node.is_keyed for node in self.nodes)

    @property
    def states(self) -> list[str]:
        """What the states of its operators are called in the job; see :attr:`Node.states`."""
        return [state for node in self.nodes for state in node.states.values()]

    @property
    def has_groups(self) -> bool:
        """Return whether its subtasks own key groups, because rows come by HASH."""
        return bool(self.keyed_inputs)

    @property
    def keyed_inputs(self) -> frozenset[int]:
        """Indices of the inputs whose rows come by HASH: to the owner of their key group."""
        return frozenset(edge.index for edge in self.inputs if edge.exchange is Exchange.HASH)

    def subtasks(self) -> list[SubtaskId]:
        """Return this stage's subtasks, by index."""
        return [SubtaskId(self.index, index) for index in self.subtask_indices]


@dataclass(frozen=True)
class LogicalGraph:
    """Operators in topological order, sources first; validated by ``weir.dataflow.builder``."""

    name: str
    nodes: tuple[Node, ...]
    max_parallelism: int = 128
    #: The job as it was written, of a graph whose steps keep aggregates in another order.
    written: LogicalGraph | None = None
    #: What steps were called in the checkpoint from which the job starts, by their names now.
    renamed: Mapping[str, str] = field(default_factory=dict)

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            GraphError: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise GraphError(f"job {self.name}: no step is called {name!r}")

    def schema_into(self, node: Node) -> pa.Schema | None:
        """User columns of what comes in by a node's first input; None: it has none, or a rule put it in."""
        for first in node.inputs[:1]:
            for other in self.nodes:
                if other.name == first.producer:
                    return other.schema_of(first.output)
        return None

    def state_ids(self, kept: Mapping[str, int]) -> dict[str, int]:
        """Numbers of the states of keyed steps (:attr:`Node.states`): ``kept`` of a checkpoint, and free ones.

        A number of ``kept`` is never given to another state, also if its own is gone: the store may still hold entries.
        """
        names = [state for node in self.nodes for state in node.states.values()]
        if not kept:
            numbers_of = {name: number for number, name in enumerate(sorted(names))}
            return {name: numbers_of[name] for name in names}
        numbers = {name: kept[name] for name in names if name in kept}
        taken = set(kept.values())
        free = (number for number in itertools.count() if number not in taken)
        return numbers | {name: next(free) for name in names if name not in kept}


@dataclass(frozen=True)
class PhysicalGraph:
    """Stages in topological order: ``stages[i].index == i`` and every edge goes from a lower to a higher one."""

    logical: LogicalGraph
    stages: tuple[Stage, ...]

    def name_of(self, subtask: SubtaskId) -> str:
        """What people read of a subtask: "step 'count', subtask 0"; of a chain all of its steps."""
        return in_step(self.stages[subtask.stage_index].name, subtask)

    def stage(self, index: int) -> Stage:
        """The stage of that index.

        Raises:
            GraphError: there is none; names those that exist.
        """
        if 0 <= index < len(self.stages):
            return self.stages[index]
        known = ", ".join(f"{stage.index} ({stage.name})" for stage in self.stages)
        raise GraphError(f"job {self.logical.name}: no stage {index}; there are {known}")

    def with_subtasks(self, stage_index: int, subtask_indices: Iterable[int]) -> PhysicalGraph:
        """The same graph with other subtasks of one stage."""
        changed = replace(self.stage(stage_index), subtask_indices=tuple(sorted(subtask_indices)))
        return replace(self, stages=(*self.stages[:stage_index], changed, *self.stages[stage_index + 1 :]))

    def subtasks(self) -> list[SubtaskId]:
        """Return all subtasks, by stage, then index."""
        return [subtask for stage in self.stages for subtask in stage.subtasks()]

    @property
    def step_names(self) -> frozenset[str]:
        """Names of the steps of all stages."""
        return frozenset(node.name for stage in self.stages for node in stage.nodes)

    @property
    def waits_for_event_time(self) -> bool:
        """Return whether a step does something when a watermark comes."""
        return any(node.spec.waits_for_event_time for stage in self.stages for node in stage.nodes)

    @property
    def keeps_rows_of_inputs(self) -> bool:
        """Return whether a step keeps rows of one input until others have come as far."""
        return any(node.spec.keeps_rows_of_inputs for stage in self.stages for node in stage.nodes)

    @cached_property
    def row_watermarks(self) -> RowWatermarks:
        """Which batches say what the watermark is as of each row: what the step needs that needs most."""
        if any(node.orders_time for node in self.logical.nodes):
            return RowWatermarks.SPLITS
        return max((node.spec.row_watermarks for node in self.logical.nodes), default=RowWatermarks.NONE)

    def sides_read(self, step: str) -> frozenset[str]:
        """Names of a step's side outputs that somebody reads."""
        edges = [edge.output.partition("/") for stage in self.stages for edge in stage.inputs]
        return frozenset(output for name, _, output in edges if output and name == step)

    def output_edges(self, stage_index: int) -> list[Edge]:
        """Edges that leave a stage."""
        return [e for stage in self.stages for e in stage.inputs if e.producer_stage == stage_index]

    def input_channels(self, subtask: SubtaskId) -> list[ChannelId]:
        """Channels that end in a subtask, by edge, then producer."""
        return [
            ChannelId(producer, subtask, edge.index)
            for edge in self.stages[subtask.stage_index].inputs
            for producer in self._peers(edge, subtask, self.stages[edge.producer_stage])
        ]

    def output_channels(self, subtask: SubtaskId, edge: Edge) -> list[ChannelId]:
        """Channels of one edge that leave a subtask, by consumer index."""
        return [
            ChannelId(subtask, consumer, edge.index)
            for consumer in self._peers(edge, subtask, self.stages[edge.consumer_stage])
        ]

    @staticmethod
    def _peers(edge: Edge, subtask: SubtaskId, other: Stage) -> Iterator[SubtaskId]:
        if edge.exchange is Exchange.FORWARD:
            yield SubtaskId(other.index, subtask.subtask_index)
        else:
            yield from other.subtasks()


def consumer_counts(nodes: Iterable[Node]) -> Counter[str]:
    """Return by ``output_id`` how many inputs read an output."""
    return Counter(item.output_id for node in nodes for item in node.inputs)


def chains_to_producer(by_name: Mapping[str, Node], node: Node, consumers: Mapping[str, int]) -> bool:
    """Return whether a node joins its producer's stage; ``consumers`` as of :func:`consumer_counts`."""
    if len(node.inputs) != 1:
        return False
    item = node.inputs[0]
    return (
        item.exchange is Exchange.FORWARD
        and not item.stage_boundary
        and not item.output
        and consumers[item.producer] == 1
        and by_name[item.producer].parallelism == node.parallelism
    )
