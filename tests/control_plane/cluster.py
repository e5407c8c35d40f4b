"""A control plane of real parts on ports of a test: task managers that answer at once, store and record in memory."""

from __future__ import annotations

import asyncio
from functools import partial

import orjson

import weir
from control_plane.composition import ControlPlane, Outside
from control_plane.job.start import start_or_take_over
from control_plane.record.job_record import JobRecord
from tests.control_plane.virtual import Background, until
from weir.checkpoints.layout import manifest_path
from weir.config import AutoscalerConfig, ControlPlaneConfig, StateStrategy
from weir.dataflow.loading import LoadedJob
from weir.errors import CheckpointError, ConnectionLostError, SupersededError
from weir.protocol.checkpoints.manifest import SubtaskPart, part_to_json
from weir.protocol.job.job_machine import JobState
from weir.questions.link import QuestionPlace
from weir.rpc import control_pb2
from weir.rpc.wire import (
    PROTOCOL_VERSION,
    JobIdentity,
    handshake_to_proto,
    subtask_from_proto,
    subtask_to_proto,
)
from weir.types import SubtaskId

SOURCE, COUNT = 0, 1
GROUPS = 8
HEARTBEAT_S = 0.2
_STATES = {
    "DEPLOYED": control_pb2.SUBTASK_STATE_DEPLOYED,
    "RUNNING": control_pb2.SUBTASK_STATE_RUNNING,
    "FINISHED": control_pb2.SUBTASK_STATE_FINISHED,
    "FAILED": control_pb2.SUBTASK_STATE_FAILED,
    "CANCELED": control_pb2.SUBTASK_STATE_CANCELED,
}


class Store:
    """Implements ``ports.ManifestStore``."""

    location = "memory"

    def __init__(self, done):
        self.manifests, self._done = {}, done
        #: Raised by the next writes.
        self.error = None

    def latest(self):
        return self.manifests[max(self.manifests)] if self.manifests else None

    def newest_id(self):
        return max((manifest.checkpoint_id for manifest in self.manifests.values()), default=0)

    def read_manifest(self, path):
        if path not in self.manifests:
            raise CheckpointError(f"there is no {path}")
        return self.manifests[path]

    def write_manifest(self, manifest):
        if self.error is not None:
            raise self.error
        path = manifest_path(manifest.checkpoint_id)
        self.manifests[path] = manifest
        self._done.append(f"manifest {manifest.checkpoint_id}")
        return path

    def copy_savepoint(self, manifest, uri):
        self._done.append(f"savepoint {uri}")
        return uri

    def expire(self, retained, oldest_in_flight=None):
        self._done.append("expire")

    def remove(self):
        self.manifests.clear()
        self._done.append("remove")


class Register:
    """What keeps the record; ``Background.in_thread`` waits for ``may_save``."""

    def __init__(self, done):
        self.data, self.error, self._done = None, None, done

    @property
    def record(self):
        return None if self.data is None else JobRecord.from_bytes(self.data, "the register")

    def save(self, data):
        if self.error is not None:
            raise self.error
        self.data = data
        self._done.append(f"record {self.record.generation} {self.record.is_over}")


class GatedBackground(Background):
    """Saves the record when the test lets it."""

    def __init__(self, register):
        super().__init__()
        self._register = register
        self.may_save = asyncio.Event()
        self.may_save.set()

    async def in_thread(self, work):
        if isinstance(work, partial) and work.func == self._register.save:
            await self.may_save.wait()
        return await super().in_thread(work)


class Connection:
    """Implements ``ports.TaskManagerCalls``: notes what is asked, then lets the task manager answer."""

    def __init__(self, task_manager):
        self._task_manager, self.is_closed = task_manager, False
        self.question_place = QuestionPlace()
        self._waiting = set()

    async def _ask(self, method, request):
        if self.is_closed:
            raise ConnectionLostError("the connection was closed")
        answered = asyncio.ensure_future(self._task_manager.answer(method, request))
        self._waiting.add(answered)
        try:
            return await answered
        except asyncio.CancelledError:
            if self.is_closed and not asyncio.current_task().cancelling():
                raise ConnectionLostError("the connection was closed") from None
            raise
        finally:
            self._waiting.discard(answered)

    def may_order(self, secret):
        pass

    async def status(self):
        return await self._ask("status", None)

    async def is_gone(self):
        try:
            return await self._ask("is_gone", None)
        except ConnectionLostError:
            return False

    async def deploy(self, request):
        await self._ask("deploy", request)

    async def start(self, request):
        await self._ask("start", request)

    async def cancel(self, request):
        await self._ask("cancel", request)

    async def prepare_rescale(self, request):
        return await self._ask("prepare", request)

    async def reroute(self, request):
        await self._ask("reroute", request)

    async def abort_rescale(self, request):
        await self._ask("abort", request)

    async def trigger_checkpoint(self, request):
        await self._ask("trigger", request)

    async def end_checkpoint(self, request):
        return await self._ask("end", request)

    async def pull_state(self, request):
        return await self._ask("pull", request)

    async def query(self, request):
        return await self._ask("query", request)

    async def profile(self, request):
        return await self._ask("profile", request)

    async def log_tail(self, request):
        return await self._ask("log_tail", request)

    async def close(self):
        self.is_closed = True
        for answered in self._waiting:
            answered.cancel()


