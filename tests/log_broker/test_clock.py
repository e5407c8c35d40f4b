"""A machine's clock that is set forward and back: order, lookups by time and the log itself do not mind."""

import itertools

from log_broker.partition import PartitionId, PartitionReplica, PartitionSettings
from log_broker.storage.partition_log import LogSettings
from weir.protocol.log.entries import Header, checksum, entries_in, header_bytes
from weir.testing import ManualClock

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class Jumps:
    """A wall clock that is set; time goes on evenly."""

    def __init__(self):
        self.now_ms = START_MS
        self._steady = ManualClock()

    def now_us(self):
        return self.now_ms * 1000

    def monotonic_s(self):
        return self._steady.monotonic_s()


def leading(tmp_path, clock, **settings):
    kept = PartitionSettings(replicas=1, log=LogSettings(**settings))
    replica = PartitionReplica(1, PartitionId("wal", 0), kept, tmp_path, clock)
    epoch = replica.machine.promised_epoch + 1
    replica.promise(epoch)
    replica.report()
    replica.lead(epoch, {1: replica.machine.incarnation}, 1, 1)
    return replica


def send(replica, numbers):
    for number in numbers:
        body = b"record of a clock"
        batch = header_bytes(Header(0, 1, number, number, 7, 1, number, len(body), len(body))) + body
        replica.append_batch(batch, checksum(batch))


def sequences(replica, offset=0):
    log, found = replica.log, []
    while offset < log.end_offset:
        chunk, offset = log.read(offset, 1 << 20, log.end_offset)
        found += [each for each in entries_in(chunk) if not each.header.is_control]
    return [each.header.sequence for each in found], [each.envelope.append_ms for each in found]


def test_times_in_the_log_never_go_back_and_are_found(tmp_path):
    clock = Jumps()
    replica = leading(tmp_path, clock, segment_bytes=1000)
    numbers = itertools.count()
    for jump_ms in (0, HOUR_MS, -2 * HOUR_MS, 0, 30 * HOUR_MS, -HOUR_MS):
        clock.now_ms += jump_ms
        send(replica, itertools.islice(numbers, 20))
    found, times_ms = sequences(replica)
    assert found == list(range(120))
    assert times_ms == sorted(times_ms)
    # A reader from a time gets all from there on.
    for at_ms in (START_MS, START_MS + HOUR_MS, START_MS + 20 * HOUR_MS):
        wanted = [number for number, time_ms in zip(found, times_ms, strict=True) if time_ms >= at_ms]
        assert set(wanted) <= set(sequences(replica, replica.log.offset_at(at_ms))[0])
    # Nor does a start of the process.
    replica.close()
    clock.now_ms -= 100 * HOUR_MS
    again = leading(tmp_path, clock, segment_bytes=1000)
    send(again, range(120, 125))
    found, times_ms = sequences(again)
    assert (found, times_ms) == (list(range(125)), sorted(times_ms))
    again.close()


def test_a_clock_that_is_set_back_keeps_records_longer_and_not_shorter(tmp_path):
    clock = Jumps()
    replica = leading(tmp_path, clock, segment_bytes=1000, retention_ms=HOUR_MS)
    clock.now_ms += 10 * HOUR_MS
    send(replica, range(40))
    clock.now_ms -= 10 * HOUR_MS
    send(replica, range(40, 80))
    replica.tick()
    assert sequences(replica, replica.log.first_offset)[0][-80:] == list(range(80))
    clock.now_ms += 12 * HOUR_MS
    replica.tick()
    left, _ = sequences(replica, replica.log.first_offset)
    # Once it is as late as the records say, all but the last segment go.
    assert 0 < len(left) < 20
    replica.close()


def test_a_segment_that_cannot_be_removed_does_not_stop_the_time(tmp_path, monkeypatch, caplog):
    clock = Jumps()
    replica = leading(tmp_path, clock, segment_bytes=1000, retention_ms=HOUR_MS)
    send(replica, range(80))
    clock.now_ms += 12 * HOUR_MS

    def refused(base_offset):
        raise PermissionError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(replica._place, "remove", refused)
        replica.tick()
    assert "an old segment cannot be removed: read-only" in caplog.text
    replica.tick()
    assert 0 < len(sequences(replica, replica.log.first_offset)[0]) < 20
    replica.close()
