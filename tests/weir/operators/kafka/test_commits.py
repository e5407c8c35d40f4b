"""A transaction that waits for its coordinator does not hold up rows and checkpoints."""

import threading
from types import SimpleNamespace

import pytest

import weir
from tests.weir.operators.kafka.sinks import rows
from weir.author.operator import NEVER_US, OperatorContext
from weir.errors import InputError
from weir.operators.kafka.sink import KafkaSink
from weir.operators.kafka.slots import SLOTS, GroupRecord, Slots, ids_of
from weir.operators.sinks.late_commits import Commits
from weir.operators.sinks.places import open_place
from weir.operators.sinks.two_phase import TwoPhaseSink

SPEC = weir.KafkaSink("t", bootstrap="127.0.0.1:1")


class Awaited:
    """Commits that end when they are let, and fail while a failure is set."""

    def __init__(self):
        self.failure = None
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.committed = []

    def __call__(self, checkpoint_id):
        self.begun.release()
        assert self.may_end.acquire(timeout=180)
        if self.failure is not None:
            raise self.failure
        self.committed.append(checkpoint_id)


def test_nobody_waits_for_a_commit_and_the_next_one_covers_what_came_meanwhile():
    awaited = Awaited()
    commits = Commits(awaited)
    commits.begin(1)
    assert awaited.begun.acquire(timeout=180)
    commits.begin(2)
    commits.begin(3)
    assert commits.is_busy
    assert awaited.committed == []
    awaited.may_end.release(2)
    commits.wait(180)
    assert awaited.committed == [1, 3]
    assert not commits.is_busy


def test_what_a_commit_fails_with_is_told_and_nothing_is_committed_after_it():
    awaited = Awaited()
    commits = Commits(awaited)
    awaited.failure = InputError("no coordinator")
    commits.begin(1)
    awaited.may_end.release()
    commits.wait(180)
    assert commits.has_failed
    awaited.failure = None
    for call in (commits.check, lambda: commits.begin(2)):
        with pytest.raises(InputError, match="no coordinator"):
            call()
    assert awaited.committed == []


def test_a_subtask_without_rows_is_told_of_a_failure_too():
    sink = KafkaSink(SPEC)
    sink._commits = commits = Commits(Awaited())
    assert sink.due_us() == NEVER_US
    commits._commit.failure = InputError("no coordinator")
    commits.begin(1)
    assert sink.due_us() == NEVER_US
    commits._commit.may_end.release()
    commits.wait(180)
    assert sink.due_us() == 0
    with pytest.raises(InputError, match="no coordinator"):
        sink.on_time()


def test_the_last_commit_tries_again_what_has_failed():
    class Sink(KafkaSink):
        failure = InputError("no coordinator")

        def start(self, context, is_restart):
            self.committed = []

        def open(self, context):
            TwoPhaseSink.open(self, context)

        def begin(self, transaction):
            self._number = transaction.sequence

        def write(self, batch):
            pass

        def prepare(self):
            return {"name": str(self._number)}

        def commit_prepared(self, description):
            if self.failure is not None:
                raise self.failure
            self.committed.append(description["name"])

    sink = Sink(SPEC)
    sink._group = "g"
    sink.open(OperatorContext("job", "out", 1, 0, 1))
    for number in (1, 2):
        sink.process(rows(number))
        assert len(sink.snapshot(number)["transactions"]) == number
    sink.commit(1)
    with pytest.raises(InputError, match="no coordinator"):
        sink.await_commit()
    # The checkpoint goes on to have it.
    assert [at for at, _ in sink.snapshot(3)["transactions"]] == [1, 2]
    with pytest.raises(InputError, match="no coordinator"):
        sink.commit(0)
    sink.failure = None
    sink.commit(0)
    sink.await_commit()
    assert sink.committed == ["1", "2"]


def test_groups_are_on_record_until_a_later_deployment_has_seen_to_them(tmp_path):
    record = GroupRecord(open_place(str(tmp_path)), "weir/job/out")
    record.add(3, 1, "0a1b2c3d")
    record.add(0, 2, "ffffffff")
    (tmp_path / ".rows-00000-000001-00000001.pending").touch()
    assert record.earlier(1) == {}
    found = record.earlier(2)
    assert list(found.values()) == ["weir/job/out/3/0a1b2c3d"]
    assert sorted(record.earlier(3).values()) == ["weir/job/out/0/ffffffff", "weir/job/out/3/0a1b2c3d"]
    record.remove(found)
    assert list(record.earlier(3).values()) == ["weir/job/out/0/ffffffff"]


def test_a_transaction_keeps_its_slot_until_it_has_ended():
    clients = {name: SimpleNamespace(is_worn=False) for name in [*ids_of("g"), "h/0"]}
    slots = Slots(SPEC, "out", "g")
    left = dict(clients)
    slots.start(left)
    # Those of other groups are for whoever ends their transactions.
    assert list(left) == ["h/0"]
    taken = [slots.take(f"t{number}") for number in range(SLOTS)]
    assert taken == [clients[name] for name in ids_of("g")]
    assert slots.take("late") is None
    assert slots.free_count == 0
    slots.release("t1")
    assert slots.producer_of("t1") is None
    assert slots.take("next") is clients["g/1"]
    assert slots.producer_of("next") is clients["g/1"]


def test_a_worn_client_is_replaced_before_another_transaction_has_its_slot(monkeypatch):
    made, held = [], []

    class Client:
        def __init__(self, spec, step, name):
            made.append(name)
            held.append(slots.free_count)
            if name == "g/1":
                raise InputError("no answer")
            self.is_worn = False

    slots = Slots(SPEC, "out", "g")
    slots.start({name: SimpleNamespace(is_worn=True) for name in ids_of("g")})
    monkeypatch.setattr("weir.operators.kafka.slots.RecordProducer", Client)
    worn = [slots.take(name) for name in ("t0", "t1")]
    slots.release("t0")
    assert slots.take("t2") is not worn[0]
    # The transaction has ended all the same; whoever begins the next one is told.
    slots.release("t1")
    with pytest.raises(InputError, match="no answer"):
        slots.take("t3")
    assert made == ["g/0", "g/1", "g/1"]
    assert held == [SLOTS - 2, SLOTS - 2, SLOTS - 2]
