"""Starts a failed job again from its latest checkpoint: generation, subtasks, routing, and where to go on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.record.job_record import JobRecord
from weir.config import ControlPlaneConfig
from weir.errors import FailureKind
from weir.graph import Exchange, LogicalGraph, PhysicalGraph, physical_graph
from weir.protocol import job as job_machine
from weir.protocol.job import JobState
from weir.protocol.manifest import Manifest
from weir.protocol.restart import GiveUp, PoisonWatch, RestartPolicy
from weir.protocol.routing import RoutingTable, initial_table
from weir.types import SubtaskId

if TYPE_CHECKING:
    from control_plane.job.coordinator import Coordinator

log = logging.getLogger("control_plane")

_LOOK_AGAIN_S = 0.01
#: A subtask that lost a peer may tell of it sooner than the peer tells why it failed: so long that is waited for.
_CAUSE_S_MAX = 0.3


@dataclass(frozen=True)
class StartPoint:
    """What the first deployment of a control plane process begins with."""

    job_id: str
    latest: RestorePoint | None = None
    generation: int = 1
    next_checkpoint_id: int = 1
    #: A job that an earlier control plane left running, as it was then.
    left: JobRecord | None = None

    def state_ids(self, graph: LogicalGraph) -> dict[str, int]:
        """Numbers of the states of keyed steps: those of the checkpoint, and free ones for steps that are new."""
        kept = {} if self.latest is None else dict(self.latest.manifest.state_ids)
        return graph.state_ids(kept)


class Recovery:
    """One per job; all methods are called in the event loop."""

    def __init__(self, coordinator: Coordinator, config: ControlPlaneConfig, restarts: int = 0) -> None:
        """``restarts``: those under earlier control planes."""
        self.policy = RestartPolicy(
            config.restart_attempts,
            config.restart_delay_ms,
            config.restart_delay_ms_max,
            config.restart_stable_ms,
            strict=config.strict,
        )
        #: Restarts so far, those under earlier control planes included.
        self.restarts = restarts
        #: Where subtasks were before the last restart: they go back there.
        self.preferred: dict[SubtaskId, str] = {}
        self._poison = PoisonWatch(config.poison_attempts)
        self._coordinator = coordinator

    @property
    def isolated_steps(self) -> set[str]:
        """Steps that raised at rows again and again: rows that make them raise are put aside."""
        return self._poison.isolated

    async def restart(self, failure: job_machine.Failure) -> None:
        """Ask the policy, wait, and let the job start again under a higher generation, or fail."""
        coordinator = self._coordinator
        if failure.is_secondary:
            failure = await self._first_cause()
            if coordinator.machine.state is not JobState.RESTARTING:
                return
        is_isolated = failure.step in self._poison.isolated
        decision = self.policy.decide(
            coordinator.now_ms(), failure.cause, failure.kind, is_isolated=is_isolated
        )
        if isinstance(decision, GiveUp):
            coordinator.handle(job_machine.RestartRefused(decision.reason))
            return
        if self._poison.failed(failure.kind, failure.step):
            log.warning(
                "rows that make step %r raise go to the dead letters after this restart", failure.step
            )
        what = "outage, the job is held back: " if failure.kind is FailureKind.OUTAGE else ""
        log.warning(
            "%srestart %d of the job in %d ms: %s",
            what,
            decision.attempt,
            decision.delay_ms,
            failure.cause,
        )
        self.preferred = dict(coordinator.machine.placement)
        await asyncio.sleep(decision.delay_ms / 1e3)
        # A broken channel tells of a dead process long before its lease ends.
        await coordinator.leases.drop_gone()
        # A manifest that is being written may yet be what the job starts from.
        while not coordinator.checkpointer.machine.is_settled:
            await asyncio.sleep(_LOOK_AGAIN_S)
        if coordinator.machine.state is not JobState.RESTARTING:
            return
        self.restarts += 1
        latest = coordinator.checkpointer.latest
        manifest = None if latest is None else latest.manifest
        if manifest is None:
            log.warning("there is no checkpoint yet: the job starts from nothing")
        coordinator.begin_generation(coordinator.identity.generation + 1, manifest)

    async def _first_cause(self) -> job_machine.Failure:
        """What led to a failure that another one may have led to, as far as it becomes known in a moment."""
        coordinator = self._coordinator
        before = set(coordinator.leases.clients)
        await coordinator.leases.drop_gone()
        waited_s = 0.0
        # A process that is gone tells nothing.
        while before <= coordinator.leases.clients.keys() and waited_s < _CAUSE_S_MAX:
            machine = coordinator.machine
            if not machine.failure.is_secondary or machine.state is not JobState.RESTARTING:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
            waited_s += _LOOK_AGAIN_S
        return coordinator.machine.failure


def graph_and_routing(
    graph: PhysicalGraph, manifest: Manifest | JobRecord | None
) -> tuple[PhysicalGraph, dict[int, RoutingTable]]:
    """The subtasks and the routing tables that a deployment begins with.

    Args:
        graph: of the job, with any subtasks.
        manifest: of the same job, step for step, or the record of the job as it runs; None: as the job's
            description says.
    """
    if manifest is None:
        fresh = physical_graph(graph.logical)
        return fresh, {
            stage.index: initial_table(stage.index, stage.parallelism, graph.logical.max_parallelism)
            for stage in fresh.stages
            if any(edge.exchange is Exchange.HASH for edge in stage.inputs)
        }
    for stage, indices in manifest.stages.items():
        graph = graph.with_subtasks(stage, indices)
    return graph, dict(manifest.routing)
