"""A simulated task manager: a lease, what it was told to run, channels to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from experiments.simulation.plan import COUNT, Deployment, Job, placement_from_proto, table_from_proto
from experiments.simulation.storage import Output, SimulatedStore
from experiments.simulation.subtasks import Aligned, Count, Element, Source, Subtask, make_subtask
from experiments.simulation.world import Process, Violation, World
from weir.errors import FencedError
from weir.protocol.manifest import SubtaskPart, part_to_json
from weir.protocol.rescale_owner import Abort, HandoverReceived, Prepare, Proceed
from weir.protocol.routing import GroupMove
from weir.rpc import common_pb2, control_pb2
from weir.rpc.wire import (
    PROTOCOL_VERSION,
    JobIdentity,
    handshake_from_proto,
    handshake_to_proto,
    subtask_from_proto,
    subtask_to_proto,
)
from weir.types import SubtaskId

CONTROL_PLANE = "cp"
HEARTBEAT_MS = 10.0
QUOTA = 16
_RETRY_MS = 6.0

_STATES = {
    "DEPLOYED": control_pb2.SUBTASK_STATE_DEPLOYED,
    "RUNNING": control_pb2.SUBTASK_STATE_RUNNING,
    "FINISHED": control_pb2.SUBTASK_STATE_FINISHED,
    "FAILED": control_pb2.SUBTASK_STATE_FAILED,
    "CANCELED": control_pb2.SUBTASK_STATE_CANCELED,
}


class Writers:
    """Who counted rows of which group, under which owner epoch and generation: only one may."""

    def __init__(self) -> None:
        self._writers: dict[tuple[int, int, int], Subtask] = {}

    def check(self, subtask: Subtask, group: int, epoch: int) -> None:
        """Note a write.

        Raises:
            Violation: another one wrote before.
        """
        writer = self._writers.setdefault((subtask.generation, group, epoch), subtask)
        if writer is not subtask:
            raise Violation(
                f"group {group}, epoch {epoch}, generation {subtask.generation}: {subtask.id} at "
                f"{subtask.manager.address} writes, and {writer.id} at {writer.manager.address} did before"
            )


class TaskManager(Process):
    """One process; a restarted one is a new object with the same address."""

    def __init__(
        self, world: World, address: str, job: Job, store: SimulatedStore, output: Output, writers: Writers
    ) -> None:
        super().__init__(world, address)
        self.job, self.output = job, output
        self._store = store
        self.check_writer: Callable[[Subtask, int, int], None] = writers.check
        #: Tells processes at the same address apart.
        self.number = world.counts["task managers"] = world.counts["task managers"] + 1
        #: What runs here; None: nothing.
        self.identity: JobIdentity | None = None
        self.subtasks: dict[SubtaskId, Subtask] = {}
        self._is_cancelled = False
        self._handled: set[object] = set()
        self._incarnations = 0
        self._incarnation = ""
        self._control_plane_id = ""
        self._renew_incarnation()
        self._register()
        self.later(world.rng.random() * HEARTBEAT_MS, self._heartbeat)

    # --- lease --------------------------------------------------------------------------------------------------

    def _renew_incarnation(self) -> None:
        """The lease is over: what runs here was given away."""
        self._drop_job()
        self._incarnations += 1
        self._incarnation = f"{self.address}#{self.number}.{self._incarnations}"

    def _register(self) -> None:
        self._is_registered = False
        incarnation, identity = self._incarnation, self.identity
        request = control_pb2.RegisterRequest(
            protocol_version=PROTOCOL_VERSION,
            address=self.address,
            incarnation=incarnation,
            operator_quota=QUOTA,
            job_id=identity.job_id if identity else "",
            generation=identity.generation if identity else 0,
        )

        def done(result: Any) -> None:
            if self._incarnation != incarnation or self._is_registered:
                return
            if isinstance(result, FencedError):
                self._renew_incarnation()
                self.later(_RETRY_MS, self._register)
            elif isinstance(result, Exception):
                self.later(_RETRY_MS, self._register)
            else:
                self._is_registered = True
                self._registered(identity, result)

        self.world.rpc(self, CONTROL_PLANE, "register", (request,), done)

    def _registered(self, identity: JobIdentity | None, reply: control_pb2.RegisterReply) -> None:
        self._control_plane_id = reply.control_plane_id
        if identity is None or identity != self.identity:
            return
        if reply.keep_job:
            for subtask in self.subtasks.values():
                if subtask.status == "FINISHED":
                    self.acknowledge(subtask, 0, subtask.last_part)
        else:
            self._drop_job()

    def _heartbeat(self) -> None:
        if not self._is_registered:
            self.later(HEARTBEAT_MS, self._heartbeat)
            return
        incarnation = self._incarnation

        def done(reply: Any) -> None:
            self.later(HEARTBEAT_MS, self._heartbeat)
            if isinstance(reply, Exception) or self._incarnation != incarnation:
                return
            if not reply.known:
                if reply.control_plane_id == self._control_plane_id:
                    self._renew_incarnation()
                if self._is_registered:
                    self._register()
                return
            for message in reply.forgotten:
                self._forget(subtask_from_proto(message))

        identity = self.identity
        request = control_pb2.HeartbeatRequest(
            address=self.address,
            incarnation=incarnation,
            job_id=identity.job_id if identity else "",
            generation=identity.generation if identity else 0,
            subtasks=[_report(subtask) for subtask in self.subtasks.values()],
            ownership=[
                _ownership(subtask, self.address)
                for subtask in self.subtasks.values()
                if isinstance(subtask, Count) and subtask.owned_version
            ],
        )
        self.world.rpc(self, CONTROL_PLANE, "heartbeat", (request,), done)

    def _drop_job(self) -> None:
        for subtask in self.subtasks.values():
            subtask.is_dropped = True
        self.subtasks = {}
        self.identity = None

    def _forget(self, subtask: SubtaskId) -> None:
        kept = self.subtasks.get(subtask)
        if kept is None:
            return
        if kept.is_live:
            kept.status = "CANCELED"
        else:
            kept.is_dropped = True
            del self.subtasks[subtask]

    # --- commands of the control plane --------------------------------------------------------------------------

    def status(self, request: None) -> control_pb2.StatusReply:
        """Who this is."""
        identity = self.identity
        return control_pb2.StatusReply(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._incarnation,
            operator_quota=QUOTA,
            job_id=identity.job_id if identity else "",
            generation=identity.generation if identity else 0,
        )

    def deploy(self, request: control_pb2.DeployRequest) -> None:
        """Create subtasks.

        Raises:
            FencedError: a newer deployment is here.
            CheckpointError: the checkpoint is not there any more.
        """
        deployment = Deployment.from_proto(request, self._store.read_manifest)
        if self.identity is not None and deployment.generation < self.identity.generation:
            raise FencedError(f"generation {deployment.generation} is over at {self.address}")
        if deployment.identity != self.identity:
            self._drop_job()
            self.identity = deployment.identity
            self._handled = set()
            self._is_cancelled = False
        for subtask in deployment.subtasks:
            if subtask not in self.subtasks:
                made = self.subtasks[subtask] = make_subtask(self, subtask, deployment)
                if self._is_cancelled:
                    made.status, made.cause = "CANCELED", "told to"

    def start(self, request: control_pb2.StartRequest) -> None:
        """Let subtasks run."""
        self._check(request.handshake)
        for subtask in self.subtasks.values():
            subtask.start()

    def cancel(self, request: control_pb2.CancelRequest) -> None:
        """Stop all, or only these."""
        identity = self.identity
        if identity is None or identity.job_id != request.job_id or request.generation < identity.generation:
            return
        if request.subtasks or request.lost_producers:
            chosen = self._mine(request.subtasks)
        else:
            self._is_cancelled = True
            chosen = list(self.subtasks.values())
        for subtask in chosen:
            if subtask.is_live:
                subtask.status, subtask.cause = "CANCELED", "told to"

    def trigger(self, request: control_pb2.TriggerCheckpointRequest) -> None:
        """Let sources begin a checkpoint."""
        self._check(request.handshake)
        for subtask in self._mine(request.subtasks):
            if isinstance(subtask, Source):
                subtask.trigger(request.checkpoint_id)

    def end_checkpoint(self, request: control_pb2.EndCheckpointRequest) -> control_pb2.EndCheckpointReply:
        """A checkpoint is complete or given up."""
        self._check(request.handshake)
        for subtask in list(self.subtasks.values()):
            if request.committed:
                subtask.commit(request.checkpoint_id)
            elif isinstance(subtask, Aligned):
                subtask.give_up(request.checkpoint_id)
        return control_pb2.EndCheckpointReply()

    def prepare(self, request: control_pb2.PrepareRescaleRequest) -> control_pb2.PrepareRescaleReply:
        """Tell owners a rescale; says which have ended."""
        self._check(request.handshake)
        version = request.routing_version
        placement = placement_from_proto(request.locations)
        moves = tuple(
            GroupMove(move.key_group, move.source_subtask_index, move.target_subtask_index)
            for move in request.moves
        )
        ended = []
        for message in request.subtasks:
            subtask = subtask_from_proto(message)
            count = self.subtasks.get(subtask)
            if count is not None:
                count.deployment.placement.update(placement)
            if not isinstance(count, Count) or not count.is_live:
                ended.append(message)
            elif ("prepare", version, subtask) not in self._handled:
                self._handled.add(("prepare", version, subtask))
                is_retiring = subtask.subtask_index in request.retiring
                count.tell(Prepare(version, moves, is_retiring))
        return control_pb2.PrepareRescaleReply(ended=ended)

    def reroute(self, request: control_pb2.RerouteRequest) -> None:
        """The rescale is certain: sources switch, owners know it."""
        self._check(request.handshake)
        version, placement = request.routing_version, placement_from_proto(request.locations)
        for subtask in self.subtasks.values():
            subtask.deployment.placement.update(placement)
        retiring = tuple(SubtaskId(COUNT, index) for index in request.retiring)
        for subtask in self._mine(request.upstream):
            if isinstance(subtask, Source):
                subtask.switch(version, table_from_proto(request.routing_tables), retiring)
        for subtask in self._mine(request.owners):
            if isinstance(subtask, Count) and subtask.is_live:
                subtask.tell(Proceed(version))
                subtask.finish_if_done()

    def abort(self, request: control_pb2.AbortRescaleRequest) -> None:
        """The rescale is taken back."""
        self._check(request.handshake)
        for subtask in self._mine(request.owners):
            if isinstance(subtask, Count) and subtask.is_live:
                subtask.tell(Abort(request.routing_version))
                subtask.finish_if_done()

    def pull(self, request: control_pb2.PullStateRequest) -> control_pb2.PullStateReply:
        """Owners have all of their state: it travels with the handover."""
        self._check(request.handshake)
        return control_pb2.PullStateReply()

    def _check(self, handshake: common_pb2.Handshake) -> None:
        identity = handshake_from_proto(handshake)
        if identity != self.identity:
            raise FencedError(f"{self.address} runs {self.identity}, not {identity}")

    def _mine(self, subtasks: Iterable[common_pb2.SubtaskId]) -> list[Subtask]:
        names = [subtask_from_proto(subtask) for subtask in subtasks]
        return [self.subtasks[subtask] for subtask in names if subtask in self.subtasks]

    def fail_step(self) -> None:
        """A step of one subtask raises."""
        running = [subtask for subtask in self.subtasks.values() if subtask.status == "RUNNING"]
        if running and self.is_alive:
            subtask = self.world.rng.choice(running)
            self.world.counts["faults"] += 1
            self.world.say(self.address, f"{subtask.id} FAILS")
            subtask.fail("a step raised")

    # --- channels -----------------------------------------------------------------------------------------------

    def send(self, producer: Subtask, address: str | None, consumer: SubtaskId, element: Element) -> bool:
        """Send an element; False if that is not possible."""
        if address is None:
            return False
        channel = (producer, consumer)
        args = (producer.generation, producer.id, consumer, element)
        return self.world.stream(self, address, channel, "receive", args)

    def receive(self, generation: int, producer: SubtaskId, consumer: SubtaskId, element: Element) -> None:
        """An element of a channel; those of other deployments are refused."""
        subtask = self.subtasks.get(consumer)
        if subtask is None or subtask.is_dropped:
            return
        if generation != subtask.generation and self.world.broken != "channel":
            return
        subtask.receive(producer, element)

    def hand_over(self, source: Subtask, target: SubtaskId, handover: HandoverReceived) -> None:
        """Pass groups on to a new owner, until it has confirmed it."""

        def done(result: Any) -> None:
            if isinstance(result, FencedError):
                source.fail(str(result))
            elif isinstance(result, Exception) and not source.is_dropped:
                self.later(_RETRY_MS, self.hand_over, source, target, handover)

        address = source.deployment.placement[target]
        args = (source.generation, source.id, target, handover)
        self.world.rpc(self, address, "take_over", args, done)

    def take_over(
        self, generation: int, source: SubtaskId, target: SubtaskId, handover: HandoverReceived
    ) -> None:
        """Groups of an old owner; harmless to repeat."""
        if self.identity is None or self.identity.generation != generation:
            raise FencedError(f"{self.address} does not run generation {generation}")
        subtask = self.subtasks.get(target)
        if not isinstance(subtask, Count) or not subtask.is_live:
            raise FencedError(f"{target} does not run at {self.address}")
        if ("handover", handover.version, source, target) not in self._handled:
            self._handled.add(("handover", handover.version, source, target))
            subtask.tell(handover)
            subtask.finish_if_done()

    # --- checkpoints --------------------------------------------------------------------------------------------

    def acknowledge(self, subtask: Subtask, checkpoint_id: int, part: SubtaskPart) -> None:
        """Deliver a part after it was published; a last one until somebody has taken it."""
        rng = self.world.rng
        self.world.risk()
        delay_ms = rng.random() * (40 if rng.random() < 0.25 else 6)
        self.later(delay_ms, self._send_part, subtask, checkpoint_id, part)

    def _send_part(self, subtask: Subtask, checkpoint_id: int, part: SubtaskPart) -> None:
        def done(reply: Any) -> None:
            is_taken = not isinstance(reply, Exception) and reply.taken
            if not is_taken and checkpoint_id == 0 and not subtask.is_dropped:
                self.later(_RETRY_MS, self._send_part, subtask, checkpoint_id, part)

        request = control_pb2.AcknowledgeCheckpointRequest(
            handshake=handshake_to_proto(subtask.deployment.identity),
            subtask=subtask_to_proto(subtask.id),
            checkpoint_id=checkpoint_id,
            part_json=orjson.dumps(part_to_json(part)),
        )
        self.world.rpc(self, CONTROL_PLANE, "acknowledge", (request,), done)


def _report(subtask: Subtask) -> control_pb2.SubtaskReport:
    return control_pb2.SubtaskReport(
        subtask=subtask_to_proto(subtask.id),
        state=_STATES[subtask.status],
        cause=subtask.cause,
        failure_kind=control_pb2.FAILURE_KIND_OUTAGE,
    )


def _ownership(count: Count, address: str) -> control_pb2.OwnershipReport:
    owned = sorted(count.owned)
    return control_pb2.OwnershipReport(
        subtask=subtask_to_proto(count.id),
        routing_version=count.owned_version,
        owned_groups=owned,
        complete_groups=owned,
        bytes_moved=len(owned),
        locations=[address] * len(owned),
    )
