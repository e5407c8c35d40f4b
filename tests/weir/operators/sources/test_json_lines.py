from __future__ import annotations

import contextlib
import gzip
import json
import random

import pyarrow as pa
import pytest

from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.sources.json.json_lines import JsonLinesReader
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, Block
from weir.specs import JsonLinesSpec
from weir.testing.manual_clock import ManualClock

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("server_name", pa.string(), nullable=False)]
)


def line(number: int) -> bytes:
    return json.dumps({"id": number, "server_name": f"server-{number % 10}"}).encode()


def read(spec: JsonLinesSpec, parallelism: int = 1, dead_letters=None, **context):
    """Batches of all subtasks."""
    batches = []
    for subtask in range(parallelism):
        reader = JsonLinesReader(spec)
        reader.open(
            OperatorContext("job", "source", 0, subtask, parallelism, dead_letters=dead_letters, **context)
        )
        with contextlib.closing(reader):
            while not (poll := reader.poll(1000)).finished:
                if poll.batch is not None:
                    assert 0 < poll.batch.num_rows <= 1000
                    batches.append(poll.batch)
    return batches


def column(batches, name):
    return [value for batch in batches for value in batch.column(name).to_pylist()]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_all_lines_of_a_directory_are_read_once(tmp_path, parallelism):
    lines = [line(number) for number in range(60_000)]
    (tmp_path / "part-0").write_bytes(b"\n".join(lines[:50_000]))
    (tmp_path / "part-1.gz").write_bytes(gzip.compress(b"\n".join(lines[50_000:]) + b"\n"))
    (tmp_path / "_SUCCESS").write_bytes(b"")
    batches = read(JsonLinesSpec(schema=SCHEMA, path=str(tmp_path)), parallelism)
    ids = column(batches, "id")
    assert sorted(ids) == list(range(60_000))
    if parallelism == 1:
        assert ids == list(range(60_000))


def test_time_columns_of_an_unpaced_source(tmp_path):
    (tmp_path / "a").write_bytes(line(5) + b"\n")
    clock = ManualClock()
    spec = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path / "a"))
    (batch,) = read(spec, clock=clock)
    assert batch.schema.names == ["id", "server_name", EVENT_TIME_COLUMN, INGEST_TIME_COLUMN]
    assert column([batch], INGEST_TIME_COLUMN) == [clock.now_us()]
    assert column([batch], EVENT_TIME_COLUMN) == [clock.now_us() // 1000]
    timed = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path / "a"), event_time_column="id")
    assert column(read(timed), EVENT_TIME_COLUMN) == [5]


def test_event_time_is_needed_even_where_the_schema_allows_null(tmp_path):
    (tmp_path / "a").write_bytes(b'{"at": 1}\n{"at": null}\n{}\n')
    schema = pa.schema([pa.field("at", pa.int64())])
    path = str(tmp_path / "a")
    assert len(column(read(JsonLinesSpec(schema=schema, path=path)), "at")) == 3
    assert column(read(JsonLinesSpec(schema=schema, path=path, event_time_column="at")), "at") == [1]


def test_bad_lines_go_to_the_dead_letters_and_good_ones_on(tmp_path):
    """The bar of the issue: fuzzed lines among good ones, none lost, none slips through."""
    rng = random.Random(7)
    bad = [
        lambda: bytes(rng.choice([b for b in range(256) if b != 10]) for _ in range(40)),
        lambda: line(1)[: rng.randrange(1, 20)],
        lambda: b'{"id": "1", "server_name": "a"}',
        lambda: b'{"id": 1, "server_name": {"a": [1]}}',
        lambda: b'{"id": 1, "server_name": "\xe2\x82"}',
        lambda: b'{"a":' * 5000,
        lambda: b'{"id": 1.5, "server_name": "a"}',
    ]
    expected_positions, raw, good = [], bytearray(), 0
    for number in range(33_000):
        if number % 11 == 3:
            text = rng.choice(bad)()
            if not text.strip(b" \t\r"):
                continue
            expected_positions.append(len(raw))
        else:
            text, good = line(number), good + 1
        raw += text + b"\n"
        if number == 20_000:
            expected_positions.append(len(raw))
            raw += b'{"id": 1, "server_name": "' + b"x" * (50 << 20) + b'"}\n'
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(raw)
    letters = DeadLetterFile(tmp_path / "dead", "job", "source", 0)
    batches = read(JsonLinesSpec(schema=SCHEMA, path=str(path)), 2, letters)
    letters.close()
    assert len(column(batches, "id")) == good
    entries = [json.loads(text) for text in letters.path.read_bytes().splitlines()]
    assert letters.rejected == len(entries)
    assert sorted(entry["position"] for entry in entries) == expected_positions
    (huge,) = [entry for entry in entries if entry["length"] > 1 << 20]
    assert huge["truncated"]
    assert len(huge["raw"]) <= 4096
    assert "line_bytes_max" in huge["reason"]
    assert huge["length"] >= 50 << 20


