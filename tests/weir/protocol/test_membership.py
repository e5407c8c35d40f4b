"""Leases: renewal, expiry, replacement, and ended incarnations that stay ended."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.effort import cases
from weir.errors import FencedError
from weir.protocol.job import membership
from weir.protocol.job.membership import HeartbeatAnswer, Membership
from weir.types import Address

A, B = Address("localhost", 8018), Address("localhost", 8028)


@pytest.fixture
def table():
    return Membership(lease_ms=1000)


def test_heartbeats_keep_a_lease_and_silence_ends_it(table):
    member = table.register(A, "one", 5, now_ms=0).member
    assert (member.name, member.quota, member.lease_end_ms) == ("localhost:8018", 5, 1000)
    assert table.heartbeat(A, "one", now_ms=999) is HeartbeatAnswer.RENEWED
    assert table.next_expiry_ms() == 1999
    assert table.expire(1998) == []
    assert [lost.incarnation_id for lost in table.expire(1999)] == ["one"]
    assert table.members() == []
    assert table.next_expiry_ms() is None
    assert table.heartbeat(A, "one", now_ms=2000) is HeartbeatAnswer.UNKNOWN


def test_a_heartbeat_after_the_end_does_not_revive_the_lease(table):
    table.register(A, "one", 5, now_ms=0)
    assert table.heartbeat(A, "one", now_ms=1000) is HeartbeatAnswer.UNKNOWN
    with pytest.raises(FencedError, match=r"localhost:8018.*has lost its lease"):
        table.register(A, "one", 5, now_ms=1000)
    assert len(table.expire(1000)) == 1


def test_a_restarted_process_replaces_the_old_one(table):
    old = table.register(A, "one", 5, now_ms=0).member
    registration = table.register(A, "two", 6, now_ms=10)
    assert registration.replaced == old
    assert registration.member.registration > old.registration
    assert table.get(A) == registration.member
    assert table.heartbeat(A, "one", now_ms=20) is HeartbeatAnswer.UNKNOWN
    assert table.deregister(A, "one") is None
    with pytest.raises(FencedError, match="new incarnation"):
        table.register(A, "one", 5, now_ms=20)
    assert table.get(A) == registration.member


def test_registering_again_is_safe(table):
    first = table.register(A, "one", 5, now_ms=0).member
    again = table.register(A, "one", 5, now_ms=500)
    assert again.replaced is None
    assert again.member.registration == first.registration
    assert again.member.lease_end_ms == 1500


def test_deregistering_ends_the_lease_once(table):
    table.register(A, "one", 5, now_ms=0)
    table.register(B, "two", 5, now_ms=0)
    assert [member.address for member in table.members()] == [A, B]
    assert table.deregister(A, "one").incarnation_id == "one"
    assert table.deregister(A, "one") is None
    assert [member.address for member in table.members()] == [B]
    assert table.expire(5000)[0].address == B


def test_one_incarnation_at_two_addresses_is_refused(table):
    table.register(A, "one", 5, now_ms=0)
    with pytest.raises(FencedError, match="is registered as localhost:8018"):
        table.register(B, "one", 5, now_ms=0)


def test_memory_of_ended_incarnations_is_bounded(table, monkeypatch):
    monkeypatch.setattr(membership, "ENDED_INCARNATIONS_MAX", 2)
    for name in ("one", "two", "three", "four"):
        table.register(A, name, 5, now_ms=0)
    with pytest.raises(FencedError):
        table.register(A, "three", 5, now_ms=0)
    assert table.register(A, "one", 5, now_ms=0).replaced.incarnation_id == "four"


def test_a_lease_must_last():
    with pytest.raises(ValueError, match="lease_ms is 0"):
        Membership(0)


class Leases(RuleBasedStateMachine):
    """Against a plain dictionary: address -> (incarnation, lease end)."""

    def __init__(self):
        super().__init__()
        self.table, self.model, self.ended, self.now_ms = Membership(100), {}, set(), 0

    addresses = st.sampled_from([A, B])
    incarnations = st.integers(0, 5)

    def end(self, address):
        self.ended.add(self.model.pop(address)[0])

    def lease_end_ms(self, before_ms):
        # Leases are longer once members whose lease had ended turn out to be alive.
        return max(before_ms, self.now_ms + self.table.lease_ms)

    @rule(step_ms=st.integers(0, 80))
    def time_passes(self, step_ms):
        self.now_ms += step_ms

    @rule(address=addresses, number=incarnations)
    def register(self, address, number):
        name = f"{address}#{number}"
        holder = self.model.get(address)
        over = holder is not None and holder[0] == name and holder[1] <= self.now_ms
        if name in self.ended or over:
            with pytest.raises(FencedError):
                self.table.register(address, name, 1, self.now_ms)
            return
        replaced = self.table.register(address, name, 1, self.now_ms).replaced
        if holder is not None and holder[0] != name:
            assert replaced.incarnation_id == holder[0]
            self.end(address)
        else:
            assert replaced is None
        self.model[address] = (
            name,
            self.lease_end_ms(0 if holder is None or holder[0] != name else holder[1]),
        )

    @rule(address=addresses, number=incarnations)
    def heartbeat(self, address, number):
        name = f"{address}#{number}"
        holder = self.model.get(address)
        alive = holder is not None and holder[0] == name and holder[1] > self.now_ms
        answer = self.table.heartbeat(address, name, self.now_ms)
        assert answer is (HeartbeatAnswer.RENEWED if alive else HeartbeatAnswer.UNKNOWN)
        if alive:
            self.model[address] = (name, self.lease_end_ms(holder[1]))

    @rule(address=addresses, number=incarnations)
    def deregister(self, address, number):
        name = f"{address}#{number}"
        holds = self.model.get(address, ("",))[0] == name
        assert (self.table.deregister(address, name) is not None) == holds
        if holds:
            self.end(address)

    @rule()
    def expire(self):
        due = sorted(address for address, (_, end_ms) in self.model.items() if end_ms <= self.now_ms)
        assert [member.address for member in self.table.expire(self.now_ms)] == due
        for address in due:
            self.end(address)

    @invariant()
    def same_members(self):
        held = {
            member.address: (member.incarnation_id, member.lease_end_ms) for member in self.table.members()
        }
        assert held == self.model


Leases.TestCase.settings = settings(max_examples=cases(25), stateful_step_count=30, deadline=None)
test_random_leases = Leases.TestCase


def test_leases_begin_anew_for_a_caller_that_could_not_hear_anybody(table):
    table.register(A, "one", 5, now_ms=0)
    table.register(B, "two", 5, now_ms=500)
    table.renew_all(now_ms=9000)
    assert table.expire(9999) == []
    assert table.heartbeat(A, "one", now_ms=9999) is HeartbeatAnswer.RENEWED
    assert [lost.incarnation_id for lost in table.expire(10_000)] == ["two"]
