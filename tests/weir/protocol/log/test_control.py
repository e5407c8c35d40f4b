"""Who is named leader, and when."""

import json
from dataclasses import replace

import pytest

from weir.protocol.log.control import PartitionControl, PartitionRecord, Report
from weir.protocol.log.placement import balanced, place_replicas, without_broker

MEMBERS = {1: 11, 2: 22, 3: 33}


def report(broker_id, *, promised=0, last_epoch=0, end=0, leading=0, incarnation=0, caught_up=(), settled=0):
    incarnation = incarnation or MEMBERS[broker_id]
    return Report(incarnation, promised, last_epoch, end, leading, dict(caught_up), end, settled)


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


def test_the_replicas_of_a_broker_go_to_those_with_the_fewest_in_its_places():
    placed = {"a": [1, 2, 3], "b": [2, 3, 1], "c": [3, 4, 2]}
    assert without_broker(placed, 1, [2, 3, 4, 5]) == {"a": [5, 2, 3], "b": [2, 3, 4]}
    assert without_broker(placed, 1, [2, 3]) == {}


def test_a_new_broker_gets_its_share_of_replicas_and_of_leaderships():
    placed = {number: [1, 2, 3] for number in range(4)}
    moved = balanced(placed, [1, 2, 3, 4])
    after = {**placed, **moved}
    for broker in (1, 2, 3, 4):
        assert sum(broker in each for each in after.values()) == 3
        assert sum(each[0] == broker for each in after.values()) == 1
    assert balanced(after, [1, 2, 3, 4]) == {}


def test_leaderships_go_over_brokers_in_between():
    placed = {0: [1, 2], 1: [1, 2], 2: [2, 3]}
    after = {**placed, **balanced(placed, [1, 2, 3])}
    assert sorted(each[0] for each in after.values()) == [1, 2, 3]


def leading(found, *, caught_up=(), settled=None):
    record = found.record
    return report(
        record.leader,
        promised=record.epoch,
        last_epoch=record.epoch,
        end=90,
        leading=record.epoch,
        caught_up=caught_up,
        settled=record.config if settled is None else settled,
    )


def test_replicas_are_exchanged_one_step_at_a_time_each_after_the_last_one_counts():
    found = control(members=dict(MEMBERS), epoch=5, leader=2)
    assert found.rearrange([4, 2, 3])
    assert found.record.learner == 4
    assert not found.decide({2: leading(found)}, {})
    assert not found.decide({2: leading(found, caught_up=[(4, 44)], settled=0)}, {})
    assert found.decide({2: leading(found, caught_up=[(4, 44)])}, {})
    assert (found.record.replicas, found.record.members[4], found.record.learner) == ([1, 2, 3, 4], 44, 0)
    assert not found.decide({2: leading(found, settled=1)}, {})
    assert found.decide({2: leading(found)}, {})
    assert found.record.members == {2: 22, 3: 33, 4: 44}
    assert found.decide({2: leading(found)}, {})
    assert (found.record.replicas, found.record.target, found.record.config) == ([4, 2, 3], [], 3)


def test_a_leader_that_is_to_go_stays_until_another_one_leads():
    found = control(members={**MEMBERS, 4: 44}, epoch=5, leader=1, config=2)
    found.record.replicas, found.record.target = [1, 2, 3, 4], [4, 2, 3]
    reports = {1: leading(found)}
    assert not found.decide(reports, {})
    assert not found.move_leader(reports)
    reports[3] = report(3, promised=5, last_epoch=5, end=90)
    assert found.move_leader(reports)
    votes = {each: report(each, promised=6, last_epoch=5, end=90) for each in (1, 2, 3)}
    assert found.decide(votes, {})
    assert found.record.leader == 2


def test_leadership_goes_back_to_the_first_replica_only_with_all_that_a_majority_has():
    found = control(members=dict(MEMBERS), epoch=5, leader=2)
    reports = {2: leading(found), 1: report(1, promised=5, last_epoch=5, end=90)}
    assert found.move_leader(reports)
    # The others may have acknowledged what it lacks.
    votes = {1: report(1, promised=6, last_epoch=5, end=80)} | {
        each: report(each, promised=6, last_epoch=5, end=90) for each in (2, 3)
    }
    assert found.decide(votes, {})
    assert found.record.leader == 2
    assert not found.move_leader({2: leading(found), 3: report(3, promised=6, last_epoch=5, end=90)})


def _full(each):
    return replace(each, cannot_write=True)


