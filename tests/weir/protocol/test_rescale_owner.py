"""One subtask in a rescale, as transcripts: what it is told, what it does, what it owns then."""

import numpy as np
import pytest

from weir.errors import FencedError, InvalidTransitionError
from weir.protocol.rescale.rescale_owner import (
    Abort,
    HandOver,
    HandoverReceived,
    InputAdded,
    InputEnded,
    MarkerReceived,
    OwnerMachine,
    OwnerPhase,
    Prepare,
    Proceed,
    Retired,
    StartFlush,
    TakeOwnership,
)
from weir.protocol.rescale.rescale_owner_model import OWNER_TRANSITIONS
from weir.protocol.routing import GroupMove, RoutingTable

#: Subtask 0 owns groups 0 and 1, subtask 1 owns 2 and 3.
TABLE = RoutingTable(5, 1, (0, 1), (0, 0, 1, 1), (1, 1, 1, 1))
#: Subtask 2 is new and gets a group of each.
OUT = (GroupMove(1, 0, 2), GroupMove(3, 1, 2))
#: Subtask 1 retires.
IN = (GroupMove(2, 1, 0), GroupMove(3, 1, 0))


def owner(index, inputs=("a", "b")):
    return OwnerMachine(index, TABLE, inputs)


def tell(machine, *events):
    actions = []
    for event in events:
        actions += machine.handle(event)
        machine.check_invariants()
    return actions


def owned(machine):
    return np.flatnonzero(machine.owned_mask).tolist()


def test_an_old_owner_stands_still_in_time_from_the_first_switch_until_it_has_given_all_away():
    old = owner(1)
    tell(old, Prepare(2, IN, retiring=True))
    assert not old.holds_watermark, "all rows come here still"
    tell(old, MarkerReceived("a", 2))
    assert old.holds_watermark
    # The other input may be far ahead; rows of this one wait at the new owner.
    tell(old, InputEnded("a"))
    assert old.holds_watermark
    tell(old, MarkerReceived("b", 2))
    assert not old.holds_watermark


def test_an_old_owner_that_has_not_heard_of_the_plan_stands_still_in_time_too():
    old = owner(0)
    tell(old, MarkerReceived("a", 2))
    assert old.holds_watermark
    tell(old, Prepare(2, OUT))
    assert old.holds_watermark
    tell(old, MarkerReceived("b", 2))
    assert not old.holds_watermark


def test_a_new_owner_stands_still_in_time_from_the_first_switch_until_it_has_all_groups():
    """What is due in them would be told after the watermark."""
    new = owner(2)
    tell(new, Prepare(2, OUT))
    assert not new.holds_watermark
    tell(new, MarkerReceived("a", 2), MarkerReceived("b", 2), HandoverReceived(2, {1: 2}, "there"))
    assert new.holds_watermark
    tell(new, HandoverReceived(2, {3: 2}, "there"))
    assert not new.holds_watermark


