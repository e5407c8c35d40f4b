"""Makes the subtasks of one deployment in this process: chains, contexts, channels to consumers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

from weir.author.operator import Json, Operator, OperatorContext, SourceReader
from weir.author.watermarks import WatermarkStrategy
from weir.local.channels import Channel, DirectChannel, LocalEdge, LocalOutput
from weir.local.collected import CollectingStep
from weir.local.job_parts import JobParts
from weir.local.subtasks import LocalSource, LocalSubtask, LocalTask, OnBarrier
from weir.operators.chain import OperatorChain
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.factories import make_operator, make_reader
from weir.operators.registry import create_combiner
from weir.operators.step_contexts import StepLetters, step_context
from weir.operators.subtask_times import ReaderTimes
from weir.plan.graph import Node, Stage
from weir.protocol.routing import RoutingTable
from weir.specs import CollectSpec
from weir.state.api import StateBackend
from weir.state.tables.opened import StateTables
from weir.types import ChannelId, SubtaskId


class SubtaskFactory:
    """Used by ``Deployment``, which makes consumers first.

    Args:
        parts: of the job.
        routing: of the stages with key groups.
        store: for keyed state.
        generation: of the deployment.
        job_start_us: schedules of paced sources count from there.
        restored: what the subtasks of a step told the checkpoint that the deployment starts from.
        restored_id: that checkpoint; 0: there is none.
        passed_id: returns the last checkpoint whose barrier a subtask has seen; 0: none.
        on_barrier: what subtasks call at a barrier, and at their end.
    """

    def __init__(
        self,
        parts: JobParts,
        routing: Mapping[int, RoutingTable],
        store: StateBackend,
        generation: int,
        job_start_us: int,
        restored: Callable[[str], Mapping[int, Json]],
        restored_id: int,
        passed_id: Callable[[SubtaskId], int],
        on_barrier: OnBarrier,
    ) -> None:
        self._parts = parts
        self._routing = routing
        self._store = store
        self._generation = generation
        self._job_start_us = job_start_us
        self._restored = restored
        self._passed_id = passed_id
        self._on_barrier = on_barrier
        keyed = sum(stage.parallelism for stage in parts.graph.stages for n in stage.nodes if n.is_keyed)
        self._cache_bytes = parts.settings.state_cache_bytes // max(keyed, 1)
        self._letters = StepLetters(
            parts.dead_letters,
            parts.graph.logical.name,
            generation,
            restored_id,
            parts.settings.dead_letter_raw_bytes_max,
        )
        #: All files, with the names of their steps.
        self.dead_letters: list[tuple[str, DeadLetterFile]] = []
        self.source_letters: dict[SubtaskId, DeadLetterFile] = {}
        self._tasks: dict[SubtaskId, LocalTask] = {}

    def create(self, stage: Stage, subtask: SubtaskId) -> LocalSubtask:
        """Return a subtask, connected to its consumers, which must have been made."""
        output = LocalOutput(self._edges(subtask))
        first = stage.nodes[0]
        dead_letters = None
        if first.source is not None:
            dead_letters = self._letters.of_source(subtask, first.name, first.source.bad_records)
            self.source_letters[subtask] = self._kept(first, dead_letters)
        routing = self._routing.get(stage.index)
        tables = StateTables(
            self._store,
            self._cache_bytes,
            self._parts.graph.logical.max_parallelism,
            None if routing is None else routing.groups_of(subtask.subtask_index),
        )
        operators: list[tuple[Operator, OperatorContext]] = []
        for node in stage.nodes:
            letters = self._letters_of_step(node, subtask) if node.spec.rejects_rows else None
            context = self._context(stage, node, subtask, tables, letters)
            operators += [(operator, context) for operator in self._operators(node)]
        chain = OperatorChain(operators, output, _go_on, tables)
        if not stage.is_source:
            inputs = self._parts.graph.input_channels(subtask)
            task = LocalTask(subtask, chain, output, self._on_barrier, inputs, self._parts.clock)
            self._tasks[subtask] = task
            return task
        grace_ms, idle_ms = self._parts.settings.grace_period_ms, float(self._parts.settings.idle_timeout_ms)
        strategy = first.watermark
        if first.name in self._parts.hand_moved:
            strategy, idle_ms = WatermarkStrategy(0), float("inf")
        times = ReaderTimes(chain, strategy, grace_ms, idle_ms)
        context = self._context(stage, first, subtask, tables, dead_letters)
        reader = self._reader(first, subtask.subtask_index)
        return LocalSource(
            subtask,
            chain,
            output,
            self._on_barrier,
            reader,
            replace(context, grace_period_ms=times.behind_ms),
            times,
        )

    def _operators(self, node: Node) -> list[Operator]:
        """What a step is in a chain: a source nothing; with the one that keeps its rows."""
        collection = self._parts.collections.get(node.name)
        if isinstance(node.spec, CollectSpec) or node.name in self._parts.replaced_sinks:
            assert collection is not None
            return [CollectingStep(collection, is_end=True)]
        own = [] if node.is_source else [make_operator(node)]
        if collection is None:
            return own
        keeping = CollectingStep(collection, is_end=False)
        return [keeping, *own] if node.is_sink else [*own, keeping]

    def _reader(self, node: Node, subtask_index: int) -> SourceReader:
        if node.name in self._parts.readers:
            return self._parts.readers[node.name](subtask_index)
        return make_reader(node)

    def _edges(self, subtask: SubtaskId) -> list[LocalEdge]:
        graph = self._parts.graph
        edges = []
        for edge in graph.output_edges(subtask.stage_index):
            channels = {
                channel.consumer.subtask_index: self._channel(channel)
                for channel in graph.output_channels(subtask, edge)
            }
            table = self._routing.get(edge.consumer_stage)
            combiner = None if edge.combining is None else create_combiner(edge.combining)
            edges.append(LocalEdge(edge, channels, table.group_to_subtask if table else None, combiner))
        return edges

    def _channel(self, channel: ChannelId) -> Channel:
        consumer = self._tasks[channel.consumer]
        if self._parts.interleaving is not None:
            return self._parts.interleaving.channel(channel, consumer.take)
        return DirectChannel(channel, consumer.take)

    def _context(
        self,
        stage: Stage,
        node: Node,
        subtask: SubtaskId,
        tables: StateTables,
        dead_letters: DeadLetterFile | None,
    ) -> OperatorContext:
        parts, settings = self._parts, self._parts.settings
        planned = step_context(
            parts.graph, stage, node, subtask, tables, parts.state_ids, settings.idle_timeout_ms
        )
        return replace(
            planned,
            batch_size=settings.batch_size,
            job_start_us=self._job_start_us,
            clock=parts.clock,
            dead_letters=dead_letters,
            grace_period_ms=settings.grace_period_ms,
            generation=self._generation,
            # Its own: what a subtask makes of it is seen by no other one.
            restored=copy.deepcopy(self._restored(node.name)),
        )

    def _letters_of_step(self, node: Node, subtask: SubtaskId) -> DeadLetterFile:
        letters = self._letters.of_step(subtask, node.name, lambda: self._passed_id(subtask))
        return self._kept(node, letters)

    def _kept(self, node: Node, file: DeadLetterFile) -> DeadLetterFile:
        self.dead_letters.append((node.name, file))
        return file


def _go_on() -> None:
    """Nobody cancels a subtask here between two outputs."""
