"""The ports of a simulated control plane: work beside its events, its checkpoint store, calls of task managers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.simulation.connection import CallError
from experiments.simulation.storage import SimulatedStore
from experiments.simulation.world import SCALE, Process, Violation, World
from weir.errors import ConnectionLostError, HandshakeError
from weir.protocol.checkpoints.manifest import Manifest
from weir.questions.link import QuestionPlace
from weir.rpc import control_pb2
from weir.rpc.wire import refusal_kind

if TYPE_CHECKING:
    from experiments.simulation.control_plane import ControlPlaneProcess

Result = TypeVar("Result")


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
        self.latest, self.newest_id, self.read_manifest = store.latest, store.newest_id, store.read_manifest
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
        self.question_place = QuestionPlace()
        self._open: dict[asyncio.Future[Any], None] = {}
        self._is_closed = False

    def may_order(self, secret: bytes) -> None:
        """Everybody may here."""

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

    async def profile(self, request: control_pb2.ProfileRequest) -> control_pb2.ProfileReply:
        """Nobody asks in a simulation."""
        raise NotImplementedError

    async def log_tail(self, request: control_pb2.LogTailRequest) -> control_pb2.LogTailReply:
        """Nobody asks in a simulation."""
        raise NotImplementedError

    async def query(self, request: control_pb2.QueryRequest) -> control_pb2.QueryReply:
        """Nobody asks in a simulation."""
        raise NotImplementedError

    def begin_query(
        self, request: control_pb2.QueryRequest, done: Callable[[control_pb2.QueryReply | None], None]
    ) -> Callable[[], None] | None:
        """Nobody asks in a simulation."""
        raise NotImplementedError

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
