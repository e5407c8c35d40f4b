"""Against a real broker: transactions that other processes finish, and positions that are not there any more."""

import datetime as dt
import json
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import weir
from experiments.ports import free_port
from services import kafka
from tests.kafka_topics import make_topics
from tests.secure_listener import client_properties, write_certificate
from tests.weir.operators.kafka.registry_server import RegistryServer
from tests.weir.operators.kafka.sinks import delivered, rows, sink, through_json
from weir.author.operator import OperatorContext
from weir.errors import FailureKind, InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_reader

pytestmark = [pytest.mark.scenario, pytest.mark.service]


def test_a_transaction_is_committed_once_by_whoever_comes_next(kafka_bootstrap, topic, tmp_path):
    first = sink(kafka_bootstrap, topic, tmp_path)
    first.process(rows(1, 2))
    listed = first.snapshot(1)
    first.process(rows(3))
    # The process dies here: 1 and 2 are in the checkpoint, 3 is not.
    second = sink(kafka_bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.process(rows(3))
    kept = second.snapshot(2)
    second.commit(2)
    second.await_commit()
    # It dies before it could say so: a third one must see that it was committed.
    third = sink(kafka_bootstrap, topic, tmp_path, 3, {0: through_json(kept)})
    # The first one wakes up, and is too late.
    first.commit(1)
    with pytest.raises(InputError, match="another process writes under the same transactional id") as late:
        first.await_commit()
    assert late.value.failure_kind is FailureKind.OUTAGE
    third.process(rows(4))
    third.snapshot(0)
    third.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1, 2, 3, 4]
    assert not list(tmp_path.glob(".rows-*"))


def test_rows_of_a_transaction_that_timed_out_are_written_again(kafka_bootstrap, topic, tmp_path):
    first = sink(kafka_bootstrap, topic, tmp_path)
    first.process(rows(1))
    listed = first.snapshot(1)
    # What the brokers do after transaction_timeout_ms: somebody else ends it.
    usurper = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": f"{listed['group']}/0"})
    usurper.init_transactions(30)
    first.commit(1)
    with pytest.raises(InputError, match="transaction_timeout_ms"):
        first.await_commit()
    second = sink(kafka_bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1]


def test_several_transactions_wait_at_the_same_time_and_keep_their_order(kafka_bootstrap, topic, tmp_path):
    first = sink(kafka_bootstrap, topic, tmp_path)
    for checkpoint in (1, 2, 3):
        first.process(rows(checkpoint))
        listed = first.snapshot(checkpoint)
    first.commit(1)
    first.await_commit()
    second = sink(kafka_bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1, 2, 3]


def test_subtasks_that_are_gone_have_heirs_and_others_keep_their_own(kafka_bootstrap, topic, tmp_path):
    listed = {}
    for index in (0, 1, 2):
        writer = sink(kafka_bootstrap, topic, tmp_path, index=index, indices=(0, 1, 2))
        writer.process(rows(index))
        listed[index] = through_json(writer.snapshot(1))
    for index in (0, 1):
        sink(kafka_bootstrap, topic, tmp_path, 2, listed, index, (0, 1))
    assert delivered(kafka_bootstrap, topic) == [0, 1, 2]


class Reading:
    """One subtask of a source."""

    def __init__(self, kafka_bootstrap, topic, tmp_path, restored=None, **settings):
        self._directory = tmp_path / "dead"
        self.letters = DeadLetterFile(self._directory, "job", "words", 0)
        spec = weir.Kafka(bootstrap=kafka_bootstrap, topics=topic, schema={"id": int}, **settings).to_spec()
        self.reader = create_reader(spec)
        self.reader.open(
            OperatorContext(
                "job",
                "words",
                0,
                0,
                1,
                dead_letters=self.letters,
                restored=restored or {},
                subtask_indices=(0,),
            )
        )
        self.ids = []

    def read(self, count, timeout_s=30):
        deadline_s = time.monotonic() + timeout_s
        while len(self.ids) < count:
            polled = self.reader.poll(3)
            if polled.batch is not None:
                self.ids += polled.batch.column("id").to_pylist()
            assert not polled.finished
            assert time.monotonic() < deadline_s, f"only {self.ids}"
        return self

    def poll(self):
        """Look once whether there is anything; returns itself."""
        return self.read(len(self.ids)) if not self.reader.poll(3).finished else self

    def letters_told(self):
        paths = self._directory.rglob("*.jsonl")
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def stop(self):
        snapshot = through_json(self.reader.snapshot())
        self.reader.close()
        self.letters.close()
        return {0: snapshot}


def produce(kafka_bootstrap, topic, *values):
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for value in values:
        producer.produce(topic, value if isinstance(value, bytes) else json.dumps({"id": value}), partition=0)
    assert producer.flush(30) == 0


