import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rocksdict import DbClosedError

from tests.file_limit import file_bytes_limited
from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.stores.directory_lock import StoreDirectory
from weir.state.stores.rocksdb import RocksDbBackend, open_store
from weir.state.stores.rocksdb_errors import state_error
from weir.state.stores.rocksdb_settings import memory_bytes_max

SETTINGS = RocksDbConfig(
    block_cache_bytes=1 << 20, write_buffer_bytes=256 << 10, write_buffer_total_bytes=1 << 20
)

WRITER = """
import os, signal, sys
from pathlib import Path
from weir.state.stores.rocksdb import open_store
from weir.config.stores import RocksDbConfig
store = open_store(Path(sys.argv[1]), RocksDbConfig(), fresh=False)
store.put_many([b"%d" % i for i in range(1000)], [b"v%d" % i for i in range(1000)])
store.flush()
print("written", flush=True)
"""


def run(code: str, *paths: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, paths)], stdout=subprocess.PIPE, text=True)


def test_entries_survive_closing_and_fresh_drops_them(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store"
    for fresh, found in ((False, None), (False, b"1"), (True, None)):
        store = open_store(path, SETTINGS, fresh=fresh)
        assert store.get_many([b"k"]) == [found]
        store.put_many([b"k"], [b"1"])
        store.close()


def test_an_image_survives_kill_9(tmp_path: Path) -> None:
    code = WRITER + 'store.checkpoint(Path(sys.argv[2]))\nprint("taken", flush=True)\nsignal.pause()'
    process = run(code, tmp_path / "store", tmp_path / "image")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["written\n", "taken\n"]
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    directory = StoreDirectory(tmp_path / "image", None)
    directory.data_path = tmp_path / "image"
    image = RocksDbBackend(directory, SETTINGS, read_only=True)
    assert image.get_many([b"%d" % i for i in range(1000)]) == [b"v%d" % i for i in range(1000)]
    image.close()


def test_a_store_in_use_by_another_process_is_left_alone(tmp_path: Path) -> None:
    process = run(WRITER + "signal.pause()", tmp_path / "store")
    assert process.stdout is not None
    process.stdout.readline()
    try:
        with pytest.raises(StateError, match=f"in use by process {process.pid}"):
            open_store(tmp_path / "store", SETTINGS, fresh=True)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_store_in_use_by_this_process_is_refused_and_free_after_close(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS, fresh=True)
    with pytest.raises(StateError, match=f"in use by process {os.getpid()}"):
        open_store(tmp_path, SETTINGS, fresh=False)
    store.close()
    open_store(tmp_path, SETTINGS, fresh=False).close()


def test_a_directory_with_foreign_files_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    (tmp_path / "rocksdb").mkdir()
    (tmp_path / "rocksdb" / "data").write_text("not ours")
    for fresh in (True, False):
        with pytest.raises(StateError, match="not ours"):
            open_store(tmp_path, SETTINGS, fresh=fresh)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data", "rocksdb", "thesis.txt"]


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (b"not json", "damaged"),
        (b"[]", "damaged"),
        (b"{}", "damaged"),
        (b'{"format": "other", "version": 1}', "format 'other'"),
        (b'{"format": "weir-rocksdb-store", "version": 2}', "format version 2"),
    ],
)
def test_a_marker_that_is_not_valid_protects_the_directory(
    tmp_path: Path, marker: bytes, message: str
) -> None:
    (tmp_path / "weir-store.json").write_bytes(marker)
    (tmp_path / "rocksdb").mkdir()
    (tmp_path / "rocksdb" / "data").write_text("precious")
    with pytest.raises(StateError, match=message):
        open_store(tmp_path, SETTINGS, fresh=True)
    assert (tmp_path / "rocksdb" / "data").read_text() == "precious"


def test_fresh_keeps_files_beside_the_data_directory(tmp_path: Path) -> None:
    open_store(tmp_path, SETTINGS, fresh=True).close()
    (tmp_path / "note.txt").write_text("kept")
    open_store(tmp_path, SETTINGS, fresh=True).close()
    assert (tmp_path / "note.txt").read_text() == "kept"
    assert json.loads((tmp_path / "weir-store.json").read_text()) == {
        "format": "weir-rocksdb-store",
        "version": 1,
    }


def test_a_half_made_store_is_completed(tmp_path: Path) -> None:
    (tmp_path / "weir-store.lock").touch()
    (tmp_path / "weir-store.json.new").write_text('{"form')
    with contextlib.closing(open_store(tmp_path, SETTINGS, fresh=False)) as store:
        store.write([(b"key", b"value")])
        assert store.get_many([b"key"]) == [b"value"]
    assert json.loads((tmp_path / "weir-store.json").read_text())["format"] == "weir-rocksdb-store"


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StateError, match="file; choose another path"):
            open_store(path, SETTINGS, fresh=True)


