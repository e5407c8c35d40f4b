"""What the control plane knows about its job: graph, routing, deployment, reports, and where state is.

Parts read it. What happens to subtasks goes through the job's machine, which the coordinator feeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from control_plane.job.late_counts import late_rows
from control_plane.job.start import strategy_in_force
from control_plane.job.start_point import StartPoint, graph_and_routing
from control_plane.rescale.state_locations import StateLocations
from weir.config import StateStrategy
from weir.dataflow.loading import LoadedJob
from weir.plan.fingerprints import fingerprint_of
from weir.plan.new_manifest import new_manifest
from weir.plan.stages import physical_graph
from weir.plan.state_horizons import with_horizons
from weir.plan.stored_aggregates import with_layouts
from weir.protocol.checkpoints.checkpoint_model import Commit
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.database_run import run_of
from weir.protocol.job.event_counts import NO_EVENTS
from weir.protocol.job.job_machine import JobMachine, JobState
from weir.protocol.routing import RoutingTable
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity
from weir.types import SubtaskId

#: Between the Start calls and event 0 of a paced source: all task managers have the call by then.
_START_DELAY_US = 20_000


class RunningJob:
    """A job that runs; used in the event loop."""

    def __init__(
        self, job_module: str, job: LoadedJob, start: StartPoint, strategy: StateStrategy, *, restarts: bool
    ) -> None:
        """A job that waits for task managers.

        Args:
            job_module: what task managers import.
            job: the loaded job.
            start: what it begins with.
            strategy: what becomes of state in a rescale, on every task manager.
            restarts: it starts again when it fails.
        """
        self.job_module = job_module
        self.parameters = job.parameters
        #: What becomes of state in a rescale: as every task manager was told in this deployment.
        self.strategy = strategy_in_force(start.left, strategy)
        self._configured_strategy = strategy
        manifest = None if start.latest is None else start.latest.manifest
        since = start.left or manifest
        #: By step: the aggregates that its state has, in their order there; the job may tell them in another one.
        self.layouts = {} if manifest is None else dict(manifest.layouts)
        #: By step: how far back its states reach, of a job that was changed.
        self.horizons = {} if manifest is None else dict(manifest.horizons)
        graph = with_horizons(with_layouts(job.graph, self.layouts), self.horizons)
        self.graph, self.routing_tables = graph_and_routing(physical_graph(graph), since)
        self.identity = JobIdentity(start.job_id, fingerprint_of(job.graph), start.generation)
        self.machine = JobMachine(
            self.graph.subtasks(),
            restarts=restarts,
            commits_at_end=True,
            generation=start.generation,
            name_of=self.graph.name_of,
        )
        self.reports: dict[SubtaskId, control_pb2.SubtaskReport] = {}
        #: Last reports of subtasks that a rescale retired: their events count.
        self.retired_reports: list[control_pb2.SubtaskReport] = []
        #: What the checkpoint covers from which this deployment began; a job that is taken over goes on as it is.
        self.events_before = NO_EVENTS if manifest is None else manifest.events
        if start.left is not None and manifest is not None and manifest.generation == start.generation:
            self.events_before = manifest.events_before
        #: By step: rows too late, as of the checkpoint, that subtasks counted which rescales had ended before it.
        self.late_before: Mapping[str, int] = {} if manifest is None else manifest.late
        #: What the totals had been when the job started: more than 0 if it started from a savepoint of another one.
        self.events_at_start = start.events_at_start if start.left is None else start.left.events_at_start
        #: Numbers of the states of keyed steps in the stores.
        self.state_ids = start.state_ids(graph)
        #: Whose rows it has in a database that keeps its state, where one does.
        self.database_run = run_of(start.job_id, manifest)
        #: What the job needs to go on, if it waits for task managers.
        self.waiting_for = ""
        self.started_us: int | None = (since.job_start_us or None) if since is not None else None
        self.ended_us: int | None = None
        #: Restarts so far, those under earlier control planes included.
        self.restarts = start.left.restarts if start.left is not None else 0
        #: Where subtasks were before the last restart: they go back there.
        self.preferred: dict[SubtaskId, str] = {}
        self.locations = StateLocations(self._owner_address)
        #: Subtasks of sources that were rescaled: from their next deployment on, whatever the checkpoint says.
        self.moved_sources: dict[int, tuple[int, ...]] = {}

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return self.machine.state

    @property
    def sources(self) -> frozenset[SubtaskId]:
        """Return all source subtasks."""
        return frozenset(
            subtask for stage in self.graph.stages if stage.is_source for subtask in stage.subtasks()
        )

    def install(self, stage_index: int, subtask_indices: Iterable[int], table: RoutingTable | None) -> None:
        """Set the subtasks and the routing table that a stage has from now on."""
        self.graph = self.graph.with_subtasks(stage_index, subtask_indices)
        if table is not None:
            self.routing_tables[stage_index] = table

    def begin(self, now_us: int) -> None:
        """Note when it began, if it had not; before that it runs is on record, or a successor would begin anew."""
        self.started_us = self.started_us or now_us + _START_DELAY_US

    def begin_generation(self, generation: int, manifest: Manifest | None) -> None:
        """The job is deployed anew, as a checkpoint has it or from nothing; the machine is told after this."""
        self.identity = replace(self.identity, generation=generation)
        self.graph, self.routing_tables = graph_and_routing(self.graph, manifest)
        for stage_index, indices in self.moved_sources.items():
            self.graph = self.graph.with_subtasks(stage_index, indices)
        self.reports.clear()
        self.retired_reports.clear()
        self.events_before = NO_EVENTS if manifest is None else manifest.events
        self.late_before = {} if manifest is None else manifest.late
        self.strategy = self._configured_strategy
        self.locations = StateLocations(self._owner_address)
        if manifest is not None:
            # The savepoint from which it started has none.
            self.started_us = manifest.job_start_us or self.started_us

    def manifest(self, action: Commit, created_ms: int) -> Manifest:
        """Return what the checkpoint that is to be committed consists of; ``created_ms``: wall clock."""
        manifest = new_manifest(
            self.graph,
            self.routing_tables,
            action.parts,
            self.state_ids,
            checkpoint_id=action.checkpoint_id,
            fingerprint=self.identity.fingerprint,
            generation=action.generation,
            created_ms=created_ms,
            job_start_us=self.started_us or 0,
            events_before=self.events_before,
            settled=action.settled,
            is_savepoint=bool(action.path),
        )
        # The parts of the others tell of their own.
        covered = {(part.subtask.stage_index, part.subtask.subtask_index) for part in action.parts}
        retired = [
            report
            for report in self.retired_reports
            if (report.subtask.stage_index, report.subtask.subtask_index) not in covered
        ]
        return replace(manifest, late=late_rows(retired, self.late_before))

    def owner(self, stage_index: int, group: int) -> SubtaskId | None:
        """The subtask that owns a key group, by the routing table in force."""
        table = self.routing_tables.get(stage_index)
        return SubtaskId(stage_index, table.groups[group]) if table and group < len(table.groups) else None

    def state_held_at(self, name: str) -> list[tuple[int, int]]:
        """(stage, key group) whose state is in the store of this task manager, and whose owner still needs it."""
        statuses = self.machine.statuses
        needed = []
        for stage_index, group in self.locations.held_at(name):
            owner = self.owner(stage_index, group)
            if owner is not None and owner in statuses and not statuses[owner].is_terminal:
                needed.append((stage_index, group))
        return needed

    def _owner_address(self, stage_index: int, group: int) -> str:
        owner = self.owner(stage_index, group)
        return self.machine.placement.get(owner, "") if owner else ""
