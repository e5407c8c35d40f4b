"""Decisions in each period of the sine of ``benchmarks.face_scaling``, over many plants that differ by chance.

``python -m tests.weir.protocol.autoscale.sine_table [plants]`` prints a table; no test, as it takes minutes.
"""

import itertools
import math
import random
import sys
from collections import Counter

from tests.weir.protocol.autoscale.plant import Plant, Step
from weir.protocol.autoscale.settings import AutoscaleSettings

PERIOD_S, PERIODS, WARM_UP_S = 360, 2, 30
ROWS_PER_S = 400.0
#: Of what is measured of each subtask each second; by how much longer rows take at most for some seconds, in all.
NOISES = [(0.0, 0.0), (0.05, 0.05), (0.1, 0.15), (0.2, 0.3)]
PHASES_S = [0, 180]
#: So many rows wait if the job is late.
LATE_ROWS = 5 * ROWS_PER_S
#: Those of the benchmark.
SETTINGS = AutoscaleSettings(window_s=2, cool_down_s=1, catch_up_s=6, scale_down_after_s=18, look_ahead_s=90)


class SinePlant(Plant):
    """The job of the benchmark: what changes is how long a row takes in ``score``, and what others do to the machine.

    A rescale takes some seconds in which nobody looks. Rows take longer for some seconds, by chance.
    """

    def __init__(self, seed, *, low=0.8, high=2.4, noise=0.05, phase_s=0, drag=0.1, rescale_s=2):
        self.low, self.high, self.phase_s = low, high, phase_s
        self.drag, self.rescale_s = drag, rescale_s
        self.slower, self.away_until = 1.0, -1
        self.chance = random.Random(seed)
        super().__init__(
            [
                Step("events", 1e9),
                Step("both", 8_000.0, room=2_000.0),
                Step("score", ROWS_PER_S / low, 2, groups=128, room=2_000.0),
                Step("count", 3_500.0, 2, groups=128, room=2_000.0),
                Step("out", 1_700.0, 2, room=2_000.0),
            ],
            lambda second: ROWS_PER_S,
            SETTINGS,
            slots=24,
            noise=noise,
            seed=seed,
        )

    def tick(self):
        if self.second % 5 == 0:
            self.slower = 1 + self.drag * self.chance.random()
        angle = 2 * math.pi * (max(self.second - WARM_UP_S, 0) + self.phase_s) / PERIOD_S
        work = (self.high + self.low) / 2 - (self.high - self.low) / 2 * math.cos(angle)
        self.steps[2].rate = ROWS_PER_S / (work * self.slower)
        super().tick()

    def _decide(self):
        if self.second < self.away_until:
            return
        decided = len(self.decisions)
        super()._decide()
        if len(self.decisions) > decided:
            self.away_until = self.second + self.rescale_s * len(self.decisions[-1][1])
            self.autoscaler.changed(float(self.away_until))

    @property
    def by_period(self):
        """Changes of all stages in each period, as the benchmark counts them."""
        counts = [0] * PERIODS
        for at, changes in self.decisions:
            if WARM_UP_S <= at < WARM_UP_S + PERIODS * PERIOD_S:
                counts[(at - WARM_UP_S) // PERIOD_S] += len(changes)
        return counts

    @property
    def told(self):
        """All changes, with seconds since the sine began."""
        return [(at - WARM_UP_S, change.text) for at, changes in self.decisions for change in changes]


def main(plants):
    """Print how many of so many plants have a period with so many decisions, and with so many seconds of lag."""
    print(f"{'load':>10} {'noise':>6} {'drag':>5} {'phase_s':>7}  plants by decisions in their worst period")
    loads = [(0.8, 2.4), (0.9, 2.65), (1.0, 2.0), (0.5, 5.0)]
    for (low, high), (noise, drag), phase_s in itertools.product(loads, NOISES, PHASES_S):
        worst, late_s = Counter(), 0
        for seed in range(plants):
            plant = SinePlant(seed, low=low, high=high, noise=noise, drag=drag, phase_s=phase_s)
            for _ in range(WARM_UP_S + PERIODS * PERIOD_S):
                plant.tick()
                late_s += plant.waiting + sum(plant.queued) > LATE_ROWS
            worst[max(plant.by_period)] += 1
        told = ", ".join(f"{count}: {times}" for count, times in sorted(worst.items()))
        print(
            f"{low:>4} to {high:<4} {noise:>4} {drag:>5} {phase_s:>7}  {told}; late for {late_s / plants:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
