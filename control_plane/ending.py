"""How a control plane process waits for the end of its job, brings it about, and what it tells of it."""

from __future__ import annotations

import asyncio
import logging
import signal

from control_plane.composition import ControlPlane
from control_plane.start_command import StartCommand
from control_plane.web.status_views import outcome, status_view
from weir.clock import monotonic_ms
from weir.errors import CheckpointError
from weir.process.entry_point import REPEATED_LOGGER
from weir.protocol.job.job_machine import JobState
from weir.redaction import redacted_text

log = logging.getLogger("control_plane")
#: What ``weir run`` says itself when the job has ended.
repeated = logging.getLogger(REPEATED_LOGGER)

#: How long to wait, at the end, for task managers that were told to end; and for those where a subtask does not stop.
_FAREWELL_S, _SHORT_FAREWELL_S = 10.0, 2.0
#: How long to wait, after a signal, for subtasks to stop, and then for the record of the end.
_CANCEL_S, _ON_RECORD_S = 5.0, 6.0
_JOB_FAILED_EXIT_CODE = 1
#: 0 in all others.
_EXIT_CODES = {
    JobState.FAILED: _JOB_FAILED_EXIT_CODE,
    JobState.FAILING: _JOB_FAILED_EXIT_CODE,
    JobState.CANCELLED: 3,
    JobState.CANCELLING: 3,
}


async def until_over(control_plane: ControlPlane, lost: asyncio.Event, command: StartCommand) -> None:
    """Wait until the job has ended, also because a signal came, and task managers have gone if they are to.

    Raises:
        CheckpointError: another control plane leads.
    """
    stop, again = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (again if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    coordinator = control_plane.coordinator
    ends = [coordinator.ended] if command.exit_when_finished else []
    await _any_of(stop, lost, coordinator.superseded, *ends)
    if lost.is_set() or coordinator.superseded.is_set():
        raise CheckpointError(
            "this control plane does not lead any more: another one takes over, and the job goes on"
        )
    farewell_s = _FAREWELL_S if coordinator.ended.is_set() else await _cancel(control_plane, again)
    if command.parent is not None:
        missed = control_plane.checkpointer.machine.missed_savepoint
        before = control_plane.job.events_at_start
        ended = outcome(status_view(control_plane), missed, at_start=before)
        command.parent.tell({**ended, "exit_code": _exit_code(control_plane)})
    if command.exit_when_finished:
        # Task managers learn of the end from their next heartbeat, and deregister.
        deadline_ms = monotonic_ms(control_plane.clock) + int(farewell_s * 1000)
        while control_plane.task_managers.members() and monotonic_ms(control_plane.clock) < deadline_ms:
            if again.is_set():
                return
            await asyncio.sleep(0.02)


async def _cancel(control_plane: ControlPlane, again: asyncio.Event) -> float:
    """Cancel the job, at once after a second signal; returns how long, in s, task managers have to leave then."""
    coordinator = control_plane.coordinator
    # Nobody watches over the job any more: it must not go on alone.
    log.info("stopping: cancelling job %s", control_plane.job.identity.job_id)
    coordinator.cancel()
    await _any_of(coordinator.ended, again, timeout_s=_CANCEL_S)
    if coordinator.ended.is_set():
        return _FAREWELL_S
    coordinator.leave_behind()
    await _any_of(coordinator.ended, timeout_s=_ON_RECORD_S)
    return _SHORT_FAREWELL_S


async def _any_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Return when one of these is set, or after so long."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def already_ended(command: StartCommand, state: JobState) -> int:
    """The control plane in whose place this one was started had just written down how the job ended."""
    code = _EXIT_CODES.get(state, 0)
    if command.parent is not None:
        summary = "the control plane ended before it had told more"
        command.parent.tell({"state": state.value, "cause": summary, "summary": summary, "exit_code": code})
    return code


def told_exit_code(control_plane: ControlPlane) -> int:
    """The exit code; what was rejected is the last thing that is told."""
    code = _exit_code(control_plane)
    missed = control_plane.checkpointer.machine.missed_savepoint
    if missed and control_plane.job.state not in _EXIT_CODES:
        repeated.error("exit code %d: the job finished without %s", code, redacted_text(missed))
    rejected = control_plane.rejects.summary()
    if rejected:
        repeated.warning("exit code %d%s rejected: %s", code, ";" if code else ", but", rejected)
    return code


def _exit_code(control_plane: ControlPlane) -> int:
    # The job may have finished, and not all that was asked for was done.
    missed = control_plane.checkpointer.machine.missed_savepoint
    return _EXIT_CODES.get(control_plane.job.state, _JOB_FAILED_EXIT_CODE if missed else 0)
