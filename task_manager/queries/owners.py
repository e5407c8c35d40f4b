"""Asks the subtask that owns a key, in its own thread, between two batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

from task_manager.queries.live_reading import LiveReading
from task_manager.subtasks.running import RunningSubtask
from weir.clock import Clock
from weir.operators.queries.answering import AskedState, read_one
from weir.protocol.queries import QueryError, Question
from weir.rows.records import WATERMARK_MIN_MS
from weir.state import patience
from weir.state.tables.broadcast import BroadcastTable
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.values.value_table import ValueTable

_Found = TypeVar("_Found")
#: How long a subtask may take to come to a question: to the end of its batch.
_OWNER_S = 2.0
#: How long rows wait for what a question reads in a store that is elsewhere.
_STORE_S = 1.0


def ask_owner(running: RunningSubtask, work: Callable[[], _Found]) -> _Found | None:
    """What the work in the subtask's thread, between two batches, returns; None: the subtask has ended.

    Raises:
        QueryError: it does not come to it in time, or the work did.
    """
    given: Future[_Found] = Future()

    def work_on() -> None:
        # What is raised here would end the subtask.
        if not given.set_running_or_notify_cancel():
            return
        try:
            given.set_result(work())
        except Exception as error:
            given.set_exception(error)

    if running.post(work_on) is None:
        return None
    try:
        return given.result(_OWNER_S)
    except FutureTimeoutError:
        given.cancel()
        raise QueryError(503, f"an owner of keys was busy for {_OWNER_S:g} s: try again") from None
    except CancelledError:
        raise QueryError(503, "an owner of keys has ended: try again") from None


def owns(running: RunningSubtask, group: int) -> bool:
    """Return whether a subtask owns a key group; any thread may call it."""
    return running.group_state is not None and running.group_state.backend.ownership.owns(group)


def moment_of(running: RunningSubtask) -> dict[str, Any]:
    """The moment of a subtask of which an answer is."""
    watermark_ms = running.subtask.progress.watermark_ms
    return {"watermark_ms": None if watermark_ms == WATERMARK_MIN_MS else watermark_ms}


def wait_for_store(check: Callable[[], None], why_away: str) -> None:
    """A ``weir.state.patience.Patience``: of a store that does not answer nothing can be told."""
    if why_away:
        raise QueryError(503, f"{why_away}: try again")
    check()


def look(
    running: RunningSubtask, asked: AskedState, question: Question, state_id: int, group: int, clock: Clock
) -> tuple[Any, dict[str, Any]] | None:
    """Read in the subtask's thread: returns what was read, and of which moment that is."""
    table = next((table for table in running.chain.tables if table.state_id == state_id), None)
    if not owns(running, group) or (isinstance(table, BroadcastTable) and not table.is_whole):
        return None
    if not isinstance(table, CellTable | ValueTable | BroadcastTable):
        raise QueryError(503, "the owner of the key has not opened its state yet, or has ended: try again")
    until_s = clock.monotonic_s() + _STORE_S

    def check() -> None:
        if clock.monotonic_s() > until_s:
            raise QueryError(503, f"the store of the state did not answer within {_STORE_S:g} s: try again")

    with patience.limited(partial(wait_for_store, check)):
        found = read_one(asked, LiveReading(table), state_id, group, question)
    return found, moment_of(running)
