"""What a task manager knows of the whole job, so that it takes questions for all: from the control plane, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from weir.clock import Clock
from weir.errors import ConnectionLostError, WeirError
from weir.protocol.job.job_machine import JobState
from weir.protocol.queries import QueryError, Question, check_job
from weir.questions.askable import refused_step
from weir.questions.directory import Reply
from weir.questions.likely_groups import KeyKind, likely_group
from weir.questions.link import QuestionLink
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, handshake_to_proto, parse_address

#: After that long what is known is asked for again; and at once if it is wrong, but not more often than this.
_KEPT_S = 1.0
_AGAIN_S = 0.02
_CALL_S = 7.0


class FetchedDirectory:
    """Implements ``weir.questions.directory.Directory``.

    What is out of date leads to a task manager that refuses (its generation or its key groups are others), never to a
    wrong answer.
    """

    def __init__(
        self,
        identity: Callable[[], JobIdentity | None],
        fetch: Callable[[], dict[str, Any]],
        clock: Clock,
    ) -> None:
        """``identity``: of the job here; ``fetch``, in a thread: ``control_plane.directory.directory_json``."""
        self._identity = identity
        self._fetch = fetch
        self._clock = clock
        self._view: dict[str, Any] = {}
        self._fetched_s = float("-inf")
        #: Monotonic, s: when the last fetch that has ended began.
        self._begun_s = float("-inf")
        #: Monotonic, s: since when the control plane does not answer; None: it does.
        self._away_since_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._links: dict[str, QuestionLink] = {}

    @property
    def generation(self) -> int:
        """Return the generation of the job that is known; 0: none is."""
        return int(self._view.get("generation", 0))

    @property
    def away_s(self) -> float:
        """Return for how many seconds the control plane has been away."""
        return 0.0 if self._away_since_s is None else self._clock.monotonic_s() - self._away_since_s

    async def refresh(self, *, is_wrong: bool) -> None:
        """Fetch what the control plane knows of the job, as ``Directory`` says."""
        identity = self._identity()
        is_other = identity is not None and identity.generation != self.generation
        asked_s = self._clock.monotonic_s()
        age_s = asked_s - self._fetched_s
        if age_s < (_AGAIN_S if is_wrong or is_other else _KEPT_S):
            return
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.ensure_future(self._renew())
        if is_wrong or is_other or age_s > 2 * _KEPT_S:
            await asyncio.shield(self._fetching)
            if self._begun_s < asked_s - 2 * _KEPT_S:
                # This process has slept meanwhile: what came was so before, and its keys may be with others by now.
                if self._fetching.done():
                    self._fetching = asyncio.ensure_future(self._renew())
                await asyncio.shield(self._fetching)

    async def _renew(self) -> None:
        begun_s = self._clock.monotonic_s()
        try:
            self._view = await asyncio.to_thread(self._fetch)
            # What came is as of some moment since the question was sent.
            self._fetched_s, self._away_since_s = begun_s, None
        except WeirError as error:
            if not self._view:
                raise QueryError(503, f"{error}: try again") from error
            # What is known serves on, since the job goes on; answers say so, since it may have begun anew elsewhere.
            if self._away_since_s is None:
                self._away_since_s = max(self._fetched_s, 0.0)
            self._fetched_s = self._clock.monotonic_s()
        finally:
            self._begun_s = begun_s

    def check(self) -> None:
        """Check that the job is known and that its state allows questions."""
        if not self._view:
            raise QueryError(503, "this task manager does not know the job yet: try again")
        check_job(JobState(self._view["state"]))

    def stage_of(self, step: str) -> int:
        """Return the stage that has a step."""
        steps = self._view["steps"]
        if step not in steps:
            raise refused_step(step, self.known())
        return int(steps[step])

    def known(self) -> Mapping[str, Sequence[str]]:
        """Return what can be asked, as ``Directory`` says."""
        known: Mapping[str, Sequence[str]] = self._view["known"]
        return known

    def routing_version(self, stage_index: int) -> int:
        """Return the version of a stage's routing table."""
        return int(self._table(stage_index)["version"])

    def likely_group(self, question: Question, stage_index: int) -> int | None:
        """Return the key group of a question's key, as ``Directory`` says."""
        assert question.key is not None
        kind: KeyKind | None = self._view["key_kinds"].get(question.step)
        return likely_group(kind, question.key, len(self._table(stage_index)["owners"]))

    def address(self, stage_index: int, group: int) -> str:
        """Return the address of a group's owner, as ``Directory`` says."""
        table = self._table(stage_index)
        address: str = table["addresses"][table["owners"][group]]
        if not address:
            raise QueryError(503, f"key group {group} has no owner now: try again")
        return address

    def owners(self, stage_index: int) -> tuple[list[str], int]:
        """Return the owners of a stage, and how many groups there are."""
        groups = len(self._table(stage_index)["owners"])
        return sorted({self.address(stage_index, group) for group in range(groups)}), groups

    def _table(self, stage_index: int) -> dict[str, Any]:
        table: dict[str, Any] | None = self._view["tables"].get(str(stage_index))
        if table is None:
            raise QueryError(503, f"it is not known yet where stage {stage_index} keeps its state: try again")
        return table

    def latest_checkpoint(self) -> tuple[int, str]:
        """Return the latest checkpoint, as ``Directory`` says."""
        found = self._view["checkpoint"]
        if found is None:
            # The first one may just have been made.
            self._fetched_s = float("-inf")
            raise QueryError(503, "the job has not made a checkpoint of its own yet: try again")
        return found[0], found[1]

    async def call(self, address: str, question: Question, manifest_path: str) -> Reply:
        """Ask a task manager, as ``Directory`` says."""
        identity = self._identity()
        if identity is None:
            raise QueryError(503, "no job is deployed here: try again")
        link = self._links.get(address)
        if link is None:
            if address not in self._view["places"]:
                raise ConnectionLostError(f"task manager {address} has left")
            port, greeting = self._view["places"][address]
            link = QuestionLink(parse_address(address).host, port, bytes.fromhex(greeting))
            self._links[address] = link
        try:
            return _reply(await link.ask(self._request(identity, question, manifest_path), _CALL_S))
        except ConnectionLostError as error:
            self._drop(address, link)
            raise ConnectionLostError(f"task manager {address} does not answer: {error}") from error

    @property
    def is_fresh(self) -> bool:
        """Return whether what was fetched is fresh, as ``Directory`` says."""
        identity = self._identity()
        if identity is None or identity.generation != self.generation or self._away_since_s is not None:
            return False
        return self._clock.monotonic_s() - self._fetched_s < _KEPT_S

    def begin_call(
        self, address: str, question: Question, done: Callable[[Reply | None], None]
    ) -> Callable[[], None] | None:
        """Begin a call, as ``Directory`` says."""
        identity, link = self._identity(), self._links.get(address)
        if identity is None or link is None:
            return None

        def answered(content: bytes | ConnectionLostError) -> None:
            if isinstance(content, bytes):
                done(_reply(content))
            else:
                self._drop(address, link)
                done(None)

        return link.begin(self._request(identity, question, ""), _CALL_S, answered)

    def _request(self, identity: JobIdentity, question: Question, manifest_path: str) -> bytes:
        ids = self._view["state_ids"]
        return control_pb2.QueryRequest(
            handshake=handshake_to_proto(identity),
            question_json=orjson.dumps(question.to_json()),
            state_id=ids.get(f"{question.step}/{question.state}", ids.get(question.step, 0)),
            manifest_path=manifest_path,
        ).SerializeToString()

    def _drop(self, address: str, link: QuestionLink) -> None:
        """Another process may be at the address by now, unless only an answer was late."""
        if link.is_connected:
            return
        link.close()
        if self._links.get(address) is link:
            del self._links[address]


def _reply(content: bytes) -> Reply:
    reply = control_pb2.QueryReply.FromString(content)
    return Reply(reply.status, reply.answer_json, reply.key_group, reply.arrow)
