"""What a retry is answered, and what is refused."""

import json

import pytest

from weir.protocol.log import producers
from weir.protocol.log.entries import CONTROL, MAY_HAVE_GAPS, Header
from weir.protocol.log.producers import IN_FLIGHT_BATCHES_MAX, ProducerTable, Verdict


def batch(sequence, epoch=1, flags=0, producer_id=7):
    return Header(flags, 1, 0, 0, producer_id, epoch, sequence, 0, 0)


@pytest.fixture
def table():
    table = ProducerTable()
    for sequence in range(3):
        table.note(batch(sequence), 10 * sequence)
    return table


def test_the_answer_to_a_duplicate_is_the_first_answer(table):
    assert table.judge(batch(1)) == (Verdict.DUPLICATE, 10)
    assert table.judge(batch(3)) == (Verdict.APPEND, 0)


def test_a_batch_behind_one_that_is_absent_is_out_of_order_unless_its_producer_does_not_care(table):
    assert table.judge(batch(4))[0] is Verdict.OUT_OF_ORDER
    assert table.judge(batch(4, flags=MAY_HAVE_GAPS))[0] is Verdict.APPEND


def test_a_producer_that_is_not_known_begins_at_the_beginning(table):
    assert table.judge(batch(0, producer_id=8))[0] is Verdict.APPEND
    assert table.judge(batch(1, producer_id=8))[0] is Verdict.OUT_OF_ORDER


def test_a_higher_epoch_fences_the_lower_one_and_begins_anew(table):
    table.note(batch(0, epoch=2, flags=CONTROL), 30)
    assert table.judge(batch(3))[0] is Verdict.FENCED
    assert table.judge(batch(1))[0] is Verdict.FENCED
    assert table.judge(batch(0, epoch=2))[0] is Verdict.APPEND
    assert table.epoch_of(7) == 2


def test_answers_are_kept_for_as_many_batches_as_may_be_under_way(table):
    for sequence in range(3, 2 * IN_FLIGHT_BATCHES_MAX):
        table.note(batch(sequence), sequence)
    assert table.judge(batch(IN_FLIGHT_BATCHES_MAX)) == (Verdict.DUPLICATE, IN_FLIGHT_BATCHES_MAX)
    # Without gaps it is there, wherever that is.
    assert table.judge(batch(IN_FLIGHT_BATCHES_MAX - 1))[0] is Verdict.WRITTEN
    assert table.judge(batch(IN_FLIGHT_BATCHES_MAX - 1, flags=MAY_HAVE_GAPS))[0] is Verdict.OUT_OF_ORDER


def test_a_snapshot_in_json_is_the_whole_table(table):
    restored = ProducerTable()
    restored.restore(json.loads(json.dumps(table.snapshot())))
    assert restored.snapshot() == table.snapshot()
    assert restored.judge(batch(2)) == (Verdict.DUPLICATE, 20)


def test_the_producer_that_was_idle_longest_is_forgotten_first(table, monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    table.note(batch(0, producer_id=8), 40)
    table.note(batch(3), 41)
    table.note(batch(0, producer_id=9), 42)
    assert [table.epoch_of(each) for each in (7, 8, 9)] == [1, 0, 1]


def test_of_producers_that_are_idle_the_last_answer_is_kept(table, monkeypatch):
    monkeypatch.setattr(producers, "ANSWERED_PRODUCERS_MAX", 2)
    for producer_id in (8, 9):
        for sequence in range(3):
            table.note(batch(sequence, producer_id=producer_id), 100 * producer_id + sequence)
    restored = ProducerTable()
    restored.restore(table.snapshot())
    for each in (table, restored):
        assert each.judge(batch(2)) == (Verdict.DUPLICATE, 20)
        assert each.judge(batch(1))[0] is Verdict.WRITTEN
        assert each.judge(batch(1, producer_id=8)) == (Verdict.DUPLICATE, 801)
        assert each.judge(batch(3))[0] is Verdict.APPEND
        # It writes again, and another one is idle longest.
        each.note(batch(3), 30)
        assert each.judge(batch(1, producer_id=8))[0] is Verdict.WRITTEN
        assert each.judge(batch(1, producer_id=9)) == (Verdict.DUPLICATE, 901)
    assert restored.snapshot() == table.snapshot()
