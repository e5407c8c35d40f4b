"""Segments on disk and in memory: what is found again, what is cut off, what is removed."""

import contextlib
import os

import pytest

from log_broker.errors import LogWriteError
from log_broker.storage import segment as segment_module
from log_broker.storage.partition_log import sync
from log_broker.storage.places import DirectoryPlace, MemoryPlace
from tests.log_broker.storage.logs import append, opened, read_all
from weir.protocol.log.entries import entries_in


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    return DirectoryPlace(tmp_path) if request.param == "disk" else MemoryPlace("wal/0")


def test_what_was_written_is_found_again_with_epochs_and_producers(place):
    log = opened(place)
    append(log, 0, 5)
    append(log, 5, 20, epoch=3)
    before = log.producers.snapshot()
    log.close()
    again = opened(place)
    assert again.end_offset == 50
    assert again.lineage.starts == [(1, 0), (3, 10)]
    assert again.producers.snapshot() == before
    assert read_all(again) == [(2 * sequence, sequence) for sequence in range(25)]
    append(again, 25, 1, epoch=3)
    assert again.read(50, 1000, 52)[1] == 52


def test_a_read_ends_before_what_is_not_committed_and_begins_with_the_entry_that_holds_the_offset(place):
    log = opened(place)
    append(log, 0, 10)
    for each in (log, opened(place)):
        assert each.read(0, 10_000, 6)[1] <= 6
        chunk, end = each.read(5, 1, 20)
        assert [entry.envelope.offset for entry in entries_in(chunk)] == [4]
        assert end == 6
        assert each.read(6, 1000, 6) == (b"", 6)


def test_earlier_segments_are_not_read_at_the_start(tmp_path, monkeypatch):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 50)
    log.close()
    scanned = []
    scan = segment_module.Segment.scan

    def note(self, **values):
        scanned.append(self.base_offset)
        return scan(self, **values)

    monkeypatch.setattr(segment_module.Segment, "scan", note)
    assert opened(DirectoryPlace(tmp_path)).end_offset == 100
    assert len(scanned) == 1


