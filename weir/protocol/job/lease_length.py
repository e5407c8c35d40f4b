"""How long a lease lasts: longer while processes are taken for dead that are only slow, and nothing gets done. Pure.

On a machine that is far too busy heartbeats come late. Each deployment that a lost lease leads to is work, which makes
the next ones later still: with a fixed lease the job could start again for ever, and never complete a checkpoint.
"""

from __future__ import annotations

#: A lease is at most so many times as long as it is set.
FACTOR_MAX = 16
#: So many leases without such a mistake, and with checkpoints, halve it again.
_CALM_LEASES = 10


class LeaseLength:
    """The length of leases, of one lease table. Times are ms of any clock that never goes back."""

    def __init__(self, lease_ms: int) -> None:
        if lease_ms <= 0:
            raise ValueError(f"lease_ms is {lease_ms}; it must be positive")
        self._lease_ms = lease_ms
        self._factor = 1
        #: When a process was last found alive, or the lease was last halved; None: never.
        self._changed_ms: int | None = None
        self._has_progressed = False

    @property
    def lease_ms(self) -> int:
        """How long a lease lasts that begins now."""
        return self._lease_ms * self._factor

    def found_alive(self, now_ms: int) -> bool:
        """A process whose lease has ended is heard; returns whether leases are longer from now on.

        They are, if no checkpoint was complete since another one was found. Those that come together count once.
        """
        since_ms = None if self._changed_ms is None else now_ms - self._changed_ms
        if since_ms is not None and since_ms < self.lease_ms:
            return False
        grows = since_ms is not None and not self._has_progressed and self._factor < FACTOR_MAX
        if grows:
            self._factor *= 2
        self._changed_ms = now_ms
        self._has_progressed = False
        return grows

    def progressed(self, now_ms: int) -> None:
        """A checkpoint is complete."""
        self._has_progressed = True
        if self._changed_ms is None or self._factor == 1:
            return
        if now_ms - self._changed_ms >= _CALM_LEASES * self.lease_ms:
            self._factor //= 2
            self._changed_ms = now_ms
