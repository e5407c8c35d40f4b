"""A directory that is followed: each file once, over restarts too, whatever the number of subtasks."""

from __future__ import annotations

import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import GraphError, InputError
from weir.operators.registry import create_reader
from weir.operators.sources.files.local_input import LOCAL_INPUT
from weir.testing.manual_clock import ManualClock

START_US = 1_700_000_000_000_000
SCHEMA = {"id": int}


def add_lines(directory, name, ids):
    """Appear as a whole."""
    hidden = directory / f".{name}"
    hidden.write_text("".join(f'{{"id": {number}}}\n' for number in ids))
    hidden.rename(directory / name)


def add_table(directory, name, ids):
    pq.write_table(pa.table({"id": list(ids)}), directory / f".{name}", row_group_size=4)
    (directory / f".{name}").rename(directory / name)


def add_records(directory, name, ids):
    """With a field of two lines in each."""
    (directory / f".{name}").write_text("id,text\n" + "".join(f'{number},"a\nb"\n' for number in ids))
    (directory / f".{name}").rename(directory / name)


def add_batches(directory, name, ids):
    """As a file or as a stream."""
    table = pa.table({"id": list(ids)})
    make = pa.ipc.new_file if len(table) % 2 else pa.ipc.new_stream
    with make(str(directory / f".{name}"), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    (directory / f".{name}").rename(directory / name)


#: Runs of the test.
OPEN = []


@pytest.fixture(autouse=True)
def _close_runs():
    yield
    while OPEN:
        OPEN.pop().close()


class Run:
    """All subtasks of a source in one process."""

    def __init__(self, source, parallelism=1, restored=None, clock=None):
        OPEN.append(self)
        self.clock = clock or ManualClock(START_US)
        self.ids, self.days, self.finished = [], [], 0
        self.readers = []
        for index in range(parallelism):
            reader = create_reader(source.to_spec())
            reader.open(
                OperatorContext(
                    "job",
                    "source",
                    0,
                    index,
                    parallelism,
                    job_start_us=START_US,
                    clock=self.clock,
                    restored=restored or {},
                    subtask_indices=tuple(range(parallelism)),
                )
            )
            self.readers.append(reader)

    def read(self, polls=200, rows_max=1000, seed=0):
        dice = random.Random(seed)
        for _ in range(polls):
            poll = dice.choice(self.readers).poll(rows_max)
            self.finished += poll.finished
            if poll.batch is not None:
                self.ids += poll.batch.column("id").to_pylist()
                if "day" in poll.batch.schema.names:
                    self.days += poll.batch.column("day").to_pylist()
            if poll.next_poll_us:
                self.clock.advance_ms(100)
        return self

    def close(self):
        for reader in self.readers:
            reader.close()

    def stop(self):
        snapshots = {index: reader.snapshot() for index, reader in enumerate(self.readers)}
        self.close()
        return {index: json.loads(json.dumps(snapshot)) for index, snapshot in snapshots.items()}


KINDS = [
    (weir.JsonLines, add_lines, "jsonl"),
    (weir.Parquet, add_table, "parquet"),
    (weir.Csv, add_records, "csv"),
    (weir.ArrowIpc, add_batches, "arrow"),
]


@pytest.mark.parametrize(("source", "add", "suffix"), KINDS)
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("seed", range(cases(3)))
def test_each_file_is_read_once_over_restarts(tmp_path, source, add, suffix, after, seed):
    described = source(str(tmp_path), schema=SCHEMA, follow=True)
    dice = random.Random(seed)
    written = 0

    def add_some():
        nonlocal written
        for _ in range(dice.randrange(5)):
            rows = dice.randrange(1, 12)
            add(tmp_path, f"{dice.randrange(1000)}-{written}.{suffix}", range(written, written + rows))
            written += rows

    add_some()
    run = Run(described, 2)
    found = []
    for parallelism in (2, after, 2):
        add_some()
        run.read(dice.randrange(40), rows_max=3, seed=seed)
        found += run.ids
        run = Run(described, parallelism, run.stop(), run.clock)
        add_some()
    found += run.read(300).ids
    assert sorted(found) == list(range(written))
    assert run.finished == 0


@pytest.mark.parametrize(("source", "add", "suffix"), KINDS)
def test_folders_that_turn_up_are_columns_over_restarts_too(tmp_path, source, add, suffix):
    described = source(f"{tmp_path}/**/*.{suffix}", schema={**SCHEMA, "day": int}, follow=True)
    run, found = Run(described), []
    for day in range(3):
        (tmp_path / f"day={day}").mkdir()
        add(tmp_path / f"day={day}", f"a.{suffix}", range(10 * day, 10 * day + 9))
        # To somewhere within a file.
        run.read(7 + day, rows_max=2)
        found += zip(run.ids, run.days, strict=True)
        run = Run(described, 1, run.stop(), run.clock)
    run.read(60)
    found += zip(run.ids, run.days, strict=True)
    assert sorted(found) == [(10 * day + place, day) for day in range(3) for place in range(9)]
    (tmp_path / "day=x").mkdir()
    add(tmp_path / "day=x", f"a.{suffix}", [1])
    with pytest.raises(InputError, match=rf"day=x/a.{suffix}: column day is 'x' by its folder"):
        run.read(40)


def test_after_a_look_that_waited_long_for_its_answer_as_much_time_is_for_rows(tmp_path, monkeypatch):
    add_lines(tmp_path, "a", [1])
    run = Run(weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True)).read(2)
    find = LOCAL_INPUT.find

    def find_slowly(*arguments):
        run.clock.advance_ms(7_000)
        return find(*arguments)

    run.clock.advance_ms(1_000)
    monkeypatch.setattr(type(LOCAL_INPUT), "find", lambda self, *arguments: find_slowly(*arguments))
    poll = run.readers[0].poll(10)
    assert poll.next_poll_us == run.clock.now_us() + 7_000_000


