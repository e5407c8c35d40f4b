"""A job that is simulated second by second: rates in, queues, busy time; the autoscaler decides over it.

Seeded; no clock, no process. Stages process what their subtasks can, rows wait before the source if a stage cannot.
"""

import math
import random
from dataclasses import dataclass, field
from functools import lru_cache

from weir.protocol.autoscale.autoscaler import Autoscaler
from weir.protocol.autoscale.measures import (
    JobMeasure,
    StageMeasure,
    SubtaskMeasure,
    TaskManagerMeasure,
)
from weir.protocol.autoscale.settings import AutoscaleSettings

MIB = 1 << 20


@dataclass
class Step:
    """A stage of the plant; ``rate``: rows that a subtask processes in a second of busy time."""

    name: str
    rate: float
    parallelism: int = 1
    #: Rows out per row in.
    selectivity: float = 1.0
    groups: int = 0
    #: Key group 0, or partition 0, has this share of the rows.
    hot: float = 0.0
    #: Its subtasks report that share; otherwise nobody knows why they are uneven.
    tells_hot: bool = True
    #: Their samples are so many times the share, at least and at most.
    seen: tuple = (1.0, 1.0)
    partitions: int = 0
    #: Processors that a busy subtask uses.
    computes: float = 0.0
    fixed: str = ""
    #: Rows that the channels before it take while it falls behind.
    room: float = 0.0
    #: Rows a second that all subtasks process together at most, because they call one service; 0: no such limit. Of it
    #: each of them takes this part away.
    shared: float = 0.0
    loses: float = 0.0

    @property
    def speed(self):
        if not self.shared:
            return self.rate
        return min(self.rate, self.shared * (1 - self.loses) ** self.parallelism / self.parallelism)


@lru_cache
def shares(count, parts, hot):
    """Shares of the rows of so many subtasks that have so many key groups, of which one may be hot; 0: none."""
    if not parts:
        return [1 / count] * count
    weights = [hot or 1 / parts]
    weights += [(1 - weights[0]) / max(parts - 1, 1)] * (parts - 1)
    found = [0.0] * count
    for group, weight in enumerate(weights):
        found[group % count] += weight
    return found


