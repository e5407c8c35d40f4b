"""Routing tables: balance to within one group, the fewest moves, determinism."""

import itertools
import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import cases
from weir.errors import GraphError, StateError
from weir.keys.hashing import hash_keys, key_bytes, partition_hashes
from weir.protocol.routing import RoutingTable, initial_table, rescaled


def loads(table):
    counts = Counter(table.groups)
    return [counts[subtask] for subtask in table.subtasks]


def check_step(old, new, moves):
    """What every rescale promises, apart from the number of moves."""
    assert max(loads(new)) - min(loads(new)) <= 1
    assert new.version == old.version + 1
    assert new.stage_index == old.stage_index
    moved = {move.group: move for move in moves}
    assert len(moved) == len(moves)
    for group in range(old.max_parallelism):
        if group in moved:
            move = moved[group]
            assert (move.source, move.target) == (old.groups[group], new.groups[group])
            assert move.source != move.target
            assert new.owner_epochs[group] == old.owner_epochs[group] + 1
        else:
            assert new.groups[group] == old.groups[group]
            assert new.owner_epochs[group] == old.owner_epochs[group]


def fewest_moves(table, subtasks):
    """By trying every way to hand out the odd groups; of each subtask's groups min(load, quota) stay."""
    counts = Counter(table.groups)
    share, odd = divmod(table.max_parallelism, len(subtasks))
    kept = max(
        sum(min(counts[subtask], share + (subtask in bigger)) for subtask in subtasks)
        for bigger in itertools.combinations(subtasks, odd)
    )
    return table.max_parallelism - kept


@pytest.mark.parametrize("max_parallelism", [128, 1024])
@pytest.mark.parametrize("subtask_count", range(1, 17))
def test_loads_differ_by_one_at_most_and_one_subtask_moves_only_its_share(subtask_count, max_parallelism):
    table = initial_table(3, subtask_count, max_parallelism)
    assert max(loads(table)) - min(loads(table)) <= 1
    assert table.subtasks == tuple(range(subtask_count))
    assert set(table.owner_epochs) == {1}

    grown, moves = rescaled(table, subtask_count + 1)
    check_step(table, grown, moves)
    assert {move.target for move in moves} == {subtask_count}
    assert len(moves) == max_parallelism // (subtask_count + 1)

    for removed in {0, subtask_count // 2, subtask_count}:
        rest = [subtask for subtask in grown.subtasks if subtask != removed]
        shrunk, moves = rescaled(grown, rest)
        check_step(grown, shrunk, moves)
        assert {move.source for move in moves} == {removed}
        assert len(moves) == len(grown.groups_of(removed))


@settings(max_examples=cases(20), deadline=None)
@given(st.data(), st.sampled_from([8, 13, 128]))
def test_any_chain_of_rescales_moves_the_fewest(data, max_parallelism):
    table = initial_table(0, data.draw(st.integers(1, 8)), max_parallelism)
    for _ in range(3):
        subtasks = sorted(data.draw(st.sets(st.integers(0, 9), min_size=1, max_size=8)))
        new, moves = rescaled(table, subtasks)
        check_step(table, new, moves)
        assert new.subtasks == tuple(subtasks)
        assert len(moves) == fewest_moves(table, subtasks)
        table = new


def test_the_same_subtasks_move_nothing():
    table = initial_table(0, 3, 128)
    new, moves = rescaled(table, 3)
    assert moves == []
    assert new.groups == table.groups


@pytest.mark.parametrize(("before", "share"), [(1, 2), (2, 3), (3, 4)])
def test_one_more_subtask_takes_its_share(before, share):
    _, moves = rescaled(initial_table(0, before, 128), before + 1)
    assert abs(len(moves) - 128 / share) <= 1


def test_golden_tables():
    table = initial_table(1, 3, 16)
    assert table.groups == (2, 1, 2, 0, 1, 2, 1, 1, 2, 0, 2, 1, 0, 0, 0, 0)
    grown, moves = rescaled(table, 4)
    assert [(move.group, move.source, move.target) for move in moves] == [
        (0, 2, 3),
        (4, 1, 3),
        (13, 0, 3),
        (14, 0, 3),
    ]
    assert grown.groups_of(3) == [move.group for move in moves]


def test_another_process_with_another_hash_seed_makes_the_same_table():
    code = "from weir.protocol.routing import *; print(rescaled(initial_table(0, 5, 128), 6)[0].groups)"
    output = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert output.strip() == str(rescaled(initial_table(0, 5, 128), 6)[0].groups)


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("subtask_count", [2, 3, 5, 8])
def test_keys_follow_the_groups_evenly(subtask_count, order):
    numbers = np.arange(1, 100_001)
    if order == "random":
        numbers = np.random.default_rng(7).integers(1, 100_001, 100_000)
    batch = pa.record_batch({"server_name": [f"server-{n}" for n in numbers.tolist()]})
    hashes = hash_keys(key_bytes(batch, ("server_name",)))
    table = initial_table(0, subtask_count, 1024)
    _, offsets = partition_hashes(hashes, table.group_to_subtask, table.subtask_count)
    shares = np.diff(offsets) / len(numbers)
    assert np.abs(shares * subtask_count - 1).max() < 0.05


def test_the_array_is_what_partition_takes():
    table, _ = rescaled(initial_table(0, 3, 16), [0, 2])
    assert table.group_to_subtask.dtype == np.int32
    assert tuple(table.group_to_subtask.tolist()) == table.groups
    assert table.subtask_count == 3
    with pytest.raises(ValueError, match="read-only"):
        table.group_to_subtask[0] = 1


def test_round_trip_through_json():
    table, _ = rescaled(initial_table(2, 3, 16), [0, 2, 5])
    assert RoutingTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table


@pytest.mark.parametrize(
    "change",
    [
        {"groups": [0, 9]},
        {"groups": [0]},
        {"groups": "01"},
        {"owner_epochs": [1, "1"]},
        {"subtasks": [1, 0]},
        {"subtasks": []},
        {"subtasks": [-1, 0]},
        {"version": None},
    ],
    ids=str,
)
def test_damaged_documents_are_refused(change):
    good = initial_table(0, 2, 2).to_dict()
    RoutingTable.from_dict(good)
    with pytest.raises(StateError, match="not a routing table"):
        RoutingTable.from_dict(good | change)
    with pytest.raises(StateError, match="not a routing table"):
        RoutingTable.from_dict({name: good[name] for name in good if name not in change})


def test_impossible_parallelism_is_refused():
    with pytest.raises(GraphError, match="stage 3: 9 subtasks, but only 8 key groups"):
        initial_table(3, 9, 8)
    with pytest.raises(GraphError, match="stage 3: needs at least one subtask"):
        rescaled(initial_table(3, 8, 8), 0)
    with pytest.raises(GraphError, match=r"must be in 1\.\.4096"):
        initial_table(0, 1, 4097)
