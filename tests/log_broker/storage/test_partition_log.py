"""Segments on disk and in memory: what is found again, what is cut off, what is noticed."""

import contextlib
import errno
import os

import pytest

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.storage import segment as segment_module
from log_broker.storage.partition_log import LogSettings, PartitionLog, sync
from log_broker.storage.places import DirectoryPlace, MemoryPlace
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


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    return DirectoryPlace(tmp_path) if request.param == "disk" else MemoryPlace("wal/0")


def opened(place, syncs=False, **values):
    log = PartitionLog(place, LogSettings(**{"segment_bytes": 1000, **values}), syncs=syncs)
    log.recover(whole_may_be_torn=False)
    return log


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


def test_a_torn_tail_is_cut_off(tmp_path):
    log = opened(DirectoryPlace(tmp_path), segment_bytes=1 << 20)
    append(log, 0, 5)
    log.close()
    (path,) = tmp_path.glob("*.log")
    whole = path.read_bytes()
    for size in (1, 31, 40, 100, 283):
        path.write_bytes(whole + whole[:size])
        again = opened(DirectoryPlace(tmp_path))
        assert again.end_offset == 10
        again.close()
        assert path.read_bytes() == whole
    # Space that was set aside.
    path.write_bytes(whole + bytes(100))
    assert opened(DirectoryPlace(tmp_path)).end_offset == 10


@pytest.mark.parametrize("position", [10, 40, 100, 600, 1400])
def test_a_flipped_bit_is_no_torn_tail(tmp_path, position):
    log = opened(DirectoryPlace(tmp_path), segment_bytes=1 << 20)
    append(log, 0, 5)
    log.close()
    (path,) = tmp_path.glob("*.log")
    content = bytearray(path.read_bytes())
    content[min(position, len(content) - 1)] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogDamagedError, match=r"\.log, byte"):
        opened(DirectoryPlace(tmp_path))
    assert path.read_bytes() == content


def test_a_flipped_bit_in_an_earlier_segment_is_noticed_when_it_is_read(tmp_path):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 20)
    log.close()
    path = sorted(tmp_path.glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogDamagedError, match="another checksum"):
        read_all(opened(DirectoryPlace(tmp_path)))


@pytest.mark.parametrize("number", [1, -1])
def test_a_segment_that_is_absent_is_noticed(tmp_path, number):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 20)
    log.close()
    sorted(tmp_path.glob("*.log"))[number].unlink()
    with pytest.raises(LogDamagedError, match="absent"):
        opened(DirectoryPlace(tmp_path))


def test_a_crash_before_the_start_of_a_segment_is_noted_loses_nothing(tmp_path):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 20)
    log.close()
    (tmp_path / f"{40:020d}.log").touch()
    again = opened(DirectoryPlace(tmp_path))
    append(again, 20, 20)
    assert read_all(again) == [(2 * sequence, sequence) for sequence in range(40)]
    again.close()
    assert opened(DirectoryPlace(tmp_path)).end_offset == 80


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


def test_a_segment_whose_file_is_gone_is_damage_and_no_empty_segment(tmp_path):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 12)
    first = sorted(tmp_path.glob("*.log"))[0]
    log._recent.clear()
    first.unlink()
    with pytest.raises(LogDamagedError, match=rf"{first.name} is absent"):
        log.read(0, 1000, log.end_offset)
    assert not first.exists()


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


def test_what_was_not_synced_of_an_index_is_made_anew_and_starts_are_synced(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: (synced.append(os.readlink(f"/proc/self/fd/{descriptor}")), fsync(descriptor)),
    )
    log = opened(DirectoryPlace(tmp_path), syncs=True)
    append(log, 0, 20)
    log.close()
    starts = [f".{path.name}.unfinished" for path in tmp_path.glob("*.start")]
    assert len(starts) > 2
    assert set(starts) <= {path.rpartition("/")[2] for path in synced}
    # As the machine leaves them that went down.
    for path in tmp_path.glob("*.index"):
        path.write_bytes(b"")
    assert read_all(opened(DirectoryPlace(tmp_path))) == [(2 * sequence, sequence) for sequence in range(20)]


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


def test_documents_are_checked(tmp_path):
    place = DirectoryPlace(tmp_path)
    assert place.load("a.json") is None
    place.save("a.json", {"b": 1})
    assert place.load("a.json") == {"b": 1}
    (tmp_path / "a.json").write_bytes((tmp_path / "a.json").read_bytes().replace(b"1", b"2"))
    with pytest.raises(LogDamagedError, match=r"a\.json has another checksum"):
        place.load("a.json")


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


def recovered_after_a_power_cut(path):
    log = PartitionLog(DirectoryPlace(path), LogSettings(segment_bytes=1 << 20), syncs=True)
    log.recover(whole_may_be_torn=True)
    return log


@pytest.fixture
def five_entries(tmp_path):
    log = opened(DirectoryPlace(tmp_path), segment_bytes=1 << 20)
    append(log, 0, 5)
    log.close()
    (path,) = tmp_path.glob("*.log")
    return path, path.read_bytes()


@pytest.mark.parametrize("position", [10, 40, 578, 620])
def test_what_has_entries_behind_it_is_not_torn_also_after_the_machine_went_down(five_entries, position):
    path, whole = five_entries
    content = bytearray(whole)
    content[position] ^= 1
    path.write_bytes(content)
    # They may have been acknowledged: a replica that cut them off would count with less than it had.
    with pytest.raises(LogDamagedError, match="before the log's end"):
        recovered_after_a_power_cut(path.parent)
    assert path.read_bytes() == content


@pytest.mark.parametrize("size", [10, 40, 150, 283])
@pytest.mark.parametrize("unwritten_bytes", [0, 400])
def test_an_entry_before_room_that_was_never_written_is_torn_where_the_machine_went_down(
    five_entries, size, unwritten_bytes
):
    path, whole = five_entries
    path.write_bytes(whole + whole[284:][:size] + bytes(284 - size + unwritten_bytes))
    with pytest.raises(LogDamagedError, match="before the log's end"):
        opened(DirectoryPlace(path.parent))
    assert recovered_after_a_power_cut(path.parent).end_offset == 10
    assert path.read_bytes() == whole


def test_an_entry_at_the_place_of_another_one_is_damage(five_entries):
    path, whole = five_entries
    path.write_bytes(whole[:568] + whole[852:])
    with pytest.raises(LogDamagedError, match="offset 6 lies where 4 was written"):
        opened(DirectoryPlace(path.parent))


@pytest.mark.parametrize(("damaged", "is_noticed"), [(3, True), (6, True), (7, False)])
def test_a_log_is_not_cut_at_damage_before_the_place_where_it_is_to_be_cut(tmp_path, damaged, is_noticed):
    log = opened(DirectoryPlace(tmp_path), segment_bytes=1 << 20)
    append(log, 0, 10)
    (path,) = tmp_path.glob("*.log")
    with open(path, "r+b") as file:
        file.seek(damaged * 284 + 10)
        file.write(b"damage")
    if is_noticed:
        # Else what its leader sends next would leave a gap, over which readers pass without a word.
        with pytest.raises(LogDamagedError):
            log.truncate(14)
        return
    log.truncate(14)
    assert (log.end_offset, read_all(log)[-1]) == (14, (12, 6))
