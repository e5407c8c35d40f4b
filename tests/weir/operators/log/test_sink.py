"""Transactions that other processes finish, in any order and several times: each row is in the log once."""

import json

import pyarrow as pa
import pytest

import weir
import weir.log
from experiments.log_cluster import LogCluster
from weir.author.operator import OperatorContext
from weir.errors import FailureKind, InputError
from weir.operators.log import held_batches, topics
from weir.operators.registry import create_operator
from weir.protocol.log.producers import IN_FLIGHT_BATCHES_MAX

pytestmark = pytest.mark.scenario


def rows(*numbers, **more):
    return pa.RecordBatch.from_pylist(
        [{"id": number, **more, "_event_time_ms": 1000 + number, "_ingest_time_us": 1} for number in numbers]
    )


def sink(brokers, topic, directory, generation=1, restored=None, index=0, indices=(0,), **settings):
    operator = create_operator(weir.LogSink(topic, bootstrap=brokers.addresses, **settings))
    context = OperatorContext(
        "job", "out", 1, index, len(indices), generation=generation, durable_uri=directory and str(directory),
        restored=restored or {}, subtask_indices=indices, is_sink=True,
    )  # fmt: skip
    operator.open(context)
    return operator


def records(brokers, topic, partition):
    reader = weir.log.Reader(brokers.addresses, topic=topic, partition=partition)
    return [(record.id, json.loads(record.data)) for record in reader]


def delivered(brokers, topic):
    """Ids of both partitions, in the order of each."""
    return [row["id"] for partition in (0, 1) for _, row in records(brokers, topic, partition)]


def through_json(value):
    return json.loads(json.dumps(value))


def commit(operator, checkpoint_id):
    operator.commit(checkpoint_id)
    operator.await_commit()


def test_a_transaction_is_delivered_once_by_whoever_comes_next(brokers, topic, tmp_path):
    first = sink(brokers, topic, tmp_path, key="id")
    first.process(rows(1, 2))
    listed = first.snapshot(1)
    assert delivered(brokers, topic) == []
    first.process(rows(3))
    # The process dies here: 1 and 2 are in the checkpoint, 3 is not.
    second = sink(brokers, topic, tmp_path, 2, {0: through_json(listed)}, key="id")
    assert sorted(delivered(brokers, topic)) == [1, 2]
    second.process(rows(3))
    kept = second.snapshot(2)
    commit(second, 2)
    # It dies before it could say so: a third one sends the same.
    third = sink(brokers, topic, tmp_path, 3, {0: through_json(kept)}, key="id")
    # The first one wakes up, and is told that all is there.
    commit(first, 1)
    third.process(rows(4))
    third.close()
    third.snapshot(0)
    third.commit(0)
    assert sorted(delivered(brokers, topic)) == [1, 2, 3, 4]
    assert not list(tmp_path.glob(".rows-*"))
    for each in (first, second):
        each.close()


def test_many_batches_of_which_some_were_sent_are_sent_again_once(brokers, topic, tmp_path, monkeypatch):
    """More than the brokers have answers of: those that were written long ago are known by their numbers."""
    monkeypatch.setattr(held_batches, "_BATCH_BYTES", 1)
    first = sink(brokers, topic, tmp_path, key="id", compression="none")
    for number in range(300):
        first.process(rows(number))
    listed = through_json(first.snapshot(1))
    ((_, description),) = listed["transactions"]
    _, batches = held_batches.read_held(first._place, description["name"], "sink out")
    some = [next(batches) for _ in range(200)]
    assert {batch.partition for batch in some} == {0, 1}
    first._deliveries.send(description["producer_id"], some)
    assert len(delivered(brokers, topic)) == 200
    assert all(len(_ids(brokers, topic, p)) > IN_FLIGHT_BATCHES_MAX for p in (0, 1))
    # Two at the same time, as far as both know the only one.
    second = sink(brokers, topic, tmp_path, 2, {0: listed}, key="id", compression="none")
    commit(first, 1)
    found = delivered(brokers, topic)
    assert sorted(found) == list(range(300))
    assert all(
        [row["id"] for _, row in records(brokers, topic, p)] == sorted(set(found) & _ids(brokers, topic, p))
        for p in (0, 1)
    )
    for each in (first, second):
        each.close()


def _ids(brokers, topic, partition):
    return {row["id"] for _, row in records(brokers, topic, partition)}


