"""Brings questions to the task manager that can answer them, and says why nobody can. docs/design/0005."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson

from control_plane.composition import ControlPlane
from weir.errors import WeirError
from weir.protocol.queries import QueryError, Question, check_job
from weir.protocol.routing import RoutingTable
from weir.rpc import control_pb2
from weir.rpc.wire import handshake_to_proto

#: Questions under way at a time.
_ASKED_MAX = 32
#: Keys whose group is remembered: it never changes.
_GROUPS_MAX = 100_000
#: How long a key group may be on its way from one subtask to another before the caller is told; and between looks.
_MOVING_S = 0.5
_LOOK_S = 0.02
_MOVED = 421


class Asking:
    """One for each process; used in the event loop."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._asked = 0
        self._groups: dict[tuple[str, str], int] = {}

    async def ask(self, question: Question) -> tuple[int, dict[str, Any]]:
        """Status as of HTTP, and the answer.

        Raises:
            QueryError: there is none.
        """
        if self._asked >= _ASKED_MAX:
            raise QueryError(429, f"{_ASKED_MAX} questions are being answered: try again")
        self._asked += 1
        try:
            check_job(self._control_plane.job.state)
            stage_index = self._stage_of(question.step)
            generation = self._control_plane.job.identity.generation
            if question.consistency == "latest":
                status, answer, version = await self._latest(question, stage_index)
                shown = {"generation": generation, "routing_version": version}
            else:
                status, answer = await self._from_checkpoint(question, stage_index)
                shown = {"generation": generation}
            if self._control_plane.job.identity.generation != generation:
                raise QueryError(503, "the job was restarted meanwhile: try again")
            return status, {**answer, "consistency": question.consistency, **shown}
        finally:
            self._asked -= 1

    def _stage_of(self, step: str) -> int:
        job = self._control_plane.job
        for stage in job.graph.stages:
            if any(node.name == step and node.is_keyed for node in stage.nodes):
                return stage.index
        known = [node.name for node in job.graph.logical.nodes if node.is_keyed]
        raise QueryError(404, f"no step {step!r} has state; those with state: {', '.join(known) or 'none'}")

    async def _latest(self, question: Question, stage_index: int) -> tuple[int, dict[str, Any], int]:
        assert question.key is not None
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _MOVING_S
        name = (question.step, question.key)
        while True:
            table = self._table(stage_index)
            group = self._groups.get(name)
            # Whoever owns the first group knows the group of the key.
            address = self._address(stage_index, table, 0 if group is None else group)
            reply = await self._call(address, question, "")
            if reply.status != _MOVED:
                if reply.status == 200:
                    self._remember(name, reply.key_group)
                return reply.status, orjson.loads(reply.answer_json), table.version
            self._remember(name, reply.key_group)
            if group != reply.key_group:
                continue
            check_job(self._control_plane.job.state)
            if loop.time() > deadline_s:
                raise QueryError(
                    503, f"key group {group} is on its way from one subtask to another: try again"
                )
            await asyncio.sleep(_LOOK_S)

    def _table(self, stage_index: int) -> RoutingTable:
        table = self._control_plane.job.routing_tables.get(stage_index)
        if table is None:
            raise QueryError(501, "the step has no key groups of its own")
        return table

    def _remember(self, name: tuple[str, str], group: int) -> None:
        if name not in self._groups and len(self._groups) >= _GROUPS_MAX:
            self._groups.pop(next(iter(self._groups)))
        self._groups[name] = group

    def _address(self, stage_index: int, table: RoutingTable, group: int) -> str:
        owner = self._control_plane.job.owner(stage_index, group)
        address = self._control_plane.job.machine.placement.get(owner) if owner is not None else None
        if address is None:
            raise QueryError(503, f"key group {group} has no owner now: try again")
        return address

    async def _from_checkpoint(self, question: Question, stage_index: int) -> tuple[int, dict[str, Any]]:
        job = self._control_plane.job
        tries = 2 if question.checkpoint_id is None else 1
        reply = None
        for _ in range(tries):
            latest = self._control_plane.checkpointer.latest
            if latest is None or latest.job_id != job.identity.job_id:
                raise QueryError(503, "the job has not made a checkpoint of its own yet: try again")
            latest_id = latest.manifest.checkpoint_id
            asked_id = latest_id if question.checkpoint_id is None else question.checkpoint_id
            # One task manager for all, so that it opens each checkpoint once.
            address = self._address(stage_index, self._table(stage_index), 0)
            path = latest.path if asked_id == latest_id else ""
            reply = await self._call(address, _of_checkpoint(question, asked_id), path)
            # It may have expired while it was being opened: then there is a later one.
            if reply.status != 503:
                break
        assert reply is not None
        return reply.status, orjson.loads(reply.answer_json)

    async def _call(self, address: str, question: Question, manifest_path: str) -> control_pb2.QueryReply:
        job = self._control_plane.job
        state = f"{question.step}/{question.state}"
        number = job.state_ids.get(state, job.state_ids.get(question.step, 0))
        request = control_pb2.QueryRequest(
            handshake=handshake_to_proto(job.identity),
            question_json=orjson.dumps(question.to_json()),
            state_id=number,
            manifest_path=manifest_path,
        )
        try:
            return await self._control_plane.task_managers.client(address).query(request)
        except WeirError as error:
            raise QueryError(503, f"{error}: try again") from error


def _of_checkpoint(question: Question, checkpoint_id: int) -> Question:
    return replace(question, checkpoint_id=checkpoint_id)