def test_files_of_one_look_come_in_the_order_of_their_names(tmp_path):
    for name in "cab":
        add_lines(tmp_path, name, [ord(name)])
    run = Run(weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True)).read(20)
    add_lines(tmp_path, "A", [0])
    assert run.read(40).ids == [*b"abc", 0]


@pytest.mark.parametrize(("source", "add", "suffix"), KINDS)
def test_files_of_one_look_come_in_the_order_of_their_times(tmp_path, source, add, suffix):
    for place, name in enumerate("bca"):
        add(tmp_path, name, [ord(name)])
        os.utime(tmp_path / name, (place, place))
    run = Run(source(str(tmp_path), schema=SCHEMA, follow=True, order="modified"))
    assert run.read(20).ids == [*b"bca"]


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


@pytest.mark.parametrize("seed", range(cases(8)))
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_files_that_grow_are_read_line_by_line_over_restarts(tmp_path, kind, seed):
    dice = random.Random(seed)
    described = weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True, grows=True)
    if kind == "csv":
        described = weir.Csv(str(tmp_path), schema=SCHEMA, follow=True, grows=True, quoted_newlines=False)
    written, waiting = 0, {}

    def grow():
        """Add some bytes to some files, seldom whole lines."""
        nonlocal written
        for _ in range(dice.randrange(4)):
            path = tmp_path / dice.choice("abc")
            text = waiting.pop(path, "")
            if kind == "csv" and not text and not path.exists():
                text = "other,id\n"
            for _ in range(dice.randrange(4)):
                text += f'{{"id": {written}}}\n' if kind == "jsonl" else f",{written}\n"
                written += 1
            cut = dice.randrange(len(text) + 1)
            append(path, text[:cut])
            if text[cut:]:
                waiting[path] = text[cut:]

    run, found = Run(described, 2), []
    for _ in range(6):
        grow()
        run.read(dice.randrange(40), rows_max=2, seed=seed)
        grow()
        found += run.ids
        run = Run(described, dice.choice([1, 2, 3]), run.stop(), run.clock)
    for path, text in waiting.items():
        append(path, text)
    assert sorted(found + run.read(400).ids) == list(range(written))