def test_it_goes_on_where_it_was_with_bad_records_told_once(kafka_bootstrap, topic, tmp_path):
    produce(kafka_bootstrap, topic, 1, b"bad", 2, 3, 4, 5)
    first = Reading(kafka_bootstrap, topic, tmp_path).read(3)
    restored = first.stop()
    produce(kafka_bootstrap, topic, 6, b"worse", 7)
    second = Reading(kafka_bootstrap, topic, tmp_path, restored).read(4)
    second.stop()
    assert first.ids + second.ids == [1, 2, 3, 4, 5, 6, 7]
    assert [(letter["source"], letter["position"]) for letter in second.letters_told()] == [
        (f"{topic}[0]", 1),
        (f"{topic}[0]", 7),
    ]


@pytest.mark.parametrize("polls", [0, 4])
@pytest.mark.parametrize("start", ["latest", dt.datetime(2100, 1, 1, tzinfo=dt.UTC)])
def test_a_start_stays_where_it_was_when_the_job_began(kafka_bootstrap, topic, tmp_path, start, polls):
    produce(kafka_bootstrap, topic, 1, 2)
    first = Reading(kafka_bootstrap, topic, tmp_path, start=start)
    # A checkpoint may come before the first records are asked for.
    for _ in range(polls):
        first.reader.poll(3)
    restored = first.stop()
    produce(kafka_bootstrap, topic, 3, 4)
    second = Reading(kafka_bootstrap, topic, tmp_path, restored, start=start).read(2)
    second.stop()
    assert second.ids == [3, 4]


def test_records_that_have_expired_are_an_error_or_what_was_chosen(kafka_bootstrap, topic, tmp_path):
    produce(kafka_bootstrap, topic, *range(10))
    first = Reading(kafka_bootstrap, topic, tmp_path).read(3)
    restored = first.stop()
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 8)])[TopicPartition(topic, 0)].result(30)
    again = Reading(kafka_bootstrap, topic, tmp_path, restored)
    with pytest.raises(InputError, match="on_truncation"):
        again.read(1)
    again.reader.close()
    chosen = Reading(kafka_bootstrap, topic, tmp_path, restored, on_truncation="earliest").read(2)
    chosen.stop()
    assert chosen.ids == [8, 9]


def test_a_topic_that_was_made_anew_and_has_grown_is_noticed(kafka_bootstrap, topic, tmp_path):
    produce(kafka_bootstrap, topic, 1, 2, 3)
    restored = Reading(kafka_bootstrap, topic, tmp_path).read(2).stop()
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    while topic in admin.list_topics(timeout=30).topics:
        time.sleep(0.05)
    make_topics(kafka_bootstrap, topic, partitions=1)
    produce(kafka_bootstrap, topic, *range(10, 16))
    with pytest.raises(InputError, match=f"topic {topic} was deleted and made anew since the checkpoint"):
        Reading(kafka_bootstrap, topic, tmp_path, restored)
    again = Reading(kafka_bootstrap, topic, tmp_path, restored, on_truncation="earliest").read(6)
    # From now on it is this topic.
    restored = again.stop()
    assert again.ids == [10, 11, 12, 13, 14, 15]
    produce(kafka_bootstrap, topic, 16)
    last = Reading(kafka_bootstrap, topic, tmp_path, restored).read(1)
    last.stop()
    assert last.ids == [16]


def test_new_partitions_are_found_and_read_from_their_beginning(kafka_bootstrap, topic, tmp_path):
    from confluent_kafka.admin import NewPartitions

    produce(kafka_bootstrap, topic, 1)
    reading = Reading(kafka_bootstrap, topic, tmp_path, start="latest", discover_ms=50)
    reading.reader.poll(3)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "topic.metadata.refresh.interval.ms": 100})
    producer.produce(topic, b'{"id": 9}', partition=2)
    assert producer.flush(30) == 0
    assert reading.read(1).ids == [9]
    reading.stop()


def test_what_is_not_there_is_named(kafka_bootstrap, topic, tmp_path):
    with pytest.raises(
        InputError, match=rf"words: .* partition 2 of topic {topic}.*: its partitions are 0 to 1;"
    ):
        Reading(kafka_bootstrap, topic, tmp_path, start={topic: {0: 0, 2: 17}})
    with pytest.raises(
        InputError, match=r"partition 0 of topic no-such.*: the topic is not there; correct start"
    ):
        Reading(kafka_bootstrap, (), tmp_path, pattern=f"{topic}|no-such", start={"no-such": {0: 17}})
    with pytest.raises(InputError, match="topic no-such is not at"):
        Reading(kafka_bootstrap, "no-such", tmp_path).reader.poll(1)
    with pytest.raises(InputError, match="No such configuration property"):
        Reading(kafka_bootstrap, "t", tmp_path, properties={"no.such": 1})