class TaskManager:
    """Carries orders out at once and reports with every heartbeat.

    ``on[method]``, a coroutine function of the request, is called first and may raise or wait.
    """

    def __init__(self, cluster, address, quota):
        self.cluster, self.address, self.quota, self.incarnation = cluster, address, quota, f"{address} first"
        self.on, self.asked, self.states, self.causes, self.owned = {}, [], {}, {}, {}
        #: What it says of files of checkpoints, and what it was told to keep.
        self.state_files, self.standby = control_pb2.StateFiles(), control_pb2.StandbyOrder()
        #: What each subtask here says that it has taken.
        self.records_in = 0
        self.generation, self.ack, self.is_alive, self.gone = 0, True, True, False

    def requests(self, method):
        """What was asked by this method, oldest first."""
        return [request for name, request in self.asked if name == method]

    async def answer(self, method, request):
        self.asked.append((method, request))
        if method in self.on:
            result = await self.on[method](request)
            if result is not None:
                return result
        return getattr(self, f"_{method}")(request)

    def _status(self, request):
        return control_pb2.StatusReply(
            incarnation=self.incarnation, job_id=self.cluster.job.identity.job_id, generation=self.generation
        )

    def _is_gone(self, request):
        return self.gone

    def _deploy(self, request):
        if request.handshake.generation > self.generation:
            self.generation, self.states, self.owned = request.handshake.generation, {}, {}
        self.states.update({subtask_from_proto(item): "DEPLOYED" for item in request.subtasks})
        if request.subtasks:
            self.heartbeat()

    def _start(self, request):
        self.states.update({s: "RUNNING" for s, state in self.states.items() if state == "DEPLOYED"})

    def _cancel(self, request):
        is_for_all = not (request.subtasks or request.lost_producers)
        named = list(self.states) if is_for_all else [subtask_from_proto(item) for item in request.subtasks]
        self.states.update({s: "CANCELED" for s in named if self.states.get(s) in ("DEPLOYED", "RUNNING")})

    def _prepare(self, request):
        self.owned.update(
            {
                SubtaskId(request.stage_index, move.target_subtask_index): (
                    request.routing_version,
                    [],
                    self.address,
                )
                for move in request.moves
            }
        )
        for move in request.moves:
            self.owned[SubtaskId(request.stage_index, move.target_subtask_index)][1].append(move.key_group)
        return control_pb2.PrepareRescaleReply()

    def _reroute(self, request):
        for member in self.cluster.task_managers.values():
            for index in request.retiring:
                member.end(SubtaskId(request.stage_index, index))

    def _abort(self, request):
        self.owned.clear()

    def _trigger(self, request):
        for member in self.cluster.task_managers.values():
            for subtask, state in member.states.items():
                if state == "RUNNING" and member.ack:
                    member.acknowledge(request.checkpoint_id, subtask)

    def _end(self, request):
        return control_pb2.EndCheckpointReply()

    def _pull(self, request):
        for subtask, (version, groups, _) in self.owned.items():
            self.owned[subtask] = version, groups, self.address
        return control_pb2.PullStateReply()

    def end(self, subtask):
        """The subtask has reached the end of its stream."""
        if self.states.get(subtask) == "RUNNING":
            self.states[subtask] = "FINISHED"
            self.acknowledge(0, subtask)

    def acknowledge(self, checkpoint_id, subtask):
        """Deliver a subtask's part; 0: its last one."""
        part = SubtaskPart(subtask, finished=checkpoint_id == 0)
        return self.cluster.parts.checkpointer.acknowledged(
            control_pb2.AcknowledgeCheckpointRequest(
                handshake=handshake_to_proto(self.identity),
                checkpoint_id=checkpoint_id,
                subtask=subtask_to_proto(subtask),
                part_json=orjson.dumps(part_to_json(part)),
            )
        )

    @property
    def identity(self):
        here = self.cluster.job.identity
        return JobIdentity(here.job_id, here.fingerprint, self.generation)

    async def register(self):
        return await self.cluster.parts.reception.register(
            control_pb2.RegisterRequest(
                protocol_version=PROTOCOL_VERSION,
                address=self.address,
                incarnation=self.incarnation,
                operator_quota=self.quota,
                job_id=self.identity.job_id if self.generation else "",
                generation=self.generation,
            )
        )

    def deregister(self):
        self.is_alive = False
        self.cluster.parts.leases.deregister(
            control_pb2.DeregisterRequest(address=self.address, incarnation=self.incarnation)
        )

    def heartbeat(self):
        reply = self.cluster.parts.reception.heartbeat(
            control_pb2.HeartbeatRequest(
                address=self.address,
                incarnation=self.incarnation,
                job_id=self.identity.job_id if self.generation else "",
                generation=self.generation,
                subtasks=[
                    control_pb2.SubtaskReport(
                        subtask=subtask_to_proto(subtask),
                        state=_STATES[state],
                        **{"records_in": self.records_in, **self.causes.get(subtask, {})},
                    )
                    for subtask, state in self.states.items()
                ],
                ownership=[
                    control_pb2.OwnershipReport(
                        subtask=subtask_to_proto(subtask),
                        routing_version=version,
                        owned_groups=groups,
                        complete_groups=groups if place == self.address else (),
                        locations=[place] * len(groups),
                    )
                    for subtask, (version, groups, place) in self.owned.items()
                    if self.states.get(subtask) == "RUNNING"
                ],
                state_files=self.state_files,
            )
        )
        if reply.HasField("standby"):
            self.standby = reply.standby
        for item in reply.forgotten:
            self.states.pop(subtask_from_proto(item), None)

    def fail(self, subtask, cause, **facts):
        """The subtask fails; the next heartbeat tells it."""
        self.states[subtask] = "FAILED"
        self.causes[subtask] = {"cause": cause, **facts}

    async def live(self):
        """Send heartbeats while it is alive."""
        while self.is_alive:
            self.heartbeat()
            await asyncio.sleep(HEARTBEAT_S)