def test_job_can_stop_at_the_first_bad_line(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(line(1) + b"\n{}\n")
    with pytest.raises(InputError, match=f"{path} at byte {len(line(1)) + 1}: field id is missing"):
        read(JsonLinesSpec(schema=SCHEMA, path=str(path), on_bad_record="fail"))


@pytest.fixture(scope="module")
def many_lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "a"
    path.write_bytes(b"".join(line(number) + b"\n" for number in range(70_000)))
    return path


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("events", [0, 1, 100, 69_999, 70_000, 90_000])
def test_event_limit_holds_over_all_subtasks(many_lines, parallelism, events):
    spec = JsonLinesSpec(schema=SCHEMA, path=str(many_lines), events_max=events)
    assert len(column(read(spec, parallelism), "id")) == min(events, 70_000)


def test_absent_input_is_found_at_open(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(JsonLinesSpec(schema=SCHEMA, path=str(tmp_path / "absent")))


OBJECTS = b'{"id": 1, "server_name": "a"},\n {"id": 2, "server_name": "b"}'


@pytest.mark.parametrize(
    "content",
    [
        b"[" + OBJECTS + b"]",
        b"\xef\xbb\xbf\n [\n " + OBJECTS + b"\n]\n",
        b"[" + OBJECTS.replace(b"\n", b"") + b"]\n",
        b"[" + OBJECTS.replace(b"\n", b"") * 9000 + b"]\n",
        b"[]",
    ],
)
def test_a_file_that_is_one_array_is_refused_with_the_mend(tmp_path, content):
    (tmp_path / "a day.json").write_bytes(content)
    spec = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path), line_bytes_max=1 << 18)
    with pytest.raises(InputError, match=r"a day\.json is one JSON array.*jq -c '\.\[\]' '.*a day\.json'$"):
        read(spec)


def test_lines_that_are_arrays_are_dead_letters_like_others(tmp_path):
    good = line(3)
    for number, bad in enumerate((b'[{"id": 1}]', b"[]", b"[2026-11-23 10:00] INFO {", b'["a",')):
        (tmp_path / f"{number}.json").write_bytes(bad + b"\n" + good + b"\n")
    letters = Letters()
    assert (
        column(read(JsonLinesSpec(schema=SCHEMA, path=str(tmp_path)), dead_letters=letters), "id") == [3] * 4
    )
    assert len(letters.reasons) == 4
    assert "array;" not in "".join(letters.reasons)


def test_a_source_that_follows_tells_of_an_array_and_goes_on(tmp_path):
    (tmp_path / "a.json").write_bytes(b"[" + OBJECTS + b"]")
    (tmp_path / "b.json").write_bytes(line(3) + b"\n")
    letters, reader = (
        Letters(),
        JsonLinesReader(JsonLinesSpec(schema=SCHEMA, path=str(tmp_path), follow=True)),
    )
    reader.open(OperatorContext("job", "source", 0, 0, 1, dead_letters=letters))
    with contextlib.closing(reader):
        while (poll := reader.poll(1000)).batch is None:
            pass
    assert poll.batch.column("id").to_pylist() == [3]
    assert ["is one JSON array; make lines of it" in reason for reason in letters.reasons] == [True, False]


class Letters:
    """Dead letters in memory."""

    def __init__(self):
        self.reasons = []

    def reject(self, source, position, reason, raw, length_bytes=None):
        self.reasons.append(reason)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_snapshot_after_a_block_was_prepared_goes_on_with_its_first_row(tmp_path, blocks):
    bad = {9_000, 9_001}
    lines = [b"bad" if number in bad else line(number) for number in range(20_000)]
    (tmp_path / "part-0").write_bytes(b"\n".join(lines))
    spec = JsonLinesSpec(schema=SCHEMA, path=str(tmp_path), rate=100_000.0)
    clock, restored, ids, prepared = ManualClock(), {}, [], 0
    start_us = clock.now_us()
    for is_first in (True, False):
        reader = JsonLinesReader(spec)
        reader.look_ahead(lambda block: Block(block))
        reader.open(OperatorContext("j", "s", 0, 0, 1, job_start_us=start_us, clock=clock, restored=restored))
        while not (poll := reader.poll(10_000)).finished:
            if poll.due is not None:
                ids += poll.due.block.columns.column("id").to_pylist()[poll.due.start : poll.due.stop]
            if poll.next_poll_us > clock.now_us():
                prepared += reader.prepare() is not None
                if is_first and prepared == blocks:
                    break
                clock.advance_ms((poll.next_poll_us - clock.now_us() + 0.5) / 1000)
        restored = {0: reader.snapshot()}
        reader.close()
    assert prepared > blocks
    assert ids == [number for number in range(20_000) if number not in bad]
