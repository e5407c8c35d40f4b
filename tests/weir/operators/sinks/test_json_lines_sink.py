from __future__ import annotations

import datetime as dt
import json
import random

import polars as pl
import pyarrow as pa
import pytest

from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import InputError, StateError
from weir.operators.registry import create_operator
from weir.operators.sinks.text_parts import frame_lines
from weir.rows.records import with_system_columns
from weir.specs import JsonLinesSinkSpec


def batch(*ids):
    return with_system_columns(pa.record_batch({"id": pa.array(ids), "s": [f'"{n}" é' for n in ids]}), 1, 2)


def opened(directory, index=0, *, generation=1, restored=None, indices=(0,)):
    sink = create_operator(JsonLinesSinkSpec(str(directory)))
    sink.open(
        OperatorContext(
            "job",
            "out",
            1,
            index,
            len(indices),
            generation=generation,
            restored=restored or {},
            subtask_indices=indices,
        )
    )
    return sink


def snapshot(sink, checkpoint):
    """As it comes back from a manifest."""
    return json.loads(json.dumps(sink.snapshot(checkpoint)))


def visible(directory):
    """Ids by part name, in the order of names."""
    return {
        path.name: [json.loads(line)["id"] for line in path.read_text().splitlines()]
        for path in sorted(directory.glob("part-*.jsonl"))
    }


def ids(directory):
    return [number for part in visible(directory).values() for number in part]


def hidden(directory):
    return sorted(path.name for path in directory.glob(".*"))


def test_rows_appear_with_the_checkpoint_that_covers_them(tmp_path):
    out = tmp_path / "deep" / "out"
    sink = opened(out, 2, indices=(0, 1, 2))
    sink.process(batch(1, 2))
    sink.flush()
    sink.process(batch(3))
    sink.snapshot(1)
    sink.process(batch(4))
    assert visible(out) == {}
    sink.commit(1)
    assert visible(out) == {"part-00002-000001-00000001.jsonl": [1, 2, 3]}
    sink.snapshot(2)
    sink.snapshot(3)
    sink.process(batch(5))
    # Checkpoint 2 was given up; 3 covers its rows. Nothing came between them, so there is no empty part.
    sink.commit(3)
    assert ids(out) == [1, 2, 3, 4]
    sink.finish()
    sink.snapshot(0)
    sink.close()
    sink.commit(3)
    assert ids(out) == [1, 2, 3, 4]
    sink.commit(0)
    sink.commit(0)
    assert visible(out) == {
        "part-00002-000001-00000001.jsonl": [1, 2, 3],
        "part-00002-000001-00000002.jsonl": [4],
        "part-00002-000001-00000003.jsonl": [5],
    }
    assert hidden(out) == []
    first = (out / "part-00002-000001-00000001.jsonl").read_text().splitlines()[0]
    assert json.loads(first) == {"id": 1, "s": '"1" é'}


def test_a_snapshot_lists_what_is_not_known_to_be_committed(tmp_path):
    sink = opened(tmp_path)
    assert snapshot(sink, 1) == {"kind": "two_phase_sink", "version": 1, "generation": 1, "transactions": []}
    sink.process(batch(1))
    snapshot(sink, 2)
    sink.process(batch(2))
    names = ["part-00000-000001-00000001.jsonl", "part-00000-000001-00000002.jsonl"]
    assert snapshot(sink, 3)["transactions"] == [[2, {"name": names[0]}], [3, {"name": names[1]}]]
    sink.commit(2)
    assert snapshot(sink, 4)["transactions"] == [[3, {"name": names[1]}]]


def test_a_restart_commits_what_is_listed_and_drops_the_rest(tmp_path):
    indices = (0, 1)
    sinks = [opened(tmp_path, index, indices=indices) for index in indices]
    for index, sink in enumerate(sinks):
        sink.process(batch(10 + index))
    restored = {index: snapshot(sink, 1) for index, sink in enumerate(sinks)}
    for index, sink in enumerate(sinks):
        sink.process(batch(20 + index))
        sink.snapshot(2)
        sink.process(batch(30 + index))
        sink.flush()
    assert ids(tmp_path) == []
    # One subtask is enough for all: the lowest one.
    sink = opened(tmp_path, 0, generation=2, restored=restored, indices=(0,))
    assert ids(tmp_path) == [10, 11]
    assert hidden(tmp_path) == []
    sink.process(batch(20, 21))
    sink.snapshot(3)
    sink.commit(3)
    assert ids(tmp_path) == [10, 20, 21, 11]
    assert sorted(visible(tmp_path))[1] == "part-00000-000002-00000001.jsonl"
    # Each subtask commits its own too, and a second time does no harm.
    opened(tmp_path, 1, generation=3, restored=restored, indices=(0, 1))
    assert ids(tmp_path) == [10, 20, 21, 11]
    for zombie in sinks:
        zombie.close()


def test_a_replaced_deployment_makes_nothing_visible(tmp_path):
    zombie = opened(tmp_path)
    zombie.process(batch(1))
    restored = {0: snapshot(zombie, 1)}
    zombie.process(batch(2))
    zombie.snapshot(2)
    zombie.process(batch(3))
    successor = opened(tmp_path, generation=2, restored=restored)
    successor.process(batch(2))
    # It wakes up, writes on, is told of checkpoints that it took part in, and of one that it did not.
    zombie.process(batch(4))
    zombie.snapshot(3)
    zombie.commit(1)
    zombie.commit(2)
    assert ids(tmp_path) == [1]
    zombie.process(batch(5))
    zombie.close()
    successor.snapshot(4)
    successor.commit(4)
    assert ids(tmp_path) == [1, 2]
    successor.close()
    third = opened(tmp_path, generation=3, restored={0: snapshot(successor, 5)})
    assert ids(tmp_path) == [1, 2]
    assert hidden(tmp_path) == []
    third.close()


