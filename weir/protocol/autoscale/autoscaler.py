"""Decides which stages get more or fewer subtasks, and when. Pure: the control plane measures and carries out.

More as soon as an overload has lasted for a while, in one step for all stages; fewer late, when the highest load of
some minutes would have allowed it. docs/design/0017 has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from weir.protocol.autoscale.decision import Change, Decision
from weir.protocol.autoscale.demand import backlog, factors
from weir.protocol.autoscale.hosts import Hosts
from weir.protocol.autoscale.last_growth import LastGrowth, Recent
from weir.protocol.autoscale.load_history import LoadHistory
from weir.protocol.autoscale.measures import JobMeasure, StageMeasure
from weir.protocol.autoscale.memory import fewest_by_memory
from weir.protocol.autoscale.settings import AutoscaleSettings
from weir.protocol.autoscale.sizing import Sizing, StageSizes
from weir.protocol.autoscale.stage_memory import StageMemory

#: A load that has been rising or falling for this part of ``look_ahead_s`` is expected to go on. Over so long chance
#: hides little of a slope; a rise that is younger counts after the shorter part.
_MOVING_SHARE, _RISING_SHARE = 0.5, 0.2
#: Loads of this part of ``scale_down_after_s``, or of the time in which they have to rise, are taken together.
_PIECE_SHARE = 1 / 18
#: A stage that had to grow again after it had shrunk has a load that comes back: it keeps its subtasks for so many
#: times as long as that took, but takes no longer times for one than so many times ``look_ahead_s``.
_KEPT_PERIODS, _PERIOD_MAX = 1.25, 8
#: A load that came back is taken for at most so many times the present one.
_COMES_BACK_MAX = 2.5
#: A stage that has grown for a load that is expected keeps its subtasks for so many times ``look_ahead_s``, and for as
#: many periods as above.
_AHEAD_KEPT = 2
#: A stage that has shrunk, and has not grown since, does so again after so many times ``scale_down_after_s``.
_SHRUNK_KEPT = 5
#: A stage loses no fewer than this part of its subtasks, and one at least.
_FREED_MIN = 0.1
#: Shares of hot keys are means of so many windows, and what a growth has brought of so many: a batch of a stage that is
#: overloaded may take longer than a window, so that one of them has all of its rows, and the next one none.
_HOT_WINDOWS, _RECENT_WINDOWS = 6, 3
#: A stage with less of its time held back by others can use a full queue.
_BLOCKED_MAX = 0.2


@dataclass(slots=True)
class Autoscaler:
    """Decisions for one job; called with rising times."""

    settings: AutoscaleSettings
    _memories: dict[int, StageMemory] = field(default_factory=dict)
    _changed_s: float = -math.inf

    def changed(self, at_s: float) -> None:
        """A rescale or a restart has ended, whoever wanted it: what was measured before does not hold."""
        self._changed_s = at_s
        for memory in self._memories.values():
            memory.over_since_s = memory.recent = None

    def look(self, at_s: float, job: JobMeasure) -> Decision:
        """Decide; called about once a second with means of the last ``window_s``."""
        settings = self.settings
        missing = next(_missing(job), "")
        if missing:
            return Decision(waits=f"waits for figures of {missing}")
        known = factors(job, settings.catch_up_s, settings.growth_max)
        if known is None:
            return Decision(waits="waits: no row was read, though rows wait")
        hosts = Hosts(job)
        hot_s = _HOT_WINDOWS * settings.window_s
        shares = [self._memory(stage).hot_share_at(at_s, stage, hot_s) for stage in job.stages]
        sizes = [
            StageSizes(stage, hosts, settings, share) for stage, share in zip(job.stages, shares, strict=True)
        ]
        works = [stage.busy * factor for stage, factor in zip(job.stages, known, strict=True)]
        for stage, work, size in zip(job.stages, works, sizes, strict=True):
            self._note(at_s, stage, work, size.of(work))
            self._judge(at_s, stage)
        left_s = self._changed_s + settings.cool_down_s + settings.window_s - at_s
        if left_s > 0:
            return Decision(waits=f"waits {math.ceil(left_s)} s after the last change")
        return self._decide(at_s, job, works, sizes)

    # --- growing and shrinking ------------------------------------------------------------------------------------

    def _decide(self, at_s: float, job: JobMeasure, works: list[float], sizes: list[StageSizes]) -> Decision:
        growing, remarks = [], []
        for stage, work, size in zip(job.stages, works, sizes, strict=True):
            change, remark = self._growth(at_s, stage, work, size)
            growing += [change] if change else []
            remarks += [f"{stage.title}: {remark}"] if remark else []
        changes, missing = _within_slots(growing, job.free_slots)
        if missing:
            slots = "slot is" if missing == 1 else "slots are"
            remarks.append(
                f"{missing} {slots} missing: start task managers, or raise taskManager.operator_quota"
            )
        if growing:
            # No stage shrinks at the same time: it may be the one that gets the rows next.
            return Decision(tuple(changes), remarks=tuple(remarks), slots_missing=missing)
        held_by = backlog(job)
        if held_by:
            return Decision(waits=f"no stage shrinks: {held_by}", remarks=tuple(remarks))
        shrinking = [
            change
            for stage, size in zip(job.stages, sizes, strict=True)
            if (change := self._shrinkage(at_s, stage, size, job)) is not None
        ]
        return Decision(tuple(shrinking), remarks=tuple(remarks))

    def _growth(
        self, at_s: float, stage: StageMeasure, work: float, size: StageSizes
    ) -> tuple[Change | None, str]:
        """The change of a stage that is overloaded, or what stands in its way; (None, ""): it is not."""
        settings, memory = self.settings, self._memories[stage.stage]
        since_s, now = memory.over_since_s, stage.parallelism
        if since_s is None or (at_s - since_s < settings.window_s and not self._is_full(stage)):
            return None, ""
        hindrance = self._hindrance(stage)
        if hindrance:
            return None, hindrance
        present = size.of(work)
        expected = self._expected(at_s, memory, work)
        sized = size.of(expected)
        wanted = max(sized.wanted, present.wanted)
        if self._is_full(stage) and not present.limit:
            wanted = max(wanted, now + 1)
        after = min(wanted, math.ceil(now * settings.growth_max))
        memory.is_cut = after < wanted
        if after <= now:
            return None, present.limit
        in_vain = ""
        if memory.last_growth is not None and memory.recent is not None:
            in_vain = memory.last_growth.in_vain(stage, memory.recent)
        if in_vain:
            return None, present.limit or in_vain
        reason = f"{_percent(present.utilisation)} of its time would be needed"
        is_ahead = expected > work
        reason += f", and {_percent(expected / work - 1)} more is to be expected" if is_ahead else ""
        return Change(stage.stage, stage.title, now, after, reason, is_ahead), sized.limit

    def _expected(self, at_s: float, memory: StageMemory, work: float) -> float:
        """The load for which a stage grows: what rises goes on, and what comes back does so as high as before."""
        ahead_s = self.settings.look_ahead_s
        moving_s, rising_s = _MOVING_SHARE * ahead_s, _RISING_SHARE * ahead_s
        expected = memory.history.expected(work, moving_s, rising_s, ahead_s)
        period_s = memory.period_at(at_s, _PERIOD_MAX * ahead_s)
        before = memory.history.highest(at_s, period_s) if period_s else None
        return max(expected, min(before, work * _COMES_BACK_MAX) if before else 0.0)

    def _shrinkage(
        self, at_s: float, stage: StageMeasure, size: StageSizes, job: JobMeasure
    ) -> Change | None:
        settings, memory = self.settings, self._memories[stage.stage]
        span_s = max(settings.scale_down_after_s, _KEPT_PERIODS * memory.period_s)
        highest = memory.history.highest(at_s, span_s)
        down_s, moving_s = settings.scale_down_after_s, _MOVING_SHARE * settings.look_ahead_s
        kept_until_s = max(memory.kept_until_s, memory.shrunk_s + _SHRUNK_KEPT * down_s)
        is_kept = stage.parallelism < 2 or at_s < kept_until_s
        if highest is None or is_kept or self._hindrance(stage):
            return None
        wanted = min(size.of(highest).wanted, stage.parallelism)
        after = fewest_by_memory(stage, wanted, job, settings.memory_share_max)
        if stage.parallelism - after < max(stage.parallelism * _FREED_MIN, 1):
            memory.may_shrink_since_s = None
            return None
        is_large = _is_large(stage.parallelism, after)
        if not memory.has_settled(at_s, after, down_s, moving_s, is_large=is_large):
            return None
        share = _percent(highest / stage.parallelism)
        reason = f"{share} of its time at most was needed in {_time(span_s)}"
        if after > wanted:
            reason += f"; with {wanted} the memory of a host would not be enough"
        return Change(stage.stage, stage.title, stage.parallelism, after, reason)

    def carried_out(self, at_s: float, change: Change) -> None:
        """A change has begun; with a dry run this is not called."""
        memory, ahead_s = self._memories.get(change.stage), self.settings.look_ahead_s
        if memory is None:
            return
        memory.over_since_s = memory.may_shrink_since_s = None
        if not change.is_growth:
            memory.has_shrunk, memory.shrunk_s, memory.last_growth = True, at_s, None
            if _is_large(change.before, change.after):
                # A load that came back would have kept the subtasks: it does so no more, or later.
                memory.period_s = 0.0
            return
        memory.shrunk_s = -math.inf
        recent, last, memory.last_growth = memory.recent, memory.last_growth, None
        if recent is not None:
            had_fewer = last is not None and last.has_fewer_rows(recent)
            memory.last_growth = LastGrowth(
                change.before, change.after, recent.busy, recent.rows_per_s, had_fewer_rows=had_fewer
            )
        if memory.has_shrunk or memory.grown_s is None:
            memory.period_s = memory.period_at(at_s, _PERIOD_MAX * ahead_s)
            memory.grown_s, memory.has_shrunk = at_s, False
        if change.is_ahead:
            memory.kept_until_s = at_s + max(_AHEAD_KEPT * ahead_s, _KEPT_PERIODS * memory.period_s)

    # --- what is remembered ----------------------------------------------------------------------------------------

    def _note(self, at_s: float, stage: StageMeasure, work: float, sized: Sizing) -> None:
        memory, settings = self._memory(stage), self.settings
        memory.history.add(at_s, work)
        highest = settings.target_of(stage.name) if memory.is_cut else settings.utilisation_max
        is_over = sized.utilisation > highest or self._is_full(stage)
        since_s = at_s if memory.over_since_s is None else memory.over_since_s
        memory.over_since_s = since_s if is_over else None
        in_vain = memory.last_growth is not None and not memory.last_growth.brought_rows
        if is_over and at_s - since_s <= settings.window_s and not in_vain:
            # What it did before, of which this window has a part, has nothing to do with it; of a growth that was in
            # vain, all that came since tells.
            memory.recent = None
        if at_s - self._changed_s < settings.window_s:
            return
        if memory.recent is None:
            memory.recent = Recent.of(at_s, stage)
        else:
            memory.recent.add(at_s, stage, _RECENT_WINDOWS * settings.window_s)

    def _memory(self, stage: StageMeasure) -> StageMemory:
        memory = self._memories.get(stage.stage)
        if memory is None:
            down_s, ahead_s = self.settings.scale_down_after_s, self.settings.look_ahead_s
            longest_s = max(down_s, _KEPT_PERIODS * _PERIOD_MAX * ahead_s)
            memory = StageMemory(LoadHistory(_PIECE_SHARE * min(down_s, _RISING_SHARE * ahead_s), longest_s))
            self._memories[stage.stage] = memory
        return memory

    def _judge(self, at_s: float, stage: StageMeasure) -> None:
        """Look what the last growth has brought, in its first windows: later on, other things change, too."""
        memory, since_s = self._memories[stage.stage], at_s - self._changed_s
        if memory.last_growth is None or memory.recent is None:
            return
        # No later than another growth is possible, and with no less than one window.
        wait_s = self.settings.cool_down_s + self.settings.window_s
        is_last = since_s >= min(wait_s, _RECENT_WINDOWS * self.settings.window_s)
        memory.last_growth.judge(memory.recent, is_over=memory.over_since_s is not None, is_last=is_last)

    def _is_full(self, stage: StageMeasure) -> bool:
        """Return whether rows fill its input though nobody after it holds it back, and it works most of the time."""
        works = stage.busy >= self.settings.target_of(stage.name) * stage.parallelism
        return stage.queue_share > self.settings.scale_up_portion and stage.blocked < _BLOCKED_MAX and works

    def _hindrance(self, stage: StageMeasure) -> str:
        if stage.fixed:
            return stage.fixed
        if not self.settings.of_stage(stage.name).is_scaled:
            return "the settings leave it as it is"
        if stage.is_source and not self.settings.scales_sources:
            return "sources are scaled by hand, or with autoscaler.sources"
        return ""


def _missing(job: JobMeasure) -> Iterator[str]:
    if not job.stages:
        yield "the job"
    for stage in job.stages:
        if not stage.subtasks:
            yield stage.title
        for each in stage.subtasks:
            if not each.is_known:
                yield f"{stage.title}, subtask {each.subtask_index}"


def _within_slots(changes: list[Change], free: int) -> tuple[list[Change], int]:
    """Cut changes to the free slots, those first that need most; returns how many slots are missing, too."""
    found, missing = [], 0
    for change in sorted(changes, key=lambda it: it.before / it.after):
        more = min(change.after - change.before, free)
        missing += change.after - change.before - more
        free -= more
        if more:
            found.append(replace(change, after=change.before + more))
    return found, missing


def _is_large(before: int, after: int) -> bool:
    """Return whether a stage that shrinks so loses many of its subtasks: more than a third."""
    return 3 * after < 2 * before


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
