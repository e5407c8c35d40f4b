import os
import random
import threading
from pathlib import Path

import pytest
from rocksdict import Checkpoint

from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.stores import rocksdb_settings
from weir.state.stores.directory_lock import StoreDirectory
from weir.state.stores.rocksdb import RocksDbBackend, open_store
from weir.state.stores.rocksdb_images import ImageTaker
from weir.state.stores.rocksdb_manifest import Manifest, UnknownManifestError

#: Tables come and go all the time.
SETTINGS = RocksDbConfig(
    block_cache_bytes=1 << 20,
    write_buffer_bytes=64 << 10,
    write_buffer_total_bytes=1 << 20,
    level_0_runs=2,
)
#: With one table in level 0, which is not merged.
STOPPED = {
    "level0_file_num_compaction_trigger": "100",
    "level0_slowdown_writes_trigger": "1",
    "level0_stop_writes_trigger": "1",
}


def entries_of_image(path: Path) -> list[tuple[bytes, bytes]]:
    directory = StoreDirectory(path, None)
    directory.data_path = path
    image = RocksDbBackend(directory, SETTINGS, read_only=True)
    try:
        return list(image.scan())
    finally:
        image.close()


def read_manifest(data_path: Path) -> Manifest:
    manifest = Manifest(data_path / (data_path / "CURRENT").read_text().strip())
    manifest.read_on()
    return manifest


def test_the_tables_of_the_manifest_are_those_of_rocksdb(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    chance = random.Random(1)
    grown = read_manifest(tmp_path / "store" / "rocksdb")
    for turn in range(12):
        keys = sorted({b"\0\1%06d" % chance.randrange(20_000) for _ in range(2_000)})
        store.put_many(keys, [os.urandom(90)] * len(keys))
        if turn % 4 == 1:
            store.delete_range(b"\0\1%06d" % (1_000 * turn), b"\0\1%06d" % (1_500 * turn))
        if turn % 4 == 3:
            store.compact()
        store.checkpoint(tmp_path / f"image-{turn}")
        Checkpoint(store._store).create_checkpoint(str(tmp_path / f"rocksdb-image-{turn}"))
        names = [
            {path.name for path in (tmp_path / name).glob("*.sst")}
            for name in (f"image-{turn}", f"rocksdb-image-{turn}")
        ]
        merged = names[0] ^ names[1]
        assert not merged or turn % 4 != 3, "nothing is merged after compact"
        assert entries_of_image(tmp_path / f"image-{turn}") == list(store.scan())
        grown.read_on()
        assert grown.tables == read_manifest(tmp_path / "store" / "rocksdb").tables
    store.close()


@pytest.mark.parametrize("manifest_bytes", [rocksdb_settings.MANIFEST_BYTES_MAX, 2_000])
def test_images_are_whole_while_tables_and_manifests_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest_bytes: int
) -> None:
    monkeypatch.setattr(rocksdb_settings, "MANIFEST_BYTES_MAX", manifest_bytes)
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    keys = [b"\0\1%05d" % number for number in range(1_000)]
    written = 0
    stopped = threading.Event()

    def write() -> None:
        nonlocal written
        while not stopped.is_set():
            store.put_many(keys, [b"%08d" % (written + 1) * 30] * len(keys))
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(15):
            least = written
            image = tmp_path / f"image-{number}"
            store.checkpoint(image)
            found = entries_of_image(image)
            values = {value for _, value in found}
            # Each write is atomic, and all that came before the image are in it.
            assert len(values) == (1 if least else len(values)), "a part of a write"
            assert not least or ([key for key, _ in found] == keys and int(min(values)[:8]) >= least)
        manifests = {next(tmp_path.glob(f"image-{number}/MANIFEST-*")).name for number in range(15)}
        assert len(manifests) == 1 or manifest_bytes == 2_000
        assert len(manifests) > 1 or manifest_bytes > 2_000, "no manifest came to its end"
    finally:
        stopped.set()
        thread.join()
        store.close()


def test_a_manifest_that_is_being_written_is_read_to_the_end_of_the_latest_edit(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    for turn in range(30):
        store.put_many([b"\0\1%d" % turn + b"k" * 3_000], [b"v"])
        store._store.flush(True)
    store.close()
    whole = read_manifest(tmp_path / "store" / "rocksdb")
    content = whole.path.read_bytes()
    assert len(content) > 64 << 10, "edits go over the ends of blocks"
    growing = Manifest(tmp_path / "MANIFEST-growing")
    sizes = []
    for stop in [*range(0, len(content), 997), len(content)]:
        growing.path.write_bytes(content[:stop])
        growing.read_on()
        assert growing.size_bytes <= stop
        at_once = Manifest(growing.path)
        at_once.read_on()
        assert (at_once.tables, at_once.size_bytes) == (growing.tables, growing.size_bytes)
        sizes.append(len(growing.tables))
    assert (growing.tables, growing.size_bytes) == (whole.tables, whole.size_bytes)
    assert max(sizes) > 1


@pytest.mark.parametrize(
    "edit",
    [bytes([0xE7, 0x07, 1]), bytes([2, 0x80]), bytes([3])],
    ids=["field 999", "half a number", "no number"],
)
def test_an_unknown_manifest_is_refused_and_leaves_nothing(tmp_path: Path, edit: bytes) -> None:
    (tmp_path / "MANIFEST-000001").write_bytes(bytes(4) + len(edit).to_bytes(2, "little") + b"\1" + edit)
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(UnknownManifestError):
        read_manifest(tmp_path)
    assert not ImageTaker(tmp_path).take(tmp_path / "image")
    assert not (tmp_path / "image").exists()


def test_rocksdb_makes_the_image_when_its_manifest_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    store.put_many([b"\0\1k"], [b"v"])
    monkeypatch.setattr("weir.state.stores.rocksdb_manifest._TABLE_CAME", 10**6)
    store.checkpoint(tmp_path / "image")
    store.close()
    assert entries_of_image(tmp_path / "image") == [(b"\0\1k", b"v")]


def test_an_image_in_a_directory_that_exists_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    (tmp_path / "image").mkdir()
    with pytest.raises(StateError):
        store.checkpoint(tmp_path / "image")
    store.close()


def test_a_write_that_has_to_wait_does_not_stop_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    store._store.set_options(STOPPED)
    store.put_many([b"\0\1k"], [b"v"])
    store._store.flush(True)
    assert store.is_stalled()
    thread = threading.Thread(target=lambda: store.put_many([b"\0\1k"], [b"later"]))
    thread.start()
    assert store.get_many([b"\0\1k"]) == [b"v"]
    while "lets writes wait" not in caplog.text:
        thread.join(0.001)
    assert "1 files are in level 0" in caplog.text
    assert "taskManager.rocksdb.background_threads" in caplog.text
    tables = store.stats().tables
    assert tables is not None
    assert (tables.level_0_files, tables.stalls) == (1, 0)
    store._store.set_options(dict.fromkeys(STOPPED, "40"))
    thread.join()
    assert store.get_many([b"\0\1k"]) == [b"later"]
    tables = store.stats().tables
    assert tables is not None
    assert tables.stalls == 1
    assert tables.stall_s > 0
    assert store.stalls() == (1, tables.stall_s)
    assert tables.total_bytes > 0
    assert min(tables.get_s, tables.write_s, tables.memory_table_bytes) > 0
    monkeypatch.setattr("weir.state.stores.rocksdb._STALLED_PAUSES_MAX", 2)
    store._store.set_options(STOPPED)
    with pytest.raises(StateError, match="has taken no write for"):
        store.put_many([b"\0\1k"], [b"never"])
    store.close()