def test_a_leader_that_dies_while_rows_are_delivered_costs_none_and_doubles_none(tmp_path, monkeypatch):
    monkeypatch.setattr(held_batches, "_BATCH_BYTES", 1)
    with LogCluster(tmp_path / "log", lease_ms=2_000) as brokers:
        weir.log.create_topic(brokers.addresses, "words", partitions=2)
        for killed in range(2):
            writer = sink(brokers, "words", tmp_path / "store", killed + 1, key="id")
            for number in range(400 * killed, 400 * killed + 400):
                writer.process(rows(number))
            writer.snapshot(1)
            leader = brokers.leader("words", killed)
            writer.commit(1)
            while len(delivered(brokers, "words")) < 400 * killed + 20:
                assert not writer._commits.has_failed
            brokers.kill(leader)
            writer.await_commit()
            writer.close()
            assert sorted(delivered(brokers, "words")) == list(range(400 * killed + 400))
            brokers.start(leader)
            brokers.wait_until_whole("words")


def test_rows_of_a_key_that_moves_come_after_those_before_whoever_delivers_first(brokers, topic, tmp_path):
    old = sink(brokers, topic, tmp_path, index=1, indices=(0, 1), key="id")
    new = sink(brokers, topic, tmp_path, index=0, indices=(0, 1), key="id")
    old.process(rows(7, turn=1))
    before = old.snapshot(1)
    new.snapshot(1)
    old.process(rows(7, turn=2))
    # The key moves to the other subtask, and back.
    old.settle()
    new.process(rows(7, turn=3))
    new.settle()
    old.process(rows(7, turn=4))
    listed = {0: through_json(new.snapshot(2)), 1: through_json(old.snapshot(2))}
    assert before["transactions"][0][0] == 1
    # The new one's commit comes first, and then the other's.
    commit(new, 2)

    def turns():
        return [row["turn"] for partition in (0, 1) for _, row in records(brokers, topic, partition)]

    assert turns() == [1, 2, 3]
    commit(old, 2)
    assert turns() == [1, 2, 3, 4]
    assert not list(tmp_path.glob(".rows-*"))
    assert not list(tmp_path.glob(".settled-*"))
    # Another deployment finds nothing to add.
    for index in (0, 1):
        sink(brokers, topic, tmp_path, 2, listed, index, (0, 1), key="id").close()
    assert turns() == [1, 2, 3, 4]
    for each in (old, new):
        each.close()


def test_a_start_delivers_what_moved_in_order(brokers, topic, tmp_path):
    old = sink(brokers, topic, tmp_path, index=1, indices=(0, 1), key="id")
    new = sink(brokers, topic, tmp_path, index=0, indices=(0, 1), key="id")
    old.process(rows(7, turn=1))
    old.settle()
    new.process(rows(7, turn=2))
    listed = {0: through_json(new.snapshot(1)), 1: through_json(old.snapshot(0))}
    sink(brokers, topic, tmp_path, 2, listed, 0, (0,), key="id").close()
    assert [row["turn"] for p in (0, 1) for _, row in records(brokers, topic, p)] == [1, 2]
    assert not list(tmp_path.glob(".settled-*"))
    for each in (old, new):
        each.close()


def test_rows_that_no_checkpoint_covers_are_never_delivered(brokers, topic, tmp_path):
    first = sink(brokers, topic, tmp_path)
    first.process(rows(1))
    listed = first.snapshot(1)
    commit(first, 1)
    first.process(rows(2))
    first.snapshot(2)
    second = sink(brokers, topic, tmp_path, 2, {0: through_json(listed)})
    second.process(rows(20, 30))
    second.snapshot(2)
    commit(second, 2)
    assert sorted(delivered(brokers, topic)) == [1, 20, 30]
    for each in (first, second):
        each.close()


