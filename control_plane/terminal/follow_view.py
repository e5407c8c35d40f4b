"""What ``--follow`` shows of a job at one moment: rows with bars on a terminal, one line in a log. Reads views only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich import filesize
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from control_plane.job.late_counts import late_text
from control_plane.web.views import CheckpointView, RejectedView, RescaleView, RestoreView, StatusView
from weir.process.printable import one_entry
from weir.subtask_names import in_step
from weir.types import SubtaskId

_BAR_COLUMNS = 24
#: Restores of more subtasks become one line.
_RESTORES_MAX = 8
_RESTORING = "RESTORING"
#: Verdicts of the headline that say more than the state does.
_TOLD = frozenset({"keeps_up", "limited", "held_up"})
_VERDICT_STYLES = {"keeps_up": "green", "limited": "bold yellow", "held_up": "yellow"}
_FAILURES = frozenset({"FAILING", "FAILED"})
_ENDED_PHASES = frozenset({"COMPLETE", "ABORTED", "FAILED"})
_STYLES = {"RUNNING": "green", "FINISHED": "green", "FAILING": "red", "FAILED": "red", "RESTARTING": "yellow"}


@dataclass(frozen=True)
class Moment:
    """A job at one moment; the lists are newest first."""

    status: StatusView
    #: Events that sources read per second, just now.
    rate: float
    now_ms: int
    checkpoints: Sequence[CheckpointView] = ()
    rescales: Sequence[RescaleView] = ()
    restores: Sequence[RestoreView] = ()

    @property
    def restoring(self) -> list[RestoreView]:
        """Restores that go on."""
        return [restore for restore in self.restores if restore.state == _RESTORING]

    @property
    def rescale(self) -> RescaleView | None:
        """The rescale that goes on, or else the latest one."""
        return self.rescales[0] if self.rescales else None

    @property
    def checkpoint(self) -> CheckpointView | None:
        """The latest checkpoint that has ended."""
        return next((item for item in self.checkpoints if item.ended_ms is not None), None)

    @property
    def signature(self) -> tuple[object, ...]:
        """Changes when something begins or ends: worth a line in a log at once."""
        phase = "" if self.rescale is None else self.rescale.phase
        rejecting = tuple(item.step for item in self.status.rejected)
        return (
            self.status.state,
            self.status.generation,
            len(self.rescales),
            phase,
            bool(self.restoring),
            rejecting,
            bool(_waits(self.status)),
        )


def line(moment: Moment, told: Collection[str] = ()) -> str:
    """Return a line for a log; of steps that are ``told``, the first record that was rejected is not repeated."""
    status = moment.status
    parts = [status.state.lower()]
    if status.headline.verdict in _TOLD:
        parts.append(status.headline.text)
    # Of a job that fails the cause has a line of its own, which comes last.
    if (status.waiting_for or status.cause) and status.state not in _FAILURES:
        parts[0] += f" ({status.waiting_for or status.cause})"
    if status.headline.verdict != "held_up":
        parts += _waits(status)
    late = late_text(status.totals.rows_late)
    waiting = _waiting(status)
    parts.append(f"{status.totals.events_in:,} events in, {moment.rate:,.0f}/s{late}{waiting}")
    if moment.checkpoint is not None:
        parts.append(_checkpoint(moment.checkpoint, moment.now_ms))
    if moment.rescale is not None and moment.rescale.phase not in _ENDED_PHASES:
        text, done, total = _rescale(moment.rescale, status)
        parts.append(f"{text} ({done} of {total} key groups)")
    if moment.restoring:
        parts.append(_restoring(moment.restoring))
    parts += [_rejected(item, item.step not in told) for item in status.rejected]
    return "; ".join(parts)


def _waiting(status: StatusView) -> str:
    """How far sources are behind; empty where none knows."""
    waiting = status.totals.records_waiting
    return "" if waiting is None else f", {waiting:,} wait to be read"


def _waits(status: StatusView) -> list[str]:
    """What rows wait for outside of the job, each thing once."""
    return sorted({manager.waits_for for manager in status.task_managers if manager.waits_for})


def screen(moment: Moment) -> RenderableType:
    """A few lines for a terminal; as many as there are things that go on."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, content in _rows(moment):
        table.add_row(name, content)
    return Group(Text(), table)


