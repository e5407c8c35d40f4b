"""Cached state that goes ahead of its key groups, as transcripts; ``test_cache_copy_simulation`` interleaves them."""

import pytest

from weir.errors import InvalidTransitionError
from weir.protocol.rescale.cache_copy import (
    CacheCopyMachine,
    CopyAborted,
    CopyArrived,
    CopyPhase,
    CopyTaken,
    CopyWanted,
    Enter,
    Forget,
    GroupsCome,
    GroupsLeave,
    Keep,
    SendRest,
)
from weir.protocol.rescale.cache_copy_model import COPY_TRANSITIONS


def tell(machine, *events):
    actions = []
    for event in events:
        actions += machine.handle(event)
        machine.check_invariants()
    return actions


def phases(machine, *groups):
    return [machine.phase(group).name for group in groups]


def test_a_copy_ahead_and_what_changed_since():
    old = CacheCopyMachine([1, 2, 3])
    assert tell(old, CopyWanted(5, (1, 2)), CopyTaken(5, (1,))) == []
    assert phases(old, 1, 2, 3) == ["TAKEN", "WANTED", "OWNED"]
    assert old.taken(5, [1, 2, 3]) == [1]
    assert tell(old, GroupsLeave(5, (1, 2), frozenset({1}))) == [SendRest((1,), (2,))]
    assert phases(old, 1, 2, 3) == ["FOREIGN", "FOREIGN", "OWNED"]


def test_a_copy_of_which_something_was_evicted_is_sent_anew():
    old = CacheCopyMachine([1, 2])
    tell(old, CopyWanted(5, (1, 2)), CopyTaken(5, (1, 2)))
    assert tell(old, GroupsLeave(5, (1, 2), frozenset())) == [SendRest((), (1, 2))]


def test_groups_of_which_no_copy_is_wanted_just_leave():
    old = CacheCopyMachine([1])
    assert tell(old, GroupsLeave(5, (1,), frozenset({1}))) == []


def test_a_copy_for_a_rescale_that_was_aborted_is_none_for_the_next():
    old = CacheCopyMachine([1, 2])
    tell(old, CopyWanted(5, (1,)), CopyTaken(5, (1,)), CopyAborted(5))
    assert phases(old, 1) == ["OWNED"]
    # Commands that were under way when it was aborted.
    tell(old, CopyWanted(5, (1,)), CopyTaken(5, (1,)))
    assert phases(old, 1) == ["OWNED"]
    tell(old, CopyWanted(6, (1, 2)))
    assert old.taken(6, [1, 2]) == []
    # The word on the first copy comes late.
    tell(old, CopyTaken(5, (1,)))
    assert tell(old, GroupsLeave(6, (1,), frozenset({1}))) == [SendRest((), (1,))]


def test_the_new_owner_keeps_what_is_complete_for_the_epoch_that_it_gets():
    new = CacheCopyMachine([])
    assert tell(new, CopyArrived(5, {1: 2, 2: 2})) == [Forget((1, 2)), Enter((1, 2))]
    assert tell(new, CopyArrived(5, {1: 2, 2: 2})) == [Enter((1, 2))]
    assert tell(new, CopyArrived(5, {1: 2, 2: 2}, at_handover=True)) == [Enter((1, 2))]
    assert phases(new, 1, 2) == ["LATE", "LATE"]
    assert tell(new, CopyArrived(5, {1: 2, 2: 2}, at_handover=True, complete=True)) == [Enter((1, 2))]
    assert tell(new, GroupsCome({1: 2, 2: 3, 3: 2})) == [Keep((1,))]
    assert phases(new, 1, 2, 3) == ["OWNED", "OWNED", "OWNED"]


def test_what_was_sent_before_the_handover_does_not_count_after_it():
    new = CacheCopyMachine([])
    tell(new, CopyArrived(5, {1: 2}), CopyArrived(5, {1: 2, 2: 2}, at_handover=True, anew=True))
    assert tell(new, CopyArrived(5, {1: 2, 2: 2, 3: 2})) == [Forget((3,)), Enter((3,))]


def test_what_comes_after_the_groups_is_not_entered():
    new = CacheCopyMachine([7])
    tell(new, CopyArrived(5, {1: 2}), GroupsCome({1: 2}))
    for message in (
        CopyArrived(5, {1: 2}, at_handover=True, anew=True, complete=True),
        CopyArrived(6, {7: 9}),
    ):
        assert tell(new, message) == []
    assert phases(new, 1, 7) == ["OWNED", "OWNED"]


def test_anew_voids_what_came_before():
    new = CacheCopyMachine([])
    tell(new, CopyArrived(5, {1: 2}))
    assert tell(new, CopyArrived(5, {1: 2}, at_handover=True, anew=True)) == [Forget((1,)), Enter((1,))]


@pytest.mark.parametrize(
    "news", [CopyArrived(6, {2: 2}), CopyWanted(6, (7,)), CopyAborted(5), CopyAborted(6)]
)
def test_what_came_is_forgotten_when_its_rescale_is_over(news):
    new = CacheCopyMachine([7])
    tell(new, CopyArrived(5, {1: 2}, at_handover=True, complete=True))
    assert tell(new, news)[0] == Forget((1,))
    assert tell(new, CopyArrived(5, {1: 2}, at_handover=True, complete=True)) == []
    assert tell(new, GroupsCome({1: 2})) == []


def test_a_group_that_leaves_again_and_returns_brings_nothing_old_back():
    new = CacheCopyMachine([])
    message = CopyArrived(5, {1: 2}, at_handover=True, complete=True)
    tell(new, message, GroupsCome({1: 2}), GroupsLeave(6, (1,), frozenset()))
    assert tell(new, message) == []
    assert tell(new, GroupsCome({1: 4})) == []


def test_what_cannot_happen_is_an_error_and_changes_nothing():
    machine = CacheCopyMachine([1])
    with pytest.raises(InvalidTransitionError, match=r"gives away groups \[2\]"):
        machine.handle(GroupsLeave(5, (1, 2), frozenset()))
    with pytest.raises(InvalidTransitionError, match=r"groups \[1\] come, which are owned; history: "):
        machine.handle(GroupsCome({1: 2, 2: 2}))
    assert phases(machine, 1, 2) == ["OWNED", "FOREIGN"]


def test_each_phase_can_be_left():
    assert COPY_TRANSITIONS.keys() == set(CopyPhase)
    for phase, targets in COPY_TRANSITIONS.items():
        assert targets - {phase}, phase
