"""How much more than it processes now each stage would have to process for the job to keep up. Pure.

As DS2 (OSDI 2018) does it: what sources should read is carried through the graph in the proportions that were
measured, so all stages get their sizes at once, also those that a bottleneck before them hides.
"""

from __future__ import annotations

from weir.protocol.autoscale.measures import JobMeasure, StageMeasure

#: A source is held back that waits so much of its time for those after it.
_BLOCKED_MIN = 0.2
#: A source reads as fast as it can that is busy for so much of its time.
_FULL = 0.9
#: Rows of so many seconds wait in any job.
_USUAL_WAIT_S = 1.0
#: A backlog of so many seconds is worth a word, and no stage loses subtasks meanwhile.
_BACKLOG_S = 2.0


def factors(job: JobMeasure, catch_up_s: float, factor_max: float) -> list[float] | None:
    """Return by stage what it should process as a multiple of what it processes now; None: that cannot be told.

    Args:
        job: as measured.
        catch_up_s: a backlog is to be worked off within this time.
        factor_max: no factor is higher; a source that cannot tell what waits may be held back without end.
    """
    found: dict[int, float] = {}
    for stage in job.stages:
        if stage.is_source:
            factor = _of_source(stage, catch_up_s)
            if factor is None:
                return None
        else:
            rates = {each.stage: each.rows_out_per_s for each in job.stages if each.stage in stage.producers}
            total = sum(rates.values())
            known = [found[index] for index in stage.producers if index in found]
            if total > 0:
                factor = sum(found[index] * rate for index, rate in rates.items()) / total
            else:
                factor = max(known, default=1.0)
            factor = _of_queue(stage, factor, catch_up_s)
        found[stage.stage] = min(factor, factor_max)
    return [found[stage.stage] for stage in job.stages]


def _of_queue(stage: StageMeasure, factor: float, catch_up_s: float) -> float:
    """Return the factor of a stage before which channels fill, or are worked off: more or fewer rows come to it.

    Args:
        stage: not a source.
        factor: that of the stages before it.
        catch_up_s: as of :func:`factors`.
    """
    rate, more = stage.rows_in_per_s, stage.queued_more_per_s
    backlog_rows = stage.queued - _USUAL_WAIT_S * rate
    if rate <= 0 or (backlog_rows <= 0 and more >= 0):
        return factor
    coming = max(rate + more, 0.0)
    return (factor * coming + max(backlog_rows, 0.0) / catch_up_s) / rate


def _of_source(stage: StageMeasure, catch_up_s: float) -> float | None:
    rate = stage.rows_in_per_s
    is_limited = stage.blocked >= _BLOCKED_MIN or any(each.busy >= _FULL for each in stage.subtasks)
    if stage.waiting is None:
        if stage.blocked < _BLOCKED_MIN:
            return 1.0
        if rate <= 0:
            return None
        return 1 / max(1 - stage.blocked, 1e-3)
    if not is_limited:
        # The job takes all that it is offered: what waits nevertheless (a partition that stands still, for
        # instance) does so for another reason than a lack of subtasks. A backlog that has just been worked off
        # counts no more.
        return min(max(rate + stage.waiting_more_per_s, 0.0) / rate, 1.0) if rate > 0 else 1.0
    wanted = max(rate + stage.waiting_more_per_s, 0.0)
    wanted += max(stage.waiting - _USUAL_WAIT_S * rate, 0.0) / catch_up_s
    if rate <= 0:
        return None if wanted > 0 else 1.0
    return wanted / rate


def backlog(job: JobMeasure) -> str:
    """What is being worked off, in words; empty: no source has a backlog that shrinks or grows."""
    for stage in job.stages:
        if not stage.is_source or stage.waiting is None:
            continue
        is_moving = abs(stage.waiting_more_per_s) > 0.001 * stage.waiting
        if is_moving and stage.waiting > _BACKLOG_S * max(stage.rows_in_per_s, 1.0):
            return f"{stage.waiting:,.0f} rows wait before {stage.title}"
    return ""
