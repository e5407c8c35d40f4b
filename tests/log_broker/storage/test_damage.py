"""What a start finds after a crash or a fault of the disk: what is cut off, and what is noticed."""

import os

import pytest

from log_broker.errors import LogDamagedError
from log_broker.storage.partition_log import LogSettings, PartitionLog
from log_broker.storage.places import DirectoryPlace
from tests.log_broker.storage.logs import append, opened, read_all


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


def test_a_segment_whose_file_is_gone_is_damage_and_no_empty_segment(tmp_path):
    log = opened(DirectoryPlace(tmp_path))
    append(log, 0, 12)
    first = sorted(tmp_path.glob("*.log"))[0]
    log._recent.clear()
    first.unlink()
    with pytest.raises(LogDamagedError, match=rf"{first.name} is absent"):
        log.read(0, 1000, log.end_offset)
    assert not first.exists()


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


def test_documents_are_checked(tmp_path):
    place = DirectoryPlace(tmp_path)
    assert place.load("a.json") is None
    place.save("a.json", {"b": 1})
    assert place.load("a.json") == {"b": 1}
    (tmp_path / "a.json").write_bytes((tmp_path / "a.json").read_bytes().replace(b"1", b"2"))
    with pytest.raises(LogDamagedError, match=r"a\.json has another checksum"):
        place.load("a.json")


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
