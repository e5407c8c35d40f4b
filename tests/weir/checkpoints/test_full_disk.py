"""A disk that is full, in the checkpoint store or below the state: one clear error, nothing lost, and on it goes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.weir.checkpoints.manifests import manifest_of
from tests.weir.state.conftest import SMALL_SETTINGS
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import files_folder
from weir.errors import CheckpointError, StateError
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.stores.rocksdb import RocksDbBackend

_SIZE_BYTES = 16 << 20
_WAIT_S_MAX = 60


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root only; test_checkpoint_store uses a limit instead")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill_up(disk: Path) -> Path:
    filler = disk / "filler"
    block = bytes(4096)
    with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(block):
            pass
    return filler


def contents(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def test_full_checkpoint_store(small_disk, tmp_path):
    store = CheckpointStore.open(str(small_disk), "job")
    images = Images(store, tmp_path / "state", SMALL_SETTINGS)
    main = images.open_main(None)
    main.write([(b"\0\1\0\1\0%06d" % number, bytes(100)) for number in range(1_000)])
    publisher = ImagePublisher(store, main, tmp_path / "state", "store-1")
    image, _ = publisher.take(1).publish()
    store.write_manifest(manifest_of(1, image.files.values()))
    main.write([(b"\0\1\0\2\0%06d" % number, os.urandom(100)) for number in range(1_000)])
    filler = fill_up(small_disk)
    before = contents(small_disk)
    pending = publisher.take(2)
    with pytest.raises(
        CheckpointError, match=r"checkpoint store .*disk/job, file files/000000000002/.*no space is left"
    ):
        pending.publish()
    with pytest.raises(CheckpointError, match=r"file manifests/000000000002.json: no space is left"):
        store.write_manifest(manifest_of(2))
    assert contents(small_disk) == before
    assert not pending.directory.exists()
    assert store.latest().checkpoint_id == 1
    filler.unlink()
    expected = dict(main.scan())
    image, _ = publisher.take(3).publish()
    store.write_manifest(manifest_of(3, image.files.values()))
    opened = images.open_whole(image)
    assert dict(opened.scan()) == expected
    opened.close()
    images.close()
    main.close()


def test_full_state_directory(small_disk, tmp_path):
    store = CheckpointStore.open(str(tmp_path / "checkpoints"), "job")
    images = Images(store, small_disk / "state", SMALL_SETTINGS)
    main = images.open_main(None)
    publisher = ImagePublisher(store, main, small_disk / "state", "store-1")
    # In the log and in memory, not in a table yet.
    main.write([(b"\0\1\0\1\0%06d" % number, os.urandom(100)) for number in range(1_000)])
    filler = fill_up(small_disk)
    with pytest.raises(
        CheckpointError, match=r"checkpoint 1: no image could be taken: no space is left for .*state"
    ):
        publisher.take(1)
    assert not list((small_disk / "state").glob("snapshots/*"))
    expected = dict(main.scan())
    assert len(expected) == 1_000
    filler.unlink()
    image = take_when_possible(publisher, main)
    opened = images.open_whole(image)
    assert dict(opened.scan()) == expected | {b"more": b"1"}
    opened.close()
    images.close()
    main.close()
    assert store.list_manifests() == []
    assert all(path.startswith(files_folder(2)) for path in contents(tmp_path / "checkpoints/job"))


def take_when_possible(publisher: ImagePublisher, main: RocksDbBackend):
    """RocksDB looks for room again every few seconds."""
    deadline_s = time.monotonic() + _WAIT_S_MAX
    while True:
        try:
            main.write([(b"more", b"1")])
            return publisher.take(2).publish()[0]
        except (CheckpointError, StateError):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
