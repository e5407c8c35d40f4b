"""The configurations of the latency experiments: the predecessor's eight, and four more to tell strategies apart.

All of them do the same work per event, over the same events; only the strategy, the interval of the source and whether
the counting stage is scaled differ.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Set names for ``python -m experiments run``.
SETS = ("seeds", "predecessor", "ours")
#: Stage of jobs.server_count that is scaled: the counts.
COUNT_STAGE = 3
#: ms of CPU per event of the pass-through before the counts.
PASS_THROUGH_MS = 5.0
#: Beyond the configured work, an event that waits for no other may take so much longer.
P50_EXTRA_MS = 5.0


@dataclass(frozen=True)
class Configuration:
    """One experiment; in its label, ``source`` and ``count`` are ms per event."""

    name: str
    #: Interval of the source's events; a quarter of them is filtered out.
    source_ms: float
    hybrid: bool
    cache: bool = False
    migrate: bool = False
    #: Whether the counts go from 1 to 2 subtasks during the run.
    scaled: bool = False
    count_ms: float = 12.0
    #: Entries of 6,890 characters that each event rewrites.
    junk: int = 5

    def settings(self) -> dict[str, object]:
        """Configuration keys of the task managers."""
        return {
            "taskManager.useHybrid": str(self.hybrid).lower(),
            "taskManager.useCache": str(self.cache).lower(),
            "taskManager.useMigrate": str(self.migrate).lower(),
        }

    def label(self, scale_requested_ms: int | None) -> str:
        """Name and configuration, in the predecessor's form; ``migrate2``: moment of the request, epoch ms."""
        parts = [
            f"source={self.source_ms:g}",
            f"count={self.count_ms:g}",
            f"replicas={2 if self.scaled else 1}",
            "hybridkv" if self.hybrid else "localkv",
            f"junk={self.junk}",
        ]
        if self.hybrid:
            parts += [f"cache={_yes(self.cache)}", f"migrate={_yes(self.migrate)}"]
        if scale_requested_ms is not None:
            parts.append(f"migrate2={scale_requested_ms}")
        return f"{self.name}: {', '.join(parts)}"

    @property
    def load(self) -> float:
        """Share of a core that the counts need with one subtask; from about 1 on, the queue grows."""
        return self.count_ms * 0.75 / self.source_ms

    @property
    def work_ms(self) -> float:
        """CPU that an event costs on its way: the latency of an engine that adds nothing."""
        return PASS_THROUGH_MS + self.count_ms


#: As the labels in the predecessor's plot.py have them.
PREDECESSOR = (
    Configuration("local1", 18, hybrid=False),
    Configuration("local2", 9, hybrid=False),
    Configuration("local3", 9, hybrid=False, scaled=True),
    Configuration("hybrid1", 18, hybrid=True, cache=True),
    Configuration("hybrid2", 9, hybrid=True),
    Configuration("hybrid3", 9, hybrid=True, cache=True),
    Configuration("hybrid4", 9, hybrid=True, cache=True, scaled=True),
    Configuration("hybrid5", 9, hybrid=True, cache=True, migrate=True, scaled=True),
)
#: One subtask is enough before and after, so that only the rescale itself shows.
OURS = (
    Configuration("calm_local", 12, hybrid=False, scaled=True),
    Configuration("calm_hybrid_no_cache", 12, hybrid=True, scaled=True),
    Configuration("calm_hybrid", 12, hybrid=True, cache=True, scaled=True),
    Configuration("calm_migrate", 12, hybrid=True, cache=True, migrate=True, scaled=True),
)


def configurations(set_name: str, only: Sequence[str] = ()) -> list[Configuration]:
    """The configurations of a set of :data:`SETS`; with ``only``, those of these names.

    Raises:
        KeyError: a name in ``only`` is not in the set.
    """
    chosen = {"predecessor": PREDECESSOR, "ours": OURS, "seeds": (*PREDECESSOR, *OURS)}[set_name]
    by_name = {configuration.name: configuration for configuration in chosen}
    return [by_name[name] for name in only] if only else list(chosen)


def write_events(path: Path, count: int, keys: int, seed: int = 42) -> None:
    """Write lines as workgen.py makes them; of every four in a row three pass the filter ``id % 4 != 0``.

    The filter's share is exact, so that a configuration's load is what its label says.
    """
    rng = random.Random(seed)
    with path.open("w") as file:
        for number in range(count):
            identifier = 4 * rng.randint(0, 24) + (number % 4 or 4)
            file.write(f'{{"id": {identifier}, "server_name": "server-{rng.randint(1, keys)}"}}\n')


def _yes(value: bool) -> str:
    return "yes" if value else "no"
