"""How large batches become, by how well those before them were compressed."""

import numpy as np
import pytest

from weir.clock import SystemClock
from weir.log.batches import packed_body
from weir.log.queue import BatchQueue
from weir.log.tickets import Batch, ManyTicket
from weir.testing.manual_clock import ManualClock

MIB = 1 << 20


@pytest.mark.parametrize(
    ("raw_bytes", "sent_bytes", "limit"),
    [
        (MIB, MIB, MIB),
        (MIB, MIB // 2, 2 * MIB),
        # However small it has become: a reader holds all of it in memory.
        (MIB, 5_000, 4 * MIB),
        # Random bytes grow a little.
        (MIB, MIB + 100, MIB),
        (0, 0, MIB),
    ],
)
def test_a_batch_holds_more_where_the_last_one_became_small(raw_bytes, sent_bytes, limit):
    queue = BatchQueue(SystemClock(), 0.0, 32 * MIB, MIB)
    queue.packed(MIB, 10)
    queue.packed(raw_bytes, sent_bytes)
    assert queue.batch_bytes == limit


def test_what_is_asked_for_is_never_less():
    queue = BatchQueue(SystemClock(), 0.0, 32 * MIB, 6 * MIB)
    queue.packed(MIB, 10)
    assert queue.batch_bytes == 6 * MIB


def test_words_make_larger_batches_than_random_bytes():
    queue = BatchQueue(SystemClock(), 0.0, 32 * MIB, MIB)
    for data, limit in ((b"entry " * 100, 4 * MIB), (np.random.default_rng(1).bytes(600), MIB)):
        records = [data] * 1 if limit == MIB else [data] * 1000
        lengths = np.full(len(records), len(data), np.uint32)
        body = packed_body(np.arange(len(records)), lengths, records, "lz4")
        queue.packed(body.raw_bytes, len(body.content))
        assert queue.batch_bytes == limit


@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_record_that_nobody_takes_has_its_time_too(is_numbered):
    """As where no broker is left: a batch that is open is cut by whoever sends batches."""
    queue = BatchQueue(SystemClock(), 0.0, 32 * MIB, MIB)
    with queue.lock:
        batch = queue.begin(1000)
        batch.ids.append(1)
        batch.buffers.append(b"x")
        batch.size_bytes = 13
    if is_numbered:
        assert not queue.has_expired(999)
        assert queue.has_expired(1000)
    assert queue.expired(999) == []
    assert queue.expired(1000) == [batch]
    queue.finished(batch, -1)
    assert queue.is_empty


def test_who_asks_again_and_again_for_an_answer_leaves_nothing_behind():
    batch = Batch(1000)
    for _ in range(3):
        assert not batch.wait(0.001)
    assert batch._waiting == []
    batch.finish(5)
    assert batch.wait(0.001)


def test_the_answer_to_several_batches_is_waited_for_no_longer_than_asked(monkeypatch):
    batches = [Batch(0) for _ in range(4)]
    clock, waited = ManualClock(), []

    def wait(batch, timeout_s):
        waited.append(timeout_s)
        clock.advance_ms(250)
        batch.is_done = True
        return True

    monkeypatch.setattr(Batch, "wait", wait)
    ManyTicket(batches, clock).result(10.0)
    # Of what is left after those before it.
    assert waited == [10.0, 9.75, 9.5, 9.25]
    monkeypatch.undo()
    with pytest.raises(TimeoutError, match="within 0 s"):
        ManyTicket([Batch(0), Batch(0)], SystemClock()).result(0)