def test_a_write_that_the_file_system_refuses_is_a_state_error(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", RocksDbConfig(), fresh=True)

    def fill() -> None:
        for _ in range(20):
            store.put_many([b"big"], [bytes(4 << 20)])

    with file_bytes_limited(1 << 20), pytest.raises(StateError, match=r"/store.* process's file size limit"):
        fill()
    with pytest.raises(StateError):
        store.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "IO error: No space left on device: While appending to file: /x/000004.log",
            "no space is left for /x",
        ),
        ("IO error: While open a file: /x/CURRENT: Permission denied", "/x is not writable"),
        ("IO error: lock hold by current process, acquire time 1", "/x is open elsewhere"),
        ("Corruption: block checksum mismatch", "the store in /x is damaged"),
        ("IO error: Too many open files", "max_open_files"),
        ("Some\nnews", r"the store in /x failed: Some news"),
    ],
)
def test_texts_of_rocksdict_become_clear_lines(text: str, message: str) -> None:
    line = str(state_error(Exception(text), Path("/x")))
    assert message in line
    assert "\n" not in line


def test_the_closed_exception_of_rocksdict_is_known(tmp_path: Path) -> None:
    assert str(state_error(DbClosedError("any"), Path("/x"))) == "the store in /x is closed"


def test_closing_ends_open_scans_with_an_error(rocksdb: RocksDbBackend) -> None:
    rocksdb.put_many([b"a", b"b"], [b"1", b"2"])
    scan = rocksdb.scan()
    assert next(scan) == (b"a", b"1")
    rocksdb.close()
    with pytest.raises(StateError, match="closed"):
        next(scan)


def test_threads_share_a_store(rocksdb: RocksDbBackend) -> None:
    failures: list[BaseException] = []

    def work(name: int) -> None:
        try:
            keys = [b"%d/%d" % (name, index) for index in range(500)]
            for round_number in range(5):
                rocksdb.put_many(keys, [b"%d" % round_number] * 500)
                assert rocksdb.get_many(keys) == [b"%d" % round_number] * 500
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rocksdb.stats().puts == 4 * 5 * 500


def test_what_comes_is_newer_than_earlier_range_deletes_and_older_than_later_writes(
    tmp_path: Path,
) -> None:
    keys = [b"\0\1k%05d" % number for number in range(3_000)]
    model: dict[bytes, bytes] = {}
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    for turn in range(6):
        # A group comes, is partly rewritten, and goes, again and again; its tables are merged at different moments.
        store.write([(key, b"come %d" % turn) for key in keys])
        model = dict.fromkeys(keys, b"come %d" % turn)
        if turn % 3 == 1:
            store.compact()
        changed = keys[turn :: 3 + turn]
        store.put_many(changed, [b"written %d" % turn] * len(changed))
        model.update(dict.fromkeys(changed, b"written %d" % turn))
        store.write(deletes=keys[::11])
        model = {key: value for key, value in model.items() if key not in set(keys[::11])}
        if turn % 3 == 2:
            store.checkpoint(tmp_path / f"image-{turn}")
        assert list(store.scan()) == sorted(model.items())
        assert store.get_many(keys) == [model.get(key) for key in keys]
        if turn < 5:
            store.delete_range(keys[0], keys[-1] + b"\0")
            assert list(store.scan()) == []
        if turn % 2:
            store.flush()
    store.close()
    store = open_store(tmp_path / "store", SETTINGS, fresh=False)
    assert list(store.scan()) == sorted(model.items())
    store.close()


def test_staged_files_of_an_earlier_version_are_removed(tmp_path: Path) -> None:
    open_store(tmp_path, SETTINGS, fresh=True).close()
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "1.sst").touch()
    open_store(tmp_path, SETTINGS, fresh=False).close()
    assert not (tmp_path / "staged").exists()


def test_memory_stays_within_the_bound_and_disk_is_counted(rocksdb: RocksDbBackend) -> None:
    for chunk in range(20):
        keys = [b"%02d/%05d" % (chunk, index) for index in range(2000)]
        rocksdb.put_many(keys, [os.urandom(100)] * 2000)
    rocksdb.compact()
    assert sum(1 for _ in rocksdb.scan()) == 40_000
    stats = rocksdb.stats()
    assert 0 < stats.memory_bytes < 4 * memory_bytes_max(SETTINGS)
    assert stats.disk_bytes > 100_000


def test_settings_apply_to_a_store_that_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for block_bytes in (4096, 8192):
        settings = RocksDbConfig(block_cache_bytes=12 << 20, block_bytes=block_bytes)
        store = open_store(path, settings, fresh=False)
        store.close()
        # RocksDB notes in its newest OPTIONS file what it was opened with.
        newest = max(path.rglob("OPTIONS-*"), key=lambda file: int(file.name.rpartition("-")[2]))
        assert f"  block_size={block_bytes}\n" in newest.read_text()


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("reads", [{"mmap_reads": True}, {"mmap_reads": False}, {"direct_io": True}], ids=str)
def test_table_files_are_readable_with_every_setting(
    tmp_path: Path, compression: str, reads: dict[str, bool]
) -> None:
    settings = RocksDbConfig(compression=compression, bloom_bits_per_key=0, **reads)
    store = open_store(tmp_path / "store", settings, fresh=True)
    keys = [b"key-%05d" % index for index in range(3000)]
    store.put_many(keys, keys)
    store.compact()
    assert store.get_many([*keys[::-1], b"absent"]) == [*keys[::-1], None]
    assert [key for key, _ in store.scan(reverse=True)] == keys[::-1]
    store.close()
