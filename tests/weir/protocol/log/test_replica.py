"""What is committed, what is promised, and who may lead."""

import pytest

from weir.errors import InvalidTransitionError
from weir.protocol.log.replica import Replica, majority

MEMBERS = {1: 11, 2: 22, 3: 33}


def replica(broker_id=1, lineage=(), end=0, promised=0):
    found = Replica(broker_id, MEMBERS[broker_id], 3)
    found.recovered(lineage, end, promised)
    return found


def leading(epoch=1, lineage=(), end=0):
    found = replica(lineage=lineage, end=end)
    found.promise(epoch)
    found.vote(epoch)
    found.lead(epoch, MEMBERS, 3, 1)
    append(found, epoch, 1)
    return found


def append(machine, epoch, count):
    machine.appended(epoch, machine.end_offset, machine.end_offset + count)
    machine.made_durable(machine.end_offset)


@pytest.mark.parametrize(("replicas", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(replicas, needed):
    assert majority(replicas) == needed


def test_a_commit_needs_a_majority_that_includes_the_leader():
    leader = leading()
    append(leader, 1, 4)
    assert leader.commit_offset == 0
    leader.follower_opened(2, 22, [], 0)
    leader.follower_has(2, 3)
    assert leader.commit_offset == 3
    leader.follower_opened(3, 33, [], 0)
    leader.follower_has(3, 5)
    assert leader.commit_offset == 5
    # Both followers have more than is durable here.
    leader.appended(1, 5, 9)
    leader.follower_has(2, 9)
    leader.follower_has(3, 9)
    assert leader.commit_offset == 5
    leader.made_durable(9)
    assert leader.commit_offset == 9


def test_entries_of_earlier_epochs_are_committed_with_one_of_the_leaders_own():
    # Figure 8 of the Raft paper: a log with a later epoch could still win the next election.
    leader = leading(3, [(1, 0)], 6)
    leader.follower_opened(2, 22, [(1, 0)], 4)
    leader.follower_has(2, 6)
    assert leader.commit_offset == 0
    assert not leader.serves
    leader.follower_has(2, 7)
    assert leader.commit_offset == 7
    assert leader.serves


def test_a_follower_whose_data_is_another_does_not_count_until_it_is_a_member():
    leader = leading()
    append(leader, 1, 2)
    leader.follower_opened(3, 33, [], 0)
    leader.follower_has(3, 2)
    leader.follower_opened(2, 99, [], 0)
    leader.follower_has(2, 3)
    assert leader.commit_offset == 2
    assert leader.caught_up() == {2: 99}
    leader.set_members(MEMBERS | {2: 99})
    assert leader.commit_offset == 3
    assert leader.caught_up() == {}


def test_a_follower_that_lacks_what_is_committed_is_not_caught_up():
    leader = leading()
    append(leader, 1, 5)
    leader.follower_opened(3, 33, [], 0)
    leader.follower_has(3, 6)
    leader.follower_opened(2, 99, [], 0)
    leader.follower_has(2, 5)
    assert leader.caught_up() == {}


def test_what_a_lost_stream_had_acknowledged_stays_committed_and_counts_no_more():
    leader = leading()
    leader.follower_opened(2, 22, [], 0)
    leader.follower_has(2, 1)
    leader.follower_lost(2)
    append(leader, 1, 1)
    leader.follower_has(2, 2)
    assert leader.commit_offset == 1


def test_a_promise_ends_what_it_led_and_refuses_lower_epochs():
    leader = leading()
    assert leader.promise(2)
    assert not leader.promise(2)
    assert leader.leading_epoch == 0
    assert not leader.accepts(1)
    assert leader.accepts(2)
    leader.follower_has(2, 1)
    assert leader.commit_offset == 0


@pytest.mark.parametrize(
    ("promised", "voted", "epoch", "members"),
    [
        (2, 2, 1, MEMBERS),
        (1, 1, 2, MEMBERS),
        # It was started again since it voted.
        (2, 0, 2, MEMBERS),
        (2, 2, 2, MEMBERS | {1: 99}),
    ],
)
def test_a_replica_leads_only_what_it_promised_and_voted_for_as_a_member(promised, voted, epoch, members):
    machine = replica(promised=promised)
    machine.vote(voted)
    assert not machine.may_lead(epoch, members)
    with pytest.raises(InvalidTransitionError):
        machine.lead(epoch, members, 3, 1)


def test_an_epoch_is_led_once():
    leader = leading(4)
    leader.leading_epoch = 0
    assert not leader.may_lead(4, MEMBERS)


def test_a_follower_is_cut_where_the_epochs_part_and_never_below_what_is_committed():
    leader = leading(3, [(1, 0)], 6)
    assert leader.follower_opened(2, 22, [(1, 0), (2, 5)], 9) == 5
    follower = replica(2, [(1, 0), (2, 5)], 9)
    follower.learn_commit(4)
    follower.cut(5)
    assert (follower.end_offset, follower.durable_offset, follower.lineage.starts) == (5, 5, [(1, 0)])
    with pytest.raises(InvalidTransitionError, match="before 4 is committed"):
        follower.cut(3)
    assert follower.end_offset == 5


def test_a_replica_forgets_what_is_committed_only_after_a_loss_that_an_operator_accepted_since():
    follower = replica(2, [(1, 0)], 9)
    follower.promise(6)
    follower.learn_commit(7)
    for epoch in (0, 6):
        follower.loss_accepted(epoch)
        with pytest.raises(InvalidTransitionError, match="before 7 is committed"):
            follower.cut(3)
    follower.loss_accepted(7)
    follower.promise(7)
    follower.cut(3)
    # What the leader of that epoch commits is as safe as ever, however often it is told of the loss.
    follower.appended(7, 3, 5)
    follower.learn_commit(4)
    follower.loss_accepted(7)
    with pytest.raises(InvalidTransitionError, match="before 4 is committed"):
        follower.cut(3)


def test_an_entry_that_does_not_follow_is_refused():
    follower = replica(2, [(1, 0)], 5)
    for offset in (4, 6):
        with pytest.raises(InvalidTransitionError, match="does not follow"):
            follower.appended(1, offset, offset + 1)


def test_one_replica_alone_commits_what_it_has():
    machine = Replica(1, 11, 1)
    machine.promise(1)
    machine.vote(1)
    machine.lead(1, {1: 11}, 1, 1)
    append(machine, 1, 1)
    assert machine.commit_offset == 1
