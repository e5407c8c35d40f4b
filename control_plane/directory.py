"""What the control plane knows of the job, for questions that it takes itself and for task managers that take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from control_plane.composition import ControlPlane
from weir.plan.graph import PhysicalGraph
from weir.protocol.queries import QueryError, Question, check_job
from weir.questions.askable import askable, refused_step
from weir.questions.directory import Reply
from weir.questions.likely_groups import KeyKind, key_kinds, likely_group
from weir.rpc import common_pb2, control_pb2
from weir.rpc.wire import JobIdentity, handshake_to_proto


class OwnDirectory:
    """Implements ``weir.questions.directory.Directory``; nothing here is older than the job itself."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        #: What is known of the job's graph, and of which one.
        self._graph: PhysicalGraph | None = None
        self._steps: dict[str, int] = {}
        self._kinds: dict[str, KeyKind] = {}
        self._identity: tuple[JobIdentity, common_pb2.Handshake] | None = None

    @property
    def generation(self) -> int:
        """Return the job's generation."""
        return self._control_plane.job.identity.generation

    @property
    def away_s(self) -> float:
        """0: it is here."""
        return 0.0

    async def refresh(self, *, is_wrong: bool) -> None:
        """Nothing: see the class."""

    def check(self) -> None:
        """Check that the job's state allows questions."""
        check_job(self._control_plane.job.state)

    def stage_of(self, step: str) -> int:
        """Return the stage that has a step."""
        graph = self._control_plane.job.graph
        if graph is not self._graph:
            self._steps, self._kinds, self._graph = _steps(graph), key_kinds(graph.logical), graph
        steps = self._steps
        if step not in steps:
            raise refused_step(step, self.known())
        return steps[step]

    def likely_group(self, question: Question, stage_index: int) -> int | None:
        """Return the key group of a question's key, as ``Directory`` says; called after :meth:`stage_of`."""
        assert question.key is not None
        groups = len(self._control_plane.job.routing_tables[stage_index].groups)
        return likely_group(self._kinds.get(question.step), question.key, groups)

    def known(self) -> Mapping[str, Sequence[str]]:
        """Return what can be asked, as ``Directory`` says."""
        return askable(self._control_plane.job.graph.logical)

    def routing_version(self, stage_index: int) -> int:
        """Return the version of a stage's routing table, as ``Directory`` says."""
        table = self._control_plane.job.routing_tables.get(stage_index)
        if table is None:
            raise QueryError(503, f"it is not known yet where stage {stage_index} keeps its state: try again")
        return table.version

    def address(self, stage_index: int, group: int) -> str:
        """Return the address of a group's owner, as ``Directory`` says."""
        address = _address(self._control_plane, stage_index, group)
        if not address:
            raise QueryError(503, f"key group {group} has no owner now: try again")
        return address

    def owners(self, stage_index: int) -> tuple[list[str], int]:
        """Return the owners of a stage, and how many groups there are."""
        self.routing_version(stage_index)
        groups = len(self._control_plane.job.routing_tables[stage_index].groups)
        return sorted({self.address(stage_index, group) for group in range(groups)}), groups

    def latest_checkpoint(self) -> tuple[int, str]:
        """Return the latest checkpoint, as ``Directory`` says."""
        found = _latest_checkpoint(self._control_plane)
        if found is None:
            raise QueryError(503, "the job has not made a checkpoint of its own yet: try again")
        return found

    async def call(self, address: str, question: Question, manifest_path: str) -> Reply:
        """Ask a task manager, as ``Directory`` says."""
        request = self._request(question, manifest_path)
        return _reply(await self._control_plane.task_managers.client(address).query(request))

    @property
    def is_fresh(self) -> bool:
        """Return True: the control plane knows the job."""
        return True

    def begin_call(
        self, address: str, question: Question, done: Callable[[Reply | None], None]
    ) -> Callable[[], None] | None:
        """Begin a call, as ``Directory`` says."""
        client = self._control_plane.task_managers.clients.get(address)
        if client is None:
            return None

        def answered(reply: control_pb2.QueryReply | None) -> None:
            done(None if reply is None else _reply(reply))

        return client.begin_query(self._request(question, ""), answered)

    def _handshake(self, identity: JobIdentity) -> common_pb2.Handshake:
        known = self._identity
        if known is None or known[0] is not identity:
            self._identity = known = identity, handshake_to_proto(identity)
        return known[1]

    def _request(self, question: Question, manifest_path: str) -> control_pb2.QueryRequest:
        job = self._control_plane.job
        return control_pb2.QueryRequest(
            handshake=self._handshake(job.identity),
            question_json=orjson.dumps(question.to_json()),
            state_id=job.state_ids.get(
                f"{question.step}/{question.state}", job.state_ids.get(question.step, 0)
            ),
            manifest_path=manifest_path,
        )


def _reply(reply: control_pb2.QueryReply) -> Reply:
    return Reply(reply.status, reply.answer_json, reply.key_group, reply.arrow)


def directory_json(control_plane: ControlPlane) -> dict[str, Any]:
    """What a task manager needs to take questions; ``task_manager.queries.directory`` reads it."""
    job = control_plane.job
    tables = {}
    for stage_index, table in job.routing_tables.items():
        owners = [_address(control_plane, stage_index, group) for group in range(len(table.groups))]
        addresses = sorted(set(owners))
        tables[str(stage_index)] = {
            "version": table.version,
            "addresses": addresses,
            "owners": [addresses.index(owner) for owner in owners],
        }
    return {
        "state": job.state.value,
        "generation": job.identity.generation,
        "steps": _steps(job.graph),
        "key_kinds": key_kinds(job.graph.logical),
        "tables": tables,
        "state_ids": dict(job.state_ids),
        "known": askable(job.graph.logical),
        "checkpoint": _latest_checkpoint(control_plane),
        "places": {
            address: (client.question_place.port, client.question_place.greeting.hex())
            for address, client in control_plane.task_managers.clients.items()
        },
    }


def _steps(graph: PhysicalGraph) -> dict[str, int]:
    """Stages of the steps with state."""
    return {node.name: stage.index for stage in graph.stages for node in stage.nodes if node.is_keyed}


def _address(control_plane: ControlPlane, stage_index: int, group: int) -> str:
    """The task manager of the owner of a key group; "": there is none now."""
    owner = control_plane.job.owner(stage_index, group)
    return control_plane.job.machine.placement.get(owner, "") if owner is not None else ""


def _latest_checkpoint(control_plane: ControlPlane) -> tuple[int, str] | None:
    latest = control_plane.checkpointer.latest
    if latest is None or latest.job_id != control_plane.job.identity.job_id:
        return None
    return latest.manifest.checkpoint_id, latest.path
