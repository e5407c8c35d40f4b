"""The job that is simulated: sources, a keyed count, a transactional sink."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from experiments.simulation.operators import SCHEMA, Check, FilesSpec, RowsSpec
from weir.dataflow.builder import Dataflow
from weir.dataflow.loading import LoadedJob

if TYPE_CHECKING:
    from experiments.simulation.run import Simulation

SOURCE, COUNT, SINK = 0, 1, 2
GROUPS = 8
_KEYS = 12


def _check(run: Simulation) -> Check:
    # A function, because the source of a class, which the graph's fingerprint has, takes long to find.
    return Check(run)


@dataclass(frozen=True)
class Job:
    """What a seed makes of it."""

    #: Keys of each source's rows.
    rows: tuple[tuple[int, ...], ...]
    counts: int
    #: Subtasks of the sink stage; 0: the sink is chained to the count.
    sinks: int
    #: Rows of a key go to the same sink, which then owns key groups too.
    is_keyed: bool

    @classmethod
    def random(cls, rng: random.Random, *, is_busy: bool = False) -> Job:
        """A small job; ``is_busy``: none without rows."""
        sources = rng.choice([1, 2, 2]) if is_busy else rng.randint(1, 2)
        rows = tuple(
            tuple(rng.randrange(_KEYS) for _ in range(rng.choice([60, 120] if is_busy else [0, 20, 60, 120])))
            for _ in range(sources)
        )
        return cls(rows, rng.randint(1, 3), rng.choice([0, 0, 1, 2]), rng.random() < 0.5)

    def loaded(self, run: Simulation) -> LoadedJob:
        """What both processes are given."""
        flow = Dataflow("job", max_parallelism=GROUPS)
        rows = flow.source("rows", RowsSpec(SCHEMA, run=run), parallelism=len(self.rows))
        counted = rows.key_by("key").count("count", parallelism=self.counts)
        checked = counted.apply("check", partial(_check, run))
        if not self.sinks:
            checked.sink("out", FilesSpec(run))
        elif self.is_keyed:
            checked.key_by("key").sink("out", FilesSpec(run), parallelism=self.sinks)
        else:
            checked.rebalance().sink("out", FilesSpec(run), parallelism=self.sinks)
        return LoadedJob(flow.build(), {})

    @property
    def expected(self) -> dict[int, int]:
        """Rows of each key."""
        return dict(Counter(key for rows in self.rows for key in rows))

    @property
    def has_ordered_sinks(self) -> bool:
        """Whether one subtask of a sink stage delivers all results of a key."""
        return self.sinks == 1 or (self.sinks > 0 and self.is_keyed)

    @property
    def rescaled(self) -> list[int]:
        """The stages whose number of subtasks may change."""
        return [COUNT, SINK] if self.sinks else [COUNT]
