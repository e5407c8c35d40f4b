"""Answers questions of the control plane from what is here; called by gRPC's threads, a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from task_manager.queries.live_ranges import LiveRange
from task_manager.queries.live_reading import LiveReading
from task_manager.queries.open_checkpoints import OpenCheckpoints
from task_manager.queries.owners import ask_owner, look, moment_of, owns, wait_for_store
from task_manager.queries.rests import checking
from task_manager.queries.state_copies import copy_part
from task_manager.subtasks.running import RunningSubtask
from weir.clock import Clock
from weir.errors import CheckpointError
from weir.operators.queries.answering import (
    AskedState,
    answer_one,
    answer_range,
    asked_state,
    check_range,
)
from weir.operators.queries.state_format import ABSENT, Cut, EntryFormat
from weir.plan.graph import PhysicalGraph
from weir.protocol.queries import QueryError, Question, continuation
from weir.savepoints.checkpoint_reading import CheckpointReading
from weir.state import patience
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.stamps import UNDATED
from weir.types import SubtaskId

#: Questions that are answered at a time.
QUERIES_MAX = 8
#: States whose format is remembered.
_KNOWN_MAX = 1_000
#: Another subtask owns the key's group.
MOVED = 421


class Answers:
    """The answers of a job here."""

    def __init__(
        self,
        graph: PhysicalGraph,
        running: Mapping[SubtaskId, RunningSubtask],
        checkpoints: OpenCheckpoints,
        state_ids: Mapping[str, int],
        clock: Clock,
    ) -> None:
        """``running``: the subtasks here, as they are; ``state_ids``: numbers of all states of the job."""
        self._graph = graph.logical
        self._steps = {node.name: node for stage in graph.stages for node in stage.nodes}
        self._stage_of = {node.name: stage.index for stage in graph.stages for node in stage.nodes}
        self._running = running
        self._checkpoints = checkpoints
        self._state_ids = state_ids
        self._clock = clock
        self._slots = threading.BoundedSemaphore(QUERIES_MAX)
        self._known: dict[tuple[str, str], AskedState] = {}

    def answer(
        self, question: Question, state_id: int, manifest_path: str, is_wanted: Callable[[], bool]
    ) -> tuple[int, dict[str, Any], int]:
        """Status, what is answered, and the key group of the key that was asked for (0: none).

        Args:
            question: what is asked.
            state_id: number of the state in the stores.
            manifest_path: of the checkpoint; see ``OpenCheckpoints.using``.
            is_wanted: whether the caller still waits.

        Raises:
            QueryError: it is not answered.
        """
        if not self._slots.acquire(blocking=False):
            raise QueryError(429, f"{QUERIES_MAX} questions are being answered here: try again")
        try:
            asked = self._asked(question)
            state_id = self._state_ids.get(asked.job_name, state_id)
            check = checking(self._clock, is_wanted)
            if question.consistency == "latest" and question.key is not None and not asked.format.is_copied:
                return self._latest(asked, question, state_id)
            with patience.limited(partial(wait_for_store, check)):
                if question.consistency == "latest" and question.key is not None:
                    return self._latest_copied(asked, question, state_id, check)
                if question.consistency == "latest":
                    return self._latest_range(asked, question, state_id, check)
                return self._from_checkpoint(asked, question, state_id, manifest_path, check)
        except CheckpointError as error:
            raise QueryError(
                503, f"the checkpoint cannot be read, it may have expired: try again ({error})"
            ) from error
        finally:
            self._slots.release()

    def quick(self, question: Question, state_id: int) -> tuple[int, dict[str, Any], int] | None:
        """Answer without waiting and without the subtask's thread, for a key whose cells are cached.

        None: it takes :meth:`answer`. Called by the loop of the question server, which nothing may hold up.

        Raises:
            QueryError: it is not answered.
            ChangingError: the key's state is being changed: ask again in a moment.
        """
        asked = self._known.get((question.step, question.state))
        if asked is None or question.consistency != "latest" or question.key is None:
            return None
        # A key has one entry, which means something by itself.
        if not isinstance(asked.format, EntryFormat) or asked.format.ttl is not None:
            return None
        key, state_id = asked.keys.encode(question.key), self._state_ids.get(asked.job_name, state_id)
        value, group = asked.place_of(key)
        stage_index = self._stage_of[question.step]
        here = [each for subtask, each in list(self._running.items()) if subtask.stage_index == stage_index]
        running = next((each for each in here if owns(each, group)), None)
        if running is None and here and not all(each.is_over for each in here):
            return _moved(group)
        if running is None or running.is_over:
            return None
        if question.is_bounded or question.has_times or question.as_of_ms is not None:
            return None
        table = next((table for table in running.chain.tables if table.state_id == state_id), None)
        if type(table) is not CellTable or table.expiry is not None:
            return None
        data = table.look_at(value, np.frombuffer(key, dtype=np.uint8), asked.format.whole)
        # Whoever owns the group before and after has owned it meanwhile.
        if data is None or not owns(running, group):
            return None
        found = asked.format.value(LiveReading(table), data)
        return (*_shown_one(asked, question, found, moment_of(running)), group)

    def tidy(self) -> None:
        """A checkpoint is over: let go of old ones that nobody asks any more."""
        self._checkpoints.tidy()

    def close(self) -> None:
        """The job ends."""
        self._checkpoints.close()

    def _asked(self, question: Question) -> AskedState:
        name = (question.step, question.state)
        if name not in self._known:
            found = asked_state(self._graph, question, self._steps)
            if len(self._known) < _KNOWN_MAX:
                self._known[name] = found
            return found
        return self._known[name]

    # --- as it is now ---

    def _latest(
        self, asked: AskedState, question: Question, state_id: int
    ) -> tuple[int, dict[str, Any], int]:
        assert question.key is not None
        group = asked.group_of(asked.keys.encode(question.key))
        for running in self._here(question):
            # Asked here as well, so that those who do not own the group are not waited for.
            if owns(running, group):
                work = partial(look, running, asked, question, state_id, group, self._clock)
                answered = ask_owner(running, work)
                if answered is not None:
                    found, moment = answered
                    return (*_shown_one(asked, question, asked.format.shown(found, question), moment), group)
        return _moved(group)

    def _latest_copied(
        self, asked: AskedState, question: Question, state_id: int, check: Callable[[], None]
    ) -> tuple[int, dict[str, Any], int]:
        """Answer for one key that has much, or in several states: read outside its owner's thread."""
        assert question.key is not None
        group = asked.group_of(asked.keys.encode(question.key))
        for running in self._here(question):
            if not owns(running, group):
                continue
            part = ask_owner(running, partial(copy_part, running, self._numbers(asked, state_id), 0, group))
            if part is not None:
                reading = LiveRange([part], self._state_ids, check)
                found = answer_one(asked, reading, state_id, group, question)
                if reading.gone_group() is not None:
                    break
                if asked.format.moves_entries:
                    reading.check_rearranged()
                return (*_shown_one(asked, question, found, {"watermark_ms": part.watermark_ms}), group)
        return _moved(group)

    def _numbers(self, asked: AskedState, state_id: int) -> list[int]:
        """Return the numbers of all states that are read."""
        return [state_id, *(self._state_ids[name] for name in asked.format.others)]

    def _here(self, question: Question) -> list[RunningSubtask]:
        """The subtasks of the step that are here.

        Raises:
            QueryError: they have ended.
        """
        stage_index = self._stage_of[question.step]
        here = [each for subtask, each in list(self._running.items()) if subtask.stage_index == stage_index]
        if here and all(running.is_over for running in here):
            raise QueryError(
                503, "the step has reached the end of its input here: try again with consistency=checkpoint"
            )
        return here

    def _latest_range(
        self, asked: AskedState, question: Question, state_id: int, check: Callable[[], None]
    ) -> tuple[int, dict[str, Any], int]:
        """A part, for ``weir.questions.parts``: of the key groups that are owned here."""
        check_range(asked, question)
        self._checkpoints.check_question(question, state_id)
        groups = asked.max_parallelism
        copies = [
            ask_owner(running, partial(copy_part, running, self._numbers(asked, state_id), groups))
            for running in self._here(question)
        ]
        parts = [part for part in copies if part is not None]
        if not parts:
            return _moved(0)
        reading = LiveRange(parts, self._state_ids, check)
        page = answer_range(asked, reading, state_id, reading.groups, question, check)
        rows = _arrow(page.batches(), check) if question.arrow and page.count is None else None
        gone = reading.gone_group()
        if gone is not None:
            return _moved(gone)
        if asked.format.moves_entries:
            reading.check_rearranged()
        shown: dict[str, Any] = {
            "groups": reading.groups,
            "parts": [part.to_json() for part in parts],
        }
        if page.count is not None:
            return 200, {**shown, "count": page.count}, 0
        return (
            200,
            {
                **shown,
                "keys": [key.hex() for key in page.keys],
                "rows": page.rows if rows is None else rows,
                "order": _order(asked),
                "after": None if page.after is None else page.after.hex(),
            },
            0,
        )

    # --- as it was ---

    def _from_checkpoint(
        self,
        asked: AskedState,
        question: Question,
        state_id: int,
        manifest_path: str,
        check: Callable[[], None],
    ) -> tuple[int, dict[str, Any], int]:
        assert question.checkpoint_id is not None
        checkpoint_id = question.checkpoint_id
        with self._checkpoints.using(checkpoint_id, manifest_path) as checkpoint:
            number = checkpoint.manifest.state_ids.get(asked.job_name, state_id)
            reading = CheckpointReading(
                checkpoint, question.step, question.state, asked.format.ttl, self._clock, check
            )
            shown: dict[str, Any] = {
                "checkpoint": checkpoint_id,
                "created_ms": checkpoint.manifest.created_ms,
            }
            if reading.watermark_ms != UNDATED:
                # Steps that keep no times do not say theirs in a checkpoint.
                shown["watermark_ms"] = reading.watermark_ms
            if question.key is not None:
                group = asked.group_of(asked.keys.encode(question.key))
                return (
                    *_shown_one(asked, question, answer_one(asked, reading, number, group, question), shown),
                    group,
                )
            self._checkpoints.check_question(question, number)
            page = answer_range(asked, reading, number, range(asked.max_parallelism), question, check)
            if page.count is not None:
                return 200, {**shown, "count": page.count}, 0
            after = None if page.after is None else continuation(checkpoint_id, page.after.hex())
            rows = _arrow(page.batches(), check) if question.arrow else page.rows
            return 200, {**shown, "rows": rows, "order": _order(asked), "continuation": after}, 0


def _order(asked: AskedState) -> str:
    """Returns "key" where the rows of pages are in the order of their keys, else "none"."""
    return "key" if asked.keys.is_ordered else "none"


def _arrow(batches: Iterator[pa.RecordBatch], check: Callable[[], None]) -> bytes:
    sink = pa.BufferOutputStream()
    batch = next(batches)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        for batch in batches:
            check()
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _moved(group: int) -> tuple[int, dict[str, Any], int]:
    return MOVED, {"error": f"key group {group} is owned by no subtask here"}, group


def _shown_one(
    asked: AskedState, question: Question, found: Any, shown: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    assert question.key is not None
    key = asked.keys.decode([asked.keys.encode(question.key)])[0]
    if found is ABSENT:
        return 404, {**shown, "key": key, "error": f"state {question.state!r} has nothing for this key"}
    if isinstance(found, Cut):
        return 200, {**shown, "key": key, "value": found.value, "more": True}
    return 200, {**shown, "key": key, "value": found}
