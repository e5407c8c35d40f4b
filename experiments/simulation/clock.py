"""The clock of all simulated processes."""

from __future__ import annotations

from experiments.simulation.world import SCALE, World


class WorldClock:
    """Implements ``weir.clock.Clock`` on the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_us(self) -> int:
        """Wall clock."""
        return 1_700_000_000_000_000 + int(self.monotonic_s() * 1e6)

    def monotonic_s(self) -> float:
        """Seconds since the world began."""
        return self._world.now_ms * SCALE / 1e3
