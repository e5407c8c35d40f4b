"""The checkpoint store in a directory: manifests appear once and whole, nothing that is named is deleted."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tests.file_limit import file_bytes_limited
from tests.weir.checkpoints.manifests import manifest_of
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.digests import digest_of
from weir.checkpoints.files import DRAFT_PREFIX
from weir.checkpoints.layout import files_folder, manifest_path
from weir.errors import CheckpointError, SupersededError
from weir.protocol.checkpoints.manifest import FileRef, manifest_to_json


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(str(tmp_path / "checkpoints"), "job")


def publish(store: CheckpointStore, tmp_path: Path, checkpoint_id: int, name: str, data=b"data") -> FileRef:
    source = tmp_path / f"{checkpoint_id}-{name}"
    source.write_bytes(data)
    return store.publish(source, f"{files_folder(checkpoint_id)}/store/{name}")


def all_files(tmp_path: Path) -> set[str]:
    root = tmp_path / "checkpoints" / "job"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_manifest_comes_back(store, tmp_path):
    manifest = manifest_of(17, [publish(store, tmp_path, 17, "1.sst")])
    assert store.latest() is None
    path = store.write_manifest(manifest)
    assert path == manifest_path(17) == "manifests/000000000017.json"
    again = CheckpointStore.open(f"file://{tmp_path}/checkpoints", "job")
    assert again.read_manifest(path) == again.latest() == manifest
    assert again.list_manifests() == [path]


def test_of_racing_writers_exactly_one_wins(store, tmp_path):
    others = [CheckpointStore.open(str(tmp_path / "checkpoints"), "job") for _ in range(8)]
    start = threading.Barrier(len(others))
    won, lost = [], []

    def write(generation: int) -> None:
        start.wait()
        try:
            others[generation].write_manifest(manifest_of(3, generation=generation))
            won.append(generation)
        except CheckpointError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    assert "another control plane has committed" in lost[0]
    assert store.latest().generation == won[0]
    assert all_files(tmp_path) == {manifest_path(3)}


def test_manifest_is_created_once_without_hard_links(store, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    store.write_manifest(manifest_of(1, generation=4))
    with pytest.raises(SupersededError, match="exists already"):
        store.write_manifest(manifest_of(1, generation=5))
    assert store.latest().generation == 4


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format_version": 1, "parts": 7}', b"\xff\0"])
def test_a_damaged_manifest_is_refused_and_the_one_before_it_counts_if_named(store, tmp_path, damage):
    store.write_manifest(manifest_of(1))
    store.write_manifest(manifest_of(2))
    (tmp_path / "checkpoints/job" / manifest_path(2)).write_bytes(damage)
    with pytest.raises(CheckpointError, match=f"{manifest_path(2)}.* name .*{manifest_path(1)}"):
        store.latest()
    named, path = CheckpointStore.open_checkpoint(f"{store.location}/{manifest_path(1)}")
    assert named.read_manifest(path) == manifest_of(1)
    assert store.newest_id() == 2
    with pytest.raises(CheckpointError, match=manifest_path(2)):
        store.read_manifest(manifest_path(2))


def test_manifest_of_a_newer_version_is_not_skipped(store, tmp_path):
    store.write_manifest(manifest_of(1))
    value = manifest_to_json(manifest_of(2)) | {"format_version": 99}
    (tmp_path / "checkpoints/job" / manifest_path(2)).write_bytes(orjson.dumps(value))
    for call in (store.latest, lambda: store.expire(1)):
        with pytest.raises(CheckpointError, match="use the version of Weir that wrote it"):
            call()


def test_manifest_whose_files_are_gone_is_refused(store, tmp_path):
    old = publish(store, tmp_path, 1, "1.sst")
    store.write_manifest(manifest_of(2, [publish(store, tmp_path, 2, "2.sst")]))
    store.expire(1)
    with pytest.raises(CheckpointError, match=r"000000000001/store/1.sst.*does not exist"):
        store.write_manifest(manifest_of(3, [old]))
    assert store.latest().checkpoint_id == 2


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "files/../../x", "", "files//x", "a/./b"])
def test_paths_that_lead_out_are_refused(store, tmp_path, path):
    with pytest.raises(CheckpointError, match="not a path below the store"):
        store.fetch(FileRef(path, 1), tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_names_that_are_no_folder_are_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="job name"):
        CheckpointStore.open(str(tmp_path), name)


def test_files_are_linked_and_publishing_again_is_harmless(store, tmp_path):
    first = publish(store, tmp_path, 1, "1.sst", b"abc")
    source = tmp_path / "1-1.sst"
    assert store.links_to(tmp_path)
    assert store.links_to(tmp_path / "not" / "there" / "yet")
    assert not store.links_to(Path("/proc"))
    assert source.stat().st_nlink == 2
    assert (
        store.publish(source, first.path)
        == first
        == FileRef("files/000000000001/store/1.sst", 3, digest_of(source))
    )
    store.fetch(first, tmp_path / "fetched")
    assert (tmp_path / "fetched").samefile(source)


def test_files_are_copied_where_there_are_no_links(store, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    first = publish(store, tmp_path, 1, "1.sst", b"abc")
    store.fetch(first, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"abc"
    assert (tmp_path / "fetched").stat().st_nlink == 1
    assert not [path for path in all_files(tmp_path) if DRAFT_PREFIX in path]


def test_file_of_another_size_is_reported_and_replaced(store, tmp_path):
    file = publish(store, tmp_path, 1, "1.sst", b"abc")
    stored = tmp_path / "checkpoints/job" / file.path
    stored.unlink()
    stored.write_bytes(b"ab")
    with pytest.raises(CheckpointError, match="2 bytes instead of 3"):
        store.fetch(file, tmp_path / "fetched")
    publish(store, tmp_path, 1, "1.sst", b"abc")
    assert stored.read_bytes() == b"abc"


def test_of_several_files_the_one_that_is_absent_is_told(store, tmp_path):
    files = [publish(store, tmp_path, 1, f"{number}.sst") for number in range(3)]
    (tmp_path / "checkpoints/job" / files[1].path).unlink()
    absent = r"file files/000000000001/store/1.sst: the file does not exist"
    with pytest.raises(CheckpointError, match=absent):
        store.fetch_all([(file, tmp_path / f"fetched{number}") for number, file in enumerate(files)])
    with pytest.raises(CheckpointError, match=absent):
        store.read_ranges([(file, 0, 1) for file in files])


def test_absent_file_is_one_clear_error(store, tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoints/job, file files/1/x .*does not exist"):
        store.fetch(FileRef("files/1/x", 1), tmp_path / "target")
    with pytest.raises(CheckpointError, match="does not exist"):
        store.publish(tmp_path / "nothing", "files/1/x")


def test_expiry_deletes_old_manifests_and_unnamed_files_only(store, tmp_path):
    shared, gone = publish(store, tmp_path, 1, "shared"), publish(store, tmp_path, 1, "gone")
    store.write_manifest(manifest_of(1, [shared, gone]))
    failed = publish(store, tmp_path, 2, "failed")
    for number in (3, 4):
        store.write_manifest(manifest_of(number, [shared, publish(store, tmp_path, number, "own")]))
    coming = publish(store, tmp_path, 5, "coming")
    expired = store.expire(2)
    assert (expired.manifests, expired.files, expired.bytes) == (1, 2, 8)
    left = all_files(tmp_path)
    assert not left & {gone.path, failed.path, manifest_path(1)}
    assert left == {shared.path, coming.path} | {
        path for n in (3, 4) for path in (manifest_path(n), f"{files_folder(n)}/store/own")
    }


def test_expiry_spares_what_is_in_flight_or_to_be_kept(store, tmp_path):
    kept = publish(store, tmp_path, 1, "kept")
    store.write_manifest(manifest_of(1, [kept]))
    in_flight = publish(store, tmp_path, 2, "in-flight")
    for number in (3, 4):
        store.write_manifest(manifest_of(number))
    store.expire(1, oldest_in_flight=2, keep=[1])
    assert all_files(tmp_path) == {kept.path, in_flight.path, manifest_path(1), manifest_path(4)}
    store.expire(1)
    assert all_files(tmp_path) == {manifest_path(4)}


def test_damaged_manifest_does_not_count_as_retained(store, tmp_path):
    file = publish(store, tmp_path, 1, "1.sst")
    for number in (1, 2, 3):
        store.write_manifest(manifest_of(number, [file] if number == 1 else []))
    for number in (2, 3):
        (tmp_path / "checkpoints/job" / manifest_path(number)).write_bytes(b"{")
    CheckpointStore.open(str(tmp_path / "checkpoints"), "job").expire(1)
    assert {file.path, manifest_path(1)} <= all_files(tmp_path)


def test_savepoint_stands_alone(store, tmp_path):
    file = publish(store, tmp_path, 1, "1.sst", b"abc")
    store.write_manifest(manifest_of(1, [file]))
    uri = str(tmp_path / "savepoint")
    assert store.copy_savepoint(store.latest(), uri) == manifest_path(1)
    with pytest.raises(CheckpointError, match="exists already; choose another path"):
        store.copy_savepoint(store.latest(), uri)
    for number in (2, 3):
        store.write_manifest(manifest_of(number))
    store.expire(1)
    savepoint = CheckpointStore.open_savepoint(uri)
    manifest = savepoint.latest()
    assert manifest.is_savepoint
    assert manifest.paths == {file.path}
    savepoint.fetch(file, tmp_path / "from-savepoint")
    assert (tmp_path / "from-savepoint").read_bytes() == b"abc"

    imported = store.import_savepoint(savepoint, manifest, 9)
    assert not imported.is_savepoint
    store.write_manifest(imported)
    (path,) = store.latest().paths
    store.fetch(FileRef(path, 3), tmp_path / "from-import")
    assert (tmp_path / "from-import").read_bytes() == b"abc"


def test_savepoint_has_the_rows_that_barriers_overtook(store, tmp_path):
    rows = publish(store, tmp_path, 1, "rows-1-0.arrow", b"rows")
    manifest = manifest_of(1, [publish(store, tmp_path, 1, "1.sst")])
    manifest = replace(manifest, parts=(replace(manifest.parts[0], rows=(rows,)),))
    store.write_manifest(manifest)
    assert rows.path in store.latest().paths
    uri = str(tmp_path / "savepoint")
    store.copy_savepoint(manifest, uri)
    for number in (2, 3):
        store.write_manifest(manifest_of(number))
    store.expire(1)

    savepoint = CheckpointStore.open_savepoint(uri)
    imported = store.import_savepoint(savepoint, savepoint.latest(), 9)
    store.write_manifest(imported)
    [(moved,)] = [part.rows for part in store.latest().parts]
    store.fetch(moved, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"rows"


def test_expiry_spares_rows_of_a_retained_checkpoint(store, tmp_path):
    """Two are retained; the rows of the older one are needed if the newer one turns out damaged."""
    for number in (1, 2, 3):
        manifest = manifest_of(number)
        rows = publish(store, tmp_path, number, "rows-1-0.arrow")
        store.write_manifest(replace(manifest, parts=(replace(manifest.parts[0], rows=(rows,)),)))
    store.expire(2)
    kept = {f"{files_folder(number)}/store/rows-1-0.arrow" for number in (2, 3)}
    assert all_files(tmp_path) == kept | {manifest_path(2), manifest_path(3)}


def test_full_disk_is_one_clear_error_and_nothing_is_lost(store, tmp_path, monkeypatch):
    """The limit on file sizes fails in the middle of a write, as a full disk does."""
    store.write_manifest(manifest_of(1, [publish(store, tmp_path, 1, "1.sst")]))
    before = all_files(tmp_path)
    (tmp_path / "large").write_bytes(bytes(100_000))

    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", no_link)
    with file_bytes_limited(1_000):
        with pytest.raises(CheckpointError, match=r"job, file files/000000000002/x: .*raise it"):
            store.publish(tmp_path / "large", f"{files_folder(2)}/x")
        with pytest.raises(CheckpointError, match=f"file {manifest_path(2)}"):
            store.write_manifest(manifest_of(2, [FileRef(f"{files_folder(2)}/{n}", 1) for n in range(100)]))
    assert all_files(tmp_path) == before
    assert store.latest().checkpoint_id == 1
    store.publish(tmp_path / "large", f"{files_folder(2)}/x")
    store.write_manifest(manifest_of(2))


def test_directory_below_a_file_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    store = CheckpointStore.open(str(tmp_path / "file"), "job")
    with pytest.raises(CheckpointError, match="a part of the path is a file"):
        store.write_manifest(manifest_of(1))


@pytest.mark.parametrize("uri", ["nonsense://bucket/x", "s3://bucket/x?unknown=1"])
def test_uri_that_is_not_understood_is_reported(uri):
    with pytest.raises(CheckpointError, match="checkpoint store"):
        CheckpointStore.open(uri, "job")
