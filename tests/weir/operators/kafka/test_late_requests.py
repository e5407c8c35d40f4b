"""Against a real broker whose network hands a request over late, after the client has asked again."""

import contextlib
import struct

import pytest

from tests.weir.operators.kafka.late_requests import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    FIRST_SLOT,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
    LateRequests,
)
from tests.weir.operators.kafka.sinks import delivered, rows, sink, through_json
from weir.errors import FailureKind, InputError
from weir.operators.kafka import producing

pytestmark = [pytest.mark.scenario, pytest.mark.service]

#: What brokers say to a client that another one has taken over from.
FENCED = {47, 90}


@pytest.fixture
def late(kafka_broker):
    proxy_port, late_port = kafka_broker[3]
    with LateRequests(proxy_port, late_port) as proxy:
        proxy.bootstrap = f"127.0.0.1:{proxy_port}"
        yield proxy


def end_code(answer):
    """What the broker said to a request that ends a transaction."""
    return struct.unpack(">xxxxh", answer[:6])[0]


def test_the_end_of_a_transaction_that_comes_late_does_not_end_a_later_one(
    kafka_bootstrap, late, topic, tmp_path
):
    first = sink(late.bootstrap, topic, tmp_path)
    first.process(rows(1))
    listed = first.snapshot(1)
    late.keep_next(END_TXN)
    first.commit(1)
    first.await_commit()
    first.process(rows(2))
    first.flush()
    assert end_code(late.deliver()) in FENCED
    # Here it dies: no checkpoint has the second row, and the source sends it again.
    second = sink(late.bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.process(rows(2))
    second.snapshot(0)
    second.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1, 2]


def test_a_mark_that_comes_late_does_not_replace_a_later_one(kafka_bootstrap, late, topic, tmp_path):
    first = sink(late.bootstrap, topic, tmp_path)
    late.keep_next(OFFSET_COMMIT)
    for number in (1, 2):
        first.process(rows(number))
        listed = first.snapshot(number)
        first.commit(number)
        first.await_commit()
        # The second time: between the mark of the transaction and its end.
        late.deliver_before(END_TXN)
    assert late.answers
    # Here it dies, and nobody knows that the second transaction was committed.
    second = sink(late.bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.process(rows(3))
    second.snapshot(0)
    second.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1, 2, 3]


def test_an_abort_that_comes_late_takes_no_rows(kafka_bootstrap, late, topic, tmp_path):
    first = sink(late.bootstrap, topic, tmp_path)
    first.process(rows(1))
    listed = first.snapshot(1)
    first.commit(1)
    first.await_commit()
    first.process(rows(2))
    first.flush()
    late.keep_next(END_TXN)
    first.close()
    second = sink(late.bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.process(rows(2))
    second.flush()
    assert end_code(late.deliver()) in FENCED
    second.snapshot(0)
    second.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1, 2]


@pytest.mark.parametrize("kind", [INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, PRODUCE])
def test_other_requests_that_come_late_do_no_harm(kafka_bootstrap, late, topic, tmp_path, kind):
    late.keep_next(kind, FIRST_SLOT)
    first = sink(late.bootstrap, topic, tmp_path)
    first.process(rows(1))
    listed = first.snapshot(1)
    first.commit(1)
    first.await_commit()
    first.process(rows(2))
    first.flush()
    late.deliver()
    listed = first.snapshot(2)
    first.process(rows(3))
    first.commit(2)
    # The brokers gave the id to a client that is nobody: that is an outage, and the job begins again.
    fenced = pytest.raises(InputError, match="another process writes under the same transactional id")
    with fenced if kind == INIT_PRODUCER_ID else contextlib.nullcontext():
        first.await_commit()
    second = sink(late.bootstrap, topic, tmp_path, 2, {0: through_json(listed)})
    second.process(rows(3))
    second.snapshot(0)
    second.commit(0)
    assert delivered(kafka_bootstrap, topic) == [1, 2, 3]


@pytest.mark.parametrize("is_committed", [False, True])
def test_the_last_commit_asks_with_a_new_client_whose_mark_tells_what_came_of_it(
    kafka_bootstrap, late, topic, tmp_path, monkeypatch, is_committed
):
    monkeypatch.setattr(producing, "_ATTEMPTS_S", 2.0)
    writer = sink(late.bootstrap, topic, tmp_path, partition="part")
    for number in (1, 2, 3):
        writer.process(rows(number, part=0))
        writer.snapshot(number)
    late.keep_next(END_TXN, closes=False, hands_over=is_committed)
    writer.commit(1)
    with pytest.raises(InputError, match="a transaction did not end") as told:
        writer.await_commit()
    assert told.value.failure_kind is FailureKind.OUTAGE
    monkeypatch.undo()
    writer.commit(0)
    if not is_committed:
        assert end_code(late.deliver()) in FENCED
    assert delivered(kafka_bootstrap, topic, key=lambda _: 0) == [1, 2, 3]