def test_a_leader_that_cannot_write_gives_way_to_one_that_can_and_has_all():
    found = control(members=dict(MEMBERS), epoch=5, leader=1)
    assert not found.move_leader({1: leading(found), 2: report(2, promised=5, last_epoch=5, end=90)})
    behind = {1: _full(leading(found)), 2: report(2, promised=5, last_epoch=5, end=80)}
    assert found.leader_cannot_write(behind)
    assert not found.move_leader(behind)
    assert not found.move_leader(behind | {2: _full(report(2, promised=5, last_epoch=5, end=90))})
    assert found.move_leader(behind | {3: report(3, promised=5, last_epoch=5, end=90)})
    votes = {each: report(each, promised=6, last_epoch=5, end=90) for each in MEMBERS}
    assert found.decide(votes | {1: _full(votes[1])}, {})
    assert found.record.leader == 2
    # Nor does it get leadership back before it can write.
    now = {1: _full(report(1, promised=6, last_epoch=6, end=90)), 2: leading(found)}
    assert not found.move_leader(now)
    assert found.move_leader(now | {1: report(1, promised=6, last_epoch=6, end=90)})


def test_a_leader_that_cannot_even_begin_gives_way_too():
    found = control(members=dict(MEMBERS), epoch=5, leader=1)
    reports = {each: report(each, promised=5, last_epoch=4, end=90) for each in MEMBERS}
    assert not found.move_leader(reports)
    assert found.move_leader(reports | {1: _full(reports[1])})


def test_after_a_death_one_that_can_write_leads_unless_it_lacks_something():
    votes = {
        1: _full(report(1, promised=6, last_epoch=5, end=90)),
        2: report(2, promised=6, last_epoch=5, end=90),
    }
    found = electing()
    assert found.decide(votes, {})
    assert found.record.leader == 2
    # Of these two only the first one has all that a majority may have acknowledged.
    found = electing()
    assert found.decide(votes | {2: report(2, promised=6, last_epoch=5, end=80)}, {})
    assert found.record.leader == 1


def test_a_loss_is_accepted_only_where_a_majority_is_gone_and_the_others_are_filled_then():
    found = electing()
    whole = {each: report(each, promised=6, last_epoch=4, end=50) for each in (2, 3)}
    assert "2 of 3 replicas are there with all that they had" in found.accept_loss(2, whole)
    # One is away, and one comes back without its data.
    left = {2: report(2, promised=6, last_epoch=4, end=50), 3: report(3, promised=6, incarnation=34)}
    assert "the replicas that are there: [2, 3]" in found.accept_loss(1, left)
    # What only one of them has must not go with a wrong id, whatever the others' epochs are.
    assert "broker 2 has more, up to offset 50, and broker 3 only up to 0" in found.accept_loss(3, left)
    later = left | {3: report(3, promised=6, incarnation=34, last_epoch=5, end=40)}
    assert "broker 3 has more, up to offset 40" in found.accept_loss(2, later)
    assert (found.record.epoch, found.record.members) == (6, MEMBERS)
    assert not found.decide(left, {})
    assert found.accept_loss(2, left) == ""
    assert (found.record.epoch, found.record.replicas, found.record.members) == (7, [2], {2: 22})
    # The answer was lost, and the operator asks again.
    before = found.record.to_json()
    assert found.accept_loss(2, left) == ""
    assert found.record.to_json() == before
    assert (found.record.loss_broker, found.record.loss_end_offset, found.record.loss_epoch) == (2, 50, 7)
    left[2] = report(2, promised=7, last_epoch=4, end=50)
    assert found.decide(left, {})
    assert found.record.leader == 2
    # The one that lives is filled before the one that is away.
    assert (found.record.learner, found.record.target) == (3, [2, 3, 1])
    left[2] = report(2, promised=7, last_epoch=7, end=51, leading=7, caught_up={3: 34}, settled=2)
    assert found.decide(left, {})
    assert (found.record.replicas, found.record.members, found.record.learner) == ([2, 3], {2: 22, 3: 34}, 1)
    assert found.accept_loss(2, left) == ""
    # Nobody is told that nothing was lost.
    found.broker_lost(2)
    assert found.accept_loss(2, left).endswith(
        "nothing is lost since a loss was accepted, with what broker 2 had, up to offset 50"
    )
    # A later loss is another one.
    left[3] = report(3, promised=8, incarnation=35, last_epoch=8, end=60)
    assert found.accept_loss(3, left) == ""
    assert (found.record.loss_broker, found.record.loss_end_offset, found.record.loss_epoch) == (3, 60, 9)
    # A record from before losses were noted.
    values = found.record.to_json()
    for name in ("loss_broker", "loss_end_offset", "loss_epoch"):
        del values[name]
    assert PartitionRecord.from_json(values).loss_epoch == 0
