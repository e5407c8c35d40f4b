"""Producers and readers against three brokers, which all tests of this file share."""

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import weir.log
from experiments.log_cluster import LogCluster
from weir.errors import ConfigError, ConnectionLostError, FencedError
from weir.log.batches import body_of
from weir.log.numbered import NumberedProducer
from weir.protocol.log.producers import IN_FLIGHT_BATCHES_MAX

pytestmark = pytest.mark.scenario

NAMES = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # On a busy machine a broker may be silent for long.
    with LogCluster(tmp_path_factory.mktemp("log"), lease_ms=30_000) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    name = next(NAMES)
    weir.log.create_topic(cluster.addresses, name)
    return name


def read(cluster, topic, **values):
    return list(weir.log.Reader(cluster.addresses, topic=topic, **values))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_what_is_sent_is_read_in_order(cluster, topic, acks, compression):
    with weir.log.Producer(cluster.addresses, topic=topic, acks=acks, compression=compression) as producer:
        one = producer.send(-(2**63), b"")
        many = producer.send_many(np.arange(5000), [b"entry" * (each % 7) for each in range(5000)])
        last = producer.send(2**63 - 1, b"\0\xff")
    assert (one.result() >= 0) == (acks != 0)
    assert many.is_done
    assert last.is_done
    while len(records := read(cluster, topic)) < 5002:
        # With acks=0 the last ones may be on their way.
        assert acks == 0
    assert [record.id for record in records] == [-(2**63), *range(5000), 2**63 - 1]
    assert [record.data for record in records[1:4]] == [b"", b"entry", b"entry" * 2]
    assert records[-1].data == b"\0\xff"
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    if acks != 0:
        assert offsets[0] == one.result()
        assert offsets[1] == many.result()


def test_arrow_arrays_are_sent_as_they_lie(cluster, topic):
    array = pa.array([b"x", b"", b"abc", b"y" * 100] * 500, pa.binary())[1:]
    with weir.log.Producer(cluster.addresses, topic=topic, batch_bytes=5000) as producer:
        producer.send_many(range(1999), array).result()
    assert [record.data for record in read(cluster, topic)] == array.to_pylist()


