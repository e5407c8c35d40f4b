"""Logs of a partition for tests, with entries whose sequence says where they are."""

from log_broker.storage.partition_log import LogSettings, PartitionLog
from weir.protocol.log.entries import Header, checksum, entries_in, envelope_bytes, header_bytes


def batch(sequence, size=200, record_id=None, producer_id=7, count=2):
    record_id = sequence if record_id is None else record_id
    body = bytes([sequence % 251]) * size
    return header_bytes(Header(0, count, record_id, record_id, producer_id, 1, sequence, size, size)) + body


def append(log, first, count, epoch=1, now_ms=1000, **values):
    for sequence in range(first, first + count):
        content = batch(sequence, **values)
        entry = (
            envelope_bytes(len(content), epoch, log.end_offset, now_ms + sequence, checksum(content))
            + content
        )
        log.append([entry], list(entries_in(entry)))


def read_all(log, bytes_max=1000):
    offset, found = log.first_offset, []
    while offset < log.end_offset:
        chunk, offset = log.read(offset, bytes_max, log.end_offset)
        found += [(entry.envelope.offset, entry.header.sequence) for entry in entries_in(chunk)]
    return found


def opened(place, syncs=False, **values):
    log = PartitionLog(place, LogSettings(**{"segment_bytes": 1000, **values}), syncs=syncs)
    log.recover(whole_may_be_torn=False)
    return log
