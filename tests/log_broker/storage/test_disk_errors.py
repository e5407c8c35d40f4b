"""A disk that is full or broken: what is refused, what heals, and what is synced."""

import errno
import os

import pytest

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.storage.partition_log import sync
from log_broker.storage.places import DirectoryPlace
from tests.log_broker.storage.logs import append, opened, read_all


def test_a_full_disk_refuses_and_heals(tmp_path, monkeypatch):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 2)

    def write_a_part(descriptor, parts, position):
        os.pwrite(descriptor, parts[0][:50], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write_a_part)
        with pytest.raises(LogWriteError, match="No space left on device; make room"):
            append(log, 2, 1)
    assert log.end_offset == 4
    assert opened(DirectoryPlace(tmp_path)).end_offset == 4
    append(log, 2, 1)
    assert read_all(log) == [(0, 0), (2, 1), (4, 2)]


def test_a_rest_that_cannot_be_cut_off_is_no_damage_later(tmp_path, monkeypatch):
    log = opened(DirectoryPlace(tmp_path), segment_bytes=1 << 20)
    append(log, 0, 2)

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write_a_part(descriptor, parts, position):
        os.pwrite(descriptor, parts[0][:250], position)
        broken()

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write_a_part)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(LogWriteError, match="Input/output error"):
            append(log, 2, 1)
        patch.undo()
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(LogWriteError, match="Input/output error"):
            append(log, 2, 1, size=50)
    append(log, 2, 1, size=50)
    assert read_all(log) == read_all(opened(DirectoryPlace(tmp_path))) == [(0, 0), (2, 1), (4, 2)]


@pytest.mark.parametrize("call", ["open", "replace", "ftruncate", "dup", "fsync"])
def test_a_disk_that_fails_where_a_segment_begins_refuses_and_heals(tmp_path, monkeypatch, call):
    log = opened(DirectoryPlace(tmp_path), syncs=True)
    append(log, 0, 4)
    assert log.bytes_kept >= 1000
    before, kept = read_all(log), sorted(tmp_path.glob("*.log"))

    def broken(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        with pytest.raises(LogWriteError, match="Input/output error"):
            append(log, 4, 1)
    assert (log.end_offset, read_all(log), sorted(tmp_path.glob("*.log"))) == (8, before, kept)
    assert opened(DirectoryPlace(tmp_path)).end_offset == 8
    append(log, 4, 1)
    assert [offset for offset, _ in read_all(log)] == [0, 2, 4, 6, 8]
    # The segment that was left is still to be synced.
    descriptors = log.to_sync()
    assert len(descriptors) == 2
    sync(descriptors)


def test_what_cannot_be_read_is_damage(tmp_path, monkeypatch):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 20)
    log._recent.clear()

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(LogDamagedError, match=r"\.log: cannot be read: Input/output error"):
        log.read(0, 1000, 40)
    with pytest.raises(LogDamagedError, match=r"\.log: cannot be read: Input/output error"):
        opened(DirectoryPlace(tmp_path))
    monkeypatch.undo()
    log.close()
    # Where the rest is looked at behind the first entry that is not whole.
    last = sorted(tmp_path.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes() + bytes(100))
    pread, reads = os.pread, []

    def broken_later(*values):
        reads.append(values)
        return broken() if len(reads) > 2 else pread(*values)

    monkeypatch.setattr(os, "pread", broken_later)
    with pytest.raises(LogDamagedError, match=r"\.log: cannot be read: Input/output error"):
        opened(DirectoryPlace(tmp_path))


def test_an_orderly_end_syncs_all_that_this_process_wrote(tmp_path, monkeypatch):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 12)
    log.close()
    log = opened(DirectoryPlace(tmp_path))
    append(log, 12, 12)
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    log.sync_all()
    files = sorted(tmp_path.glob("*.log"))
    assert {file.stat().st_ino for file in files} == set(synced)
    assert len(files) > 4
