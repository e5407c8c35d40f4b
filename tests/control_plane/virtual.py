"""Virtual time for tests of the control plane: where every coroutine waits, the next due time has come."""

from __future__ import annotations

import asyncio
import selectors

from control_plane.background import LoopBackground
from weir.testing import ManualClock

#: ``until`` gives up after this much virtual time.
_PATIENCE_S = 600.0
_LOOK_AGAIN_S = 0.001


class _Selector(selectors.BaseSelector):
    """Asked by the loop when nothing is ready; moves the clock instead of waiting."""

    def __init__(self, clock):
        self._clock, self._keys = clock, {}

    def register(self, fileobj, events, data=None):
        key = selectors.SelectorKey(
            fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data
        )
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj):
        return self._keys.pop(fileobj)

    def select(self, timeout=None):
        assert timeout is not None, "everything waits for something that does not come"
        if timeout > 0:
            # Never less than what is waited for: the clock counts whole microseconds.
            self._clock.advance_ms(timeout * 1e3 + 0.001)
        return []

    def get_map(self):
        return self._keys


class Background(LoopBackground):
    """The real one; what blocks is done at once."""

    async def in_thread(self, work):
        await asyncio.sleep(0)
        return work()


def run(test):
    """Run ``test(clock)``, a coroutine function, in virtual time."""
    clock = ManualClock()
    loop = asyncio.SelectorEventLoop(_Selector(clock))
    loop.time = clock.monotonic_s
    try:
        loop.run_until_complete(test(clock))
    finally:
        # A test that failed left them.
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(settle())
        loop.close()


async def until(condition):
    """Return when the condition holds."""
    for _ in range(int(_PATIENCE_S / _LOOK_AGAIN_S)):
        if condition():
            return
        await asyncio.sleep(_LOOK_AGAIN_S)
    raise AssertionError("the condition does not come true")


async def settle():
    """Return when whatever needs no time has happened."""
    for _ in range(50):
        await asyncio.sleep(0)
