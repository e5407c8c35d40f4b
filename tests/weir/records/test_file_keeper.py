"""The record in a file."""

import os

import pytest

from weir.errors import CheckpointError
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


def test_another_document_lies_beside_it_for_its_owner_only(tmp_path):
    keeper = FileKeeper(tmp_path / "record")
    assert keeper.load_beside("history") is None
    keeper.lead()
    keeper.save(b"one")
    keeper.save_beside("history", b"two")
    assert (keeper.load(), keeper.load_beside("history")) == (b"one", b"two")
    assert (tmp_path / "record.history").stat().st_mode & 0o777 == 0o600
    keeper.close()


def test_what_cannot_be_written_beside_it_is_told_by_name(tmp_path):
    keeper = FileKeeper(tmp_path / "away" / "record")
    with pytest.raises(CheckpointError, match=r"cannot write \S+record\.history: "):
        keeper.save_beside("history", b"two")