def test_records_of_many_threads_share_batches_and_keep_their_order(cluster, topic):
    with weir.log.Producer(cluster.addresses, topic=topic, linger_ms=20) as producer:

        def send(first):
            for record_id in range(first, first + 500):
                producer.send(record_id, b"x")

        threads = [threading.Thread(target=send, args=(1000 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = [record.id for record in read(cluster, topic)]
    assert len(ids) == 2000
    for number in range(4):
        assert [each for each in ids if each // 1000 == number] == list(
            range(1000 * number, 1000 * number + 500)
        )
    batches = list(weir.log.Reader(cluster.addresses, topic=topic).batches())
    assert len(batches) < 200


def test_a_producer_that_comes_back_takes_its_id_over_and_fences_the_old_one(cluster, topic):
    old = weir.log.Producer(cluster.addresses, topic=topic, producer_id=77)
    assert old.send(1, b"old").result() >= 0
    with weir.log.Producer(cluster.addresses, topic=topic, producer_id=77) as new:
        new.send(2, b"new").result()
        with pytest.raises(FencedError):
            old.send(3, b"old").result()
        with pytest.raises(FencedError):
            old.send(4, b"old").result()
        old.close()
        new.send(5, b"new").result()
    assert [record.id for record in read(cluster, topic)] == [1, 2, 5]


def test_reading_begins_at_an_offset_a_time_or_an_id(cluster, topic):
    with weir.log.Producer(cluster.addresses, topic=topic) as producer:
        for record_id in range(10):
            producer.send(record_id, bytes(100_000)).result()
        time.sleep(0.01)
        now_ms = int(time.time() * 1000)
        offset = producer.send(10, b"late").result()
    assert [record.id for record in read(cluster, topic, start=offset - 1)] == [9, 10]
    assert read(cluster, topic, start=offset + 1) == []
    by_time = [record.id for record in read(cluster, topic, start_ms=now_ms)]
    assert by_time[-1] == 10
    assert len(by_time) < 4
    by_id = [record.id for record in read(cluster, topic, start_id=7)]
    assert by_id[-4:] == [7, 8, 9, 10]
    assert len(by_id) < 6


def test_a_reader_that_follows_gets_what_is_committed_later(cluster, topic):
    reader = weir.log.Reader(cluster.addresses, topic=topic, follow=True)
    found = []

    def follow():
        for record in reader:
            found.append(record.id)
            if record.id == 99:
                reader.close()

    thread = threading.Thread(target=follow)
    thread.start()
    with weir.log.Producer(cluster.addresses, topic=topic) as producer:
        for record_id in range(100):
            producer.send(record_id, b"x").result()
    thread.join(30)
    assert found == list(range(100))


def test_numbered_batches_are_there_once_whoever_sends_them(cluster, topic):
    bodies = [body_of([number], [b"x"], "none") for number in range(2 * IN_FLIGHT_BATCHES_MAX)]

    def numbered(first_sequence, producer_id=99):
        return NumberedProducer(
            cluster.addresses,
            topic=topic,
            partition=0,
            producer_id=producer_id,
            first_sequence=first_sequence,
        )

    first, second = numbered(0), numbered(0)
    assert first.known_sequence() == 0
    tickets = [(first.send(body), second.send(body)) for body in bodies]
    offsets = [(one.result(), other.result()) for one, other in tickets]
    # Each is the first answer, or nobody knows it any more.
    assert all(one == other or -1 in (one, other) for one, other in offsets)
    third = numbered(3)
    assert third.known_sequence() == len(bodies)
    assert third.send(bodies[3]).result() == -1
    late = numbered(5, producer_id=98)
    with pytest.raises(weir.log.LogRejectedError, match="out of order"):
        late.send(bodies[5]).result()
    with pytest.raises(weir.log.LogRejectedError):
        late.send(bodies[6])
    assert [record.id for record in read(cluster, topic)] == list(range(len(bodies)))
    for each in (first, second, third, late):
        each.close()
    with pytest.raises(weir.log.LogUnknownError, match="closed"):
        first.send(bodies[0])


def test_a_record_that_is_too_large_is_surely_not_written(cluster, topic):
    with weir.log.Producer(cluster.addresses, topic=topic) as producer:
        producer.send(1, b"small")
        with pytest.raises(weir.log.LogRejectedError, match="too large"):
            producer.send(2, bytes(9 << 20))
        with pytest.raises(weir.log.LogRejectedError, match="too large"):
            producer.send_many([2], [bytes(9 << 20)])
        large = producer.send(3, bytes(7 << 20))
        assert large.result() > 0
    assert [record.id for record in read(cluster, topic)] == [1, 3]


def test_a_large_record_is_not_refused_because_of_those_before_it(cluster, topic):
    large = bytes((8 << 20) - (65 << 10))
    with weir.log.Producer(cluster.addresses, topic=topic, linger_ms=1000) as producer:
        tickets = [producer.send(1, bytes(100_000)), producer.send(2, large)]
        offsets = [ticket.result(60) for ticket in tickets]
    assert [(record.offset, record.id) for record in read(cluster, topic)] == list(
        zip(offsets, (1, 2), strict=True)
    )


def test_what_cannot_be_sent_gets_an_error_and_the_next_record_goes(cluster, topic):
    with weir.log.Producer(cluster.addresses, topic=topic) as producer:
        with pytest.raises(weir.log.LogRejectedError):
            producer.send(2**63, b"x").result()
        assert producer.send(1, b"x").result() >= 0
        with pytest.raises(ValueError, match="2 ids for 1 records"):
            producer.send_many([1, 2], [b"x"])
    with pytest.raises(weir.log.LogRejectedError, match="closed"):
        producer.send(1, b"x")


def test_mistakes_are_told_at_once(cluster, topic):
    with pytest.raises(ConfigError, match="has no topic absent; run: weir log create absent"):
        weir.log.Producer(cluster.addresses, topic="absent")
    with pytest.raises(ConfigError, match="partitions 0 to 0, no 1"):
        weir.log.Producer(cluster.addresses, topic=topic, partition=1)
    with pytest.raises(ConfigError, match=r"acks='2' is not possible"):
        weir.log.Producer(cluster.addresses, topic=topic, acks=2)
    with pytest.raises(ConfigError, match="4 replicas need as many brokers, and 3 are here"):
        weir.log.create_topic(cluster.addresses, "other", replication=4)
    with pytest.raises(ConfigError, match="needs a bound"):
        weir.log.create_topic(cluster.addresses, "other", durability="memory")
    with pytest.raises(ConnectionLostError, match="does not answer"):
        weir.log.Producer("127.0.0.1:1", topic=topic, delivery_timeout_s=0.1)


def test_a_port_in_use_is_one_clear_line(cluster, tmp_path):
    command = [sys.executable, "-m", "log_broker", "--port", str(cluster.ports[1]), "--dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "the port is in use" in result.stderr
    assert "Traceback" not in result.stderr


def _open_files(cluster):
    found = []
    for number in cluster.ports:
        for descriptor in Path(f"/proc/{cluster.pid(number)}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(descriptor.readlink()))
    return found


def test_retention_removes_what_is_old_while_a_reader_starts_behind(cluster):
    topic = next(NAMES)
    weir.log.create_topic(cluster.addresses, topic, retention_bytes=300_000, segment_bytes=100_000)
    with weir.log.Producer(cluster.addresses, topic=topic) as producer:
        for record_id in range(100):
            producer.send(record_id, bytes(20_000)).result()
    until_s = time.monotonic() + 30
    while (ids := [record.id for record in read(cluster, topic)])[0] == 0:
        assert time.monotonic() < until_s
    # The room is free as well: nobody has a removed segment open.
    while held := [name for name in _open_files(cluster) if topic in name and "deleted" in name]:
        assert time.monotonic() < until_s, held
    assert ids == list(range(ids[0], 100))
    first_offset, end_offset = weir.log.Reader(cluster.addresses, topic=topic).bounds()
    assert end_offset - first_offset >= len(ids)
    with pytest.raises(weir.log.LogTruncatedError, match=rf"begins at offset {first_offset} now, and 0 is"):
        read(cluster, topic, misses_nothing=True)
    assert read(cluster, topic, start=end_offset, misses_nothing=True) == []
    with pytest.raises(
        weir.log.LogTruncatedError, match=f"ends at offset {end_offset}, before {end_offset + 1}"
    ):
        read(cluster, topic, start=end_offset + 1, misses_nothing=True, timeout_s=0.1)
