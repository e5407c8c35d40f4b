"""What a replica had before it began anew is put back by an operator, as far as it is whole."""

import contextlib
import json
import os
import shutil

import pytest

from log_broker import partition
from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.partition import PartitionId, PartitionReplica, PartitionSettings
from log_broker.salvage import salvage
from log_broker.storage.partition_log import LogSettings
from weir.clock import SystemClock
from weir.errors import ConfigError
from weir.protocol.log.entries import entries_in

SETTINGS = PartitionSettings(log=LogSettings(segment_entries=5))


def opened(path):
    return PartitionReplica(1, PartitionId("wal", 0), SETTINGS, path, SystemClock())


def led(path):
    replica = opened(path)
    replica.promise(4)
    replica.report()
    replica.lead(4, {1: replica.machine.incarnation}, 3, 1)
    for _ in range(19):
        replica.confirm()
    return replica


def damage(path, number, position, content):
    segment = sorted(path.glob("*.log"))[number]
    before = bytearray(segment.read_bytes())
    before[position : position + len(content)] = content
    segment.write_bytes(before)


@pytest.mark.parametrize(
    ("harm", "end"),
    [
        (None, 20),
        (lambda path: damage(path, -1, 100, b"x"), 16),
        (lambda path: damage(path, 1, 100, b"x"), 6),
        (lambda path: sorted(path.glob("*.log"))[2].unlink(), 10),
        (lambda path: sorted(path.glob("*.start"))[2].unlink(), 10),
        (lambda path: sorted(path.glob("*.start"))[-1].write_bytes(b""), 15),
        # An earlier entry where a later one was written, and its page was not.
        (lambda path: damage(path, 2, 0, sorted(path.glob("*.log"))[0].read_bytes()), 10),
        (lambda path: (path / "replica.json").write_bytes(b"torn"), 20),
    ],
)
def test_what_is_whole_is_put_back_under_another_name(tmp_path, monkeypatch, harm, end):
    replica = led(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(partition, "boot_id", lambda: "another")
        new = opened(tmp_path)
    assert (new.machine.end_offset, bool(new.trouble)) == (0, True)
    new.promise(9)
    new.close()
    if harm is not None:
        harm(tmp_path / "aside")
    assert salvage(tmp_path) == end
    again = opened(tmp_path)
    assert (again.trouble, again.machine.end_offset, again.machine.promised_epoch) == ("", end, 9)
    assert again.machine.incarnation not in (replica.machine.incarnation, new.machine.incarnation)
    offset = 0
    while offset < end:
        chunk, after = again.log.read(offset, 1 << 20, end)
        assert [entry.envelope.offset for entry in entries_in(chunk)] == list(range(offset, after))
        offset = after
    # What was there meanwhile is aside now.
    assert (tmp_path / "aside" / "replica.json").exists()


def test_what_a_start_could_not_read_is_as_it_was(tmp_path):
    replica = led(tmp_path)
    replica.close()
    segment = sorted(tmp_path.glob("*.log"))[1]
    content = segment.read_bytes()
    segment.with_suffix(".index").unlink()
    damage(tmp_path, 1, 100, b"x")
    assert "byte" in opened(tmp_path).trouble
    # As where a disk reads again what it could not read before.
    (tmp_path / "aside" / segment.name).write_bytes(content)
    assert salvage(tmp_path) == 20


def test_what_is_left_of_a_removed_segment_does_not_count(tmp_path, monkeypatch):
    led(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(partition, "boot_id", lambda: "another")
        opened(tmp_path)
    # Retention, in a process that died meanwhile.
    sorted((tmp_path / "aside").glob("*.log"))[0].unlink()
    assert salvage(tmp_path) == 20
    assert (opened(tmp_path).trouble, opened(tmp_path).log.first_offset) == ("", 5)


def test_where_nothing_was_set_aside_nothing_is_put_back(tmp_path):
    with pytest.raises(ConfigError, match="nothing was set aside"):
        salvage(tmp_path)


def begin_anew(path, monkeypatch, boot):
    with monkeypatch.context() as patch:
        patch.setattr(partition, "boot_id", lambda: boot)
        found = opened(path)
    assert found.trouble
    return found


def epochs_of(replica):
    found, offset = [], replica.log.first_offset
    while offset < replica.machine.end_offset:
        chunk, offset = replica.log.read(offset, 1 << 20, replica.machine.end_offset)
        found += [entry.envelope.epoch for entry in entries_in(chunk)]
    return found


@pytest.mark.parametrize(("second", "epochs"), [(23, [9] * 23), (7, [9] * 7)])
def test_of_two_sets_of_data_the_one_with_more_is_put_back_and_nothing_of_the_other(
    tmp_path, monkeypatch, second, epochs
):
    led(tmp_path)
    new = begin_anew(tmp_path, monkeypatch, "second")
    # It is filled by a leader of epoch 9, and begins anew before it is.
    new.promise(9)
    new.report()
    new.lead(9, {1: new.machine.incarnation}, 3, 1)
    for _ in range(second - 1):
        new.confirm()
    begin_anew(tmp_path, monkeypatch, "third")
    before = {file.name: file.read_bytes() for file in (tmp_path / "aside").iterdir()}
    assert salvage(tmp_path) == second
    assert epochs_of(opened(tmp_path)) == epochs
    assert {file.name: file.read_bytes() for file in (tmp_path / "aside").iterdir()} == before


def test_a_replica_that_begins_anew_on_and_on_keeps_what_it_had_first_and_what_it_had_last(
    tmp_path, monkeypatch
):
    led(tmp_path)
    for number in range(7):
        new = begin_anew(tmp_path, monkeypatch, f"boot {number}")
        epoch = 10 + number
        new.promise(epoch)
        new.report()
        new.lead(epoch, {1: new.machine.incarnation}, 3, 1)
    begin_anew(tmp_path, monkeypatch, "last")
    folders = sorted(folder.name for folder in tmp_path.glob("aside*"))
    assert folders == ["aside", "aside.2", "aside.3", "aside.4"]
    kept = [json.loads((tmp_path / name / "replica.json").read_text().splitlines()[1]) for name in folders]
    assert [document["promised_epoch"] for document in kept] == [4, 14, 15, 16]
    # What has no entries takes no place.
    new = begin_anew(tmp_path, monkeypatch, "again")
    assert sorted(folder.name for folder in tmp_path.glob("aside*")) == folders
    # A process died when it had removed one, and not renamed the others.
    shutil.rmtree(tmp_path / "aside.2")
    new.promise(30)
    new.report()
    new.lead(30, {1: new.machine.incarnation}, 3, 1)
    begin_anew(tmp_path, monkeypatch, "at last")
    assert sorted(folder.name for folder in tmp_path.glob("aside*")) == folders


@pytest.mark.parametrize(
    ("filled", "moved"), [*((0, moved) for moved in (0, 1, 2, 14)), *((3, moved) for moved in range(17))]
)
def test_a_salvage_that_dies_is_called_again(tmp_path, monkeypatch, filled, moved):
    led(tmp_path)
    new = begin_anew(tmp_path, monkeypatch, "second")
    new.promise(9)
    new.report()
    if filled:
        new.lead(9, {1: new.machine.incarnation}, 3, 1)
    for _ in range(filled):
        new.confirm()
    new.close()
    replace, done = os.replace, []

    def dies(*paths):
        if len(done) == moved:
            raise SystemExit
        done.append(paths)
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(SystemExit):
            salvage(tmp_path)
    if [*tmp_path.glob("aside*.back"), *tmp_path.glob("aside*.now")]:
        # A broker that took the part of it that is here would set that aside in its turn.
        with pytest.raises(LogWriteError, match="call weir log broker --salvage once more"):
            opened(tmp_path)
    assert salvage(tmp_path) == 20
    again = opened(tmp_path)
    assert (again.trouble, again.machine.promised_epoch) == ("", 9)
    assert epochs_of(again) == [4] * 20


@pytest.mark.parametrize("moved", range(12))
def test_what_a_broker_had_no_time_to_move_any_more_is_salvaged_with_the_rest(tmp_path, monkeypatch, moved):
    replica = led(tmp_path)
    replace, done = os.replace, []

    def dies(*paths):
        if len(done) == moved:
            raise SystemExit
        done.append(paths)
        replace(*paths)

    with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(os, "replace", dies)
        replica.damaged(LogDamagedError("a flipped bit"))
    assert salvage(tmp_path) == 20
    assert epochs_of(opened(tmp_path)) == [4] * 20