def _rows(moment: Moment) -> Iterator[tuple[str, RenderableType]]:
    status = moment.status
    state = _text(status.state, _STYLES.get(status.state, ""))
    restarts = f", {status.restarts} restarts" if status.restarts else ""
    yield "job", state.append(f"  {status.job}, generation {status.generation}{restarts}", "default")
    if status.waiting_for or status.cause:
        yield "", _text(status.waiting_for or status.cause, "yellow")
    elif status.restart_cause:
        yield "", _text(f"last restart: {status.restart_cause}", "dim")
    for told in [] if status.headline.verdict == "held_up" else _waits(status):
        yield "waits", _text(told, "yellow")
    if status.headline.verdict in _TOLD:
        yield "now", _text(status.headline.text, _VERDICT_STYLES[status.headline.verdict])
    totals = status.totals
    read = f"{totals.events_in:,} in, {moment.rate:,.0f}/s, {totals.events_out:,} out{_waiting(status)}"
    yield "events", _text(read)
    if totals.rows_late:
        yield "late", _text(late_text(totals.rows_late)[2:], "yellow")
    for item in status.rejected:
        yield "rejected", _text(_rejected(item), "yellow")
    if moment.checkpoint is not None:
        style = "" if moment.checkpoint.state == "COMPLETE" else "yellow"
        yield "checkpoint", _text(_checkpoint(moment.checkpoint, moment.now_ms), style)
    if moment.rescale is not None:
        text, done, total = _rescale(moment.rescale, status)
        yield "rescale", _text(text) if moment.rescale.phase in _ENDED_PHASES else _bar(text, done, total)
    restoring = moment.restoring
    if len(restoring) > _RESTORES_MAX:
        total = sum(restore.groups_total for restore in restoring)
        left = sum(restore.groups_left for restore in restoring)
        yield "restores", _bar(_restoring(restoring), total - left, total)
        return
    names = {stage.stage: stage.name for stage in status.stages}
    for restore in restoring:
        subtask = SubtaskId(restore.stage, restore.subtask_index)
        who = in_step(names.get(restore.stage, str(restore.stage)), subtask)
        yield (
            "restore",
            _bar(
                f"{who}: {restore.groups_left} key groups left",
                restore.groups_total - restore.groups_left,
                restore.groups_total,
            ),
        )


def _text(text: str, style: str = "") -> Text:
    """Return a text, which may come from data, so that it cannot control the terminal."""
    return Text(one_entry(text), style)


def _bar(text: str, done: int, total: int) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(total=max(total, 1), completed=done, width=_BAR_COLUMNS), _text(text))
    return row


def _checkpoint(checkpoint: CheckpointView, now_ms: int) -> str:
    text = f"{checkpoint.kind} {checkpoint.id} {checkpoint.state}"
    if checkpoint.duration_ms is not None:
        text += f" in {checkpoint.duration_ms:,} ms"
    if checkpoint.state == "COMPLETE":
        text += f", {filesize.decimal(checkpoint.new_bytes)} new"
    if checkpoint.ended_ms is not None:
        text += f", {max(now_ms - checkpoint.ended_ms, 0) / 1e3:.0f} s ago"
    return text + (f": {checkpoint.cause}" if checkpoint.cause else "")


def _rescale(rescale: RescaleView, status: StatusView) -> tuple[str, int, int]:
    """What it does, and how many of its key groups are there: first with their new owners, then with their state."""
    names = {stage.stage: stage.name for stage in status.stages}
    text = f"{rescale.id}: {names.get(rescale.stage, rescale.stage)} {rescale.from_} -> {rescale.to} {rescale.phase}"
    text += f": {rescale.cause}" if rescale.cause else ""
    done = rescale.groups_migrated if rescale.phase == "MIGRATING" else rescale.groups_owned
    return text, done, rescale.groups_total


def _rejected(item: RejectedView, says_first: bool = True) -> str:
    what, done = ("row", "put aside") if item.kind == "step" else ("record", "rejected")
    text = f"{item.rejected:,} {what}{'' if item.rejected == 1 else 's'} {done} by {item.step}"
    place = f"{item.first_source} at {item.first_position}: " if item.first_source else ""
    return (
        f"{text} ({place}{item.first_reason}; dead letters: {item.dead_letters})"
        if item.first_reason and says_first
        else text
    )


def _restoring(restores: Sequence[RestoreView]) -> str:
    left = sum(restore.groups_left for restore in restores)
    return f"restoring {len(restores)} subtasks, {left} key groups left"
