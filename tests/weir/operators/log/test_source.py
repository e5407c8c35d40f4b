"""Positions, ends, bad records and brokers that go, with real brokers."""

import datetime as dt
import json
import time

import pytest

import weir
import weir.log
from experiments.log_cluster import LogCluster
from weir.author.operator import OperatorContext
from weir.errors import FailureKind, InputError
from weir.log import reader
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.log import topics
from weir.operators.registry import create_reader

pytestmark = pytest.mark.scenario


def send(brokers, topic, *values, partition=0, first_id=0):
    """Write values, or what is no JSON as it is; returns the offsets."""
    data = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    with weir.log.Producer(brokers.addresses, topic=topic, partition=partition) as producer:
        return [producer.send(first_id + number, each).result() for number, each in enumerate(data)]


def numbered(*numbers):
    return [{"id": number} for number in numbers]


class Reading:
    """One subtask of a source."""

    def __init__(
        self, brokers, topic, tmp_path, restored=None, index=0, indices=(0,), schema=None, **settings
    ):
        self._directory = tmp_path / "dead"
        self.letters = DeadLetterFile(self._directory, "job", "words", index)
        source = weir.LogSource(
            bootstrap=brokers.addresses, topic=topic, schema=schema or {"id": int}, **settings
        )
        self.reader = create_reader(source.to_spec())
        self.reader.open(
            OperatorContext(
                "job", "words", 0, index, len(indices), dead_letters=self.letters, restored=restored or {},
                subtask_indices=indices, idle_timeout_ms=50,
            )
        )  # fmt: skip
        self.rows = []
        self.is_finished = False

    def read(self, count, rows_max=3, timeout_s=60):
        deadline_s = time.monotonic() + timeout_s
        while len(self.rows) < count and not self.is_finished:
            self.poll(rows_max)
            assert time.monotonic() < deadline_s, f"only {self.rows}"
        return self.ids

    def poll(self, rows_max=3):
        polled = self.reader.poll(rows_max)
        self.is_finished = polled.finished
        if polled.batch is not None:
            self.rows += polled.batch.to_pylist()
        return polled

    @property
    def ids(self):
        return [row["id"] for row in self.rows]

    def snapshot(self):
        return json.loads(json.dumps(self.reader.snapshot()))

    def close(self):
        self.reader.close()
        self.letters.close()

    def letters_told(self):
        paths = self._directory.rglob("*.jsonl")
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture
def reading(brokers, topic, tmp_path):
    opened = []

    def make(*arguments, name=topic, **settings):
        opened.append(Reading(brokers, name, tmp_path, *arguments, **settings))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_a_bounded_source_ends_where_the_partitions_ended_at_the_start(brokers, topic, reading):
    send(brokers, topic, *numbered(*range(10)))
    offsets = send(brokers, topic, *numbered(*range(10, 15)), partition=1)
    source = reading(
        bounded=True,
        schema={"id": int, "p": int, "at": int, "ms": int, "n": int, "topic": str},
        parts={"p": "partition", "at": "offset", "ms": "timestamp", "n": "id", "topic": "topic"},
    )
    send(brokers, topic, *numbered(99), partition=1)
    source.read(1000)
    assert source.is_finished
    assert sorted(source.ids) == list(range(15))
    of_one = [row for row in source.rows if row["p"] == 1]
    assert [(row["at"], row["n"], row["id"]) for row in of_one] == [
        (offset, number, 10 + number) for number, offset in enumerate(offsets)
    ]
    assert {row["topic"] for row in of_one} == {topic}
    assert all(abs(row["ms"] - time.time() * 1000) < 600_000 for row in of_one)


def test_it_goes_on_at_the_next_row_with_other_subtasks(brokers, topic, reading):
    send(brokers, topic, *numbered(*range(10)))
    send(brokers, topic, *numbered(*range(100, 110)), partition=1)
    first = reading()
    # In the middle of what was read from the log at once.
    first.read(4)
    done = first.ids
    snapshot = first.snapshot()
    found = []
    for index in (0, 1):
        source = reading({0: snapshot}, index, (0, 1), bounded=True)
        source.read(1000)
        assert source.is_finished
        found += source.ids
    assert sorted(done + found) == [*range(10), *range(100, 110)]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [("earliest", [0, 1, 2, 3]), ("latest", [3]), ({0: "offset"}, [2, 3]), ("time", [2, 3])],
)
def test_where_it_begins(brokers, topic, reading, start, wanted):
    send(brokers, topic, *numbered(0, 1))
    time.sleep(0.01)
    between = dt.datetime.now(dt.UTC)
    (offset,) = send(brokers, topic, *numbered(2))
    start = between if start == "time" else {0: offset} if isinstance(start, dict) else start
    source = reading(start=start)
    send(brokers, topic, *numbered(3))
    assert source.read(len(wanted)) == wanted
    # What was looked up is in the first checkpoint already.
    assert [split[2] for split in reading(start=start).snapshot()["splits"]] != [None, None]


def test_bad_records_are_put_aside_with_their_places(brokers, topic, reading):
    offsets = send(brokers, topic, {"id": 1}, b"{bad", b"", {"id": "x"}, b'{"id":\n 2}')
    source = reading()
    assert source.read(2) == [1, 2]
    told = source.letters_told()
    assert [letter["source"] for letter in told] == [f"{topic}[0]"] * 3
    assert [letter["position"] for letter in told] == offsets[1:4]
    assert "the record has no value" in told[1]["reason"]
    assert source.reader.rejected == 3
    # Those after the next row count when they are told again.
    again = reading({0: source.snapshot()})
    assert again.reader.rejected == 3
    with pytest.raises(
        InputError, match=r"topic-\d+\[0\] offset \d+: .*; correct it, or let the source words"
    ):
        reading(on_bad_record="fail").read(2)


