"""Rows of several inputs while key groups are on their way: which wait, and that nothing of them changes."""

import numpy as np
import pyarrow as pa
import pytest

from task_manager.ownership.group_ownership import Ownership
from weir.keys.division import with_key_hash
from weir.keys.hashing import key_groups
from weir.protocol.rescale.rescale_owner import HandoverReceived, MarkerReceived, OwnerMachine, Prepare
from weir.protocol.routing import GroupMove, RoutingTable
from weir.rows import row_watermarks
from weir.rows.records import KEY_HASH_COLUMN, InputRows, watermarks_of

GROUPS = 4
#: Subtask 0 owns all groups; subtask 1 is new and gets groups 2 and 3.
TABLE = RoutingTable(5, 1, (0,), (0,) * GROUPS, (1,) * GROUPS)
MOVES = (GroupMove(2, 0, 1), GroupMove(3, 0, 1))


class NoState:
    """A stage without states."""

    def flush_groups(self, groups):
        pass

    def adopt_groups(self, groups, location):
        return "here"


class Reports:
    def owned(self, version, groups, location):
        pass


def batch(ids, *, nullable=False, metadata=None):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=nullable)], metadata)
    return with_key_hash(pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=schema), ["id"])[0]


def keys_that_move(count, start=0):
    """Keys of groups 2 and 3, ascending."""
    keys = batch(range(start, start + 8 * count))
    groups = key_groups(keys.column(KEY_HASH_COLUMN).to_numpy(), GROUPS)
    return keys.column("id").to_numpy()[groups >= 2][:count].tolist()


@pytest.fixture
def taken():
    """What was processed."""
    return []


@pytest.fixture
def new_owner(taken):
    """Inputs 0 and 1 come by HASH, input 2 does not."""
    machine = OwnerMachine(1, TABLE, ["a"])
    ownership = Ownership(machine, NoState(), Reports(), taken.append, keyed_inputs={0, 1})
    ownership.handle(Prepare(2, MOVES))
    ownership.handle(MarkerReceived("a", 2))
    return ownership


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {"nullable": True}), ({}, {"metadata": {"origin": "x"}}), ({"nullable": True}, {})],
)
def test_rows_of_inputs_that_differ_wait_apart(new_owner, taken, first, second):
    keys = keys_that_move(40)
    inputs = [InputRows(0, batch(keys, **first)), InputRows(1, batch(keys, **second))]
    for _ in range(3):
        for rows in inputs:
            assert new_owner.admit(rows, 0) is None
    new_owner.handle(HandoverReceived(2, {2: 2}, "there"))
    assert new_owner.has_parked_rows
    new_owner.handle(HandoverReceived(2, {3: 2}, "there"))
    assert (new_owner.has_parked_rows, new_owner.parked_bytes) == (False, 0)
    for rows in inputs:
        own = [item.batch for item in taken if item.input_index == rows.input_index]
        assert all(item.schema.equals(rows.batch.schema, check_metadata=True) for item in own)
        assert sorted(n for item in own for n in item.column("id").to_pylist()) == sorted(keys * 3)


def test_rows_without_a_key_never_wait(new_owner):
    stale = batch([1, 2, 3])
    for rows in (stale, stale.drop_columns([KEY_HASH_COLUMN])):
        assert new_owner.admit(InputRows(2, rows), 0) is rows
    assert not new_owner.has_parked_rows


def test_a_schema_that_changes_keeps_the_order_of_an_input(new_owner, taken):
    [key] = keys_that_move(1)
    for number, other in enumerate(keys_that_move(6, start=100)):
        new_owner.admit(InputRows(0, batch([key, other, key, key], nullable=number % 2 == 1)), 0)
    new_owner.handle(HandoverReceived(2, {2: 2, 3: 2}, "there"))
    seen = np.concatenate([item.batch.column("id").to_numpy() for item in taken])
    assert seen[seen >= 100].tolist() == keys_that_move(6, start=100)
    assert (seen == key).sum() == 18


def test_the_watermark_of_rows_stands_still_when_some_of_them_wait(new_owner, taken):
    """Each group comes when it comes: rows of one would else find the time that rows of another have come to."""
    keys = keys_that_move(12)
    times = [1_000 + n for n in range(len(keys))]
    timed = batch(keys).append_column("_event_time_ms", pa.array(times, pa.int64()))
    assert new_owner.admit(InputRows(0, row_watermarks.with_column(timed, np.array(times))), 990) is None
    for group in (3, 2):
        new_owner.handle(HandoverReceived(2, {group: 2}, "there"))
    assert {n for item in taken for n in watermarks_of(item.batch).tolist()} == {990}
    assert sorted(n for item in taken for n in item.batch.column("_event_time_ms").to_pylist()) == times
