"""The job that is simulated: sources, a keyed count, a transactional sink; and where its subtasks are."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache

from weir.protocol.manifest import Manifest
from weir.protocol.routing import RoutingTable, initial_table
from weir.types import SubtaskId

SOURCE, COUNT, SINK = 0, 1, 2
GROUPS = 8
_KEYS = 12


def group_of(key: int) -> int:
    """The key group of a key."""
    return key % GROUPS


@cache
def _first_table(counts: int) -> RoutingTable:
    return initial_table(COUNT, counts, GROUPS)


@dataclass(frozen=True)
class Job:
    """What a seed makes of it."""

    #: Keys of each source's rows.
    rows: tuple[tuple[int, ...], ...]
    counts: int
    #: Subtasks of the sink stage; 0: the sink is chained to the count, which then can be rescaled.
    sinks: int

    @classmethod
    def random(cls, rng: random.Random) -> Job:
        """A small job."""
        sources = rng.randint(1, 2)
        rows = tuple(
            tuple(rng.randrange(_KEYS) for _ in range(rng.choice([0, 20, 60, 120]))) for _ in range(sources)
        )
        return cls(rows, rng.randint(1, 3), rng.choice([0, 0, 1, 2]))

    @property
    def sources(self) -> tuple[SubtaskId, ...]:
        """The source subtasks."""
        return tuple(SubtaskId(SOURCE, index) for index in range(len(self.rows)))

    @property
    def expected(self) -> dict[int, int]:
        """Rows of each key."""
        return dict(Counter(key for rows in self.rows for key in rows))

    def first_table(self) -> RoutingTable:
        """Owners of the key groups at the beginning."""
        return _first_table(self.counts)

    def subtasks(self, table: RoutingTable) -> tuple[SubtaskId, ...]:
        """All subtasks, with this routing."""
        counts = [SubtaskId(COUNT, index) for index in table.subtasks]
        return (*self.sources, *counts, *(SubtaskId(SINK, index) for index in range(self.sinks)))


@dataclass(frozen=True)
class Deployment:
    """What a task manager is told to run."""

    generation: int
    subtasks: tuple[SubtaskId, ...]
    #: Of the whole job.
    placement: dict[SubtaskId, str]
    table: RoutingTable
    #: Producers of the counts.
    sources: tuple[SubtaskId, ...]
    #: Where it starts; None: from nothing.
    manifest: Manifest | None
    #: Checkpoints up to this one are over.
    last_checkpoint_id: int