def test_a_file_that_grows_may_neither_shrink_nor_change(tmp_path):
    described = weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True, grows=True)
    append(tmp_path / "a", '{"id": 1}\n{"id": 2}\n')
    run = Run(described).read(10)
    stopped = run.stop()
    (tmp_path / "a").write_text('{"id": 1}\n{"id": 3}\n{"id": 4}\n')
    with pytest.raises(InputError, match="has changed since the checkpoint: other content"):
        Run(described, 1, stopped)
    (tmp_path / "a").write_text('{"id": 1}\n{"id": 2}\n')
    run = Run(described, 1, stopped).read(10)
    assert run.ids == []
    (tmp_path / "a").write_text('{"id": 1}\n')
    with pytest.raises(InputError, match="a has become shorter: 20 bytes were read of it, and it has 10"):
        run.read(50)


@pytest.mark.parametrize("restarts", [False, True])
def test_another_file_in_place_of_one_that_grows_is_told_of(tmp_path, restarts):
    """Its lines may be as long, so that one begins where the file before was read to."""
    described = weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True, grows=True)
    append(tmp_path / "a", '{"id": 1}\n{"id": 2}\n')
    run = Run(described).read(10)
    if restarts:
        run = Run(described, 1, run.stop(), run.clock)
    add_lines(tmp_path, "a", [3, 4, 5])
    with pytest.raises(InputError, match="a has other content than before: 20 bytes were read of it"):
        run.read(50)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grows": True}, "give follow=True"),
        ({"order": "size"}, "order is 'size'; it is 'name' or 'modified'"),
    ],
)
def test_settings_of_following(settings, message):
    with pytest.raises(GraphError, match=message):
        weir.JsonLines("in", schema=SCHEMA, **settings).to_spec()
    with pytest.raises(GraphError, match="give quoted_newlines=False"):
        weir.Csv("in", schema=SCHEMA, follow=True, grows=True).to_spec()


def test_hidden_and_empty_files_wait(tmp_path):
    (tmp_path / ".later").write_text('{"id": 1}\n')
    (tmp_path / "begun").touch()
    run = Run(weir.JsonLines(f"{tmp_path}/*", schema=SCHEMA, follow=True)).read()
    assert run.ids == []
    (tmp_path / ".later").rename(tmp_path / "now")
    (tmp_path / "begun").write_text('{"id": 2}\n')
    assert run.read().ids == [2, 1]


def test_what_is_added_to_a_file_after_it_was_found_is_not_read(tmp_path):
    add_lines(tmp_path, "a", range(3))
    described = weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True)
    run = Run(described)
    with open(tmp_path / "a", "a") as file:
        file.write('{"id": 3}\n')
    assert run.read().ids == [0, 1, 2]
    assert Run(described, 1, run.stop()).read().ids == []


def test_a_file_that_was_removed_is_forgotten_unless_all_are_away(tmp_path):
    add_lines(tmp_path, "a", [1])
    run = Run(weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True)).read()

    def done():
        return [path.rpartition("/")[2] for path in run.readers[0].snapshot()["done"]]

    assert done() == ["a"]
    (tmp_path / "a").rename(tmp_path / ".away")
    run.read()
    assert done() == ["a"]
    (tmp_path / ".away").rename(tmp_path / "a")
    run.read()
    assert run.ids == [1]
    (tmp_path / "a").unlink()
    add_lines(tmp_path, "b", [2])
    run.read()
    assert done() == ["b"]
    add_lines(tmp_path, "a", [3])
    assert run.read().ids == [1, 2, 3]


def test_limit_and_rate(tmp_path):
    add_lines(tmp_path, "a", range(100))
    run = Run(weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True, events=20)).read(5)
    assert run.ids == list(range(20))
    assert run.finished
    paced = Run(weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True, rate=1000))
    assert paced.read().ids == list(range(100))


def test_a_checkpoint_of_a_source_that_did_not_follow_is_refused(tmp_path):
    add_lines(tmp_path, "a", range(3))
    snapshots = Run(weir.JsonLines(str(tmp_path), schema=SCHEMA)).read().stop()
    with pytest.raises(InputError, match="made without follow=True"):
        Run(weir.JsonLines(str(tmp_path), schema=SCHEMA, follow=True), 1, snapshots)


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match="there is no such file or directory"):
        Run(weir.JsonLines(str(tmp_path / "absent"), schema=SCHEMA, follow=True))
    with pytest.raises(GraphError, match="follow is 'yes'; it is True or False"):
        weir.JsonLines("in", schema=SCHEMA, follow="yes").to_spec()
