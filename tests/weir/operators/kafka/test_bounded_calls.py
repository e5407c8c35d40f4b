"""Calls of the client that return late or never do not hold a task up."""

import gc
import threading
import weakref

import pytest

import weir
from weir.errors import FailureKind, InputError
from weir.operators.kafka import bounded_calls
from weir.operators.kafka.bounded_calls import BoundedCall, CallLostError, Waiting
from weir.operators.kafka.marks import Mark, Marks
from weir.operators.kafka.producing import RecordProducer
from weir.testing import ManualClock


class QuickClock:
    """Every look is a second later than the one before."""

    def __init__(self):
        self._now_s = 0.0

    def monotonic_s(self):
        self._now_s += 1.0
        return self._now_s


def waiting():
    return Waiting("sink out", "an answer is awaited", QuickClock())


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(bounded_calls, "_LOOK_S", 0.001)


@pytest.fixture
def never():
    released = threading.Event()
    yield released
    released.set()


def test_what_a_call_raises_comes_through():
    def fail(call):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        BoundedCall(fail, QuickClock()).wait(20, waiting(), bool)


def test_a_call_that_never_returns_is_told_and_given_up(never, caplog):
    call = BoundedCall(lambda call: never.wait(), QuickClock())
    with pytest.raises(CallLostError):
        call.wait(20, waiting(), lambda: False)
    assert [record.getMessage() for record in caplog.records] == [
        "sink out: an answer is awaited, for 2 s so far",
        "sink out: an answer is awaited, for 12 s so far",
    ]
    assert call.is_given_up


def test_a_call_that_ought_to_have_returned_is_given_up_sooner(never):
    asked = []
    with pytest.raises(CallLostError, match="12 s"):
        BoundedCall(lambda call: never.wait(), QuickClock()).wait(100, waiting(), lambda: not asked.append(1))
    assert len(asked) == 3


class Client:
    """Of a transaction whose group's coordinator is gone: the client does not return, whatever its time-out."""

    def __init__(self, never):
        self._never = never
        self.committed = False

    def send_offsets_to_transaction(self, offsets, group, timeout_s):
        self._never.wait()

    def commit_transaction(self, timeout_s):
        self.committed = True

    def poll(self, timeout_s):
        pass


def test_a_transaction_that_does_not_end_begins_the_job_anew_and_is_not_committed_later(never, caplog):
    spec = weir.KafkaSink("t", bootstrap="127.0.0.1:1")
    producer, marks = RecordProducer(spec, "out", clock=QuickClock()), Marks(spec, "out", "g")
    producer._producer = client = Client(never)
    marks.coordinator_answers = lambda number: True
    with pytest.raises(InputError, match=r"sink out: .* a transaction did not end") as told:
        producer.commit(Mark("g", "t", 1), marks)
    assert told.value.failure_kind is FailureKind.OUTAGE
    assert "the end of a transaction is awaited" in caplog.text
    never.set()
    for thread in threading.enumerate():
        if thread.name == "kafka-call":
            thread.join(30)
    assert not client.committed
    marks.close()


def test_after_an_outage_the_mark_goes_to_another_group_whose_coordinator_answers(never):
    never.set()
    spec = weir.KafkaSink("t", bootstrap="127.0.0.1:1")
    producer, marks = RecordProducer(spec, "out", clock=ManualClock()), Marks(spec, "out", "g")
    producer._producer = Client(never)
    awaited, sent = [], []
    marks.await_coordinator = awaited.append
    marks.group_metadata = sent.append
    for outage in (False, True, False, True, True, False):
        if outage:
            assert not producer.is_worn
            producer._errors.note_error(None)
        producer.commit(Mark("g", "t", 1), marks)
    assert (awaited, sent) == ([1, 2, 3], [0, 1, 1, 2, 3, 3])
    # None of the groups is new to this client any more: the sink makes another.
    assert producer.is_worn
    marks.close()


@pytest.mark.parametrize(
    ("properties", "taken_s", "is_worn"),
    [
        ({}, 0.7, False),
        ({}, 0.8, True),
        ({"retry.backoff.ms": 200}, 0.1, False),
        ({"retry.backoff.ms": "200"}, 0.2, True),
        ({"retry.backoff.max.ms": 200}, 0.2, True),
    ],
)
@pytest.mark.parametrize("slow", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_client_that_may_have_asked_twice_has_no_further_transaction(
    never, properties, taken_s, is_worn, slow
):
    """It asks again by itself when a connection breaks, but never sooner than it was told to."""
    never.set()
    clock = ManualClock()
    spec = weir.KafkaSink("t", bootstrap="127.0.0.1:1", properties=properties)
    producer, marks = RecordProducer(spec, "out", clock=clock), Marks(spec, "out", "g")
    producer._producer = client = Client(never)
    setattr(client, slow, lambda *_: clock.advance_ms(taken_s * 1_000))
    producer.commit(Mark("g", "t", 1), marks)
    assert producer.is_worn == is_worn
    marks.close()


def test_a_producer_ends_with_the_last_reference_to_it():
    """Else its client goes on until garbage is collected: four threads, and connections."""
    gc.disable()
    try:
        producer = RecordProducer(weir.KafkaSink("t", bootstrap="127.0.0.1:1"), "out", clock=ManualClock())
        left = weakref.ref(producer)
        del producer
        assert left() is None
    finally:
        gc.enable()
