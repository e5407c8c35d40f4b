"""An asyncio event loop in virtual time: where nothing is ready, the next event of the simulated world happens."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from experiments.simulation.world import Violation


class _WorldSelector(selectors.BaseSelector):
    """Asked by the loop when every coroutine waits; lets one event of the world happen instead of waiting."""

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step = step
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """The loop's own wake-up pipe, which nobody uses."""
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, _number(fileobj), events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """The loop is closed."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the next event of the world happen, if no callback is ready."""
        if timeout is None:
            if not self._step():
                raise Violation("nothing happens any more, and the job is not finished")
        elif timeout > 0:
            raise Violation("something waits by the machine's clock instead of its port")
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """What is registered."""
        return self._keys


def world_loop(step: Callable[[], bool]) -> asyncio.AbstractEventLoop:
    """A loop whose only source of events is ``step``, which returns False when nothing is left."""
    loop = asyncio.SelectorEventLoop(_WorldSelector(step))
    # What a crashed process waited for never comes.
    loop.set_exception_handler(lambda loop, context: None)
    return loop


def _number(fileobj: Any) -> int:
    number: int = fileobj if isinstance(fileobj, int) else fileobj.fileno()
    return number
