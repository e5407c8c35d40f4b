"""What is said of errors of the client, and whether the job waits or ends."""

import socket
import time
import types

import pytest
from confluent_kafka import KafkaError, KafkaException

import weir
from weir.clock import SystemClock
from weir.errors import FailureKind, InputError
from weir.operators.kafka import marks, producing, topic_ids
from weir.operators.kafka import partitions as reading
from weir.operators.kafka.client_errors import more_telling, unreachable
from weir.operators.kafka.partitions import KafkaPartitions
from weir.operators.kafka.producing import RecordProducer
from weir.testing import ManualClock

OUTAGE, PERMANENT = FailureKind.OUTAGE, FailureKind.PERMANENT


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (KafkaError._ALL_BROKERS_DOWN, OUTAGE, "does not answer: .*check the addresses"),
        (KafkaError._UNKNOWN_TOPIC, OUTAGE, "the topic is not there .*create it"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, PERMANENT, "refuses the connection: .*correct the user"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PERMANENT, "refuses: .*grant the user"),
        (
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            PERMANENT,
            "transaction_timeout_ms is more than the brokers take",
        ),
        (KafkaError._UNKNOWN_PARTITION, PERMANENT, "does not have this partition"),
        (KafkaError._INVALID_ARG, PERMANENT, "the client refuses a setting; correct properties"),
    ],
)
def test_a_job_waits_for_what_comes_back_and_ends_for_what_does_not(code, kind, message):
    with pytest.raises(InputError, match=message) as told:
        raise unreachable("sink out", "b:1", KafkaError(code))
    assert told.value.failure_kind is kind


@pytest.fixture
def partitions():
    spec = weir.Kafka(bootstrap="127.0.0.1:1", topics="t", schema={"id": int}).to_spec()
    found = KafkaPartitions(spec, "s", ManualClock())
    found.topic_ids._ask = lambda topics, timeout_s: {}
    yield found
    found.close()


def test_a_topic_that_was_deleted_before_its_first_offset_was_known_is_gone(partitions):
    text = "failed to query logical offset: Broker: Unknown topic or partition (broker 1)"
    with pytest.raises(InputError, match=r"source s: t\[0\]: it is gone; create it again") as told:
        partitions._note_failure(("t", 0), KafkaError(KafkaError._AUTO_OFFSET_RESET, text))
    assert told.value.failure_kind is OUTAGE
    with pytest.raises(InputError, match="does not have the offset at which to go on"):
        partitions._note_failure(("t", 0), KafkaError(KafkaError._AUTO_OFFSET_RESET, "fetch failed"))


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize(("name", "value"), [("linger", 5), ("acks", 0), ("compression.type", "gzop")])
def test_a_property_that_is_wrong_ends_the_job_and_is_no_outage(delivery, name, value):
    spec = weir.KafkaSink("t", bootstrap="127.0.0.1:1", delivery=delivery, properties={name: value})
    with pytest.raises(
        InputError, match=f"sink out: .*correct properties .*{name.partition('.')[0]}"
    ) as told:
        RecordProducer(spec, "out", "id" if delivery == "exactly_once" else "")
    assert told.value.failure_kind is PERMANENT


def test_an_offset_to_start_at_that_is_not_there_is_told_with_start(partitions):
    gone = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    with pytest.raises(InputError, match=r"t\[0\] does not have the offset at which to go on"):
        partitions._note_failure(("t", 0), gone)
    start = weir.Kafka(bootstrap="127.0.0.1:1", topics="t", schema={"id": int}, start={"t": {0: 99}})
    partitions._spec = start.to_spec()
    with pytest.raises(InputError, match=r"t\[0\] does not have the offset .*or correct start"):
        partitions._note_failure(("t", 0), gone)


def test_a_pattern_without_a_topic_is_told(partitions, caplog):
    spec = weir.Kafka(bootstrap="127.0.0.1:1", pattern="u.*", schema={"id": int})
    partitions._spec, partitions._consumer = spec.to_spec(), listed()
    assert partitions.partitions() == []
    assert "source s: none of the topics at 127.0.0.1:1 matches 'u.*' so far" in caplog.text


def listed(error=None):
    topic = types.SimpleNamespace(
        error=None if error is None else KafkaError(error), partitions={0: None, 1: None}
    )
    return types.SimpleNamespace(
        list_topics=lambda timeout: types.SimpleNamespace(topics={"t": topic}), close=list
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [(KafkaError.LEADER_NOT_AVAILABLE, OUTAGE), (KafkaError.UNKNOWN_TOPIC_OR_PART, PERMANENT)],
)
def test_a_topic_without_a_leader_is_no_topic_that_is_not_there(partitions, error, kind):
    partitions._consumer = listed(error)
    with pytest.raises(InputError) as told:
        partitions.partitions()
    assert told.value.failure_kind is kind