def test_a_job_waits_for_brokers_that_are_away(tmp_path, monkeypatch):
    monkeypatch.setattr("weir.operators.kafka.partitions._ANSWER_TIMEOUT_S", 1.0)
    with pytest.raises(InputError, match="does not answer") as away:
        Reading(f"{kafka.HOST}:{free_port()}", "t", tmp_path)
    assert away.value.failure_kind is FailureKind.OUTAGE


def test_a_pattern_takes_in_topics_that_turn_up(kafka_bootstrap, topic, tmp_path):
    produce(kafka_bootstrap, topic, 1)
    reading = Reading(kafka_bootstrap, (), tmp_path, pattern=f"{topic}.*", start="latest", discover_ms=50)
    reading.reader.poll(3)
    make_topics(kafka_bootstrap, f"{topic}-more", f"other-{topic}", partitions=1)
    for name in (f"other-{topic}", f"{topic}-more"):
        produce(kafka_bootstrap, name, 2)
    assert reading.read(1).ids == [2]
    reading.stop()


def test_it_begins_at_a_time_or_at_given_offsets(kafka_bootstrap, topic, tmp_path):
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for number in range(5):
        producer.produce(
            topic, json.dumps({"id": number}), partition=0, timestamp=1_700_000_000_000 + number * 1000
        )
    assert producer.flush(30) == 0
    third = dt.datetime.fromtimestamp(1_700_000_002, dt.UTC)
    for start, expected in ((third, [2, 3, 4]), ({topic: {0: 4}}, [4])):
        reading = Reading(kafka_bootstrap, topic, tmp_path, start=start, bounded=True)
        reading.read(len(expected)).stop()
        assert reading.ids == expected


