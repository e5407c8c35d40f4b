"""Brings questions to the task manager that can answer them, and says why nobody can. docs/design/0005."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from weir.errors import WeirError
from weir.protocol.queries import TIMEOUT_S, QueryError, Question
from weir.questions.askable import asked_pairs, refused_step
from weir.questions.directory import Directory, Reply
from weir.questions.parts import Part, count_parts, lacking_groups, merge_parts

#: Questions under way at a time.
_ASKED_MAX = 32
#: Keys whose group is remembered: it never changes; and how long they are at most.
_GROUPS_MAX, _KEY_CHARACTERS_MAX = 100_000, 200
#: How long a key group may be on its way from one subtask to another before the caller is told; and between looks.
_MOVING_S = 0.5
_LOOK_S = 0.02
#: The same for all key groups of a range, whose owners are asked at slightly different times.
_RANGE_MOVING_S = 2.0
#: Between looks for a checkpoint that is waited for.
_CHECKPOINT_LOOK_S = 0.05
_MOVED = 421

#: Told of each question: step, state, consistency, status as of HTTP, seconds; see ``weir.metrics.QuestionMetrics``.
Observe = Callable[[str, str, str, int, float], None]
#: Takes the status as of HTTP and the answer as JSON; None: this way led to none, it takes ``Asking.ask``.
Done = Callable[[tuple[int, bytes] | None], None]


def _observe_nothing(step: str, state: str, consistency: str, status: int, took_s: float) -> None:
    pass


class Asking:
    """The asking of a process, which has one; used in the event loop."""

    def __init__(self, directory: Directory, observe: Observe = _observe_nothing) -> None:
        self._directory = directory
        self._observe = observe
        self._asked = 0
        self._groups: dict[tuple[str, str], int] = {}

    async def ask(self, question: Question) -> tuple[int, dict[str, Any]]:
        """Status as of HTTP, and the answer; its rows are bytes if they were wanted in Arrow.

        Raises:
            QueryError: there is none.
        """
        loop = asyncio.get_running_loop()
        begin_s, status = loop.time(), 500
        try:
            status, answer = await self._ask(question)
            return status, answer
        except QueryError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = 499
            raise
        finally:
            took_s = loop.time() - begin_s
            self._observe(question.step, question.state, question.consistency, status, took_s)

    def begin(self, question: Question, done: Done) -> Callable[[], None] | None:
        """Begin a question for one key, if its owner can be asked at once: in two turns of the loop instead of eight.

        Returns:
            What takes the question back, whereupon ``done`` is not called; None: it takes :meth:`ask`.
        """
        directory = self._directory
        is_one = (
            question.key is not None and question.consistency == "latest" and question.min_checkpoint is None
        )
        if not is_one or self._asked >= _ASKED_MAX or not directory.is_fresh:
            return None
        try:
            directory.check()
            stage_index = directory.stage_of(question.step)
            version = directory.routing_version(stage_index)
            group = self._group(question, stage_index)
            address = directory.address(stage_index, group or 0)
        except QueryError:
            return None
        generation = directory.generation
        loop = asyncio.get_running_loop()
        begin_s = loop.time()

        def answered(reply: Reply | None) -> None:
            self._asked -= 1
            is_one = reply is not None and reply.status != _MOVED and reply.answer_json[:2] == b'{"'
            if reply is None or not is_one or directory.generation != generation:
                done(None)
                return
            self._observe(
                question.step, question.state, question.consistency, reply.status, loop.time() - begin_s
            )
            if reply.status == 200 and reply.key_group != group:
                self._remember(question, stage_index, reply.key_group)
            done((reply.status, _with_moment(reply.answer_json, generation, version)))

        take_back = directory.begin_call(address, question, answered)
        if take_back is None:
            return None
        self._asked += 1

        def gone() -> None:
            take_back()
            self._asked -= 1
            self._observe(question.step, question.state, question.consistency, 499, loop.time() - begin_s)

        return gone

    def note_malformed(self) -> None:
        """Count a request that was no question."""
        self._observe("", "", "", 400, 0.0)

    async def _ask(self, question: Question) -> tuple[int, dict[str, Any]]:
        if self._asked >= _ASKED_MAX:
            raise QueryError(429, f"{_ASKED_MAX} questions are being answered: try again")
        self._asked += 1
        directory = self._directory
        try:
            await directory.refresh(is_wrong=False)
            directory.check()
            stage_index = directory.stage_of(question.step)
            generation = directory.generation
            if question.min_checkpoint is not None and question.checkpoint_id is None:
                await self._wait_for_checkpoint(question.min_checkpoint)
                generation = directory.generation
            if question.consistency == "latest":
                ask = self._latest if question.key is not None else self._latest_range
                status, answer, version = await ask(question, stage_index)
                shown: dict[str, Any] = {"generation": generation, "routing_version": version}
            else:
                status, answer = await self._from_checkpoint(question, stage_index)
                shown = {"generation": generation}
            if directory.generation != generation:
                raise QueryError(503, "the job was restarted meanwhile: try again")
            if directory.away_s:
                # What is asked here may be over elsewhere: nobody can tell, so the caller is told.
                shown["control_plane_away_s"] = round(directory.away_s, 1)
            return status, {**answer, "consistency": question.consistency, **shown}
        finally:
            self._asked -= 1

    async def _wait_for_checkpoint(self, wanted: int) -> None:
        """Wait until there is a checkpoint of this number or a later one: what owners have now is no older, either.

        Raises:
            QueryError: 503: there is none for as long as a question may take.
        """
        directory, loop = self._directory, asyncio.get_running_loop()
        deadline_s = loop.time() + TIMEOUT_S
        while True:
            try:
                latest_id = directory.latest_checkpoint()[0]
            except QueryError:
                # The job has not made one yet.
                latest_id = -1
            if latest_id >= wanted:
                return
            if loop.time() > deadline_s:
                there_is = f"the last one is {latest_id}" if latest_id >= 0 else "there is none yet"
                raise QueryError(
                    503, f"checkpoint {wanted} was not made within {TIMEOUT_S:g} s, {there_is}: try again"
                )
            await asyncio.sleep(_CHECKPOINT_LOOK_S)
            await directory.refresh(is_wrong=True)
            directory.check()

    async def listed(self, step: str | None) -> list[dict[str, str]]:
        """The states that can be asked for, of one step or (None) of all.

        Raises:
            QueryError: the step has none, or the job does not run.
        """
        await self._directory.refresh(is_wrong=False)
        self._directory.check()
        known = self._directory.known()
        if step is not None and not known.get(step):
            raise refused_step(step, known)
        pairs = asked_pairs(known if step is None else {step: known[step]})
        return [{"step": name, "state": state} for name, state in pairs]

    async def named(self, step: str | None, state: str | None) -> tuple[str, str]:
        """The state of these names, where None stands for the only one that there is.

        Raises:
            QueryError: there are several, or none.
        """
        await self._directory.refresh(is_wrong=False)
        self._directory.check()
        pairs = asked_pairs(self._directory.known())
        found = [
            each
            for each in pairs
            if (step is None or each[0] == step) and (state is None or each[1] == state)
        ]
        if len(found) != 1:
            known = ", ".join(map("/".join, pairs))
            raise QueryError(
                400 if found else 404, f"say which state, with step and state; the job has {known or 'none'}"
            )
        return found[0]

    async def _latest(self, question: Question, stage_index: int) -> tuple[int, dict[str, Any], int]:
        assert question.key is not None
        directory, loop = self._directory, asyncio.get_running_loop()
        deadline_s = loop.time() + _MOVING_S
        version = directory.routing_version(stage_index)
        group = self._group(question, stage_index)
        while True:
            # Whoever owns the first group knows the group of the key.
            reply = await self._call(directory.address(stage_index, group or 0), question, "")
            if reply.status != _MOVED:
                if reply.status == 200:
                    self._remember(question, stage_index, reply.key_group)
                return reply.status, orjson.loads(reply.answer_json), version
            self._remember(question, stage_index, reply.key_group)
            if group != reply.key_group:
                group = reply.key_group
                continue
            await directory.refresh(is_wrong=True)
            directory.check()
            if loop.time() > deadline_s:
                raise QueryError(
                    503, f"key group {group} is on its way from one subtask to another: try again"
                )
            await asyncio.sleep(_LOOK_S)
            version = directory.routing_version(stage_index)

    async def _latest_range(self, question: Question, stage_index: int) -> tuple[int, dict[str, Any], int]:
        """A page, or how many keys there are, of all owners as they are now: each key group of one of them."""
        directory, loop = self._directory, asyncio.get_running_loop()
        deadline_s = loop.time() + _RANGE_MOVING_S
        while True:
            version = directory.routing_version(stage_index)
            addresses, groups = directory.owners(stage_index)
            replies = await self._call_all(addresses, replace(question, shares=len(addresses)))
            for reply in replies:
                if reply.status not in (200, _MOVED):
                    return reply.status, orjson.loads(reply.answer_json), version
            parts = [
                Part(address, orjson.loads(reply.answer_json), reply.arrow)
                for address, reply in zip(addresses, replies, strict=True)
                if reply.status == 200
            ]
            lacking = lacking_groups(parts, groups)
            if not lacking:
                merge = count_parts if question.counts else merge_parts
                return 200, merge(parts, question), version
            await directory.refresh(is_wrong=True)
            directory.check()
            if loop.time() > deadline_s:
                raise QueryError(
                    503,
                    f"{len(lacking)} key groups are on their way from one subtask to another, such as {lacking[0]}: "
                    "try again",
                )
            await asyncio.sleep(_LOOK_S)

    async def _call_all(self, addresses: Sequence[str], question: Question) -> list[Reply]:
        tasks = [asyncio.ensure_future(self._call(address, question, "")) for address in addresses]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # If one fails, or the caller goes, the others need not work on.
            for task in tasks:
                task.cancel()

    def _group(self, question: Question, stage_index: int) -> int | None:
        """Where the key is, or most likely is; None: that is not known."""
        assert question.key is not None
        group = self._groups.get((question.step, question.key))
        return self._directory.likely_group(question, stage_index) if group is None else group

    def _remember(self, question: Question, stage_index: int, group: int) -> None:
        assert question.key is not None
        if len(question.key) > _KEY_CHARACTERS_MAX or self._group(question, stage_index) == group:
            return
        name = question.step, question.key
        if name not in self._groups and len(self._groups) >= _GROUPS_MAX:
            self._groups.pop(next(iter(self._groups)))
        self._groups[name] = group

    async def _from_checkpoint(self, question: Question, stage_index: int) -> tuple[int, dict[str, Any]]:
        directory = self._directory
        tries = 2 if question.checkpoint_id is None else 1
        reply = None
        for number in range(tries):
            if number:
                await directory.refresh(is_wrong=True)
            latest_id, path = directory.latest_checkpoint()
            asked_id = latest_id if question.checkpoint_id is None else question.checkpoint_id
            # One task manager for all, so that it opens each checkpoint once.
            address = directory.address(stage_index, 0)
            asked = replace(question, checkpoint_id=asked_id)
            reply = await self._call(address, asked, path if asked_id == latest_id else "")
            # It may have expired while it was being opened: then there is a later one.
            if reply.status != 503:
                break
        assert reply is not None
        answer = orjson.loads(reply.answer_json)
        return reply.status, {**answer, "rows": reply.arrow} if reply.arrow else answer

    async def _call(self, address: str, question: Question, manifest_path: str) -> Reply:
        try:
            return await self._directory.call(address, question, manifest_path)
        except WeirError as error:
            await self._directory.refresh(is_wrong=True)
            raise QueryError(503, f"{error}: try again") from error


def _with_moment(answer_json: bytes, generation: int, routing_version: int) -> bytes:
    """The JSON of an answer, which is not empty, with the deployment that it is of; to read it would take longer."""
    return b'%s,"consistency":"latest","generation":%d,"routing_version":%d}' % (
        answer_json[:-1],
        generation,
        routing_version,
    )
