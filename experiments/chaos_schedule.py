"""Which faults come when: drawn from a seed alone, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """What is done to a running job."""

    KILL_TASK_MANAGER = "kill -9 of a task manager"
    KILL_CONTROL_PLANE = "kill -9 of the control plane"
    PAUSE_TASK_MANAGER = "SIGSTOP of a task manager"
    PAUSE_CONTROL_PLANE = "SIGSTOP of the control plane"
    CUT = "network cut"
    RESCALE = "rescale"
    FULL_STATE_DISK = "full disk: state"
    FULL_CHECKPOINT_DISK = "full disk: checkpoints"
    KILL_BROKER = "kill -9 of a broker"


#: Needs a file system of its own.
DISK_FAULTS = frozenset({FaultKind.FULL_STATE_DISK, FaultKind.FULL_CHECKPOINT_DISK})
#: Needs a cluster of brokers.
BROKER_FAULTS = frozenset({FaultKind.KILL_BROKER})
#: How long each lasts, s: until the process is started again, goes on, or there is room again.
_LASTS_S = {
    FaultKind.KILL_TASK_MANAGER: (0.2, 4.0),
    FaultKind.KILL_CONTROL_PLANE: (0.2, 3.0),
    FaultKind.PAUSE_TASK_MANAGER: (0.3, 6.0),
    FaultKind.PAUSE_CONTROL_PLANE: (0.3, 4.0),
    FaultKind.CUT: (0.3, 6.0),
    FaultKind.RESCALE: (0.0, 0.0),
    FaultKind.FULL_STATE_DISK: (1.0, 5.0),
    FaultKind.FULL_CHECKPOINT_DISK: (1.0, 5.0),
    FaultKind.KILL_BROKER: (0.5, 5.0),
}
#: Every bag of kinds has each once, and these once more.
_TWICE = (FaultKind.KILL_TASK_MANAGER, FaultKind.RESCALE)


@dataclass(frozen=True)
class Fault:
    """One fault. ``victim`` and ``extent``, in [0, 1), choose among what there is when it comes."""

    number: int
    at_s: float
    kind: FaultKind
    lasts_s: float
    victim: float
    extent: float


def schedule(
    seed: int, duration_s: float, every_s: float, without: Collection[FaultKind] = BROKER_FAULTS
) -> list[Fault]:
    """Faults at random times, ``every_s`` apart on average; kinds come in shuffled bags, so each comes soon.

    Args:
        seed: of everything.
        duration_s: no fault begins later.
        every_s: mean of the exponential distances, which are cut off at three times that.
        without: kinds that cannot be had here; leaving one out changes the course.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    bag: list[FaultKind] = []
    at_s = 0.0
    while True:
        at_s += min(rng.expovariate(1 / every_s), 3 * every_s)
        if at_s >= duration_s:
            return faults
        if not bag:
            bag = [kind for kind in (*FaultKind, *_TWICE) if kind not in without]
            rng.shuffle(bag)
        kind = bag.pop()
        lasts_s = rng.uniform(*_LASTS_S[kind])
        faults.append(Fault(len(faults) + 1, at_s, kind, lasts_s, rng.random(), rng.random()))
