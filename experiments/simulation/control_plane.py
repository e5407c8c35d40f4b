"""One simulated control plane process: the real parts of ``control_plane``, on ports of the simulated world."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from control_plane.composition import ControlPlane, Outside
from control_plane.job.start import start_or_take_over
from control_plane.link.service import ControlPlaneService
from control_plane.rescale.drain import Drain
from experiments.simulation.broken import BROKEN_MACHINES
from experiments.simulation.clock import WorldClock
from experiments.simulation.connection import CallContext, CallError
from experiments.simulation.control_plane_ports import CheckedStore, WorldBackground, WorldClient
from experiments.simulation.plan import SOURCE
from experiments.simulation.standbys import WatchedStandbys
from experiments.simulation.world import CONTROL_PLANE, SCALE, Process, Violation, World
from weir.config import ControlPlaneConfig, StateMove, StateStrategy
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_coordinator import RescaleMachine
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_model import RescaleAction, RescaleEvent
from weir.protocol.rescale.rescale_plan import RescaleRefusal
from weir.rpc import control_pb2

if TYPE_CHECKING:
    from experiments.simulation.run import Simulation

LEASE_MS = 40
#: What no subtask may fail of.
_BUG = re.compile(r"bug in Weir|\b(Assertion|Attribute|Index|Key|Name|Runtime|Type|Value)Error\b")
_LOOK_MS = 4.0


class WatchedLog(RescaleLog):
    """Tells of every phase of a rescale."""

    watch: Callable[[RescaleMachine], None]

    def handle(self, rescale_id: int, event: RescaleEvent, now_ms: int) -> list[RescaleAction]:
        """See the base class."""
        current = self.current
        before = None if current is None else current.phase
        actions = super().handle(rescale_id, event, now_ms)
        if isinstance(current, RescaleMachine) and current.phase is not before:
            self.watch(current)
        return actions


class ControlPlaneProcess(Process):
    """One process; a restarted one is a new object with the same address, and takes the job over."""

    def __init__(self, run: Simulation) -> None:
        world, register = run.world, run.register
        super().__init__(world, CONTROL_PLANE)
        self._faults = run.faults
        register.leader = self
        rng = world.rng
        config = _config(world, len(run.names))
        checked = CheckedStore(world, run.store, lambda: self.parts.job.identity.generation)
        start, _ = start_or_take_over(
            run.loaded,
            config.checkpoint_uri,
            register.record,
            open_store=lambda uri, job_id: checked,
            # The same in every run of a seed.
            name_job=lambda graph: f"{graph.name}-20260101-000000-{int(world.now_ms):04x}",
        )
        if world.broken == "create":
            start = replace(
                start, next_checkpoint_id=1 + (start.latest.manifest.checkpoint_id if start.latest else 0)
            )
        background = WorldBackground(self)
        self.parts = ControlPlane(
            config,
            "simulated",
            run.loaded,
            start,
            Outside(
                WorldClock(world),
                background,
                partial(WorldClient, self),
                checked,
                partial(register.save, self),
                is_shared=register.is_etcd,
            ),
            end_task_managers=True,
            strategy=StateStrategy(rng.choice(list(StateMove))),
        )
        self._service = ControlPlaneService(self.parts)
        self._rescaled = run.job.rescaled
        machine = BROKEN_MACHINES.get(world.broken)
        if machine is not None:
            self.parts.checkpointer.machine.__class__ = machine
        log = self.parts.rescaler.log
        log.__class__ = WatchedLog
        assert isinstance(log, WatchedLog)
        log.watch = self._rescale_moved
        self._watch_standbys(run.quota)
        world.say(
            self.address, f"begins generation {start.generation} from {self.parts.checkpointer.latest_id}"
        )
        self._rescales_left = rng.choice([2, 5] if world.broken else [0, 2, 5])
        self.parts.takeover.start(config.lease_timeout_ms)
        self.spawn(self.parts.run_timers(_LOOK_MS * SCALE / 1e3))
        self.spawn(self._until_over())
        self.later(rng.random() * 60, self._rescale)
        if rng.random() < 0.3:
            self.later(rng.random() * 100, self._save)

    def _watch_standbys(self, quota: int) -> None:
        standbys = self.parts.standbys
        standbys.__class__ = WatchedStandbys
        assert isinstance(standbys, WatchedStandbys)
        standbys.quota, standbys.later = quota, self.later
        standbys.took_over = partial(self.world.counts.update, ["takeovers by standbys"])

    async def _until_over(self) -> None:
        over = asyncio.ensure_future(self.parts.coordinator.ended.wait())
        superseded = asyncio.ensure_future(self.parts.coordinator.superseded.wait())
        await asyncio.wait([over, superseded], return_when=asyncio.FIRST_COMPLETED)
        if superseded.done():
            self.give_way("another control plane has committed a checkpoint")
            return
        state = self.parts.job.state
        if state is not JobState.FINISHED:
            raise Violation(f"the job ended {state.value}: {self.parts.job.machine.cause}")

    def give_way(self, why: str) -> None:
        """Another control plane leads: this process ends."""
        if self.is_alive:
            self.world.say(self.address, f"gives way: {why}")
            self.world.end(self)

    def _rescale(self) -> None:
        """Ask for a rescale, or for a task manager to be emptied, now and then."""
        rng = self.world.rng
        if not self._rescales_left:
            return
        self.later(rng.random() * 60, self._rescale)
        if self.parts.job.state is not JobState.RUNNING:
            return
        if rng.random() < 0.15 and self.parts.task_managers.clients:
            name = rng.choice(sorted(self.parts.task_managers.clients))
            if self.world.broken and self._has_source(name):
                return
            if isinstance(self.parts.drainer.request(name), Drain):
                self.world.say(self.address, f"empties {name}")
                self.world.counts["drains"] += 1
            return
        # A new deployment hides what is broken: the rules are about what goes on meanwhile.
        is_source = not self.world.broken and rng.random() < 0.2
        stage_index = SOURCE if is_source else rng.choice(self._rescaled)
        rescale = self.parts.rescaler.request(stage_index, rng.randint(1, 4))
        if not isinstance(rescale, RescaleRefusal):
            self._rescales_left -= 1
            self.world.counts["source moves" if stage_index == SOURCE else "rescales"] += 1
            self.world.say(self.address, f"rescale {rescale.plan.before} -> {rescale.plan.after}")
            self._faults.begins_rescale(sorted(set(rescale.plan.placement.values())))

    def _has_source(self, name: str) -> bool:
        placement = self.parts.job.machine.placement
        return any(place == name and subtask.stage_index == SOURCE for subtask, place in placement.items())

    def _save(self) -> None:
        """Ask for a savepoint now and then."""
        rng = self.world.rng
        self.later(rng.random() * 200, self._save)
        if self.parts.job.state is JobState.RUNNING:
            self.parts.checkpointer.request(f"sim://savepoints/{self.world.steps}")

    def _rescale_moved(self, rescale: RescaleMachine) -> None:
        plan, placement = rescale.plan, self.parts.job.machine.placement
        new = set(plan.placement.values())
        others = {placement[subtask] for subtask in (*plan.subtasks, *plan.upstream) if subtask in placement}
        # What is new is the least known to everybody.
        concerned = new if new and self.world.rng.random() < 0.7 else others
        if rescale.phase.is_final:
            self.world.counts[f"rescales {rescale.phase.value.lower()}"] += 1
        self.world.moment(rescale.phase.value, sorted(concerned))

    # --- called by task managers --------------------------------------------------------------------------------

    async def serve(self, path: str, request: Any) -> Any:
        """Called by the network."""
        if self.world.broken == "acknowledgement" and path.endswith("/AcknowledgeCheckpoint"):
            request.handshake.generation = self.parts.job.identity.generation
        if isinstance(request, control_pb2.HeartbeatRequest):
            bugs = [report.cause for report in request.subtasks if _BUG.search(report.cause)]
            if bugs:
                raise Violation(f"{request.address}: {bugs[0]}")
        method: Callable[[Any, Any], Any] = getattr(self._service, path.rpartition("/")[2])
        reply = await method(request, _Context())
        self.parts.checkpointer.machine.check_invariants()
        self.parts.job.machine.check_invariants()
        return reply


class _Context(CallContext):
    """What the control plane's service uses of its context."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:  # type: ignore[override]
        """As of a served call.

        Raises:
            CallError: always.
        """
        raise CallError(code, details)


