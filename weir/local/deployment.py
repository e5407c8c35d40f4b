"""A generation of a job in this process: its subtasks, connected, from open to the end or to its loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from weir.author.operator import NEVER_US, Json
from weir.errors import InputError
from weir.local.job_parts import JobParts
from weir.local.state import take_snapshot
from weir.local.subtask_factory import SubtaskFactory
from weir.local.subtasks import LocalSource, LocalSubtask, LocalTask
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.late_rows import late_rows_of
from weir.operators.step_flow import WaitingRows
from weir.plan.graph import Stage
from weir.protocol.job.event_counts import EventCounts
from weir.protocol.job.input_plans import differing_plans
from weir.protocol.job.rejects import FirstReject, Rejects
from weir.protocol.routing import RoutingTable
from weir.protocol.watermarks.input_times import InputTimes, restored_times, times_key
from weir.protocol.watermarks.watermark_drift import lowest_watermarks_ms
from weir.rows.records import InputRows
from weir.state.api import StateBackend
from weir.types import SubtaskId

#: Of a stage, a subtask's index and who owns key groups: rows that were under way to it at a checkpoint.
RowsOf = Callable[[Stage, int, RoutingTable | None], list[InputRows]]


class Deployment:
    """Called by one thread. An error leaves it as it is, to be abandoned with :meth:`close`.

    Args:
        parts: of the job.
        routing: of the stages with key groups.
        store: for keyed state.
        generation: grows with every restart.
        job_start_us: schedules of paced sources count from there.
        restored: what the subtasks of a step told the checkpoint that this starts from.
        restored_id: that checkpoint; 0: there is none.
        keeps_positions: there are checkpoints, for which sources say where they are.
    """

    def __init__(
        self,
        parts: JobParts,
        routing: Mapping[int, RoutingTable],
        store: StateBackend,
        generation: int,
        job_start_us: int,
        restored: Callable[[str], Mapping[int, Json]],
        restored_id: int = 0,
        *,
        keeps_positions: bool,
    ) -> None:
        self._parts = parts
        self._routing = routing
        self._restored = restored
        self._keeps_positions = keeps_positions
        #: The last checkpoint whose barrier a subtask has seen.
        self._passed_ids: dict[SubtaskId, int] = {}
        #: What each subtask gave at the latest barrier, and batches that it had given to collections until then.
        self.snapshots: dict[SubtaskId, dict[str, Json]] = {}
        self.marks: dict[tuple[str, int], int] = {}
        #: Rows into and out of each subtask until then.
        self.counts: dict[SubtaskId, EventCounts] = {}
        if parts.interleaving is not None:
            parts.interleaving.forget()
        self._factory = factory = SubtaskFactory(
            *(parts, routing, store, generation, job_start_us, restored, restored_id),
            lambda subtask: self._passed_ids.get(subtask, 0),
            self._on_barrier,
        )
        self._by_id: dict[SubtaskId, LocalSubtask] = {}
        # Consumers first: producers are connected to them.
        for stage in reversed(parts.graph.stages):
            for subtask in stage.subtasks():
                self._by_id[subtask] = factory.create(stage, subtask)
        self.subtasks = [self._by_id[subtask] for subtask in parts.graph.subtasks()]
        self._timed = [subtask for subtask in self.subtasks if subtask.chain.is_timed]
        self.sources = [subtask for subtask in self.subtasks if isinstance(subtask, LocalSource)]
        #: Those that assign event times: without rows for long they do not hold others back.
        self._assigners = [
            task for task in self.subtasks if isinstance(task, LocalTask) and task.chain.assigns_times
        ]

    def open(self, rows_of: RowsOf | None = None) -> None:
        """Open all operators, those of consumers first, then the sources.

        ``rows_of``: what a checkpoint holds of rows that were under way to a subtask; None: there is no checkpoint.
        """
        for subtask in reversed(self.subtasks):
            subtask.open()
        under_way: dict[SubtaskId, list[InputRows]] = {}
        for subtask in reversed(self.subtasks):
            if rows_of is not None:
                stage = self._parts.graph.stage(subtask.subtask.stage_index)
                index, table = subtask.subtask.subtask_index, self._routing.get(stage.index)
                under_way[subtask.subtask] = rows_of(stage, index, table)
            waiting = [item for item in under_way.get(subtask.subtask, ()) if item.step]
            subtask.times.go_on(
                self._restored_times(subtask.subtask),
                [WaitingRows(item.step, item.batch, item.known_ms) for item in waiting],
            )
        for source in self.sources:
            source.begin()
        self._check_inputs()
        for subtask in self.subtasks:
            for rows in under_way.get(subtask.subtask, ()):
                if not rows.step and isinstance(subtask, LocalTask):
                    subtask.take_restored(rows)
                elif not rows.step:
                    subtask.chain.process(rows.batch, input_index=rows.input_index)
        for source in self.sources:
            source.tell_first()
        self.settle()

    @property
    def dead_letters(self) -> Sequence[tuple[str, DeadLetterFile]]:
        """Return the files of what was rejected, with the names of their steps."""
        return self._factory.dead_letters

    def _check_inputs(self) -> None:
        """Check that all subtasks of a source read one input; see ``SourceReader.input_plan``.

        Raises:
            InputError: the subtasks of a source have seen other inputs.
        """
        plans: dict[str, dict[int, int]] = {}
        for source in self.sources:
            plans.setdefault(source.step, {})[source.subtask.subtask_index] = source.reader.input_plan
        for step, found in plans.items():
            if wrong := differing_plans(step, found):
                raise InputError(wrong)

    @property
    def late_rows(self) -> dict[str, int]:
        """Return by step how many rows it has dropped because they came too late."""
        found = Counter[str]()
        for subtask in self.subtasks:
            found.update(dict(late_rows_of(subtask.chain)))
        return dict(sorted(found.items()))

    def _times_key(self, subtask: SubtaskId) -> str:
        return times_key(self._parts.graph.stage(subtask.stage_index).nodes[0].name)

    def _restored_times(self, subtask: SubtaskId) -> InputTimes:
        told = self._restored(self._times_key(subtask))
        indices = self._parts.graph.stage(subtask.stage_index).subtask_indices
        return restored_times(told, subtask.subtask_index, indices)

    @property
    def running_sources(self) -> list[LocalSource]:
        """Return the sources that have not come to the end of their input."""
        return [source for source in self.sources if not source.finished]

    @property
    def finished(self) -> bool:
        """Return whether everything was processed to the end."""
        return all(subtask.finished for subtask in self.subtasks)

    def round(self) -> tuple[bool, int]:
        """Poll each source once, or one that chance chooses, with all that follows from it.

        Returns:
            Whether there was anything, and else the wall clock (epoch µs) before which polling is useless.
        """
        interleaving = self._parts.interleaving
        sources = self.running_sources
        if interleaving is not None:
            interleaving.random.shuffle(sources)
        progressed, next_us = False, NEVER_US
        for source in self._readable(sources):
            polled = source.poll()
            if polled.batch is not None or polled.finished or source.watermark_rose:
                progressed = True
            else:
                next_us = min(next_us, polled.next_poll_us)
            if interleaving is not None:
                interleaving.settle(everything=False)
        if not progressed:
            self.settle()
        for task in self._assigners:
            if not task.finished:
                task.forward()
        for subtask in self._timed:
            fired, due_us = subtask.on_time(self._parts.clock.now_us())
            progressed = progressed or fired
            next_us = min(next_us, due_us)
        return progressed, next_us

    def _readable(self, sources: list[LocalSource]) -> list[LocalSource]:
        """Return sources not too far ahead of others of their group; one whose group has not begun reads first."""
        groups = [source.aligned for source in sources if source.aligned is not None]
        if not groups:
            return sources
        lowest_ms = lowest_watermarks_ms(groups)
        return [source for source in sources if source.may_read(lowest_ms)]

    def settle(self) -> None:
        """Process everything that is under way."""
        if self._parts.interleaving is not None:
            self._parts.interleaving.settle(everything=True)
        for subtask in self.subtasks:
            subtask.chain.tables.sweeps.step()

    def end_input(self) -> None:
        """Read nothing more: what was read is processed as at the end of the input."""
        for source in self.running_sources:
            source.end()
        self.settle()

    def snapshot(self, checkpoint_id: int) -> None:
        """Send barriers and fill :attr:`snapshots`; nothing is under way afterwards."""
        self.settle()
        for source in self.running_sources:
            source.checkpoint(checkpoint_id)
        self.settle()

    def commit(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: sinks deliver, those of subtasks that have ended all that they have."""
        for subtask in self.subtasks:
            if not subtask.delivered:
                subtask.chain.commit(0 if subtask.finished else checkpoint_id)
                subtask.delivered = subtask.finished

    def rejects(self) -> dict[SubtaskId, Rejects]:
        """Return for each subtask of a source what it has rejected among what it met."""
        found = {}
        for subtask, letters in self._factory.source_letters.items():
            source, position, reason = letters.first or ("", -1, "")
            first = FirstReject(reason, source, position, str(letters.path)) if letters.first else None
            met = self._by_id[subtask].counts.events_in + letters.rejected
            found[subtask] = Rejects(
                letters.operator, True, met, letters.rejected, first, rejected_here=letters.rejected
            )
        return found

    def close(self) -> list[Exception]:
        """Release files, locks and whatever operators hold; returns what they raised. Commits nothing."""
        errors = []
        for subtask in self.subtasks:
            try:
                subtask.close()
            except Exception as error:
                errors.append(error)
        for _, file in self.dead_letters:
            file.close()
        return errors

    def _on_barrier(self, subtask: LocalSubtask, checkpoint_id: int) -> None:
        # At the end of its input there is none.
        self._passed_ids[subtask.subtask] = checkpoint_id or self._passed_ids.get(subtask.subtask, 0)
        position = subtask.position() if self._keeps_positions else {}
        if checkpoint_id and self._keeps_positions:
            position[self._times_key(subtask.subtask)] = subtask.times.to_json()
        self.snapshots[subtask.subtask] = position | take_snapshot(subtask.chain, checkpoint_id)
        self.counts[subtask.subtask] = subtask.counts
        index = subtask.subtask.subtask_index
        for node in self._parts.graph.stage(subtask.subtask.stage_index).nodes:
            if node.name in self._parts.collections:
                self.marks[node.name, index] = self._parts.collections[node.name].count(index)


def no_state(step: str) -> Mapping[int, Json]:
    """What is restored at a start from nothing."""
    return {}
