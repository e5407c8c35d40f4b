"""``--follow``: shows a running job on the terminal, or a line now and then in a log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from control_plane.composition import ControlPlane
from control_plane.terminal.follow_view import Moment, line, screen
from control_plane.web.status_views import status_view
from control_plane.web.views import RescaleView
from weir.clock import wall_ms
from weir.process.entry_point import SHOWN_LOGGER

#: Where standard error has only what the user asked for, these lines are it.
log = logging.getLogger(SHOWN_LOGGER)

_LOOK_S = 0.25
#: Where there is no terminal, a line is written this often, and when something begins or ends.
_LINE_EVERY_S = 5.0
#: The rate is a mean over this many seconds.
_RATE_WINDOW_S = 2.0


class Rate:
    """Events per second of late, from a count that begins anew with each restart."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def __call__(self, now_s: float, count: int) -> float:
        """Take in the count at a monotonic second; 0 until there are two looks."""
        if self._samples and count < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now_s, count))
        while now_s - self._samples[0][0] > _RATE_WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else 0.0


class Lines:
    """Writes a line when something begins or ends, and every few seconds."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_s = 0.0
        self._signature: tuple[object, ...] | None = None
        self._told: set[str] = set()

    def show(self, moment: Moment, now_s: float) -> None:
        """Called with each moment; ``now_s`` is monotonic."""
        if moment.signature != self._signature or now_s >= self._next_s:
            self._signature = moment.signature
            self._next_s = now_s + _LINE_EVERY_S
            self._write(line(moment, self._told))
            self._told |= {item.step for item in moment.status.rejected if item.first_reason}


async def follow(control_plane: ControlPlane, console: Console) -> None:
    """Show the job until cancelled; what is on the terminal then stays there."""
    rate = Rate()
    with _output(console) as show:
        try:
            while True:
                # A terminal that takes nothing (Ctrl-S) must not hold up the job.
                await asyncio.to_thread(show, _moment(control_plane, rate), control_plane.clock.monotonic_s())
                await asyncio.sleep(_LOOK_S)
        finally:
            show(_moment(control_plane, rate), control_plane.clock.monotonic_s())


def _moment(control_plane: ControlPlane, rate: Rate) -> Moment:
    status = status_view(control_plane)
    checkpointer = control_plane.checkpointer
    return Moment(
        status,
        rate(control_plane.clock.monotonic_s(), status.totals.events_in),
        wall_ms(control_plane.clock),
        [checkpointer.view(record) for record in checkpointer.machine.records],
        [RescaleView.model_validate(item) for item in control_plane.rescaler.log.to_list()],
        control_plane.restores.views(),
    )


@contextlib.contextmanager
def _output(console: Console) -> Iterator[Callable[[Moment, float], None]]:
    if not console.is_terminal:
        yield Lines(log.info).show
        return
    streams = [handler for handler in logging.getLogger().handlers if type(handler) is logging.StreamHandler]
    before = [handler.stream for handler in streams]
    with Live(console=console, auto_refresh=False) as live:
        # Log lines go above what is shown, through the stream that Live has put there.
        for handler in streams:
            handler.setStream(sys.stderr)
        try:
            yield lambda moment, _: live.update(screen(moment), refresh=True)
        finally:
            for handler, stream in zip(streams, before, strict=True):
                handler.setStream(stream)