def job_of(sources=1, counts=2):
    """A source, and a count whose sink is chained to it."""
    flow = weir.Dataflow("job", max_parallelism=GROUPS)
    rows = flow.source("rows", weir.JsonLines("rows", schema={"key": int}), parallelism=sources)
    rows.key_by("key").count("count", parallelism=counts).sink("out", weir.Blackhole())
    return LoadedJob(flow.build(), {})


class Cluster:
    """One control plane and its task managers; made in the loop."""

    def __init__(
        self,
        clock,
        *,
        job=None,
        record=None,
        store=None,
        is_shared=False,
        look_s=0.05,
        autoscaler=None,
        **settings,
    ):
        #: What was written and removed, in order.
        self.done = []
        self.register = Register(self.done)
        self.register.data = record
        self.store = store or Store(self.done)
        self.background = GatedBackground(self.register)
        self.task_managers = {}
        config = ControlPlaneConfig(
            **{
                "checkpoint_uri": "memory",
                "min_task_managers": 2,
                "checkpoint_interval_ms": 0,
                "lease_timeout_ms": 1_000,
                "restart_delay_ms": 100,
                **settings,
            }
        )
        loaded = job or job_of()
        start, _ = start_or_take_over(
            loaded,
            config.checkpoint_uri,
            self.register.record,
            open_store=lambda uri, job_id: self.store,
            name_job=lambda graph: f"{graph.name}-20260101-000000-0000",
        )
        self.start = start
        self.parts = ControlPlane(
            config,
            "job_module",
            loaded,
            start,
            Outside(
                clock,
                self.background,
                lambda address: Connection(self.task_managers[address]),
                self.store if config.checkpoint_uri else None,
                self.register.save,
                is_shared=is_shared,
            ),
            end_task_managers=True,
            strategy=StateStrategy(),
            autoscaler=autoscaler or AutoscalerConfig(),
        )
        self.parts.takeover.start(config.lease_timeout_ms)
        self.background.spawn(self.parts.run_timers(look_s))

    @property
    def job(self):
        return self.parts.job

    @property
    def state(self):
        return self.job.state

    def add(self, address, quota=4):
        """A task manager that has not registered."""
        self.task_managers[address] = TaskManager(self, address, quota)
        return self.task_managers[address]

    async def join(self, *addresses, quota=4):
        """Task managers register and live from now on."""
        for address in addresses:
            member = self.task_managers.get(address) or self.add(address, quota)
            await member.register()
            self.background.spawn(member.live())

    async def running(self, *addresses, quota=4):
        """Return when the job runs on these task managers; returns them."""
        await self.join(*addresses, quota=quota)
        await until(lambda: self.state is JobState.RUNNING and self._all("RUNNING"))
        return [self.task_managers[address] for address in addresses]

    def adopt(self, earlier):
        """Become the control plane of another one's task managers, which have not registered here yet."""
        self.task_managers = earlier.task_managers
        for member in self.task_managers.values():
            member.cluster, member.is_alive = self, True

    def _all(self, state):
        statuses = self.job.machine.statuses
        return all(status.value == state for status in statuses.values())

    def holder(self, subtask):
        """The task manager on which a subtask is."""
        return self.task_managers[self.job.machine.placement[subtask]]

    def end_of_input(self):
        """Every subtask finishes, sources first."""
        for subtask in sorted(self.job.machine.statuses):
            self.holder(subtask).end(subtask)

    async def close(self):
        for member in self.task_managers.values():
            member.is_alive = False
        await self.background.close()


def superseded():
    """What a keeper raises when another control plane leads."""
    return SupersededError("another control plane leads")


def no_space():
    """What a keeper raises when the record cannot be written."""
    return CheckpointError("cannot write control.json: no space left on device")
