"""The line that says how a job is: whether it keeps up, and if not, which stage limits it and why. Pure.

``/status``, the page, ``weir status`` and ``--follow`` all say this line. The culprit is the stage *after* the blocked
edge: those before it are held back by it, and it is held back by none itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from weir.protocol.job.load import JobLoad, StageLoad

#: A stage is held back that waits so much of its time for those after it; less happens where all is well.
_BLOCKED_MIN = 0.2
#: A subtask has no time left.
_BUSY_MIN = 0.9
#: Less busy than this, a stage that holds others back waits for something itself.
_WORKS_MIN = 0.5
#: Subtasks so near the busiest one are told with it.
_NEARLY = 0.9
#: A key group with this part of the rows of its stage is worth a word.
_HOT_SHARE_MIN = 0.2
#: A source falls behind that leaves so much of what comes, for so many seconds already.
_LEFT_SHARE_MIN, _LEFT_S_MIN = 0.1, 2.0
#: A source whose event time is so far behind another source's holds windows and joins back.
_LATE_SOURCE_MS = 10_000
_RUNNING = frozenset({"RUNNING", "FINISHING"})
_ENDED = frozenset({"FINISHED", "STOPPED", "CANCELLED", "CANCELLING"})
_FAILED = frozenset({"FAILED", "FAILING"})


class Verdict(Enum):
    """What the line says; its value is in ``/status``."""

    #: All rows that come are processed.
    KEEPS_UP = "keeps_up"
    #: A stage has no time left, or holds others back.
    LIMITED = "limited"
    #: Rows stand still for something outside of the job.
    HELD_UP = "held_up"
    #: It does not run yet, or starts again.
    NOT_RUNNING = "not_running"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Headline:
    """The line, and what it is about."""

    verdict: Verdict
    text: str
    #: The stage that limits or comes late; None: none does.
    stage: int | None = None


def headline(load: JobLoad) -> Headline:
    """How a job is, in one line; called with each ``/status`` and once a second for the page."""
    if load.state in _FAILED:
        return Headline(Verdict.FAILED, f"failed: {load.cause}" if load.cause else "failed")
    if load.state in _ENDED:
        return Headline(Verdict.ENDED, f"{load.state.lower()}: {load.rows_in:,} rows read")
    if load.state not in _RUNNING:
        said = load.state.lower().replace("_", " ")
        return Headline(
            Verdict.NOT_RUNNING, load.cause if _says(load.cause, said) else _with(said, load.cause)
        )
    if load.waits_for:
        return Headline(Verdict.HELD_UP, f"rows wait for something outside: {load.waits_for}")
    if not load.is_measured:
        return Headline(Verdict.NOT_RUNNING, "running: measuring for a moment")
    culprit = _culprit(load.stages)
    if culprit is not None:
        return Headline(Verdict.LIMITED, _limits(culprit), culprit.stage)
    return _keeps_up(load)


def _says(cause: str, state: str) -> bool:
    return cause.lower().startswith(state.split()[0])


def _with(state: str, cause: str) -> str:
    return f"{state}: {cause}" if cause else state


def _culprit(stages: Sequence[StageLoad]) -> StageLoad | None:
    """The stage that holds others back, the busiest if there are several; else one that has no time left."""
    by_index = {stage.stage: stage for stage in stages}
    working = [stage for stage in stages if stage.blocked < _BLOCKED_MIN]
    holding = [
        stage
        for stage in working
        if any(by_index[index].blocked >= _BLOCKED_MIN for index in stage.producers if index in by_index)
    ]
    full = holding or [stage for stage in working if stage.busy >= _BUSY_MIN or _falls_behind(stage)]
    return max(full, key=lambda stage: (stage.busy, stage.queued_age_ms, -stage.stage), default=None)


def _falls_behind(stage: StageLoad) -> bool:
    """Return whether a source leaves a part of what comes where it comes from, and more and more of it."""
    more = stage.behind_more_per_s
    return more > 0 and more >= _LEFT_SHARE_MIN * stage.rows_in_per_s and stage.behind >= _LEFT_S_MIN * more


def _limits(stage: StageLoad) -> str:
    return f"{named(stage)} limits: {', '.join(_reasons(stage))}"


def named(stage: StageLoad) -> str:
    """What a stage is called in the line."""
    kind = "source" if not stage.producers else f"stage {stage.stage}"
    return f"{kind} `{stage.name}`"


def _reasons(stage: StageLoad) -> Iterator[str]:
    busy = stage.busy
    active = [each for each in stage.subtasks if not each.has_ended]
    if not stage.producers and _falls_behind(stage):
        yield f"{stage.behind:,} records wait to be read, {stage.behind_more_per_s:,.0f} more each second"
        return
    if not stage.producers:
        yield f"it reads {_rate(stage.rows_in_per_s)} and is {busy:.0%} busy".replace("%", " %")
        return
    if busy >= _WORKS_MIN:
        count = sum(each.busy >= busy * _NEARLY for each in active)
        share = f"{busy:.0%}".replace("%", " %")
        yield f"{count} of {len(active)} subtask{'' if len(active) == 1 else 's'} {share} busy"
    else:
        yield f"rows wait before it for {_time(stage.queued_age_ms)}, and it is {busy:.0%} busy".replace(
            "%", " %"
        )
    group, part = stage.hot_group
    if part >= _HOT_SHARE_MIN and len(active) > 1:
        yield f"key group {group} has {part:.0%} of the rows".replace("%", " %")


def _keeps_up(load: JobLoad) -> Headline:
    late = _late_source(load.stages)
    parts = [f"keeps up: {_rate(load.rows_per_s)}" if load.rows_per_s else "keeps up: no rows come for now"]
    if load.latency_p99_ms is not None and load.rows_per_s:
        parts.append(f"p99 {_time(load.latency_p99_ms)}")
    behind = sum(stage.behind for stage in load.stages)
    if behind > load.rows_per_s:
        parts.append(f"{behind:,} records wait to be read")
    text = ", ".join(parts)
    if late is not None:
        source, behind_ms = late
        text += f"; {named(source)} holds event time back: {_time(behind_ms)} behind the others"
        return Headline(Verdict.KEEPS_UP, text, source.stage)
    return Headline(Verdict.KEEPS_UP, text)


def _late_source(stages: Sequence[StageLoad]) -> tuple[StageLoad, float] | None:
    """The source that is farthest behind another one in event time, and by how much, if that is long."""
    lags = [
        (stage.watermark_lag_ms, stage)
        for stage in stages
        if not stage.producers and stage.watermark_lag_ms is not None
    ]
    if len(lags) < 2:
        return None
    most, source = max(lags, key=lambda item: item[0])
    behind_ms = most - min(lag for lag, _ in lags)
    return (source, behind_ms) if behind_ms >= _LATE_SOURCE_MS else None


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f} rows/s" if per_s >= 10 or not per_s else f"{per_s:.1f} rows/s"


def _time(ms: float) -> str:
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms / 60e3:,.0f} min"
