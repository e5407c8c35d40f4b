"""What the steps of a subtask are made with: operators, contexts, files for rows that are put aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from task_manager.job_stores import JobStores
from task_manager.subtasks.isolation import Isolation
from task_manager.subtasks.job_settings import JobSettings
from task_manager.topology import Topology
from weir.author.operator import Operator, OperatorContext, SourceReader
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import GraphError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.factories import make_operator, make_reader
from weir.operators.step_contexts import StepLetters, step_context
from weir.operators.step_errors import StepError, naming_step
from weir.operators.user_errors import UserErrors
from weir.plan.graph import Node, Stage
from weir.rpc.wire import JobIdentity
from weir.state.tables.opened import StateTables
from weir.types import SubtaskId


class StepParts:
    """The parts of a deployed job's steps; used by the subtask factory."""

    def __init__(
        self,
        identity: JobIdentity,
        settings: JobSettings,
        config: TaskManagerConfig,
        state: JobStores,
        clock: Clock,
        errors: UserErrors,
    ) -> None:
        """``errors`` logs what the code of the job's author raises."""
        self._identity = identity
        self._settings = settings
        self._config = config
        self._state = state
        self._clock = clock
        self._errors = errors
        self._letters = StepLetters(
            config.dead_letter_path,
            identity.job_id,
            identity.generation,
            state.restored_id,
            config.dead_letter_raw_bytes_max,
        )

    def operator(self, node: Node) -> Operator:
        """Returns the operator of a step; the factory of a sink may be the author's."""
        with self._telling(node):
            return make_operator(node)

    def reader(self, node: Node) -> SourceReader:
        """Returns the reader of a source; its factory may be the author's."""
        with self._telling(node):
            return make_reader(node)

    def context(
        self,
        subtask: SubtaskId,
        stage: Stage,
        node: Node,
        tables: StateTables,
        dead_letters: DeadLetterFile | None,
        job_start_us: int,
        topology: Topology,
    ) -> OperatorContext:
        """Returns what a step is opened with; ``job_start_us``: epoch µs, 0: the job has not begun."""
        settings = self._settings
        planned = step_context(
            topology.graph, stage, node, subtask, tables, settings.state_ids, settings.idle_timeout_ms
        )
        return replace(
            planned,
            batch_size=self._config.batch_size,
            gather_ms=self._config.gather_ms,
            job_start_us=job_start_us or settings.deployed_us,
            clock=self._clock,
            dead_letters=dead_letters,
            run_facts=settings.run_facts,
            grace_period_ms=int(settings.out_of_order_grace_period_ms),
            generation=self._identity.generation,
            restored=self._state.restored(subtask, node.name),
            durable_uri=self._state.durable_uri(node.name) if node.is_sink else "",
        )

    def isolation(self, subtask: SubtaskId, stage: Stage, passed_id: Callable[[], int]) -> Isolation | None:
        """Returns what puts rows aside; None: no step of the stage raised again and again.

        ``passed_id`` returns the last checkpoint whose barrier the subtask passed on.
        """
        own = [node.name for node in stage.nodes if node.name in self._settings.isolated_steps]
        if not own:
            return None
        for step in own:
            # Also a deployment that meets no such row tells the next one that it began, and from where.
            self._letters.begin(step)
        return Isolation(
            self._settings.isolated_steps,
            lambda step: self._letters.of_step(subtask, step, passed_id),
            self._errors,
        )

    def step_letters(
        self, subtask: SubtaskId, node: Node, passed_id: Callable[[], int]
    ) -> DeadLetterFile | None:
        """Returns where a step puts rows that it rejects itself; None: it does not. See :meth:`isolation`."""
        return self._letters.of_step(subtask, node.name, passed_id) if node.spec.rejects_rows else None

    def dead_letters(self, subtask: SubtaskId, node: Node) -> DeadLetterFile | None:
        """Returns where a source puts what it cannot read; None: the node is no source."""
        source = node.source
        return None if source is None else self._letters.of_source(subtask, node.name, source.bad_records)

    @contextmanager
    def _telling(self, node: Node) -> Iterator[None]:
        """Log what the author's factory raises."""
        try:
            with naming_step(node.name, is_sink=node.is_sink):
                yield
        except (StepError, GraphError) as error:
            if error.__cause__ is not None:
                self._errors.tell(node.name, error.__cause__)
            raise