def test_records_of_transactions_that_were_given_up_are_not_seen(kafka_bootstrap, topic, tmp_path):
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for number, ends in ((1, producer.abort_transaction), (2, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": number}), partition=0)
        producer.flush(30)
        ends(30)
    assert Reading(kafka_bootstrap, topic, tmp_path).read(1).ids == [2]
    uncommitted = {"isolation.level": "read_uncommitted"}
    assert Reading(kafka_bootstrap, topic, tmp_path, properties=uncommitted).read(2).ids == [1, 2]


def test_topics_without_a_record_end_and_so_do_those_whose_transactions_were_all_given_up(
    kafka_bootstrap, topic, tmp_path
):
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"id": 1}', partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    reading = Reading(kafka_bootstrap, topic, tmp_path, bounded=True)
    until_s = time.monotonic() + 60
    while not (polled := reading.reader.poll(3)).finished:
        assert polled.batch is None
        assert time.monotonic() < until_s
    reading.stop()


def test_a_topic_that_is_deleted_while_it_is_read_ends_the_job_and_says_so(kafka_bootstrap, topic, tmp_path):
    produce(kafka_bootstrap, topic, 1, 2, 3)
    reading = Reading(kafka_bootstrap, topic, tmp_path, discover_ms=50).read(3)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(
        InputError, match=f"topic {topic} is not at .*create it|{topic}.*it is gone; create it"
    ):
        reading.read(4)
    restored = reading.stop()
    # The next deployment says it for good.
    with pytest.raises(InputError, match=f"topic {topic} is not at .*; create it, or correct topics") as told:
        Reading(kafka_bootstrap, topic, tmp_path, restored).reader.poll(1)
    assert told.value.failure_kind is not FailureKind.OUTAGE


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_record_that_is_too_large_is_told_with_what_to_raise_and_is_no_outage(
    kafka_bootstrap, topic, tmp_path, delivery
):
    large = rows(1, text="x" * 1_200_000)
    # The client refuses it; then the broker.
    for properties in ({}, {"message.max.bytes": 4_000_000}):
        # Nothing makes it smaller.
        settings = {"properties": {"compression.type": "none", **properties}}
        writer = sink(kafka_bootstrap, topic, tmp_path, delivery=delivery, **settings)

        def write(writer=writer):
            writer.process(large)
            writer.flush()

        with pytest.raises(
            InputError, match=r"a record is larger than the topic takes .*max.message.bytes"
        ) as told:
            write()
        assert told.value.failure_kind is not FailureKind.OUTAGE
        writer.close()
    assert delivered(kafka_bootstrap, topic) == []


def test_at_least_once_sends_rows_at_once_and_some_again(kafka_bootstrap, topic, tmp_path):
    for numbers in ((1, 2), (2, 3)):
        writer = sink(kafka_bootstrap, topic, tmp_path, delivery="at_least_once")
        writer.process(rows(*numbers))
        writer.flush()
        writer.close()
    assert delivered(kafka_bootstrap, topic) == [1, 2, 2, 3]


def test_avro_goes_through_a_topic_and_what_is_no_avro_to_the_dead_letters(kafka_bootstrap, topic, tmp_path):
    with RegistryServer() as registry:
        value = weir.Avro(registry=registry.url)
        writer = sink(kafka_bootstrap, topic, tmp_path, value=value)
        writer.process(rows(1, 2, 3))
        writer.snapshot(0)
        writer.commit(0)
        produce(kafka_bootstrap, topic, b"no avro")
        reading = Reading(kafka_bootstrap, topic, tmp_path, value=value).read(3)
        while not reading.letters_told():
            reading.reader.poll(3)
        reading.stop()
    assert sorted(reading.ids) == [1, 2, 3]
    [letter] = reading.letters_told()
    assert letter["source"] == f"{topic}[0]"
    assert "does not begin with the number of a schema" in letter["reason"]


def murmur2(data):
    """As Kafka's own client hashes keys."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for place in range(0, whole, 4):
        k = int.from_bytes(data[place : place + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_keys_go_where_kafkas_own_client_puts_them(kafka_bootstrap, topic, tmp_path):
    writer = sink(kafka_bootstrap, topic, tmp_path, delivery="at_least_once", key="id")
    writer.process(rows(*range(100)))
    writer.flush()
    consumer = Consumer(
        {"bootstrap.servers": kafka_bootstrap, "group.id": "keys", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
    for _ in range(100):
        message = consumer.poll(30)
        assert message.partition() == murmur2(message.key()) % 2
    consumer.close()


def test_a_time_out_that_brokers_do_not_take_is_told(kafka_bootstrap, topic, tmp_path):
    with pytest.raises(InputError, match=r"transaction_timeout_ms is more than the brokers take") as refused:
        sink(kafka_bootstrap, topic, tmp_path, transaction_timeout_ms=10_000_000)
    assert refused.value.failure_kind is not FailureKind.OUTAGE


def test_rows_go_through_a_listener_with_tls_and_passwords(kafka_broker, topic, tmp_path):
    plain, secure, certificate, _ = kafka_broker
    settings = {"properties": client_properties(certificate)}
    first = sink(secure, topic, tmp_path, **settings)
    first.process(rows(1, 2))
    listed = through_json(first.snapshot(1))
    # Also what a later deployment asks and sends.
    second = sink(secure, topic, tmp_path, 2, {0: listed}, **settings)
    second.process(rows(3))
    second.snapshot(0)
    second.commit(0)
    assert delivered(plain, topic) == [1, 2, 3]
    reading = Reading(secure, topic, tmp_path, **settings).read(3)
    reading.stop()
    assert sorted(reading.ids) == [1, 2, 3]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_wrong_password_is_told_and_not_waited_for(kafka_broker, topic, tmp_path, delivery):
    _, secure, certificate, _ = kafka_broker
    properties = client_properties(certificate, "wrong")

    def write():
        writer = sink(secure, topic, tmp_path, properties=properties, delivery=delivery)
        writer.process(rows(1))
        writer.flush()

    for use in (write, lambda: Reading(secure, topic, tmp_path, properties=properties).read(1)):
        with pytest.raises(
            InputError, match=r"refuses the connection.*correct the user, password"
        ) as refused:
            use()
        assert refused.value.failure_kind is not FailureKind.OUTAGE


@pytest.mark.parametrize("who", ["source", "sink"])
@pytest.mark.parametrize(
    ("at", "changed", "kind", "message"),
    [
        (
            "secure",
            {"ssl.ca.location": "another"},
            FailureKind.PERMANENT,
            r"refuses the connection: .*certificate verify failed.*; correct the user, password or certificates",
        ),
        ("plain", {}, FailureKind.OUTAGE, "connecting to a PLAINTEXT broker listener"),
    ],
    ids=["another certificate", "TLS without need"],
)
def test_why_there_is_no_connection_is_told(
    kafka_broker, topic, tmp_path, monkeypatch, who, at, changed, kind, message
):
    """And not only that nobody answers: whoever reads that looks whether Kafka runs."""
    for module in ("partitions", "producing"):
        monkeypatch.setattr(f"weir.operators.kafka.{module}._ANSWER_TIMEOUT_S", 3.0)
    plain, secure, certificate, _ = kafka_broker
    properties = client_properties(certificate) | changed
    if properties["ssl.ca.location"] == "another":
        properties["ssl.ca.location"] = str(write_certificate(tmp_path / "another")[0])
    with pytest.raises(InputError, match=message) as told:
        (Reading if who == "source" else sink)(
            secure if at == "secure" else plain, topic, tmp_path, properties=properties
        )
    assert told.value.failure_kind is kind
