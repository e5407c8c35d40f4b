"""One simulated control plane process: the real parts of ``control_plane``, on ports of the simulated world."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from control_plane.composition import ControlPlane, Outside
from control_plane.job.start import start_or_take_over
from control_plane.link.service import ControlPlaneService
from control_plane.rescale.drain import Drain
from experiments.simulation.clock import WorldClock
from experiments.simulation.connection import CallContext, CallError
from experiments.simulation.storage import SimulatedStore
from experiments.simulation.world import CONTROL_PLANE, SCALE, Process, Violation, World
from weir.config import ControlPlaneConfig, StateMove, StateStrategy
from weir.errors import ConnectionLostError, HandshakeError
from weir.protocol import checkpoint_model as checkpoints
from weir.protocol.checkpoint import CheckpointMachine
from weir.protocol.job import JobState
from weir.protocol.manifest import Manifest, SubtaskPart
from weir.protocol.rescale_coordinator import RescaleMachine
from weir.protocol.rescale_log import RescaleLog
from weir.protocol.rescale_model import RescaleAction, RescaleEvent
from weir.rpc import control_pb2
from weir.rpc.wire import refusal_kind

if TYPE_CHECKING:
    from experiments.simulation.run import Simulation

LEASE_MS = 40
#: What no subtask may fail of.
_BUG = re.compile(r"bug in Weir|\b(Assertion|Attribute|Index|Key|Name|Runtime|Type|Value)Error\b")
_LOOK_MS = 4.0

Result = TypeVar("Result")


class CountsEveryLastPart(CheckpointMachine):
    """Broken: a last part counts although its subtask passed the barrier before."""

    @staticmethod
    def _counts(last_part: SubtaskPart, flight: object) -> bool:
        return True


class ForgetsRetired(CheckpointMachine):
    """Broken: a retired subtask is no part of the next checkpoint."""

    def handle(self, event: checkpoints.CheckpointEvent, now_ms: int) -> list[checkpoints.CheckpointAction]:
        """Take one event in."""
        if not isinstance(event, checkpoints.SubtasksRetired):
            return super().handle(event, now_ms)
        for subtask in event.subtasks:
            self._parties.placement.pop(subtask, None)
            self._parties.last_parts.pop(subtask, None)
        return []


class NeverWaits(CheckpointMachine):
    """Broken: a job starts again while a manifest is being written."""

    @property
    def is_settled(self) -> bool:
        """Whether a job may start again."""
        return True


#: Machines that break a rule on purpose.
_BROKEN: dict[str, type[CheckpointMachine]] = {
    "last part": CountsEveryLastPart,
    "retired": ForgetsRetired,
    "settled": NeverWaits,
}


class WatchedLog(RescaleLog):
    """Tells of every phase of a rescale."""

    watch: Callable[[RescaleMachine], None]

    def handle(self, rescale_id: int, event: RescaleEvent, now_ms: int) -> list[RescaleAction]:
        """See the base class."""
        current = self.current
        before = None if current is None else current.phase
        actions = super().handle(rescale_id, event, now_ms)
        if current is not None and current.phase is not before:
            self.watch(current)
        return actions


class WorldBackground:
    """Implements ``control_plane.ports.Background`` for a process that can crash and pause."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._slow_writes = process.world.rng.choice([0.0, 0.3, 0.8])
        self._slow_ms = process.world.rng.choice([50, 50, 200])

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that ends with the process."""
        self._process.spawn(work)

    async def sleep(self, seconds: float) -> None:
        """Virtual time."""
        await self._process.wait(seconds * 1e3 / SCALE)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """What blocks happens at one moment; a crash or a pause can come before and after it."""
        world = self._process.world
        world.moment("write", ())
        await self._process.wait(self._delay_ms())
        try:
            return work()
        finally:
            world.moment("written", ())
            await self._process.wait(self._delay_ms())

    def _delay_ms(self) -> float:
        rng = self._process.world.rng
        return rng.random() * (self._slow_ms if rng.random() < self._slow_writes else 3)


class CheckedStore:
    """Implements ``control_plane.ports.ManifestStore`` for one process, which must not commit what it gave up."""

    def __init__(self, world: World, store: SimulatedStore, generation: Callable[[], int]) -> None:
        self._world, self._store, self._generation = world, store, generation
        self.location = store.location
        self.latest, self.read_manifest = store.latest, store.read_manifest
        self.expire, self.remove = store.expire, store.remove

    def copy_savepoint(self, manifest: Manifest, uri: str) -> str:
        """See ``SimulatedStore``."""
        self._world.moment("savepoint", ())
        return self._store.copy_savepoint(manifest, uri)

    def write_manifest(self, manifest: Manifest) -> str:
        """See ``SimulatedStore``.

        Raises:
            Violation: the job has started again since, from an earlier checkpoint.
        """
        if manifest.generation != self._generation():
            raise Violation(
                f"manifest {manifest.checkpoint_id} of generation {manifest.generation} is written while generation "
                f"{self._generation()} runs"
            )
        self._world.moment("manifest", ())
        return self._store.write_manifest(manifest)


class WorldClient:
    """Implements ``control_plane.ports.TaskManagerCalls`` over the simulated network, as ``TaskManagerClient`` does."""

    def __init__(self, process: ControlPlaneProcess, address: str) -> None:
        self._process, self._address = process, address
        self._open: dict[asyncio.Future[Any], None] = {}
        self._is_closed = False

    async def _call(
        self, method: str, request: object, timeout_s: float = 5.0, *, doubles: bool = True
    ) -> Any:
        if self._is_closed:
            raise ConnectionLostError(f"the connection to {self._address} was closed")
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[answered] = None
        self._process.world.rpc(
            self._process,
            self._address,
            "serve",
            (f"/weir.v1.TaskManager/{method}", request),
            partial(_answer, answered),
            timeout_ms=timeout_s * 1e3 / SCALE,
            doubles=doubles,
        )
        try:
            result = await answered
        finally:
            self._open.pop(answered, None)
        if isinstance(result, CallError):
            refusal = HandshakeError(f"task manager {self._address}: {result.details()}")
            refusal.failure_kind = refusal_kind(result.trailing_metadata())
            raise refusal
        if isinstance(result, Exception):
            raise result
        return result

    async def status(self) -> control_pb2.StatusReply:
        """Who is there."""
        reply: control_pb2.StatusReply = await self._call("Status", control_pb2.StatusRequest())
        return reply

    async def is_gone(self) -> bool:
        """Whether nothing listens at the address."""
        world = self._process.world
        await self._process.wait(world.delay_ms())
        target = world.processes.get(self._address)
        is_cut = world.is_cut(self._process.address, self._address)
        return not is_cut and (target is None or not target.is_alive)

    async def deploy(self, request: control_pb2.DeployRequest) -> None:
        """Create subtasks."""
        await self._call("Deploy", request, 60.0, doubles=False)

    async def start(self, request: control_pb2.StartRequest) -> None:
        """Let the sources begin."""
        await self._call("Start", request)

    async def cancel(self, request: control_pb2.CancelRequest) -> None:
        """Stop subtasks."""
        broken = self._process.world.broken
        is_over = self._process.parts.rescaler.log.current is None
        if request.lost_producers and (broken == "lost" or (broken == "lost last" and is_over)):
            request.ClearField("lost_producers")
            if not request.subtasks:
                return
        await self._call("Cancel", request)

    async def prepare_rescale(
        self, request: control_pb2.PrepareRescaleRequest
    ) -> control_pb2.PrepareRescaleReply:
        """Tell owners of a rescale."""
        reply: control_pb2.PrepareRescaleReply = await self._call("PrepareRescale", request, doubles=False)
        return reply

    async def reroute(self, request: control_pb2.RerouteRequest) -> None:
        """Switch upstream subtasks."""
        await self._call("Reroute", request, 660.0, doubles=False)

    async def abort_rescale(self, request: control_pb2.AbortRescaleRequest) -> None:
        """Take a rescale back."""
        await self._call("AbortRescale", request)

    async def trigger_checkpoint(self, request: control_pb2.TriggerCheckpointRequest) -> None:
        """Let sources send a barrier."""
        await self._call("TriggerCheckpoint", request, doubles=False)

    async def end_checkpoint(
        self, request: control_pb2.EndCheckpointRequest
    ) -> control_pb2.EndCheckpointReply:
        """Tell that a checkpoint is over."""
        try:
            reply: control_pb2.EndCheckpointReply = await self._call("EndCheckpoint", request, 60.0)
        except ConnectionLostError:
            if self._process.world.broken == "told":
                return control_pb2.EndCheckpointReply()
            raise
        return reply

    async def pull_state(self, request: control_pb2.PullStateRequest) -> control_pb2.PullStateReply:
        """Let owners fetch their state."""
        reply: control_pb2.PullStateReply = await self._call("PullState", request, 10.0)
        return reply

    async def close(self) -> None:
        """End what waits for an answer."""
        self._is_closed = True
        for answered in list(self._open):
            _answer(answered, ConnectionLostError(f"the connection to {self._address} was closed"))


def _answer(answered: asyncio.Future[Any], result: Any) -> None:
    if not answered.done():
        answered.set_result(result)


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
        machine = _BROKEN.get(world.broken)
        if machine is not None:
            self.parts.checkpointer.machine.__class__ = machine
        log = self.parts.rescaler.log
        log.__class__ = WatchedLog
        assert isinstance(log, WatchedLog)
        log.watch = self._rescale_moved
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
            if isinstance(self.parts.drainer.request(name), Drain):
                self.world.say(self.address, f"empties {name}")
                self.world.counts["drains"] += 1
            return
        rescale = self.parts.rescaler.request(rng.choice(self._rescaled), rng.randint(1, 4))
        if isinstance(rescale, RescaleMachine):
            self._rescales_left -= 1
            self.world.counts["rescales"] += 1
            self.world.say(self.address, f"rescale {rescale.plan.before} -> {rescale.plan.after}")
            self._faults.begins_rescale(sorted(set(rescale.plan.placement.values())))

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
    )
