"""Rows that barriers overtook: what is read is what was written, with the input that it came from.

The files in ``tests/golden/rows`` are never changed: files of that form are in users' checkpoints.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.rows import load_rows, save_rows
from weir.errors import CheckpointError
from weir.keys.hashing import key_groups
from weir.plan.restored_rows import rows_of_subtask
from weir.plan.stages import physical_graph
from weir.protocol.routing import initial_table
from weir.rows.records import KEY_HASH_COLUMN, InputRows

GOLDEN = Path(__file__).parents[2] / "golden" / "rows"


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.open(str(tmp_path / "checkpoints"), "job")


def batch(ids, *, nullable=False, metadata=None, hashed=True):
    columns = {"id": (pa.int64(), ids, nullable), "_event_time_ms": (pa.int64(), [1] * len(ids), False)}
    columns["_ingest_time_us"] = (pa.int64(), [2] * len(ids), False)
    if hashed:
        hashes = [number << 60 for number in range(len(ids))]
        columns[KEY_HASH_COLUMN] = (pa.uint64(), hashes, False)
    fields = [pa.field(name, kind, nullable=null) for name, (kind, _, null) in columns.items()]
    arrays = [pa.array(values, kind) for kind, values, _ in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata))


def shown(rows):
    return [(item.input_index, item.batch.column("id").to_pylist()) for item in rows]


def test_rows_come_back_with_their_input_and_their_schema(store):
    rows = [
        InputRows(0, batch([1, 2])),
        InputRows(2, batch([3, None], nullable=True)),
        InputRows(0, batch([4])),
        InputRows(1, batch([5])),
        InputRows(0, batch([6], metadata={"origin": "x"})),
        InputRows(0, batch([7])),
    ]
    again = load_rows(store, save_rows(store, 3, "rows", rows))
    assert not any(item.in_time for item in again)
    # Those of each input are in order.
    assert shown(again) == [(0, [1, 2]), (0, [4]), (2, [3, None]), (1, [5]), (0, [6]), (0, [7])]
    for item in again:
        [written] = [other for other in rows if other.batch.column("id").equals(item.batch.column("id"))]
        assert item.batch.schema.equals(written.batch.schema, check_metadata=True)


def test_rows_say_whether_their_watermarks_are_of_all_inputs(store):
    rows = [InputRows(0, batch([1]), in_time=True), InputRows(0, batch([2])), InputRows(1, batch([3]))]
    again = load_rows(store, save_rows(store, 3, "rows", rows))
    assert [(item.input_index, item.in_time) for item in again] == [(0, True), (0, False), (1, False)]
    assert again[0].batch.equals(rows[0].batch, check_metadata=True)


def stored(store, name):
    return store.publish(GOLDEN / name, f"files/000000000003/rows/{name}")


def test_files_of_older_versions_have_no_inputs_and_are_read(store):
    files = [stored(store, f"overtaken_v1-{number}.arrow") for number in range(2)]
    rows = load_rows(store, files)
    assert shown(rows) == [(0, [1, 2]), (0, [4]), (0, [3, None])]
    assert [item.batch.schema.field("id").nullable for item in rows] == [False, False, True]


def test_files_of_today_stay_readable(store):
    [item] = load_rows(store, [stored(store, "overtaken_v2-0.arrow")])
    assert shown([item]) == [(1, [3, None])]
    assert item.batch.schema.equals(
        batch([], nullable=True, metadata={"origin": "x"}).schema, check_metadata=True
    )


def test_todays_files_have_the_form_of_the_golden_one(store, tmp_path):
    rows = [InputRows(1, batch([3, None], nullable=True, metadata={"origin": "x"}))]
    [file] = save_rows(store, 3, "rows", rows)
    store.fetch(file, tmp_path / "rows.arrow")
    # The bytes depend on the version of Arrow.
    written, golden = (
        pa.ipc.open_file(path).read_all()
        for path in (tmp_path / "rows.arrow", GOLDEN / "overtaken_v2-0.arrow")
    )
    assert written.equals(golden, check_metadata=True)
    assert written.schema.metadata[b"weir.input_index"] == b"1"


def test_a_damaged_file_is_named(store, tmp_path):
    (tmp_path / "damaged").write_bytes(b"not arrow")
    file = store.publish(tmp_path / "damaged", "files/000000000003/rows/damaged")
    with pytest.raises(CheckpointError, match=r"checkpoint file files/.*/damaged is damaged"):
        load_rows(store, [file])


@pytest.fixture
def union():
    """A stage with two inputs by key and one without."""
    flow = weir.Dataflow("union", max_parallelism=4)
    streams = [flow.source(name, weir.JsonLines(name, schema={"id": int})) for name in "abc"]
    both = (
        streams[0].key_by("id").union("all", streams[1].key_by("id"), streams[2].rebalance(), parallelism=2)
    )
    both.sink("out", weir.Blackhole())
    return next(stage for stage in physical_graph(flow.build()).stages if stage.name.startswith("all"))


def test_rows_go_to_the_owners_of_their_groups_and_those_without_to_the_lowest_subtask(union):
    table = initial_table(union.index, 2, 4)
    rows = [
        InputRows(0, batch(list(range(10)))),
        InputRows(1, batch(list(range(10, 20)), nullable=True)),
        InputRows(2, batch([20], hashed=False)),
    ]
    mine = [rows_of_subtask(rows, union, table, index) for index in (0, 1)]
    for index, part in enumerate(mine):
        for item in part[:2]:
            groups = key_groups(item.batch.column(KEY_HASH_COLUMN).to_numpy(), 4)
            assert set(table.group_to_subtask[groups]) == {index}
    assert [[item.input_index for item in part] for part in mine] == [[0, 1, 2], [0, 1]]
    assert sorted(n for part in mine for _, ids in shown(part) for n in ids) == list(range(21))


def test_rows_of_an_input_that_is_gone_are_those_of_the_first_one(union):
    fewer = dataclasses.replace(union, inputs=union.inputs[:1])
    rows = [InputRows(1, batch([1])), InputRows(0, batch([2]))]
    table = initial_table(union.index, 1, 4)
    assert shown(rows_of_subtask(rows, fewer, table, 0)) == [(0, [1]), (0, [2])]


def wide(names):
    arrays = [pa.array([1, 2]) for _ in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def test_rows_of_a_checkpoint_have_the_columns_that_are_read_now(union):
    [stage] = [
        dataclasses.replace(
            union, inputs=(dataclasses.replace(union.inputs[2], index=0, columns=("a", "b")),)
        )
    ]
    more = InputRows(0, wide(["x", "b", "a", "_event_time_ms", "_ingest_time_us"]))
    [item] = rows_of_subtask([more], stage, None, 0)
    assert item.batch.schema.names == ["a", "b", "_event_time_ms", "_ingest_time_us"]
    fewer = InputRows(0, wide(["a", "_event_time_ms", "_ingest_time_us"]))
    with pytest.raises(
        CheckpointError, match=r"rows under way to step 'all' without column 'b', which nothing"
    ):
        rows_of_subtask([fewer], stage, None, 0)


def test_rows_that_were_added_up_for_a_step_that_is_gone_are_refused(union):
    part = InputRows(0, wide(["id", "_key_part"]))
    with pytest.raises(CheckpointError, match=r"step 'all' that were added up for another step; .*savepoint"):
        rows_of_subtask([part], union, None, 0)
    # An aggregate looks itself at what they were added up for.
    flow = weir.Dataflow("sums")
    rows = flow.source("in", weir.JsonLines("in", schema={"id": int}))
    rows.key_by("id").aggregate("sums", n=weir.count()).sink("out", weir.Blackhole())
    stage = physical_graph(flow.build()).stages[-1]
    assert rows_of_subtask([part], stage, None, 0)[0].batch.schema.names == ["id", "_key_part"]


def test_rows_that_wait_for_a_step_go_where_their_keys_are_or_stay_together(store):
    flow = weir.Dataflow("job", max_parallelism=8)
    source = flow.source(
        "in", weir.JsonLines("in", schema={"id": int, "t": int}, event_time="t"), parallelism=1
    )
    counted = source.key_by("id").count("n", parallelism=2)
    counted.map("behind", dict, {"n": int}).sink("out", weir.JsonLinesSink("out"))
    stage = physical_graph(flow.build()).stages[1]
    assert [node.name for node in stage.nodes][1] == "behind"
    table = initial_table(stage.index, 2, 8)
    by_key = InputRows(
        0, batch(range(30), hashed=False), step=stage.nodes[0].name, known_ms=70, subtask_index=1
    )
    without = InputRows(0, batch([1, 2]), step="behind", known_ms=-(2**63), subtask_index=1)
    rows = load_rows(store, save_rows(store, 3, "rows", [by_key, without, InputRows(0, batch([8]))]))
    assert [(item.step, item.known_ms, item.subtask_index) for item in rows[:2]] == [
        (stage.nodes[0].name, 70, 1),
        ("behind", -(2**63), 1),
    ]
    assert not rows[2].step
    parts = [rows_of_subtask(rows[:2], stage, table, index) for index in range(2)]
    assert [[item.step for item in part] for part in parts] == [
        [stage.nodes[0].name],
        [stage.nodes[0].name, "behind"],
    ]
    found = [part[0].batch.column("id").to_pylist() for part in parts]
    assert all(found)
    assert sorted(found[0] + found[1]) == list(range(30))