def _config(world: World, task_managers: int) -> ControlPlaneConfig:
    rng = world.rng
    return ControlPlaneConfig(
        checkpoint_uri="simulated",
        savepoint_roots=("sim://savepoints",),
        watermark_interval=rng.choice([0.02, 0.2]),
        # A watermark that rises too early passes rows at once.
        out_of_order_grace_period=0,
        # A source that is paused holds it back.
        idle_timeout_ms=3_600_000,
        min_task_managers=rng.randint(1, task_managers),
        heartbeat_interval_ms=10 * SCALE,
        lease_timeout_ms=LEASE_MS * SCALE,
        checkpoint_interval_ms=rng.choice([8, 20, 40]) * SCALE,
        checkpoint_pause_ms=rng.choice([0, 5]) * SCALE,
        checkpoint_timeout_ms=rng.choice([30, 80]) * SCALE,
        checkpoint_failures_max=rng.choice([0, 3]),
        restart_attempts=1_000_000,
        restart_delay_ms=rng.choice([0, 5]) * SCALE,
        restart_delay_ms_max=20 * SCALE,
        restart_stable_ms=100 * SCALE,
        poison_attempts=0,
        # By the number of task managers, so that the course of each seed stays what it was in runs of broken rules.
        standby_replicas=0 if world.broken else task_managers // 2,
    )
