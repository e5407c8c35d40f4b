"""How long leases last on a machine that is too busy for them."""

import pytest

from weir.protocol.job.lease_length import FACTOR_MAX, LeaseLength
from weir.protocol.job.membership import HeartbeatAnswer, Membership
from weir.types import Address

LEASE_MS = 1000


@pytest.fixture
def length():
    return LeaseLength(LEASE_MS)


def test_leases_become_longer_while_the_living_are_taken_for_dead_and_nothing_gets_done(length):
    assert not length.found_alive(0)
    assert length.found_alive(5_000)
    assert length.lease_ms == 2 * LEASE_MS
    for at_ms in range(40_000, 4_000_000, 40_000):
        length.found_alive(at_ms)
    assert length.lease_ms == FACTOR_MAX * LEASE_MS


def test_processes_that_are_found_together_count_once(length):
    for at_ms in (0, 5_000, 5_100, 5_900):
        length.found_alive(at_ms)
    assert length.lease_ms == 2 * LEASE_MS


def test_a_job_that_makes_checkpoints_keeps_its_leases(length):
    """One that is stopped and goes on, now and then, is no reason to notice the next loss later."""
    for at_ms in range(0, 100_000, 5_000):
        assert not length.found_alive(at_ms)
        length.progressed(at_ms + 1_000)
    assert length.lease_ms == LEASE_MS


def test_longer_leases_become_shorter_in_calm_times(length):
    for at_ms in (0, 5_000, 10_000):
        length.found_alive(at_ms)
    assert length.lease_ms == 4 * LEASE_MS
    length.progressed(49_999)
    assert length.lease_ms == 4 * LEASE_MS
    length.progressed(50_000)
    assert length.lease_ms == 2 * LEASE_MS
    length.progressed(69_999)
    assert length.lease_ms == 2 * LEASE_MS
    length.progressed(70_000)
    assert length.lease_ms == LEASE_MS


def test_a_job_whose_deployments_take_longer_than_a_lease_runs_at_last():
    """Each deployment keeps heartbeats back for 3 s: with a lease of 1 s none would ever live."""
    table, address, now_ms, deployments = Membership(LEASE_MS), Address("localhost", 8018), 0, 0
    while True:
        deployments += 1
        assert deployments < 6
        incarnation = f"process {deployments}"
        table.register(address, incarnation, 1, now_ms)
        now_ms += 3_000
        table.expire(now_ms)
        if table.heartbeat(address, incarnation, now_ms) is HeartbeatAnswer.RENEWED:
            break
    assert table.lease_ms == 4 * LEASE_MS


def test_a_process_that_left_or_was_replaced_is_not_found_alive():
    table, address = Membership(LEASE_MS), Address("localhost", 8018)
    for number in range(5):
        now_ms = number * 10_000
        table.register(address, f"replaced {number}", 1, now_ms)
        table.register(address, f"left {number}", 1, now_ms)
        table.deregister(address, f"left {number}")
        for name in ("replaced", "left"):
            table.heartbeat(address, f"{name} {number}", now_ms + 5_000)
    assert table.lease_ms == LEASE_MS