def test_brokers_that_are_away_do_not_end_the_search_for_partitions(partitions):
    partitions._consumer = listed(KafkaError.LEADER_NOT_AVAILABLE)
    partitions.ask_for_partitions()
    partitions._asked.exception(10)
    assert partitions.has_found()
    assert partitions.pop_found() is None
    partitions._consumer = listed()
    partitions.ask_for_partitions()
    partitions._asked.result(60)
    assert partitions.pop_found() == [("t", 0), ("t", 1)]
    assert partitions.pop_found() is None


def test_brokers_that_are_away_are_told_every_ten_seconds_and_refusals_end_the_job(partitions, caplog):
    silent = types.SimpleNamespace(consume=lambda count, timeout: [], incremental_assign=list, close=list)
    partitions._consumer = silent
    partitions.add(("t", 0), 0)
    partitions._note_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    for _ in range(25):
        partitions.fetch()
        partitions._clock.advance_ms(1000)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["source s: Kafka at 127.0.0.1:1 is awaited: Connection refused"] * 3
    partitions._note_error(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
    with pytest.raises(InputError, match="refuses the connection"):
        partitions.fetch()


@pytest.mark.parametrize(
    ("noted", "kind", "message"),
    [
        (KafkaError._SSL, PERMANENT, "refuses the connection: certificate verify failed; correct"),
        (KafkaError._TRANSPORT, OUTAGE, "does not answer: certificate verify failed; check"),
        (None, OUTAGE, "does not answer: no answer; check"),
    ],
)
def test_a_source_that_has_no_answer_tells_what_its_connections_met(partitions, noted, kind, message):
    def list_topics(timeout):
        partitions._clock.advance_ms(1000 * timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))

    def poll(timeout_s):
        if noted is not None:
            partitions._note_error(KafkaError(noted, "certificate verify failed"))
            partitions._note_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    partitions._consumer = types.SimpleNamespace(list_topics=list_topics, poll=poll, close=list)
    with pytest.raises(InputError, match=message) as told:
        partitions.partitions()
    assert told.value.failure_kind is kind


def test_a_broker_that_is_away_when_the_job_starts_is_told_of_before_it_is_given_up(monkeypatch, caplog):
    clock = ManualClock()

    def init_transactions(timeout_s):
        clock.advance_ms(timeout_s * 1000)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Timed out", retriable=True))

    monkeypatch.setattr(
        producing,
        "Producer",
        lambda *_, **__: types.SimpleNamespace(init_transactions=init_transactions, poll=bool),
    )
    with pytest.raises(
        InputError, match="sink s: Kafka at h:1 does not answer: Timed out; check the addresses"
    ):
        producing.RecordProducer(weir.KafkaSink("t", bootstrap="h:1"), "s", "id", clock)
    told = [record.getMessage() for record in caplog.records]
    assert [line.rpartition("for ")[2] for line in told] == ["2 s so far", "12 s so far", "22 s so far"]
    assert told[0].startswith("sink s: Kafka at h:1: no answer; check the addresses, and that it runs")


def test_the_end_of_an_earlier_producers_transaction_is_waited_for(monkeypatch):
    """A call that timed out tells what its last attempt met, and goes on."""
    met = [
        KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True),
        KafkaError(KafkaError._TIMED_OUT, retriable=True),
    ]

    def init_transactions(_):
        if met:
            raise KafkaException(met.pop(0))

    monkeypatch.setattr(
        producing,
        "Producer",
        lambda *_, **__: types.SimpleNamespace(init_transactions=init_transactions, poll=bool),
    )
    producing.RecordProducer(weir.KafkaSink("t", bootstrap="h:1"), "s", "id", ManualClock())
    assert met == []
    met += [KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), KafkaError(KafkaError.NO_ERROR)]
    with pytest.raises(InputError):
        producing.RecordProducer(weir.KafkaSink("t", bootstrap="h:1"), "s", "id", ManualClock())
    assert len(met) == 1


