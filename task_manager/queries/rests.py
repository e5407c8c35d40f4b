"""Questions that take long rest now and then, so that subtasks get the GIL, and end in time."""

from __future__ import annotations

import time
from collections.abc import Callable

from weir import threads
from weir.clock import Clock
from weir.protocol.queries import TIMEOUT_S, QueryError
from weir.state import waits

#: A scan rests when it has worked for so long, so many times as long, until half of its time is over at least so many.
_STINT_S = 0.001
_REST_MAX, _REST_MIN = 2.0, 0.5
#: So long at most: some steps take long.
_REST_S_MAX = 0.02


def checking(clock: Clock, is_wanted: Callable[[], bool]) -> Callable[[], None]:
    """What a question calls now and then from here on: it rests, and ends when nobody waits or it takes too long.

    The function that is returned raises QueryError, and is called by the thread that calls this one.
    """
    begin_s, worked_s = clock.monotonic_s(), time.thread_time()
    waited_s = waits.of_thread.seconds
    deadline_s = begin_s + TIMEOUT_S

    def check() -> None:
        nonlocal worked_s, waited_s
        # Subtasks wait for the GIL while this thread works; while it waits itself, as for a database, it is in nobody's
        # way: that counts as a rest.
        stint_s = time.thread_time() - worked_s
        if stint_s >= _STINT_S:
            left_s = rest_s(stint_s, clock.monotonic_s() - begin_s) - (waits.of_thread.seconds - waited_s)
            if left_s > 0:
                threads.sleep(left_s)
            worked_s, waited_s = time.thread_time(), waits.of_thread.seconds
        if not is_wanted():
            raise QueryError(499, "the caller has gone")
        if clock.monotonic_s() > deadline_s:
            raise QueryError(
                504, f"the question takes longer than {TIMEOUT_S:g} s: ask for less, or with a limit"
            )

    return check


def rest_s(worked_s: float, elapsed_s: float) -> float:
    """How long a question rests that has worked for a stint: less and less, so that it is answered in its time.

    Args:
        worked_s: since the last rest.
        elapsed_s: since the question has begun.
    """
    late = min(elapsed_s / (TIMEOUT_S / 2), 1.0)
    return min(worked_s * (_REST_MAX + (_REST_MIN - _REST_MAX) * late), _REST_S_MAX)
