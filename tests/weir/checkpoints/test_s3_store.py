"""The checkpoint store on S3-compatible storage, over a real socket."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from experiments.ports import free_port
from experiments.s3_server import SECRET, s3_server, uri_of
from tests.weir.checkpoints.manifests import manifest_of
from tests.weir.state.conftest import SMALL_SETTINGS
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import files_folder, manifest_path
from weir.errors import CheckpointError, SupersededError
from weir.protocol.checkpoints.manifest import FileRef
from weir.state.images.image_client import image_address
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.layout import encode_key


@pytest.fixture
def store(s3_port: int, request: pytest.FixtureRequest) -> CheckpointStore:
    return CheckpointStore.open(uri_of(s3_port), request.node.name)


def publish(store: CheckpointStore, tmp_path: Path, checkpoint_id: int, name: str, data=b"data") -> FileRef:
    source = tmp_path / f"{checkpoint_id}-{name}"
    source.write_bytes(data)
    return store.publish(source, f"{files_folder(checkpoint_id)}/store/{name}")


def keys_in_bucket(port: int, request: pytest.FixtureRequest) -> set[str]:
    """As the service sees it, markers of folders too."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/bucket?prefix=checkpoints/{request.node.name}/"
    ) as reply:
        text = reply.read().decode()
    return {part.partition("<")[0].split("/", 2)[2] for part in text.split("<Key>")[1:]}


def test_manifests_and_files(store, tmp_path):
    large = bytes(range(256)) * 40_000
    files = [publish(store, tmp_path, 1, "small"), publish(store, tmp_path, 1, "large", large)]
    assert store.latest() is None
    assert not store.links_to(tmp_path)
    path = store.write_manifest(manifest_of(1, files))
    assert store.latest() == store.read_manifest(path) == manifest_of(1, files)
    with pytest.raises(SupersededError, match="exists already"):
        store.write_manifest(manifest_of(1))
    targets = [tmp_path / "fetched-small", tmp_path / "fetched-large"]
    store.fetch_all(list(zip(files, targets, strict=True)))
    assert [target.read_bytes() for target in targets] == [b"data", large]
    with pytest.raises(CheckpointError, match="does not exist"):
        store.fetch(FileRef("files/000000000001/nothing", 1), tmp_path / "nothing")


def test_expiry_leaves_what_is_named(s3_port, store, tmp_path, request):
    shared, gone = publish(store, tmp_path, 1, "shared"), publish(store, tmp_path, 1, "gone")
    store.write_manifest(manifest_of(1, [shared, gone]))
    publish(store, tmp_path, 2, "failed")
    store.write_manifest(manifest_of(3, [shared]))
    expired = store.expire(1)
    assert (expired.manifests, expired.files) == (1, 2)
    files = {key for key in keys_in_bucket(s3_port, request) if not key.endswith("/")}
    assert files == {shared.path, manifest_path(3)}
    store.write_manifest(manifest_of(4))
    store.expire(1)
    # No marker of a checkpoint's folder stays either.
    assert keys_in_bucket(s3_port, request) - {"files/", "manifests/"} == {manifest_path(4)}


def test_missing_file_is_noticed_before_the_commit(store, tmp_path):
    with pytest.raises(CheckpointError, match=r"files/000000000001/lost: checkpoint 2 needs it"):
        store.write_manifest(manifest_of(2, [FileRef("files/000000000001/lost", 1)]))
    assert store.latest() is None


