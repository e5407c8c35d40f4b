"""The life of a job in one process over checkpoints, restarts and savepoints; used by ``weir.testing``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.errors import CheckpointError, WeirError
from weir.local.deployment import Deployment
from weir.local.job_parts import JobParts
from weir.local.preparing import initial_routing
from weir.local.raising import told
from weir.local.result import DeadLetter, read_dead_letters
from weir.local.state import DurableState, subtask_part
from weir.operators.step_errors import StepError
from weir.plan.fingerprints import fingerprint_of
from weir.plan.new_manifest import new_manifest
from weir.plan.savepoint_fit import fitted_to
from weir.plan.stages import physical_graph
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job.event_counts import NO_EVENTS

#: How far a checkpoint goes before the call returns.
Upto = Literal["prepared", "complete", "committed"]


class Generations:
    """Deployments one after the other, each from the latest complete checkpoint of the one before.

    Args:
        parts: of the job; numbers of states are set here.
        directory: for stores and checkpoints; it is the caller's to remove.
        on_disk: keyed state in RocksDB, else in memory.
        from_savepoint: path of the savepoint to begin from; None: from nothing.
        allow_dropped: steps of the savepoint that the job has not got lose what they held.

    Raises:
        CheckpointError: the savepoint does not exist or does not fit.
    """

    def __init__(
        self,
        parts: JobParts,
        directory: Path,
        *,
        on_disk: bool,
        from_savepoint: str | None,
        allow_dropped: bool,
    ) -> None:
        self.restarts = 0
        self._directory = directory
        self._on_disk = on_disk
        self._store = CheckpointStore.open(str(directory / "checkpoints"), parts.graph.logical.name)
        self._routing = initial_routing(parts.graph)
        #: The latest complete checkpoint.
        self._latest: Manifest | None = None
        #: By name of a step and subtask index, the batches that its collection had at that checkpoint.
        self._marks: dict[tuple[str, int], int] = {}
        #: What the checkpoint covers from which the deployment began.
        self._events_before = NO_EVENTS
        self._generation = 0
        self._next_checkpoint_id = 1
        self._job_start_us = parts.clock.now_us()
        if from_savepoint is not None:
            parts, self._latest = self._import(parts, from_savepoint, allow_dropped)
            self._generation = self._latest.generation
            self._routing = dict(self._latest.routing)
            self._next_checkpoint_id = self._latest.checkpoint_id + 1
        kept = {} if self._latest is None else self._latest.state_ids
        self._parts = replace(parts, state_ids=parts.graph.logical.state_ids(kept))
        self._deployment: Deployment | None = None
        self._state: DurableState | None = None
        self._files: list[DeadLetter] = []
        self._finished = False

    @property
    def deployment(self) -> Deployment:
        """The one that runs.

        Raises:
            WeirError: none does: a step has raised, or the job has ended.
        """
        if self._deployment is None:
            raise WeirError(
                "this job has ended: start another one"
                if self._finished or not self._generation
                else "this job has failed: let it go on from its latest checkpoint with restart()"
            )
        return self._deployment

    def begin(self) -> None:
        """Deploy the job under the next generation, from the latest complete checkpoint."""
        self._generation += 1
        manifest = self._latest
        self._events_before = NO_EVENTS if manifest is None else manifest.events
        if manifest is None:
            # Sources begin anew: what they rejected is rejected again.
            shutil.rmtree(self._parts.dead_letters, ignore_errors=True)
        self._state = state = DurableState(
            self._store,
            self._directory / f"state-{self._generation}",
            on_disk=self._on_disk,
            manifest=manifest,
            graph=self._parts.graph,
            routing=self._routing,
            state_ids=self._parts.state_ids,
        )
        self._deployment = Deployment(
            self._parts,
            self._routing,
            state.store,
            self._generation,
            self._job_start_us,
            state.restored,
            0 if manifest is None else manifest.checkpoint_id,
            keeps_positions=True,
        )
        with self.failing():
            self._deployment.open(state.rows_under_way)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error inside ends the deployment, as it would end a real one."""
        try:
            yield
        except StepError as error:
            self.abandon()
            shown = told(error)
            raise shown from shown.__cause__
        except BaseException:
            self.abandon()
            raise

    def checkpoint(self, upto: Upto = "committed") -> int:
        """Make a checkpoint; returns its number. See ``RunningJob.checkpoint``."""
        deployment, number = self.deployment, self._next_checkpoint_id
        self._next_checkpoint_id += 1
        deployment.snapshot(number)
        if upto != "prepared":
            self._complete(deployment, number)
        if upto == "committed":
            deployment.commit(number)
        return number

    def savepoint(self, path: str) -> None:
        """Make a checkpoint, and of it a savepoint.

        Raises:
            CheckpointError: there is a savepoint at that path already, or it cannot be written.
        """
        number = self.checkpoint("complete")
        assert self._latest is not None
        self._store.copy_savepoint(self._latest, path)
        self.deployment.commit(number)

    def restart(self) -> None:
        """Lose the deployment and begin the next one."""
        if self._finished:
            raise WeirError("this job has ended: start another one")
        self.abandon()
        self.restarts += 1
        kept: dict[str, dict[int, int]] = {}
        for (step, index), count in self._marks.items():
            kept.setdefault(step, {})[index] = count
        for step, collection in self._parts.collections.items():
            collection.cut(kept.get(step, {}))
        self.begin()

    def finish(self) -> None:
        """Every source has ended: a last checkpoint covers all, and sinks deliver."""
        self.checkpoint()
        errors = self._close()
        self._finished = True
        if errors:
            raise errors[0]

    def abandon(self) -> None:
        """End the deployment as it is."""
        self._close()

    def dead_letters(self) -> list[DeadLetter]:
        """Records that sources and steps have put aside, each once."""
        if self._deployment is not None:
            self._files = read_dead_letters(self._deployment.dead_letters)
        return self._files

    def _close(self) -> list[Exception]:
        errors: list[Exception] = []
        deployment, self._deployment = self._deployment, None
        if deployment is not None:
            errors = deployment.close()
            with suppress(OSError):
                self._files = read_dead_letters(deployment.dead_letters)
        state, self._state = self._state, None
        if state is not None:
            state.close()
        return errors

    def _complete(self, deployment: Deployment, number: int) -> None:
        assert self._state is not None
        graph = self._parts.graph
        image = self._state.image(number)
        parts = tuple(
            subtask_part(
                graph.stage(subtask.subtask.stage_index),
                subtask.subtask,
                self._routing.get(subtask.subtask.stage_index),
                image,
                deployment.snapshots[subtask.subtask],
                deployment.counts[subtask.subtask],
                finished=subtask.finished,
            )
            for subtask in deployment.subtasks
        )
        manifest = new_manifest(
            graph,
            self._routing,
            parts,
            self._parts.state_ids,
            checkpoint_id=number,
            fingerprint=fingerprint_of(graph.logical),
            generation=self._generation,
            created_ms=self._parts.clock.now_us() // 1000,
            job_start_us=self._job_start_us,
            events_before=self._events_before,
            settled={},
        )
        self._latest = self._store.read_manifest(self._store.write_manifest(manifest))
        self._marks = dict(deployment.marks)
        self._state.committed(number)

    def _import(self, parts: JobParts, path: str, allow_dropped: bool) -> tuple[JobParts, Manifest]:
        savepoint = CheckpointStore.open_savepoint(path)
        found = savepoint.latest()
        if found is None:
            raise CheckpointError(f"there is no savepoint at {savepoint.location}")
        logical = parts.graph.logical
        fitted, told = fitted_to(logical, found, allow_dropped=allow_dropped)
        parts = replace(parts, graph=physical_graph(fitted, whole=parts.collections))
        imported = replace(self._store.import_savepoint(savepoint, told, 1), job_name=logical.name)
        return parts, self._store.read_manifest(self._store.write_manifest(imported))
