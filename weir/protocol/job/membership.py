"""Who is here: task managers hold a lease that heartbeats renew. Pure; the caller brings the time.

A task manager process makes up one ``incarnation_id`` when it starts. A lease that ended (replaced, expired
or given back) never comes back to life under the same incarnation: its work has been given away meanwhile, so
the process must drop what it runs and register under a new incarnation.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum

from weir.errors import FencedError
from weir.protocol.job.lease_length import LeaseLength
from weir.types import Address

#: Ended incarnations that are remembered in order to refuse them.
ENDED_INCARNATIONS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Member:
    """A registered task manager."""

    address: Address
    #: Chosen by the process at its start; differs after every restart.
    incarnation_id: str
    #: ``operator_quota``: subtasks that it takes at most.
    quota: int
    #: Counts registrations of this table from 1; a higher one is newer.
    registration: int
    #: The lease ends at this time unless a heartbeat comes before it.
    lease_end_ms: int
    #: When it was heard last.
    heard_ms: int = 0

    @property
    def name(self) -> str:
        """The address as text: how placements and messages name it."""
        return str(self.address)


class HeartbeatAnswer(Enum):
    """What the control plane tells the sender of a heartbeat."""

    #: The lease is renewed.
    RENEWED = "renewed"
    #: No lease under this address and incarnation: stop all subtasks, register under a new incarnation.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Registration:
    """Result of :meth:`Membership.register`."""

    member: Member
    #: An earlier process at the same address; everything it ran is lost.
    replaced: Member | None = None


class Membership:
    """The lease table. One thread at a time; times are ms of any clock that never goes back."""

    def __init__(self, lease_ms: int) -> None:
        #: How long leases are now.
        self.length = LeaseLength(lease_ms)
        self._members: dict[Address, Member] = {}
        #: Whether it was taken for dead, and has not been heard since.
        self._ended: OrderedDict[str, bool] = OrderedDict()
        self._registrations = 0

    @property
    def lease_ms(self) -> int:
        """How long a lease lasts that begins now."""
        return self.length.lease_ms

    def members(self) -> list[Member]:
        """Return all lease holders, by address. Call :meth:`expire` first."""
        return [self._members[address] for address in sorted(self._members)]

    def get(self, address: Address) -> Member | None:
        """The lease holder at this address."""
        return self._members.get(address)

    def register(self, address: Address, incarnation_id: str, quota: int, now_ms: int) -> Registration:
        """Give a lease. Safe to retry: the same incarnation again renews the lease it has.

        Raises:
            FencedError: the lease of this incarnation has ended, or it is registered at another address.
        """
        current = self._members.get(address)
        same = current is not None and current.incarnation_id == incarnation_id
        if incarnation_id in self._ended or (same and current is not None and current.lease_end_ms <= now_ms):
            raise FencedError(
                f"task manager {address}: incarnation {incarnation_id} has lost its lease; stop its subtasks "
                "and register under a new incarnation"
            )
        for member in self._members.values():
            if member.incarnation_id == incarnation_id and member.address != address:
                raise FencedError(
                    f"task manager {address}: incarnation {incarnation_id} is registered as "
                    f"{member.address}; every process needs an incarnation of its own"
                )
        if current is not None and same:
            renewed = replace(
                current, quota=quota, lease_end_ms=self._lease_end_ms(current, now_ms), heard_ms=now_ms
            )
            self._members[address] = renewed
            return Registration(renewed)
        if current is not None:
            self._end(current)
        self._registrations += 1
        member = Member(
            address,
            incarnation_id,
            quota,
            registration=self._registrations,
            lease_end_ms=now_ms + self.lease_ms,
            heard_ms=now_ms,
        )
        self._members[address] = member
        return Registration(member, replaced=current)

    def heartbeat(self, address: Address, incarnation_id: str, now_ms: int) -> HeartbeatAnswer:
        """Renew the lease, if the sender still holds it at ``now_ms``."""
        if self._ended.get(incarnation_id):
            self._ended[incarnation_id] = False
            self.length.found_alive(now_ms)
        member = self._members.get(address)
        if member is None or member.incarnation_id != incarnation_id or member.lease_end_ms <= now_ms:
            return HeartbeatAnswer.UNKNOWN
        self._members[address] = replace(
            member, lease_end_ms=self._lease_end_ms(member, now_ms), heard_ms=now_ms
        )
        return HeartbeatAnswer.RENEWED

    def renew_all(self, now_ms: int) -> None:
        """Begin all leases anew: the caller was not able to hear anybody."""
        for address, member in self._members.items():
            self._members[address] = replace(member, lease_end_ms=self._lease_end_ms(member, now_ms))

    def expire(self, now_ms: int) -> list[Member]:
        """Remove and return the members whose lease has ended, by address."""
        lost = [member for member in self.members() if member.lease_end_ms <= now_ms]
        for member in lost:
            self._end(member)
            self._ended[member.incarnation_id] = True
        return lost

    def deregister(self, address: Address, incarnation_id: str) -> Member | None:
        """Give the lease back; None if this incarnation does not hold it (safe to retry)."""
        member = self._members.get(address)
        if member is None or member.incarnation_id != incarnation_id:
            return None
        self._end(member)
        return member

    def next_expiry_ms(self) -> int | None:
        """When :meth:`expire` can next find something; None without members."""
        return min((member.lease_end_ms for member in self._members.values()), default=None)

    def _lease_end_ms(self, member: Member, now_ms: int) -> int:
        """A delayed message never shortens a lease."""
        return max(member.lease_end_ms, now_ms + self.lease_ms)

    def _end(self, member: Member) -> None:
        del self._members[member.address]
        self._ended[member.incarnation_id] = False
        if len(self._ended) > ENDED_INCARNATIONS_MAX:
            self._ended.popitem(last=False)
