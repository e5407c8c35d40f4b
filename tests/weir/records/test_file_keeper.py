"""The record in a file."""

import os

from weir.records.file_keeper import FileKeeper


def test_a_record_is_saved_once_its_bytes_and_its_name_are_on_the_disk(tmp_path, monkeypatch):
    keeper, path = FileKeeper(tmp_path / "record"), tmp_path / "record"
    sync, synced = os.fsync, []

    def noted(descriptor):
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    keeper.lead()
    keeper.save(b"one")
    assert synced == [(str(tmp_path / ".record.unfinished"), False), (str(tmp_path), True)]
    assert keeper.load() == b"one"
    keeper.close()