@dataclass
class Plant:
    """A chain of steps, the first one the source; ``load(second)`` rows come in a second."""

    steps: list
    load: object
    settings: AutoscaleSettings = field(default_factory=AutoscaleSettings)
    slots: int = 64
    #: By task manager: host and its processors; empty: one task manager whose processors are not known.
    managers: dict = field(default_factory=dict)
    memory_bytes: int = 0
    #: Memory of each subtask if a stage has one, shared by more.
    state_bytes: dict = field(default_factory=dict)
    #: Relative noise of what is measured each second.
    noise: float = 0.0
    seed: int = 0
    knows_lag: bool = True
    dry_run: bool = False
    #: Seconds that are simulated at a time.
    tick_s: int = 1

    def __post_init__(self):
        self.autoscaler = Autoscaler(self.settings)
        self.random = random.Random(self.seed)
        self.second, self.waiting = 0, 0.0
        self.queued = [0.0] * len(self.steps)
        self.window, self.log, self.decisions = [], [], []
        self.placement = {}
        if not self.managers:
            self.managers = {"tm": ("host", 0)}
        for step in self.steps:
            for index in range(step.parallelism):
                self._place(step, index)

    # --- placement ---------------------------------------------------------------------------------------------

    def _place(self, step, index):
        def key(name):
            mine = sum(1 for (s, _), tm in self.placement.items() if tm == name and s == step.name)
            return mine, self._running(name), name

        self.placement[step.name, index] = min(self.managers, key=key)

    def _running(self, name):
        return sum(1 for tm in self.placement.values() if tm == name)

    def parallelism(self, name):
        return next(step.parallelism for step in self.steps if step.name == name)

    # --- a second ------------------------------------------------------------------------------------------------

    def _shares(self, step):
        """Share of the rows of each subtask."""
        # Partitions of which one is hot are divided as key groups are.
        return shares(step.parallelism, step.groups or (step.partitions if step.hot else 0), step.hot)

    def _capacity(self, step, scale):
        """Rows a second that all subtasks can process, where each gets its share."""
        return min(step.speed * scale / share for share in self._shares(step) if share > 0)

    def _host_scale(self, through):
        """How much of what they could do alone subtasks can, as processors of hosts are shared."""
        wanted, processors = {}, {}
        for host, count in self.managers.values():
            processors[host] = processors.get(host, 0) + count
        for step, rows in zip(self.steps, through, strict=True):
            for index, share in enumerate(self._shares(step)):
                host = self.managers[self.placement[step.name, index]][0]
                wanted[host] = wanted.get(host, 0.0) + min(rows * share / step.speed, 1.0) * step.computes
        return {
            host: min(1.0, count / wanted[host]) if count and wanted.get(host) else 1.0
            for host, count in processors.items()
        }

    def _through(self, offered, limits):
        """Rows of the source that each step processes a second; what is too much fills the channels before it."""
        most, after = [], math.inf
        for step, limit, queued in zip(
            reversed(self.steps), reversed(limits), reversed(self.queued), strict=True
        ):
            most.insert(0, min(limit, after))
            after = most[0] + (step.room - queued) / self.tick_s
        found = [min(offered, most[0])]
        for processed, queued in zip(most[1:], self.queued[1:], strict=True):
            found.append(min(found[-1] + queued / self.tick_s, processed))
        return found

    def tick(self):
        incoming = self.load(self.second)
        self.waiting += incoming * self.tick_s
        offered = self.waiting / self.tick_s
        factors, share = [], 1.0
        for step in self.steps:
            factors.append(share)
            share *= step.selectivity
        limits = [
            self._capacity(step, 1.0) / factor for step, factor in zip(self.steps, factors, strict=True)
        ]
        through = self._through(offered, limits)
        scales = self._host_scale([rows * factor for rows, factor in zip(through, factors, strict=True)])
        worst = min(scales.values(), default=1.0)
        if worst < 1:
            through = self._through(through[0], [limit * worst for limit in limits])
        self.waiting -= through[0] * self.tick_s
        for number in range(1, len(through)):
            self.queued[number] += (through[number - 1] - through[number]) * self.tick_s
        limiting = min(range(len(limits)), key=lambda i: limits[i])
        is_held = self.waiting > 0.01 * incoming
        sample = {}
        for number, (step, factor) in enumerate(zip(self.steps, factors, strict=True)):
            rows = through[number] * factor
            for index, part in enumerate(self._shares(step)):
                busy = min(rows * part / step.speed, 1.0)
                blocked = 1 - busy if is_held and number < limiting else 0.0
                noise = 1 + self.noise * self.random.gauss(0, 1)
                sample[number, index] = (
                    rows * part * noise,
                    rows * part * step.selectivity * noise,
                    busy * noise,
                    blocked,
                )
        queued = [rows * factor for rows, factor in zip(self.queued, factors, strict=True)]
        self.window.append((sample, self.waiting, queued))
        self.second += self.tick_s
        size = int(self.settings.window_s) // self.tick_s
        self.window = self.window[-size:]
        if len(self.window) == size:
            self._decide()

    def measure(self):
        stages = []
        span = len(self.window)
        for number, step in enumerate(self.steps):
            subtasks = []
            for index in range(step.parallelism):
                rows, out, busy, blocked = (
                    sum(values) / span
                    for values in zip(*(sample[number, index] for sample, _, _ in self.window), strict=True)
                )
                busy = min(max(busy, 0.0), 1.0)
                own = self._shares(step)[index]
                hot = min(step.hot / own, 1.0) if step.hot and step.tells_hot and index == 0 and own else 0.0
                hot = min(hot * self.random.uniform(*step.seen), 1.0) if hot else 0.0
                subtasks.append(
                    SubtaskMeasure(
                        index,
                        self.placement[step.name, index],
                        rows,
                        out,
                        busy,
                        blocked,
                        processors=busy * step.computes,
                        hot_group=0,
                        hot_group_share=hot,
                    )
                )
            more = (self.window[-1][1] - self.window[0][1]) / max((span - 1) * self.tick_s, 1)
            stages.append(
                StageMeasure(
                    number,
                    step.name,
                    subtasks,
                    [number - 1] if number else [],
                    step.groups,
                    step.partitions,
                    self.window[-1][1] if not number and self.knows_lag else None,
                    more,
                    step.fixed,
                    self.window[-1][2][number],
                    (self.window[-1][2][number] - self.window[0][2][number])
                    / max((span - 1) * self.tick_s, 1),
                )
            )
        return JobMeasure(stages, self._managers(stages))

    def _managers(self, stages):
        found = []
        free = self.slots - len(self.placement)
        for name, (host, processors) in self.managers.items():
            mine = [each for stage in stages for each in stage.subtasks if each.task_manager == name]
            memory = sum(
                self.state_bytes.get(stage.name, 0) / stage.parallelism
                for stage in stages
                for each in stage.subtasks
                if each.task_manager == name
            )
            found.append(
                TaskManagerMeasure(
                    name,
                    host,
                    max(free, 0) // len(self.managers),
                    len(mine),
                    processors,
                    sum(each.computing for each in mine),
                    int(memory),
                    self.memory_bytes,
                )
            )
        return found

    def _decide(self):
        decision = self.autoscaler.look(float(self.second), self.measure())
        self.log.append((self.second, decision))
        if self.dry_run or not decision.changes:
            return
        self.decisions.append((self.second, decision.changes))
        for change in decision.changes:
            self.scale(self.steps[change.stage].name, change.after)
            self.autoscaler.carried_out(float(self.second), change)
        self.autoscaler.changed(float(self.second))

    def scale(self, name, count):
        step = next(step for step in self.steps if step.name == name)
        for index in range(step.parallelism, count):
            self._place(step, index)
        for index in range(count, step.parallelism):
            del self.placement[name, index]
        step.parallelism = count
        self.window.clear()

    def run(self, seconds):
        for _ in range(int(seconds) // self.tick_s):
            self.tick()
        return self

    def lines(self):
        return {decision.line for _, decision in self.log}


def steady(rate):
    return lambda _: rate