def test_raw_values_and_texts(brokers, topic, reading):
    send(brokers, topic, b"\xff\xfe", "caf\u00e9\n".encode())
    source = reading(schema={"id": bytes}, value="raw")
    assert source.read(2) == [b"\xff\xfe", b"caf\xc3\xa9\n"]
    texts = reading(schema={"id": str}, value="raw")
    assert texts.read(1) == ["caf\u00e9\n"]
    assert "not UTF-8 at byte 0" in texts.letters_told()[0]["reason"]


def test_a_partition_without_records_does_not_hold_the_watermark(brokers, topic, reading):
    source = reading(schema={"id": int}, event_time="id")
    send(brokers, topic, *numbered(10_000, 20_000))
    source.read(2)
    until_s = time.monotonic() + 30
    while source.poll().event_time_ms_max < 20_000:
        assert time.monotonic() < until_s


def test_wrong_places_are_one_line(brokers, topic, reading, tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"source words: start has offset 5 for partition 2 .* 0 to 1; correct start"
    ):
        reading(start={2: 5})
    with pytest.raises(
        InputError, match=r"source words: the log at .* has no topic absent; run: weir log create"
    ) as no:
        Reading(brokers, "absent", tmp_path)
    assert no.value.failure_kind is FailureKind.PERMANENT
    monkeypatch.setattr(topics, "ANSWER_TIMEOUT_S", 0.1)

    class Nowhere:
        addresses = "127.0.0.1:1"

    with pytest.raises(
        InputError, match=r"source words: the log at 127.0.0.1:1 does not answer: .* that it runs"
    ) as away:
        Reading(Nowhere, topic, tmp_path)
    assert away.value.failure_kind is FailureKind.OUTAGE


def test_a_position_behind_the_end_is_told(brokers, topic, reading, monkeypatch):
    """As after the loss of all data."""
    monkeypatch.setattr("weir.operators.log.partitions.TOLD_EVERY_S", 0.1)
    send(brokers, topic, *numbered(1))
    source = reading(start={0: 1000})
    with pytest.raises(
        InputError, match=r"\[0\] does not have offset 1000, .* ends at offset 2, before 1000: .*start"
    ):
        source.read(1)


def test_records_that_retention_has_removed_end_the_job_or_are_passed_over(brokers, topic, reading):
    short = f"{topic}-short"
    weir.log.create_topic(brokers.addresses, short, retention_bytes=300_000, segment_bytes=100_000)
    text = "x" * 20_000
    first = reading(name=short)
    send(brokers, short, *({"id": number, "text": text} for number in range(2)))
    first.read(1, rows_max=1)
    snapshot = first.snapshot()
    send(brokers, short, *({"id": number, "text": text} for number in range(2, 100)))
    until_s = time.monotonic() + 30
    while next(iter(weir.log.Reader(brokers.addresses, topic=short))).id <= 2:
        assert time.monotonic() < until_s
    with pytest.raises(
        InputError, match=r"short\[0\] does not have offset 2, .* on_truncation=.* without the check"
    ) as gone:
        reading({0: snapshot}, name=short).read(1)
    assert gone.value.failure_kind is FailureKind.PERMANENT
    earliest = reading({0: snapshot}, name=short, on_truncation="earliest")
    ids = earliest.read(1, rows_max=1)
    assert ids[0] > 2
    assert earliest.read(100 - ids[0]) == list(range(ids[0], 100))
    latest = reading({0: snapshot}, name=short, on_truncation="latest")
    until_s = time.monotonic() + 30
    while not latest.snapshot()["splits"][0][2] > 50:
        latest.poll()
        send(brokers, short, {"id": 100})
        assert time.monotonic() < until_s
    assert set(latest.read(1)) == {100}


def test_a_leader_that_dies_and_one_that_stands_still_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_SILENCE_S", 1.5)
    with LogCluster(tmp_path / "log", lease_ms=1_000) as brokers:
        weir.log.create_topic(brokers.addresses, "words")
        send(brokers, "words", *numbered(1))
        source = Reading(brokers, "words", tmp_path)
        assert source.read(1) == [1]
        leader = brokers.leader("words")
        brokers.pause(leader)
        # The producer finds the next leader; nobody tells the reader.
        send(brokers, "words", *numbered(2))
        assert source.read(2) == [1, 2]
        brokers.resume(leader)
        brokers.wait_until_whole("words")
        brokers.kill(brokers.leader("words"))
        send(brokers, "words", *numbered(3))
        assert source.read(3) == [1, 2, 3]
        source.close()


def test_what_waits_is_told(brokers, topic, reading):
    send(brokers, topic, *numbered(*range(10)))
    source = reading()
    source.read(4, rows_max=2)
    places = {f"{topic}[{number}]" for number in range(2)}
    until_s = time.monotonic() + 60
    while source.reader.lags.keys() != places:
        assert time.monotonic() < until_s
        source.poll(0)
        time.sleep(0.01)
    source.read(10)
    while any(source.reader.lags.values()):
        assert time.monotonic() < until_s, source.reader.lags
        source.poll()
        time.sleep(0.01)
    send(brokers, topic, *numbered(10, 11, 12))
    # A leader that has changed meanwhile has written an entry of its own.
    while source.reader.lags[f"{topic}[0]"] < 3:
        assert time.monotonic() < until_s, source.reader.lags
        time.sleep(0.01)