@pytest.mark.parametrize("seed", range(cases(15)))
def test_each_row_once_and_in_order_whatever_happens(tmp_path, seed):
    """Checkpoints, commits that come late or never, deaths, and a sleeper behind: 30 random runs."""
    random_ = random.Random(seed)
    generation, checkpoint, next_row = 1, 0, 0
    sink, zombies = opened(tmp_path), []
    # What the last manifest holds: the snapshot, and the first row that comes again.
    manifest = None
    taken = {}
    for _ in range(60):
        event = random_.random()
        if event < 0.5:
            sink.process(batch(next_row))
            next_row += 1
        elif event < 0.7:
            checkpoint += 1
            taken = {checkpoint: (snapshot(sink, checkpoint), next_row)}
        elif event < 0.9:
            for number, state in taken.items():
                manifest = state
                if random_.random() < 0.7:
                    sink.commit(number)
            taken = {}
        elif manifest is not None:
            zombies.append((sink, checkpoint))
            generation += 1
            sink = opened(tmp_path, generation=generation, restored={0: manifest[0]})
            next_row, taken = manifest[1], {}
        for zombie, _ in zombies:
            if random_.random() < 0.1:
                zombie.process(batch(-1))
                zombie.snapshot(checkpoint + 1000)
    sink.snapshot(0)
    sink.commit(0)
    assert ids(tmp_path) == list(range(next_row))
    for each, _ in [*zombies, (sink, 0)]:
        each.close()


def test_a_fresh_start_refuses_visible_parts_and_drops_pending_ones(tmp_path):
    crashed = opened(tmp_path)
    crashed.process(batch(1))
    crashed.snapshot(1)
    crashed.close()
    sink = opened(tmp_path)
    assert hidden(tmp_path) == []
    sink.process(batch(2))
    sink.snapshot(0)
    sink.commit(0)
    with pytest.raises(
        InputError, match=r"sink '.*': .*part-00000-.*\.jsonl exists already, from an earlier run; remove all"
    ):
        opened(tmp_path)
    # A subtask that joins the running job finds parts of this run.
    opened(tmp_path, 5)
    assert ids(tmp_path) == [2]


def test_a_second_start_from_a_savepoint_refuses_what_the_first_one_wrote(tmp_path):
    stopped = opened(tmp_path)
    stopped.process(batch(1))
    savepoint = {0: snapshot(stopped, 1)}
    stopped.commit(1)
    first = opened(tmp_path, generation=2, restored=savepoint)
    first.process(batch(2))
    again = {0: snapshot(first, 2)}
    first.commit(2)
    with pytest.raises(
        InputError, match=r"part-00000-000002-.*\.jsonl is of another run .*; choose another dir"
    ):
        opened(tmp_path, generation=2, restored=savepoint)
    opened(tmp_path, generation=3, restored=again)
    assert ids(tmp_path) == [1, 2]


def test_a_foreign_or_later_checkpoint_is_refused(tmp_path):
    sink = opened(tmp_path, generation=4)
    state = snapshot(sink, 1)
    with pytest.raises(StateError, match="generation 4, this deployment has only generation 4"):
        opened(tmp_path, generation=4, restored={0: state})
    with pytest.raises(StateError, match="something else than transactions of version 1"):
        opened(tmp_path, generation=5, restored={0: state | {"version": 2}})
    with pytest.raises(StateError, match="something else"):
        opened(tmp_path, generation=5, restored={0: {"kind": "latency_sink", "version": 1}})


def test_an_unwritable_directory_is_one_clear_line():
    with pytest.raises(InputError, match=r"cannot write to /proc/nothing: .*; make room there, or choose"):
        opened("/proc/nothing")


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_directory_that_is_a_file_is_told_of(tmp_path, below):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match=r"out is a file; name a directory$"):
        opened(tmp_path / "out" / below)


def test_times_of_zones_that_were_no_whole_minutes_from_utc_are_in_utc_in_lists_and_structs():
    old, new = dt.datetime(1880, 1, 1), dt.datetime(2026, 1, 1)
    frame = pl.DataFrame({"t": [old, new]}).with_columns(pl.col("t").dt.replace_time_zone("Europe/Berlin"))
    frame = frame.select(
        s=pl.struct("t"),
        l=pl.concat_list("t", "t"),
        deep=pl.concat_list(pl.struct(a=pl.concat_list("t"))),
        new=new,
    )
    frame = pl.concat([frame, frame.clear(1)])
    lines = list(map(json.loads, frame_lines(frame).splitlines()))
    texts = [(line["s"]["t"], *line["l"], line["deep"][0]["a"][0]) for line in lines[:2]]
    assert [
        [dt.datetime.fromisoformat(text).astimezone(dt.UTC).isoformat() for text in row] for row in texts
    ] == [["1879-12-31T23:06:32+00:00"] * 4, ["2025-12-31T23:00:00+00:00"] * 4]
    assert lines[2] == dict.fromkeys(frame.columns)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_years_that_texts_cannot_say_are_told(zone):
    """Polars panics at them."""
    frame = pl.DataFrame({"t": pl.Series([9 * 10**18]).cast(pl.Datetime("us", zone))})
    with pytest.raises(InputError, match="its year is beyond 262,000; filter such rows out before the sink"):
        frame_lines(frame)