@pytest.mark.parametrize("cut", [0, 2, 14, 20, 38])
def test_what_is_cut_off_is_gone_with_its_producers_and_epochs(place, cut):
    log = opened(place)
    append(log, 0, 10)
    append(log, 10, 10, epoch=4)
    log.truncate(cut)
    for each in (log, opened(place)):
        assert each.end_offset == cut
        assert read_all(each) == [(2 * sequence, sequence) for sequence in range(cut // 2)]
        assert each.lineage.last_epoch == (0 if cut == 0 else 1 if cut <= 20 else 4)
        assert [state[2] for state in each.producers.snapshot()] == ([] if cut == 0 else [cut // 2 - 1])
    append(log, cut // 2, 12, epoch=5)
    assert read_all(log) == read_all(opened(place)) == [(2 * each, each) for each in range(cut // 2 + 12)]


def test_retention_removes_whole_segments_that_are_committed_and_keeps_their_producers(place):
    log = opened(place, retention_bytes=2000)
    append(log, 0, 10)
    append(log, 10, 20, producer_id=8, record_id=3)
    log.retain(0, commit_offset=0)
    assert log.first_offset == 0
    log.retain(0, commit_offset=60)
    assert 20 < log.first_offset < 60
    assert log.bytes_kept <= 3000
    again = opened(place)
    assert again.first_offset == log.first_offset
    assert [(state[0], state[2]) for state in again.producers.snapshot()] == [(7, 9), (8, 29)]
    assert log.read(0, 1000, 60) == (b"", 0)


def _descriptors():
    """What this process has open: what each descriptor is of."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


@pytest.mark.parametrize("syncs", [False, True])
def test_a_removed_segment_gives_its_room_back_also_if_nobody_ever_syncs(tmp_path, syncs):
    log = opened(DirectoryPlace(tmp_path), retention_bytes=2000, syncs=syncs)
    for sequence in range(100):
        append(log, sequence, 1)
        log.retain(0, commit_offset=log.end_offset)
        if syncs:
            sync(log.to_sync())
    held = [name for name in _descriptors() if str(tmp_path) in name]
    assert not [name for name in held if "deleted" in name]
    # Segments that are not written to any more have no descriptor, however many are kept.
    assert len(held) == 1
    assert len(list(tmp_path.glob("*.log"))) <= 4
    log.close()
    assert not [name for name in _descriptors() if str(tmp_path) in name]


def test_a_memory_log_gives_its_room_back(tmp_path):
    log = opened(MemoryPlace("wal/0"), retention_bytes=2000)
    before = len(_descriptors())
    for sequence in range(100):
        append(log, sequence, 1)
        log.retain(0, commit_offset=log.end_offset)
    assert len(_descriptors()) < before + 8


def test_retention_by_time_needs_no_full_segment(place):
    log = opened(place, retention_ms=4000, segment_bytes=1 << 20)
    append(log, 0, 3, now_ms=1000)
    append(log, 3, 3, now_ms=2500)
    append(log, 6, 3, now_ms=6000)
    log.retain(5005, commit_offset=18)
    assert log.first_offset == 6
    log.retain(9000, commit_offset=18)
    assert log.first_offset == 12


def test_offsets_are_found_by_time_and_by_id(place, monkeypatch):
    monkeypatch.setattr(segment_module, "INDEX_EVERY_BYTES", 1)
    log = opened(place)
    append(log, 0, 30, now_ms=5000)
    for each in (log, opened(place)):
        assert each.offset_at(5010) == 18
        assert each.offset_at(0) == 0
        assert each.offset_at(9999) == 60
        assert each.offset_of_id(12) == 24
        assert each.offset_of_id(-1) == 0
        assert each.offset_of_id(99) == 60


def test_memory_has_a_bound_whether_anything_is_committed_or_not():
    log = opened(MemoryPlace("wal/0", 3000), retention_bytes=1000)
    with pytest.raises(LogWriteError, match=r"memory of wal/0: .* start the brokers that are away"):
        append(log, 0, 20)
    kept = log.end_offset
    assert 2500 < log.bytes_kept <= 3000
    log.retain(0, commit_offset=kept)
    append(log, kept // 2, 1)
    assert log.end_offset == kept + 2


def test_the_newest_entries_in_memory_have_a_bound(place):
    log = opened(place)
    log.recent_bytes_max = 700
    append(log, 0, 10)
    assert sum(len(part) for *_, parts in log._recent for part in parts) <= 700
    assert read_all(log) == [(2 * sequence, sequence) for sequence in range(10)]


def test_a_replica_that_begins_behind_what_is_kept_knows_the_producers_before(place, tmp_path):
    log = opened(place, retention_bytes=1000)
    append(log, 0, 20)
    log.retain(0, commit_offset=40)
    other = opened(DirectoryPlace(tmp_path / "other"))
    append(other, 0, 3, epoch=9)
    other.begin_at(log.first_offset, log.first_start())
    assert (other.first_offset, other.end_offset) == (log.first_offset, log.first_offset)
    assert other.lineage.starts == [(1, 0)]
    assert other.producers.snapshot()[0][2] == log.first_offset // 2 - 1


def test_small_entries_make_small_segments_so_that_a_start_reads_little(place):
    log = opened(place, segment_bytes=1 << 20, segment_entries=10)
    append(log, 0, 35)
    assert place.bases() == [0, 20, 40, 60]
    log.close()
    again = opened(place, segment_bytes=1 << 20, segment_entries=10)
    assert read_all(again) == [(2 * sequence, sequence) for sequence in range(35)]
    # Half full, as it was.
    append(again, 35, 6)
    assert place.bases() == [0, 20, 40, 60, 80]


def test_room_is_set_aside_for_the_last_segment_and_given_back(tmp_path):
    place = DirectoryPlace(tmp_path)
    log = opened(place)

    def blocks_bytes(base):
        return os.stat(tmp_path / f"{base:020d}.log").st_blocks * 512

    append(log, 0, 1)
    size = os.stat(tmp_path / f"{0:020d}.log").st_size
    assert size == log.bytes_kept
    if blocks_bytes(0) < 1 << 20:
        pytest.skip("this file system sets nothing aside")
    append(log, 1, 5)
    assert place.bases()[1] > 0
    assert blocks_bytes(0) < 1 << 16 < blocks_bytes(place.bases()[-1])
    # A process that was killed has not given it back.
    again = opened(place)
    assert read_all(again) == [(2 * sequence, sequence) for sequence in range(6)]
    again.close()
    assert blocks_bytes(place.bases()[-1]) < 1 << 16
    log.close()
