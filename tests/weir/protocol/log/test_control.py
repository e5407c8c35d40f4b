"""Who is named leader, and when."""

import json

import pytest

from weir.protocol.log.control import PartitionControl, PartitionRecord, Report, place_replicas

MEMBERS = {1: 11, 2: 22, 3: 33}


def report(broker_id, *, promised=0, last_epoch=0, end=0, leading=0, incarnation=0, caught_up=()):
    return Report(incarnation or MEMBERS[broker_id], promised, last_epoch, end, leading, dict(caught_up))


def control(**values):
    return PartitionControl(PartitionRecord("wal", 0, [1, 2, 3], **values))


def electing(epoch=5):
    found = control(members=dict(MEMBERS), epoch=epoch, leader=1)
    assert found.broker_lost(1)
    return found


def test_a_partition_begins_once_every_replica_is_there():
    found = control()
    assert not found.decide({1: report(1), 2: report(2)}, {})
    assert found.decide({each: report(each) for each in MEMBERS}, {})
    assert (found.record.members, found.record.epoch, found.record.leader) == (MEMBERS, 1, 0)


def test_the_latest_log_leads_by_epoch_before_length():
    found = electing()
    reports = {
        2: report(2, promised=6, last_epoch=3, end=90),
        3: report(3, promised=6, last_epoch=4, end=50),
    }
    assert found.decide(reports, {})
    assert (found.record.epoch, found.record.leader) == (6, 3)


def test_of_equal_logs_the_broker_with_the_fewest_leaderships_leads():
    found = electing()
    reports = {each: report(each, promised=6, last_epoch=4, end=50) for each in (2, 3)}
    assert found.decide(reports, {2: 3, 3: 1})
    assert found.record.leader == 3


@pytest.mark.parametrize(
    "other",
    [
        None,
        report(3, promised=5, last_epoch=4, end=99),
        report(3, promised=6, last_epoch=4, end=99, incarnation=34),
    ],
)
def test_without_a_majority_of_votes_nobody_leads(other):
    found = electing()
    reports = {2: report(2, promised=6, last_epoch=3, end=90)} | ({3: other} if other else {})
    assert not found.decide(reports, {})
    assert found.record.leader == 0


def test_epochs_only_grow_also_above_what_a_member_has_promised_by_an_older_record():
    found = electing(epoch=5)
    assert found.decide({2: report(2, promised=9)}, {})
    assert found.record.epoch == 10


@pytest.mark.parametrize(
    "second",
    [
        report(1, promised=5),
        report(1, promised=6),
        report(1, promised=5, incarnation=99),
    ],
)
def test_a_leader_that_gave_up_or_lost_its_data_is_replaced(second):
    found = control(members=dict(MEMBERS), epoch=5, leader=1)
    assert not found.decide({1: report(1, promised=5, leading=5)}, {})
    assert found.decide({1: second}, {})
    assert (found.record.epoch, found.record.leader) == (6, 0)


def test_a_leader_that_was_just_named_has_time_to_hear_of_it():
    found = electing()
    reports = {each: report(each, promised=6) for each in (2, 3)}
    assert found.decide(reports, {})
    assert not found.decide(reports, {})


def test_a_controller_that_begins_replaces_a_leader_that_does_not_lead():
    found = control(members=dict(MEMBERS), epoch=5, leader=1)
    assert found.decide({1: report(1, promised=5)}, {})
    assert found.record.leader == 0


def test_a_replica_that_its_leader_has_filled_becomes_a_member():
    found = control(members=dict(MEMBERS), epoch=5, leader=1)
    assert found.decide({1: report(1, promised=5, leading=5, caught_up={2: 99, 7: 70})}, {})
    assert found.record.members == MEMBERS | {2: 99}
    assert not found.decide({1: report(1, promised=5, leading=5, caught_up={2: 99})}, {})


def test_the_loss_of_another_broker_changes_nothing():
    assert not control(members=dict(MEMBERS), epoch=5, leader=1).broker_lost(2)


def test_a_record_is_the_same_after_json():
    record = PartitionRecord("wal", 3, [2, 1], {2: 22, 1: 11}, 7, 2)
    assert PartitionRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_replicas_are_spread_over_brokers_in_turn():
    assert place_replicas(4, 2, [3, 1, 2]) == [[1, 2], [2, 3], [3, 1], [1, 2]]
    assert place_replicas(1, 3, [1, 2, 3], first=1) == [[2, 3, 1]]