def test_what_is_gone_was_delivered_or_the_start_says_that_it_was_not(brokers, topic, tmp_path):
    first = sink(brokers, topic, tmp_path / "one")
    first.process(rows(1))
    listed = through_json(first.snapshot(1))
    for path in (tmp_path / "one").glob(".rows-*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(InputError, match=r"is gone, with rows that are not in topic") as lost:
        sink(brokers, topic, tmp_path / "other", 2, {0: listed})
    assert lost.value.failure_kind is FailureKind.PERMANENT
    for path in tmp_path.glob(".rows-*"):
        path.rename(tmp_path / "one" / path.name)
    # Another checkpoint store: the rows are still where they were.
    second = sink(brokers, topic, tmp_path / "other", 2, {0: listed})
    assert delivered(brokers, topic) == [1]
    # And now they are not.
    third = sink(brokers, topic, tmp_path / "third", 2, {0: listed})
    assert delivered(brokers, topic) == [1]
    for each in (first, second, third):
        each.close()


def test_a_log_that_has_lost_what_was_written_is_told(brokers, topic, tmp_path):
    first = sink(brokers, topic, tmp_path, partition="p")
    for number in (1, 2):
        first.process(rows(number, p=1))
        listed = through_json(first.snapshot(number))
    # As if the batch before had been in the log once.
    del listed["transactions"][0]
    with pytest.raises(InputError, match="does not have what this job has written before") as lost:
        sink(brokers, topic, tmp_path, 2, {0: listed}, partition="p")
    assert lost.value.failure_kind is FailureKind.PERMANENT
    assert delivered(brokers, topic) == []
    first.close()


def test_a_damaged_row_log_is_told(brokers, topic, tmp_path):
    first = sink(brokers, topic, tmp_path, value="text", compression="none")
    first.process(rows(1, text="x" * 1000))
    listed = through_json(first.snapshot(1))
    (path,) = tmp_path.glob(".rows-*")
    content = path.read_bytes()
    place = content.rindex(b"x")
    path.write_bytes(content[:place] + b"y" + content[place + 1 :])
    with pytest.raises(InputError, match="is not what was written"):
        sink(brokers, topic, tmp_path, 2, {0: listed}, value="text")
    first.close()


def test_without_checkpoints_rows_come_at_the_end(brokers, topic):
    only = sink(brokers, topic, "")
    only.process(rows(1, 2))
    only.process(rows(3))
    assert delivered(brokers, topic) == []
    only.snapshot(0)
    only.close()
    only.commit(0)
    assert sorted(delivered(brokers, topic)) == [1, 2, 3]


def test_at_least_once_delivers_with_the_flush(brokers, topic, tmp_path):
    only = sink(brokers, topic, tmp_path, delivery="at_least_once", id="id", partition="p")
    only.process(rows(1, 2, p=1))
    only.process(rows(3, p=0))
    only.flush()
    only.close()
    # The number of the partition is no part of the value.
    assert records(brokers, topic, 1) == [(1, {"id": 1}), (2, {"id": 2})]
    assert records(brokers, topic, 0) == [(3, {"id": 3})]


def test_ids_are_event_times_unless_a_column_is_named_and_a_value_may_be_a_column(brokers, topic, tmp_path):
    one = sink(brokers, topic, tmp_path, value="text", partition="p")
    one.process(rows(1, text='"a\\nb"', p=0))
    one.snapshot(0)
    one.close()
    one.commit(0)
    assert records(brokers, topic, 0) == [(1001, "a\nb")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"p": 2, "n": 1, "text": ""},
            "has no partition 2, which is in column 'p': its partitions are 0 to 1",
        ),
        ({"p": None, "n": 1, "text": ""}, "null as partition 'p'"),
        ({"p": 0, "n": None, "text": ""}, "null as id 'n'"),
        ({"p": 0, "n": 1, "text": None}, "null as value 'text'"),
    ],
)
def test_rows_that_cannot_be_records(brokers, topic, tmp_path, row, message):
    schema = pa.schema(
        [("p", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("_event_time_ms", pa.int64()),
         ("_ingest_time_us", pa.int64())]
    )  # fmt: skip
    only = sink(brokers, topic, tmp_path, partition="p", id="n", value="text")
    with pytest.raises(InputError, match=message):
        only.process(
            pa.RecordBatch.from_pylist([row | {"_event_time_ms": 1, "_ingest_time_us": 1}], schema=schema)
        )
    only.close()


def test_a_missing_topic_and_a_wrong_address_are_one_line(brokers, tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"sink out: the log at .* has no topic absent; run: weir log create absent"
    ) as no:
        sink(brokers, "absent", tmp_path)
    assert no.value.failure_kind is FailureKind.PERMANENT
    monkeypatch.setattr(topics, "ANSWER_TIMEOUT_S", 0.1)
    spec = weir.LogSink("words", bootstrap="127.0.0.1:1")
    with pytest.raises(
        InputError, match=r"the log at 127.0.0.1:1 does not answer: .* check the addresses"
    ) as away:
        create_operator(spec).open(OperatorContext("job", "out", 1, 0, 1))
    assert away.value.failure_kind is FailureKind.OUTAGE
