"""What steps are opened with, and where they put rows aside: alike on task managers and in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from weir.author.operator import OperatorContext
from weir.operators.dead_letters import DeadLetterFile, letters_stem
from weir.operators.known_rows import KnownRows
from weir.plan.graph import Node, PhysicalGraph, Stage
from weir.specs import OnBadRecord
from weir.state.tables.opened import StateTables
from weir.types import SubtaskId


def step_context(
    graph: PhysicalGraph,
    stage: Stage,
    node: Node,
    subtask: SubtaskId,
    tables: StateTables,
    state_ids: Mapping[str, int],
    idle_timeout_ms: float,
) -> OperatorContext:
    """Return what the plan says for a step; the caller replaces what it knows of the run, such as clock and generation.

    Args:
        graph: the job.
        stage: of the step, with the subtasks that it has now.
        node: the step.
        subtask: where it runs.
        tables: of the subtask.
        state_ids: numbers of states in the store, by ``step`` or ``step/state``.
        idle_timeout_ms: of steps that do not say their own.
    """
    logical, own_idle_ms = graph.logical, node.watermark.idle_timeout_ms
    states = {name: state_ids[state] for name, state in node.states.items()}
    return OperatorContext(
        job_name=logical.name,
        operator_name=node.name,
        stage_index=stage.index,
        subtask_index=subtask.subtask_index,
        parallelism=stage.parallelism,
        max_parallelism=logical.max_parallelism,
        tables=tables.of(node.name, states) if node.is_keyed else None,
        is_sink=node.is_sink,
        subtask_indices=tuple(stage.subtask_indices),
        idle_timeout_ms=idle_timeout_ms if own_idle_ms is None else own_idle_ms,
        schema=node.schema,
        input_schema=logical.schema_into(node),
        sides_read=graph.sides_read(node.name),
        row_watermarks=graph.row_watermarks,
        sorts_times=node.sorts_times,
        # In one process too, though no barrier can pass there.
        fires_in_parts=True,
    )


class StepLetters:
    """Makes the dead-letter files of a deployment's steps. Any thread may call it.

    Args:
        directory: where files of dead letters are.
        job: name of the job's folder there.
        generation: of this deployment.
        restored_id: the checkpoint that it started from; 0: none.
        raw_bytes_max: bytes of a record that a file keeps.
    """

    def __init__(
        self, directory: str | Path, job: str, generation: int, restored_id: int, raw_bytes_max: int
    ) -> None:
        self._directory, self._job = directory, job
        self._generation, self._restored_id = generation, restored_id
        self._raw_bytes_max = raw_bytes_max
        #: By step: rows put aside before the restart that led here.
        self._known_rows: dict[str, KnownRows] = {}
        self._lock = threading.Lock()

    def of_source(self, subtask: SubtaskId, step: str, choice: OnBadRecord) -> DeadLetterFile:
        """Return the file of what a source cannot read; ``choice``: what the source does with bad records."""
        return DeadLetterFile(
            self._directory, self._job, step, subtask.subtask_index, choice, self._raw_bytes_max
        )

    def of_step(self, subtask: SubtaskId, step: str, passed_id: Callable[[], int]) -> DeadLetterFile:
        """Return the file of rows that a step puts aside.

        ``passed_id`` returns the last checkpoint whose barrier the subtask passed on; 0: none yet.
        """
        return DeadLetterFile(
            self._directory,
            self._job,
            step,
            subtask.subtask_index,
            raw_bytes_max=self._raw_bytes_max,
            known_rows=self.begin(step),
            passed_id=passed_id,
        )

    def begin(self, step: str) -> KnownRows:
        """Return the rows that a step put aside before the restart that led here; notes that this deployment began."""
        with self._lock:
            if step not in self._known_rows:
                stem = letters_stem(self._directory, self._job, step)
                self._known_rows[step] = KnownRows(stem, self._generation, self._restored_id)
            return self._known_rows[step]
