"""The watermarks of inputs over a checkpoint: the same with the same subtasks, the lowest with others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CheckpointError
from weir.protocol.watermarks.input_times import InputTimes, restored_times, times_key, times_to_json
from weir.protocol.watermarks.time_reached import WatermarkTracker
from weir.types import ChannelId, SubtaskId

MIN_MS, MAX_MS = -(2**63), 2**63 - 1


def channel(edge, producer, consumer=0):
    return ChannelId(SubtaskId(edge, producer), SubtaskId(5, consumer), edge)


def test_the_form():
    told = times_to_json(
        7, [(channel(1, 0), 9), (channel(0, 2), 8), (channel(0, 1), MIN_MS), (channel(0, 0), MAX_MS)]
    )
    assert json.dumps(told) == '{"version": 2, "shown": 7, "inputs": [[0, 1, null], [0, 2, 8], [1, 0, 9]]}'
    assert times_to_json(MIN_MS, ()) == {"version": 2, "shown": None, "inputs": []}
    assert times_key("join") == "join#times"


def test_the_same_subtasks_go_on_where_they_were():
    told = {
        0: times_to_json(5, [(channel(0, 0), 5), (channel(0, 1), 6)]),
        1: times_to_json(1, [(channel(0, 0), 1)]),
    }
    restored = restored_times(told, 0, (0, 1))
    assert restored.shown_ms == 5
    assert restored.of_all([channel(0, 0), channel(0, 1)]) == {channel(0, 0): 5, channel(0, 1): 6}


@pytest.mark.parametrize("producers", [(0,), (0, 1, 2)])
def test_of_other_producers_the_lowest_counts(producers):
    restored = restored_times({0: times_to_json(5, [(channel(0, 0), 9), (channel(0, 1), 6)])}, 0, (0,))
    assert set(restored.of_all([channel(0, number) for number in producers]).values()) == {6}


def test_inputs_may_have_come_further_than_is_shown():
    told = times_to_json(5, [(channel(0, 0), 9)], 8)
    assert json.dumps(told) == '{"version": 2, "shown": 5, "inputs": [[0, 0, 9]], "combined": 8}'
    assert "combined" not in times_to_json(5, (), 5) | times_to_json(5, (), MAX_MS) | times_to_json(
        5, (), MIN_MS
    )
    found = restored_times({0: told}, 0, (0,))
    assert (found.shown_ms, found.combined_ms) == (5, 8)
    others = restored_times({0: told, 1: times_to_json(6, ())}, 0, (0,))
    assert (others.shown_ms, others.combined_ms) == (5, 6)


def test_other_subtasks_begin_with_the_lowest_of_each_input():
    told = {
        0: times_to_json(5, [(channel(0, 0), 5), (channel(0, 1), 6), (channel(1, 0), 9)]),
        1: times_to_json(3, [(channel(0, 0), 4), (channel(0, 1), 7), (channel(1, 0), 3)]),
    }
    restored = restored_times(told, 2, (0, 1, 2))
    assert restored.shown_ms == 3
    channels = [*(channel(0, producer) for producer in range(3)), channel(1, 0)]
    assert list(restored.of_all(channels).values()) == [4, 4, 4, 3]


def test_an_input_of_which_a_channel_has_come_to_nothing_begins_anew():
    told = times_to_json(MIN_MS, [(channel(0, 0), 9), (channel(0, 1), MIN_MS), (channel(1, 0), 4)])
    channels = [channel(0, 0), channel(0, 1), channel(1, 0)]
    assert list(restored_times({0: told}, 0, (0, 1)).of_all(channels).values()) == [9, MIN_MS, 4]
    restored = restored_times({0: told, 1: times_to_json(4, [(c, 5) for c in channels])}, 0, (0,))
    assert list(restored.of_all(channels).values()) == [MIN_MS, MIN_MS, 4]
    # Version 1 leaves it out; which input it is of cannot be known.
    sparse = {"version": 1, "shown": None, "inputs": [[0, 0, 9], [1, 0, 4]]}
    assert set(restored_times({0: sparse}, 0, (0, 1)).of_all(channels).values()) == {MIN_MS}
    known = {"version": 1, "shown": 4, "inputs": [[0, 0, 9], [1, 0, 4]]}
    assert list(restored_times({0: known}, 0, (0, 1)).of_all(channels).values()) == [9, 9, 4]


def test_a_start_from_nothing_and_what_cannot_be_read():
    assert restored_times({}, 0, (0,)) == InputTimes()
    with pytest.raises(CheckpointError, match="watermarks of version 3"):
        restored_times({0: {"version": 3}}, 0, (0,))
    with pytest.raises(CheckpointError, match="cannot be read"):
        restored_times({0: {"version": 1}}, 0, (0,))


EVENTS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(-5, 50)))


@given(EVENTS, EVENTS)
def test_a_restart_changes_nothing_of_what_is_combined(before, after):
    channels = [channel(0, 0), channel(0, 1), channel(1, 0)]

    def feed(tracker, events):
        for number, is_idle, time_ms in events:
            if is_idle:
                tracker.mark_idle(channels[number])
            else:
                tracker.advance(channels[number], time_ms)

    kept, restarted = WatermarkTracker(channels), WatermarkTracker(channels)
    feed(kept, before)
    told = {
        0: json.loads(json.dumps(times_to_json(kept.combined_ms, [(c, at) for c, at, _ in kept.known()])))
    }
    restored = restored_times(told, 0, (0,))
    restarted.restore(restored.shown_ms, restored.of_all(channels))
    assert restarted.combined_ms == kept.combined_ms
    assert [at for _, at, _ in restarted.known()] == [at for _, at, _ in kept.known()]
    # Idle channels say so again.
    for name, _, is_idle in kept.known():
        if is_idle:
            restarted.mark_idle(name)
    feed(kept, after)
    feed(restarted, after)
    assert restarted.combined_ms == kept.combined_ms
