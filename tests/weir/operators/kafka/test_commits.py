"""A transaction that waits for its coordinator does not hold up rows and checkpoints."""

import threading

import pyarrow as pa
import pytest

import weir
from weir.errors import InputError
from weir.operators.base import OperatorContext
from weir.operators.kafka.sink import KafkaSink
from weir.records import with_system_columns


class AwaitingSink(KafkaSink):
    """Its transactions end when they are let, and fail while a failure is set."""

    failure = None

    def __init__(self):
        super().__init__(weir.KafkaSink("t", bootstrap="127.0.0.1:1"))
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.committed = []

    def start(self, context, is_restart):
        pass

    def begin(self, transaction):
        self._number = transaction.sequence

    def write(self, batch):
        pass

    def prepare(self):
        return {"name": str(self._number)}

    def commit_prepared(self, description):
        self.begun.release()
        assert self.may_end.acquire(timeout=180)
        if self.failure is not None:
            raise self.failure
        self.committed.append(description["name"])


@pytest.fixture
def sink():
    made = AwaitingSink()
    made.open(OperatorContext("job", "out", 1, 0, 1, generation=1, restored={}))
    yield made
    for _ in range(10):
        made.may_end.release()
    for thread in threading.enumerate():
        if thread.name == "kafka-commit":
            thread.join(180)


def checkpoint(sink, number):
    """What the checkpoint has of transactions."""
    sink.process(with_system_columns(pa.record_batch({"id": pa.array([number])}), 1, 2))
    return [name["name"] for _, name in sink.snapshot(number)["transactions"]]


def test_rows_and_checkpoints_go_on_while_a_transaction_waits(sink):
    assert checkpoint(sink, 1) == ["1"]
    sink.commit(1)
    assert sink.begun.acquire(timeout=180)
    # It may not be committed yet: the next checkpoints have it, too.
    assert checkpoint(sink, 2) == ["1", "2"]
    sink.commit(2)
    assert checkpoint(sink, 3) == ["1", "2", "3"]
    assert sink.committed == []
    sink.may_end.release(2)
    sink.await_commit()
    # No complete checkpoint covers the third one.
    assert sink.committed == ["1", "2"]
    assert checkpoint(sink, 4) == ["3", "4"]


def test_what_a_commit_fails_with_fails_the_next_checkpoint_and_the_last_commit_tries_again(sink):
    checkpoint(sink, 1)
    sink.failure = InputError("no coordinator")
    sink.commit(1)
    sink.may_end.release()
    with pytest.raises(InputError, match="no coordinator"):
        sink.await_commit()
    sink.commit(1)
    assert sink.begun.acquire(timeout=180)
    assert sink.begun.acquire(timeout=180)
    sink.may_end.release()
    for thread in threading.enumerate():
        if thread.name == "kafka-commit":
            thread.join(180)
    with pytest.raises(InputError, match="no coordinator"):
        checkpoint(sink, 2)
    sink.failure = None
    sink.may_end.release(2)
    sink.snapshot(0)
    sink.commit(0)
    assert sink.committed == ["1", "2"]