@pytest.mark.parametrize("direction", ["within", "to a directory", "from a directory"])
def test_savepoints(s3_port, tmp_path, direction, request):
    here, there = (
        uri_of(s3_port),
        uri_of(s3_port).replace("/checkpoints", f"/savepoints/{direction.replace(' ', '-')}"),
    )
    if direction == "to a directory":
        there = str(tmp_path / "savepoint")
    elif direction == "from a directory":
        here = str(tmp_path / "checkpoints")
    store = CheckpointStore.open(here, request.node.name)
    file = publish(store, tmp_path, 1, "1.sst", b"abc")
    store.write_manifest(manifest_of(1, [file]))
    store.copy_savepoint(store.latest(), there)
    store.write_manifest(manifest_of(2))
    store.expire(1)
    savepoint = CheckpointStore.open_savepoint(there)
    assert savepoint.latest().is_savepoint
    imported = store.import_savepoint(savepoint, savepoint.latest(), 3)
    store.write_manifest(imported)
    (path,) = store.latest().paths
    store.fetch(FileRef(path, 3), tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"abc"


def test_survivor_opens_its_image_without_fetching_tables(store, tmp_path, caplog):
    """Another task manager downloads them; both then have the content, and serve groups of it."""
    caplog.set_level("INFO")
    images = Images(store, tmp_path / "survivor", SMALL_SETTINGS)
    main = images.open_main(None)
    entries = {encode_key(group, 2, str(n).encode()): bytes(100) for group in range(2) for n in range(2_000)}
    main.write(list(entries.items()))
    publisher = ImagePublisher(store, main, tmp_path / "survivor", "store-1")
    publisher.take(1).publish()
    main.write([(encode_key(0, 2, b"x"), b"y")])
    image, new_bytes = publisher.take(2).publish()
    assert new_bytes < 20_000
    publisher.committed(2)
    main.write([(encode_key(0, 2, b"later"), b"y")])
    images.close()
    main.close()
    expected = entries | {encode_key(0, 2, b"x"): b"y"}

    for name, fetches in (("survivor", False), ("another", True), ("another", False)):
        caplog.clear()
        images = Images(store, tmp_path / name, SMALL_SETTINGS)
        images.register([image])
        main = images.open_main(image)
        assert dict(main.scan()) == expected
        assert ("fetching" in caplog.text) == fetches
        client = images.connect(image_address(image.image_id))
        assert client.get_many([encode_key(0, 2, b"x"), encode_key(0, 2, b"later")]) == [b"y", None]
        client.close()
        images.close()
        main.close()


def test_unknown_bucket_is_one_clear_error(s3_port):
    uri = uri_of(s3_port, "nobody").replace("&allow_bucket_creation=true", "")
    store = CheckpointStore.open(uri, "job")
    with pytest.raises(CheckpointError, match="the bucket does not exist") as caught:
        store.write_manifest(manifest_of(1))
    assert SECRET not in str(caught.value)


def test_unreachable_endpoint_is_one_clear_error():
    store = CheckpointStore.open(uri_of(free_port()), "job")
    with pytest.raises(CheckpointError, match="cannot be reached; check endpoint and network") as caught:
        store.latest()
    assert SECRET not in str(caught.value)
    assert "s3://bucket/checkpoints/job" in str(caught.value)


def test_of_several_files_the_one_that_is_absent_is_told(store, tmp_path):
    files = [publish(store, tmp_path, 1, f"{number}.sst") for number in range(2)]
    files.append(FileRef(f"{files_folder(1)}/store/2.sst", 4))
    with pytest.raises(CheckpointError, match=r"file files/\S+/2.sst: the file does not exist"):
        store.fetch_all([(file, tmp_path / f"fetched{number}") for number, file in enumerate(files)])


def test_what_fits_into_a_part_is_one_request(tmp_path):
    """Three of 20 ms, one after the other, were 60 ms for each file of a checkpoint, and for its manifest."""
    requests = tmp_path / "requests"
    with s3_server(requests=requests) as port:
        store = CheckpointStore.open(uri_of(port), "job")
        file = publish(store, tmp_path, 1, "table", bytes(8 << 20))
        path = store.write_manifest(manifest_of(1, [file]))
        made = requests.read_text().splitlines()
        store.fetch(file, tmp_path / "fetched")
    root = "/bucket/checkpoints/job"
    assert [line for line in made if file.path in line] == [f"PUT {root}/{file.path}"]
    assert [line for line in made if path in line] == [f"HEAD {root}/{path}", f"PUT {root}/{path}"]
    assert (tmp_path / "fetched").read_bytes() == bytes(8 << 20)


def test_an_expiry_lists_all_checkpoints_at_once(tmp_path):
    requests = tmp_path / "requests"
    with s3_server(requests=requests) as port:
        store = CheckpointStore.open(uri_of(port), "job")
        tables = [publish(store, tmp_path, number, "table") for number in range(1, 9)]
        store.write_manifest(manifest_of(8, tables[4:]))
        store.write_manifest(manifest_of(9, tables[4:]))
        before = len(requests.read_text().splitlines())
        expired = store.expire(1)
        made = requests.read_text().splitlines()[before:]
    assert (expired.manifests, expired.files) == (1, 4)
    # Manifests, the folders of files, the files, and each folder that is deleted.
    assert len([line for line in made if line.startswith("GET")]) == 3 + 4


def test_parts_of_files(store, tmp_path):
    """Also those that reach the end, of a file with a name that a URL writes otherwise."""
    content = bytes(range(256)) * 60_000
    file, other = publish(store, tmp_path, 1, "a table+1.sst", content), publish(store, tmp_path, 1, "small")
    wanted = [
        (file, 0, 5),
        (file, 9_999_999, 70_000),
        (file, len(content) - 3, 3),
        (other, 1, 3),
        (file, 700, 0),
    ]
    parts = store.read_ranges(wanted)
    assert parts == [(content if of is file else b"data")[at : at + size] for of, at, size in wanted]
    with pytest.raises(CheckpointError, match="does not exist"):
        store.read_ranges([(FileRef("files/000000000001/nothing", 9), 0, 4)])
