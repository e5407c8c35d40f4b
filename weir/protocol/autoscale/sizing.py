"""How many subtasks one stage needs for a load, and what more subtasks could not help. Pure.

The true processing rate of a subtask is its rows per second of *busy* time. A stage whose load takes ``work`` busy
seconds a second, over all of its subtasks, needs at least so many of them, and more for three reasons: they are not to
be busy all the time, key groups cannot be divided, and subtasks that share processors cannot compute at the same time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from weir.protocol.autoscale.hosts import Hosts
from weir.protocol.autoscale.measures import StageMeasure
from weir.protocol.autoscale.settings import AutoscaleSettings
from weir.types import MAX_PARALLELISM_MAX

#: Uneven rows of subtasks, beyond hot and undivided key groups, count up to this: they are a matter of chance.
_UNEVEN_MAX = 1.5
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a stage needs."""

    #: So many subtasks have the utilisation that is wanted, within all limits.
    wanted: int
    #: Utilisation of the busiest subtask, or of the fullest host, if the present subtasks processed the load; above 1:
    #: they cannot.
    utilisation: float
    #: The limit that keeps ``wanted`` from being higher, in words; empty: none does.
    limit: str = ""


class StageSizes:
    """Sizes of one stage by load; made anew for each measurement."""

    def __init__(
        self, stage: StageMeasure, hosts: Hosts, settings: AutoscaleSettings, hot_share: float
    ) -> None:
        """``hot_share``: of the rows, of the hottest key group; a mean of more than this measurement."""
        self._stage, self._hosts = stage, hosts.of(stage)
        self._hot_share = hot_share
        self._bounds, self._target = settings.of_stage(stage.name), settings.target_of(stage.name)
        self._uneven = self._unevenness()

    def of(self, work: float) -> Sizing:
        """Size the stage for a load that takes so many busy seconds a second."""
        now = self._stage.parallelism
        wanted, limit = self._smallest(work), ""
        reached = self._utilisation(wanted, work) if wanted >= now else 0.0
        is_too_full = reached > self._target + _ROUNDING
        if is_too_full and reached <= self._of_hosts(wanted, work):
            limit = f"the processors of {self._hosts.names} are in use: more subtasks there do not help"
        for most, words in self._limits(work):
            if wanted > most or (wanted == most and is_too_full and not limit):
                wanted, limit = most, words
        return Sizing(max(wanted, self._bounds.least, 1), self._utilisation(now, work), limit)

    def _smallest(self, work: float) -> int:
        """The fewest subtasks that have the utilisation that is wanted; else, of more than now, what comes nearest."""
        now, wanted = self._stage.parallelism, self._target + _ROUNDING
        counts = range(1, self._most(work) + 1)
        # More subtasks never have a larger share.
        fewest = bisect_left(counts, True, key=lambda count: work * self._share(count) <= wanted) + 1
        if fewest <= now:
            found = self._hosts.fewest(fewest, wanted, self._factor(work))
            if found is not None:
                return found
        best, lowest = now, self._utilisation(now, work)
        for count in counts[now:]:
            utilisation = self._utilisation(count, work)
            if utilisation <= wanted:
                return count
            if utilisation < lowest * 0.999:
                best, lowest = count, utilisation
        return best

    def _most(self, work: float) -> int:
        """More subtasks than this need not be tried."""
        needed = self._stage.group_count or math.ceil(work / self._target) + 1
        return max(self._stage.parallelism, min(needed, MAX_PARALLELISM_MAX))

    def _utilisation(self, count: int, work: float) -> float:
        """Return that of the busiest of so many subtasks, or of the fullest host; not of fewer than now."""
        return max(work * self._share(count), self._of_hosts(count, work))

    def _of_hosts(self, count: int, work: float) -> float:
        return self._hosts.utilisation(count, self._factor(work))

    def _factor(self, work: float) -> float:
        return work / self._stage.busy if self._stage.busy > 0 else 1.0

    def _share(self, count: int) -> float:
        """Share of the rows that come to the busiest of so many subtasks."""
        groups = self._stage.group_count
        even = math.ceil(groups / count) / groups if groups else 1 / count
        return max(self._hot_share, min(even * self._uneven, 1.0))

    def _unevenness(self) -> float:
        """How much more than others the busiest subtask gets for no reason that is known."""
        stage = self._stage
        rate, count, groups = stage.rows_in_per_s, stage.parallelism, stage.group_count
        if rate <= 0 or not groups or count < 2:
            return 1.0
        known = max(math.ceil(groups / count) / groups, self._hot_share)
        most = max(each.rows_in_per_s for each in stage.subtasks) / rate
        return min(max(most / known, 1.0), _UNEVEN_MAX)

    def _limits(self, work: float) -> Iterator[tuple[int, str]]:
        """The most subtasks that are possible or of use, and why, in words."""
        stage, groups = self._stage, self._stage.group_count
        group, share = stage.hot_group[0], self._hot_share
        if share > 0 and work * share > self._target:
            counts = range(1, groups + 1)
            useful = bisect_left(counts, True, key=lambda count: self._share(count) <= share + _ROUNDING) + 1
            useful = min(useful, groups)
            said = f"{share:.0%}".replace("%", " %")
            yield useful, f"key group {group} has {said} of the rows: more than {useful} subtasks do not help"
        if groups:
            yield groups, f"there are only {groups} key groups to share"
        if stage.partitions:
            yield stage.partitions, f"there are only {stage.partitions} partitions to read"
        yield self._bounds.most, f"the settings allow at most {self._bounds.most} subtasks"