def test_settings_of_tls_and_sasl_reach_every_client(monkeypatch):
    seen = []

    def client(settings, **_):
        seen.append(settings)
        return types.SimpleNamespace(
            close=list, init_transactions=list, describe_topics=lambda topics, request_timeout: {}
        )

    clients = (
        (reading, "Consumer"),
        (marks, "Consumer"),
        (producing, "Producer"),
        (topic_ids, "AdminClient"),
    )
    for module, name in clients:
        monkeypatch.setattr(module, name, client)
    secure = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": "/ca.pem"}
    source = weir.Kafka(bootstrap="h:1", topics="t", schema={"id": int}, properties=secure)
    sink = weir.KafkaSink("t", bootstrap="h:1", properties=secure)
    KafkaPartitions(source.to_spec(), "s", ManualClock()).close()
    topic_ids.TopicIds(source.to_spec(), "source s").check(["t"], 1.0)
    marks.Marks(sink, "s", "g")
    producing.RecordProducer(sink, "s")
    assert len(seen) == 4
    for settings in seen:
        assert secure.items() <= settings.items()


def test_a_topic_that_was_made_anew_is_noticed_and_one_without_an_answer_is_not(partitions, caplog):
    ids, answers = partitions.topic_ids, {"a": "1", "b": "2"}
    ids._ask = lambda topics, timeout_s: {topic: answers[topic] for topic in topics if topic in answers}
    ids.check(["a", "b", "c"], 1.0)
    assert ids.known == answers
    ids.check(["a", "b", "c"], 1.0)
    answers["b"] = "3"
    with pytest.raises(InputError, match="topic b was deleted and made anew while it was read") as told:
        ids.check(["a", "b"], 1.0)
    # The next deployment sees it in the checkpoint, also in one that is made after this.
    assert told.value.failure_kind is OUTAGE
    assert ids.known == {"a": "1", "b": "2"}
    with pytest.raises(InputError, match=r"topic b .* since the checkpoint") as told:
        partitions.made_anew({"a": "1", "b": "2", "c": "4"})
    assert told.value.failure_kind is PERMANENT
    spec = weir.Kafka(
        bootstrap="127.0.0.1:1", topics="t", schema={"id": int}, on_truncation="earliest"
    ).to_spec()
    lenient = topic_ids.TopicIds(spec, "source s")
    lenient._ask = ids._ask
    assert lenient.made_anew({"a": "1", "b": "2", "c": "4"}, 1.0) == ["b"]
    assert lenient.known == {"a": "1", "b": "3", "c": "4"}
    assert caplog.messages[-1] == "source s: topic b was made anew: earliest"


def test_a_wrong_password_is_remembered_when_no_broker_is_left(partitions):
    refusal = KafkaError(KafkaError._AUTHENTICATION)
    for error in (KafkaError(KafkaError._TRANSPORT), refusal, KafkaError(KafkaError._ALL_BROKERS_DOWN)):
        partitions._note_error(error)
    assert partitions._error is refusal


def test_the_guess_that_one_side_lacks_tls_is_not_replaced_by_what_the_next_handshake_met():
    plain = KafkaError(KafkaError._TRANSPORT, "handshake failed: connecting to a PLAINTEXT broker listener?")
    hung_up = KafkaError(KafkaError._TRANSPORT, "closed by peer (after 1ms in state SSL_HANDSHAKE)")
    refused = KafkaError(KafkaError._TRANSPORT, "Connection refused (after 0ms in state CONNECT)")
    assert more_telling(None, hung_up) is hung_up
    assert more_telling(hung_up, plain) is plain
    assert more_telling(plain, hung_up) is plain
    assert more_telling(plain, refused) is refused
    unknown = KafkaError(KafkaError._SSL, "certificate verify failed (after 55ms in state SSL_HANDSHAKE)")
    assert more_telling(unknown, hung_up) is unknown


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("closed by peer (after 0ms in state SSL_HANDSHAKE)", True),
        ("Connection refused (after 0ms in state CONNECT)", False),
    ],
)
def test_a_handshake_that_the_other_side_ends_is_maybe_with_a_listener_without_tls(said, told):
    """The client guesses so only if it sees the end at another moment."""
    message = str(unreachable("sink out", "127.0.0.1:1", KafkaError(KafkaError._TRANSPORT, said)))
    assert ("connecting to a PLAINTEXT broker listener?; check the addresses" in message) is told


def test_a_source_that_ends_does_not_wait_for_an_answer_of_brokers(monkeypatch):
    monkeypatch.setattr(reading, "_ANSWER_TIMEOUT_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = weir.Kafka(bootstrap=f"127.0.0.1:{silent.getsockname()[1]}", topics="t", schema={"id": int})
        found = KafkaPartitions(source.to_spec(), "s", SystemClock())
        found.ask_for_partitions()
        # It is asked now.
        connection, _ = silent.accept()
        began_s = time.monotonic()
        found.close()
        assert time.monotonic() - began_s < 20
        connection.close()
        assert not found.has_found()
