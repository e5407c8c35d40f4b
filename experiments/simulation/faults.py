"""What goes wrong in a run, and when: anywhere at random, or aimed at certain steps of rescales and checkpoints.

No run has all kinds of faults at once: where everything fails the job only starts again and again, and nothing that
happens once, and must not be forgotten, is left to be found at the end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from experiments.simulation.world import SHOWN_BY_SLOW_ROWS, World

if TYPE_CHECKING:
    from experiments.simulation.run import Simulation

#: How often a fault comes at a moment at which it hurts, where faults come anywhere, and these moments.
_RISK = 0.1
_RISKY = frozenset({"work", "write", "written", "Reroute", "TriggerCheckpoint", "EndCheckpoint"})

_KINDS = ("crash", "pause", "cut", "control plane") * 2 + ("disk", "record", "step", "step", "open")
#: What shows a rule that only a control plane can break that leads no more.
_SHOWN_BY_LEADERS, _LEADER_KINDS = frozenset({"commit"}), ("control plane",) * 8
#: Calls after which, or after whose answers, a fault is aimed.
_RESCALE_CALLS = (
    "Deploy",
    "Start",
    "PrepareRescale",
    "Reroute",
    "HandOver",
    "TakeCopy",
    "AbortRescale",
    "Cancel",
    "PullState",
)
_CHECKPOINT_CALLS = (
    "TriggerCheckpoint",
    "AcknowledgeCheckpoint",
    "LastPart",
    "EndCheckpoint",
    "TakeImage",
    "CollectImage",
)
_PHASES = (
    "DEPLOYING",
    "PREPARING",
    "REROUTING",
    "HANDING_OVER",
    "MIGRATING",
    "ABORTING",
    "ABORTED",
    "COMPLETE",
)
_WRITES = ("write", "manifest", "record", "savepoint")


class Theme(Enum):
    """Where the faults of a run come from."""

    #: There is none.
    NOTHING = "nothing"
    #: Whenever it may be, and between two steps of a process that belong together.
    ANYWHERE = "anywhere"
    #: Task managers are killed that get something new to do.
    NEW = "new"
    #: A few, at one or two steps.
    AIMED = "aimed"


class Faults:
    """Of one run; called by the simulated processes at moments at which a fault may come."""

    def __init__(self, run: Simulation, *, is_busy: bool) -> None:
        """Draw the theme. ``is_busy``: much is to happen, so that few seeds are needed to find what is broken."""
        self._run = run
        self._world: World = run.world
        rng = self._rng = self._world.rng
        self.end_ms = 400.0 if is_busy else rng.choice([0.0, 100.0, 250.0, 400.0])
        self._every_ms = rng.choice([15.0, 40.0] if is_busy else [15.0, 40.0, 80.0])
        #: How often a task manager is killed that gets something new to do.
        self._strikes = rng.choice([0.25, 0.5, 1.0])
        themes = [Theme.ANYWHERE] * 4 + [Theme.NEW] + [Theme.AIMED] * 3 + [Theme.NOTHING] * is_busy
        self.theme = rng.choice(themes) if self.end_ms else Theme.NOTHING
        if self._world.broken in SHOWN_BY_SLOW_ROWS:
            self.theme = Theme.NOTHING
        self._kinds = _KINDS + (_LEADER_KINDS if self._world.broken in _SHOWN_BY_LEADERS else ())
        self._aims = Aims(rng)
        self._has_healed = False
        if self.theme is Theme.ANYWHERE:
            self._world.later(rng.random() * 40, self._at_random)

    @property
    def is_over(self) -> bool:
        """Whether everybody stays healthy from now on."""
        return self._has_healed or self.theme is Theme.NOTHING

    def heal(self) -> None:
        """No more faults."""
        self._has_healed = True

    def describe(self) -> str:
        """The theme, for people."""
        return self.theme.value + (f" ({self._aims.describe()})" if self.theme is Theme.AIMED else "")

    def moment(self, name: str, addresses: Sequence[str] = ()) -> None:
        """Something happens between two steps that belong together; ``addresses``: task managers that it concerns."""
        if self.is_over:
            return
        if self.theme is Theme.ANYWHERE:
            if name in _RISKY and self._rng.random() < _RISK:
                self._world.later(self._rng.random(), self._strike, self._rng.choice(self._kinds), "")
        elif self.theme is Theme.AIMED:
            delay_ms = self._aims.delay_ms(name)
            if delay_ms is not None:
                address = self._rng.choice(addresses) if addresses else ""
                self._world.later(delay_ms, self._strike, self._rng.choice(self._aims.kinds), address)

    def begins_rescale(self, addresses: Sequence[str]) -> None:
        """These task managers get new subtasks."""
        if self.is_over or self.theme is Theme.AIMED or not addresses or self._rng.random() >= self._strikes:
            return
        delay_ms = self._rng.random() * self._rng.choice([5, 40, 100])
        self._world.later(delay_ms, self._strike, "crash", self._rng.choice(addresses))

    def _at_random(self) -> None:
        if not self.is_over and self._world.now_ms < self.end_ms:
            self._world.later(self._rng.random() * 2 * self._every_ms, self._at_random)
            self._strike(self._rng.choice(self._kinds), "")

    def _strike(self, kind: str, address: str) -> None:
        if not self.is_over:
            self._run.strike(kind, address or self._rng.choice(self._run.names))


class Aims:
    """At which steps a few faults come, of which kinds, and how soon."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        steps = rng.choice([_RESCALE_CALLS, _RESCALE_CALLS, _PHASES, _PHASES, _CHECKPOINT_CALLS, _WRITES])
        self.steps = frozenset(rng.choice(steps) for _ in range(rng.choice([1, 2, 3])))
        self.kinds = [rng.choice(_KINDS) for _ in range(rng.choice([1, 2]))]
        self._share = rng.choice([0.15, 0.5, 1.0])
        self._left = rng.choice([1, 2, 4, 8])
        self._delay_ms_max = rng.choice([0.5, 3.0, 10.0, 30.0])

    def describe(self) -> str:
        """For people."""
        return f"{', '.join(self.kinds)} at {', '.join(sorted(self.steps))}, {self._left} times at most"

    def delay_ms(self, step: str) -> float | None:
        """How soon after this step a fault comes; None: none does."""
        if step not in self.steps or not self._left or self._rng.random() >= self._share:
            return None
        self._left -= 1
        return self._rng.random() * self._delay_ms_max
