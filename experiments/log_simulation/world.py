"""Virtual time, processes that crash and stand still, and streams between them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

#: A message takes at most so long.
_DELAY_MS_MAX = 8.0


class World:
    """Calls what is due, in the order of time; everything that is random comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        #: Pairs of names between which nothing goes through.
        self.cuts: set[frozenset[str]] = set()

    def later(self, delay_ms: float, work: Callable[[], None]) -> None:
        """Call something after a while."""
        self._count += 1
        heapq.heappush(self._due, (self.now_ms + delay_ms, self._count, work))

    def run(self, until_ms: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, work = heapq.heappop(self._due)
            work()
        self.now_ms = until_ms

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing goes through between two processes."""
        return frozenset((one, other)) in self.cuts


class Node:
    """A process. What it does later does not happen once it has crashed, and waits while it stands still."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        #: Grows with each crash.
        self.life = 0
        self.is_up = False
        self.paused_until_ms = 0.0
        #: In the order in which they were opened; a dict, since a set has an order of its own in each process.
        self.streams: dict[Stream, None] = {}

    def later(self, delay_ms: float, work: Callable[[], None]) -> None:
        """Do something after a while, in this life."""
        life = self.life

        def when_awake() -> None:
            if self.life != life or not self.is_up:
                return
            if self.paused_until_ms > self.world.now_ms:
                self.world.later(self.paused_until_ms - self.world.now_ms, when_awake)
            else:
                work()

        self.world.later(delay_ms, when_awake)

    def pause(self, duration_ms: float) -> None:
        """Stand still for a while; what comes meanwhile waits, in order."""
        self.paused_until_ms = max(self.paused_until_ms, self.world.now_ms + duration_ms)

    def crash(self) -> None:
        """End without a word; its streams break."""
        self.is_up = False
        self.life += 1
        self.paused_until_ms = 0.0
        for stream in list(self.streams):
            stream.close()


class Stream:
    """Messages both ways, in order each, between a node that opened it and another one; it may break."""

    def __init__(
        self,
        opener: Node,
        other: Node,
        take: Callable[[Stream, Any], None],
        take_at_other: Callable[[Stream, Any], None],
        on_end: Callable[[Stream], None],
        on_end_at_other: Callable[[Stream], None],
    ) -> None:
        """Open it; the functions are called at the end that they are of."""
        self._ends = (opener, other)
        self._takers = (take, take_at_other)
        self._enders = (on_end, on_end_at_other)
        self._free_ms = [0.0, 0.0]
        self.is_open = True
        #: What an end keeps with it.
        self.state: Any = None
        for node in self._ends:
            node.streams[self] = None
        if not other.is_up:
            opener.later(1.0, self.close)

    def send(self, sender: Node, message: Any) -> None:
        """Send to the other end."""
        if not self.is_open:
            return
        side = self._ends.index(sender)
        world, receiver = sender.world, self._ends[1 - side]
        due_ms = max(world.now_ms + world.random.uniform(0.05, _DELAY_MS_MAX), self._free_ms[side])
        self._free_ms[side] = due_ms

        def deliver() -> None:
            if not self.is_open:
                return
            if world.is_cut(sender.name, receiver.name):
                # Noticed by both ends sooner or later, and nothing gets through before.
                self.close()
                return
            self._takers[1 - side](self, message)

        receiver.later(due_ms - world.now_ms, deliver)

    def close(self) -> None:
        """Break it; each end that lives hears of it."""
        if not self.is_open:
            return
        self.is_open = False
        for node, tell in zip(self._ends, self._enders, strict=True):
            node.streams.pop(self, None)
            if node.is_up:
                node.later(node.world.random.uniform(0.1, _DELAY_MS_MAX), lambda tell=tell: tell(self))  # type: ignore[misc]
