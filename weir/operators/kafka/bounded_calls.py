"""Waits for calls of the client that may never return, whatever time-out they are given.

``send_offsets_to_transaction`` ignores its time-out (librdkafka #5456). It also never returns when the brokers have
stopped naming the coordinator of its group, as they do some seconds after that broker has died: the client keeps the
broker as the coordinator, and waits for a connection that it does not try to make any more (librdkafka #5511; both
open in 2.16). Another client finds the new coordinator at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from weir.clock import Clock

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_TOLD_AFTER_S, _TOLD_EVERY_S = 2.0, 10.0
#: A call that waits for brokers to elect another coordinator may take as long.
_LOST_AFTER_S = 10.0
#: So many looks in a row say that the call is lost, before it is taken for lost.
_LOST_LOOKS = 3


class Waiting:
    """Tells that brokers are waited for: after two seconds, and every ten from then on.

    Args:
        who: the step, and where Kafka is.
        what: is waited for.
        clock: for the times.

    Several threads may share one.
    """

    def __init__(self, who: str, what: str, clock: Clock) -> None:
        self._who, self._what, self._clock = who, what, clock
        self._lock = threading.Lock()
        self._began_s = clock.monotonic_s()
        self._tell_s = self._began_s + _TOLD_AFTER_S

    def tell_if_due(self) -> None:
        """Called again and again while nothing has come; logs a line now and then."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            is_due = now_s >= self._tell_s
            if is_due:
                self._tell_s += _TOLD_EVERY_S
        if is_due:
            log.warning("%s: %s, for %.0f s so far", self._who, self._what, now_s - self._began_s)


class CallLostError(Exception):
    """A call has not returned, and its client is of no more use."""


class BoundedCall:
    """A call of the client, in a thread of its own.

    Args:
        call: what to do; it asks :attr:`is_given_up` between its steps, and does no other once it is.
        clock: for time-outs.
    """

    def __init__(self, call: Callable[[BoundedCall], None], clock: Clock) -> None:
        self._clock = clock
        self._returned: Future[None] = Future()
        #: Nobody waits for it any more.
        self.is_given_up = False
        # Not joined: if the call never returns, the thread ends with the process.
        threading.Thread(target=self._run, args=(call,), name="kafka-call", daemon=True).start()

    def wait(self, timeout_s: float, waiting: Waiting, is_lost: Callable[[], bool]) -> None:
        """Return when the call has.

        Args:
            timeout_s: give it up after so long.
            waiting: tells it.
            is_lost: whether the call ought to have returned by now; asked after ten seconds, and may take a second.

        Raises:
            CallLostError: it has not returned; ``is_given_up`` from now on.
        """
        began_s = self._clock.monotonic_s()
        lost_looks = 0
        while True:
            if wait([self._returned], _LOOK_S).done:
                return self._returned.result()
            so_far_s = self._clock.monotonic_s() - began_s
            waiting.tell_if_due()
            if so_far_s >= _LOST_AFTER_S:
                lost_looks = lost_looks + 1 if is_lost() else 0
            if so_far_s >= timeout_s or lost_looks >= _LOST_LOOKS:
                self.is_given_up = True
                raise CallLostError(f"not done after {so_far_s:.0f} s")

    def _run(self, call: Callable[[BoundedCall], None]) -> None:
        try:
            call(self)
        except BaseException as error:
            self._returned.set_exception(error)
        else:
            self._returned.set_result(None)