def test_an_old_owner_hands_over_when_all_inputs_have_switched():
    old = owner(0)
    assert (owned(old), old.phase, old.is_moving) == ([0, 1], OwnerPhase.SETTLED, False)
    assert tell(old, Prepare(2, OUT)) == [StartFlush(2, (1,))]
    assert (old.phase, old.is_moving) == (OwnerPhase.PREPARED, True)
    mask = old.owned_mask
    assert tell(old, MarkerReceived("a", 2)) == []
    assert old.phase is OwnerPhase.MOVING
    assert old.owned_mask is mask, "the mask is replaced only when it changes"
    assert tell(old, MarkerReceived("b", 2)) == [HandOver(2, 2, {1: 2})]
    assert (owned(old), old.phase) == ([0], OwnerPhase.SETTLED)
    assert old.owner_epochs.tolist() == [1, 2, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        old.owned_mask[1] = True


def test_a_new_owner_takes_groups_as_they_come():
    new = owner(2)
    assert owned(new) == []
    assert tell(new, Prepare(2, OUT), MarkerReceived("a", 2), MarkerReceived("b", 2)) == []
    assert tell(new, HandoverReceived(2, {3: 2}, "tm-b")) == [TakeOwnership(2, {3: 2}, "tm-b")]
    assert (owned(new), new.is_moving) == ([3], True)
    assert tell(new, HandoverReceived(2, {1: 2}, "tm-a")) == [TakeOwnership(2, {1: 2}, "tm-a")]
    assert (owned(new), new.is_moving) == ([1, 3], False)


def test_a_marker_and_a_handover_may_come_before_the_plan():
    old, new = owner(0), owner(2)
    assert tell(old, MarkerReceived("a", 2), MarkerReceived("b", 2)) == []
    assert (old.phase, owned(old)) == (OwnerPhase.UNPLANNED, [0, 1])
    assert tell(old, Prepare(2, OUT)) == [StartFlush(2, (1,)), HandOver(2, 2, {1: 2})]

    tell(new, HandoverReceived(2, {1: 2}, "tm-a"))
    assert (new.phase, owned(new)) == (OwnerPhase.UNPLANNED, [1])
    assert tell(new, Prepare(2, OUT)) == []
    assert new.phase is OwnerPhase.MOVING
    tell(new, HandoverReceived(2, {3: 2}, "tm-b"))
    assert not new.is_moving


def test_an_ended_input_needs_no_marker():
    old = owner(0)
    assert tell(old, Prepare(2, OUT), InputEnded("a")) == [StartFlush(2, (1,))]
    assert tell(old, MarkerReceived("b", 2)) == [HandOver(2, 2, {1: 2})]
    assert not old.may_finish
    assert tell(old, InputEnded("b")) == []
    assert old.may_finish


def test_inputs_that_all_end_before_they_switch_wait_for_the_word_of_the_coordinator():
    prepared = [Prepare(2, OUT), InputEnded("a"), InputEnded("b")]
    aborted, certain = owner(0), owner(0)
    assert tell(aborted, *prepared) == tell(certain, *prepared) == [StartFlush(2, (1,))]
    assert not aborted.may_finish
    assert tell(aborted, Abort(2)) == []
    assert (aborted.may_finish, owned(aborted)) == (True, [0, 1])
    assert tell(certain, Proceed(2)) == [HandOver(2, 2, {1: 2})]
    assert (certain.may_finish, owned(certain)) == (True, [0])


def test_who_waits_for_a_handover_does_not_finish():
    new = owner(2)
    tell(new, Prepare(2, OUT), *[MarkerReceived(x, 2) for x in "ab"], *[InputEnded(x) for x in "ab"])
    assert not new.may_finish
    tell(new, HandoverReceived(2, {1: 2}, "tm-a"))
    assert not new.may_finish
    tell(new, HandoverReceived(2, {3: 2}, "tm-b"))
    assert new.may_finish


def test_who_saw_a_marker_does_not_finish_before_the_plan_came():
    new = owner(2, inputs=["a"])
    tell(new, MarkerReceived("a", 2), InputEnded("a"))
    assert not new.may_finish
    tell(new, Prepare(2, OUT))
    assert not new.may_finish
    tell(new, HandoverReceived(2, {1: 2, 3: 2}, "tm-a"))
    assert new.may_finish


def test_a_retiring_subtask_gives_all_away_and_ends():
    old = owner(1)
    assert tell(old, Prepare(2, IN, retiring=True)) == [StartFlush(2, (2, 3))]
    assert tell(old, MarkerReceived("a", 2), InputEnded("a")) == []
    assert tell(old, MarkerReceived("b", 2)) == [HandOver(2, 0, {2: 2, 3: 2})]
    assert not old.may_finish
    assert tell(old, InputEnded("b")) == [Retired(2)]
    assert (old.may_finish, owned(old)) == (True, [])


def test_one_handover_for_each_target():
    old = OwnerMachine(0, RoutingTable(5, 1, (0,), (0, 0, 0), (1, 4, 1)), "a")
    moves = (GroupMove(1, 0, 2), GroupMove(2, 0, 1))
    actions = tell(old, Prepare(2, moves), MarkerReceived("a", 2))
    assert actions[1:] == [HandOver(2, 1, {2: 2}), HandOver(2, 2, {1: 5})]


def test_inputs_come_at_any_time():
    old = owner(0, inputs=["a"])
    tell(old, InputAdded("c"), InputEnded("c"), InputAdded("b"), Prepare(2, OUT))
    assert tell(old, MarkerReceived("a", 2)) == [], "b is live"
    tell(old, InputAdded("c"))
    assert tell(old, MarkerReceived("b", 2)) == [], "c was opened again"
    assert tell(old, MarkerReceived("c", 2)) == [HandOver(2, 2, {1: 2})]


def test_an_aborted_version_has_no_effect_however_late_it_comes():
    old = owner(0)
    tell(old, Prepare(2, OUT), Abort(2))
    assert tell(old, Prepare(2, OUT)) == []
    assert tell(old, Abort(3), Prepare(3, OUT)) == []
    assert not old.is_moving
    tell(old, Prepare(4, OUT))
    assert tell(old, Prepare(5, IN)) == [], "the abort of 4 is on its way; 5 gives nothing away here"
    assert tell(old, Abort(4), Prepare(4, OUT), *[MarkerReceived(x, 5) for x in "ab"]) == []
    assert owned(old) == [0, 1]


def test_a_bystander_goes_on():
    aside = OwnerMachine(3, RoutingTable(5, 1, (0, 1, 3), (0, 0, 1, 3), (1, 1, 1, 1)), ["a"])
    assert tell(aside, Prepare(2, OUT[:1])) == []
    assert not aside.is_moving
    assert tell(aside, MarkerReceived("a", 2), InputEnded("a")) == []
    assert aside.may_finish


def test_a_group_that_comes_back_has_a_higher_epoch():
    old = owner(0, inputs=["a"])
    tell(old, Prepare(2, OUT), MarkerReceived("a", 2))
    tell(old, Prepare(3, (GroupMove(1, 2, 0),)), MarkerReceived("a", 3))
    assert owned(old) == [0]
    for epoch in (1, 2):
        with pytest.raises(
            FencedError, match=f"key group 1: a handover with owner epoch {epoch}, but epoch 2"
        ):
            old.handle(HandoverReceived(3, {1: epoch}, "tm-a"))
    tell(old, HandoverReceived(3, {1: 3}, "tm-a"))
    assert owned(old) == [0, 1]
    with pytest.raises(FencedError, match="no longer owns"):
        old.handle(HandoverReceived(3, {1: 3}, "tm-a"))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([MarkerReceived("z", 2)], "route marker on input z, which is not open"),
        ([InputEnded("a"), InputEnded("a")], "the end of input a, which is not open"),
        ([Prepare(2, (GroupMove(2, 0, 1),))], r"gives away groups \[2\], which are not owned"),
        ([Prepare(2, OUT, retiring=True)], "retires an owner that keeps groups"),
        ([Prepare(2, OUT), MarkerReceived("a", 2), Abort(2)], "can only go forward"),
        ([Prepare(2, OUT), MarkerReceived("a", 2), Prepare(3, IN)], "rescale 3 before rescale 2 has ended"),
        ([Prepare(2, OUT), HandoverReceived(2, {2: 2}, "tm-a")], r"groups \[2\], which no rescale brings"),
        ([Abort(2), HandoverReceived(2, {2: 2}, "tm-a")], r"groups \[2\], which no rescale brings"),
    ],
)
def test_illegal_events_change_nothing_and_tell_the_history(events, message):
    machine = owner(0)
    tell(machine, *events[:-1])
    before = (machine.phase, owned(machine), machine.owner_epochs.tolist(), machine.may_finish)
    with pytest.raises(InvalidTransitionError, match=message) as caught:
        machine.handle(events[-1])
    assert (machine.phase, owned(machine), machine.owner_epochs.tolist(), machine.may_finish) == before
    assert "subtask index 0: " in str(caught.value)
    assert all(str(event) in str(caught.value) for event in events[:-1])


def test_broken_invariants_are_found():
    machine = owner(0)
    tell(machine, Prepare(2, IN))
    machine._plan.receives.add(0)
    with pytest.raises(InvalidTransitionError, match="what is to arrive is not owned"):
        machine.check_invariants()


def test_every_phase_can_settle():
    assert set(OWNER_TRANSITIONS) == set(OwnerPhase)
    assert all(OwnerPhase.SETTLED in targets for targets in OWNER_TRANSITIONS.values())
