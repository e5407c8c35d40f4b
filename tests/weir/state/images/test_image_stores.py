"""Images of stores: what is opened again is what was there when they were taken, and only what is new is copied."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.weir.checkpoints.manifests import manifest_of
from tests.weir.state.conftest import SMALL_SETTINGS
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.config.stores import RocksDbConfig
from weir.errors import CheckpointError, StateError
from weir.protocol.checkpoints.manifest import FileRef, StoreImage
from weir.state.api import StateBackend
from weir.state.images.image_client import image_address, image_ids_of, is_image
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images, drop_foreign
from weir.state.layout import encode_key

STATE = 2


def key(name: str, group: int = 5, state_id: int = STATE) -> bytes:
    return encode_key(group, state_id, name.encode())


@dataclass
class World:
    root: Path
    settings: RocksDbConfig | None
    store: CheckpointStore
    opened: list[tuple[StateBackend, Images]]

    def images(self, name: str) -> Images:
        images = Images(self.store, self.root / name, self.settings)
        self.opened.append((images, images))
        return images

    def read_only(self, name: str, image: StoreImage) -> StateBackend:
        images = self.images(name)
        images.open_main(None).close()
        backend = images.open_whole(image)
        self.opened.insert(0, (backend, images))
        return backend

    def main(self, name: str, image: StoreImage | None = None) -> StateBackend:
        images = self.images(name)
        backend = images.open_main(image)
        self.opened.insert(0, (backend, images))
        return backend

    def publisher(
        self, backend: StateBackend, name: str, store_id: str = "store-1", **options
    ) -> ImagePublisher:
        return ImagePublisher(self.store, backend, self.root / name, store_id, **options)

    def files(self) -> set[str]:
        root = self.root / "checkpoints/job"
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture(params=["memory", "rocksdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    settings = None if request.param == "memory" else SMALL_SETTINGS
    store = CheckpointStore.open(str(tmp_path / "checkpoints"), "job")
    world = World(tmp_path, settings, store, [])
    yield world
    for closable, _ in world.opened:
        closable.close()


@pytest.fixture
def rocksdb_world(tmp_path: Path) -> Iterator[World]:
    store = CheckpointStore.open(str(tmp_path / "checkpoints"), "job")
    world = World(tmp_path, SMALL_SETTINGS, store, [])
    yield world
    for closable, _ in world.opened:
        closable.close()


def change(backend: StateBackend, model: dict[bytes, bytes], seed: int) -> None:
    """Random puts, deletes and a range delete, in the store and in the model."""
    chance = random.Random(seed)
    puts = [(key(str(chance.randrange(500)), chance.randrange(8)), chance.randbytes(50)) for _ in range(300)]
    deletes = [key(str(chance.randrange(500)), chance.randrange(8)) for _ in range(100)]
    backend.write(puts, deletes)
    model.update(puts)
    for gone in deletes:
        model.pop(gone, None)
    start = key(str(chance.randrange(500)), 3)
    stop = key("5", 4)
    backend.delete_range(start, stop)
    for gone in [name for name in model if start <= name < stop]:
        del model[gone]


def test_images_equal_the_store_when_they_were_taken(world):
    """Writes go on in another thread: of those, an image has what came first."""
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    model: dict[bytes, bytes] = {}
    stop = threading.Event()
    counter = key("counter", 7, 9)

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            backend.write([(counter, str(number).encode()), (key(str(number), 7, 9), b"x")])

    writer = threading.Thread(target=count)
    writer.start()
    taken = []
    try:
        for number in range(4):
            change(backend, model, number)
            taken.append((publisher.take(number + 1), dict(model)))
            change(backend, model, 100 + number)
    finally:
        stop.set()
        writer.join()
    for number, (pending, expected) in enumerate(taken):
        image, new_bytes = pending.publish()
        assert new_bytes > 0
        assert pending.publish() == (image, new_bytes)
        for opened in (
            world.read_only(f"read-{number}", image),
            world.main(f"main-{number}", image),
        ):
            content = dict(opened.scan())
            others = {name: content.pop(name) for name in list(content) if name[2:4] == b"\0\x09"}
            assert content == expected
            numbers = sorted(int(name[5:]) for name in others if name != counter)
            assert numbers == list(range(1, int(others.get(counter, b"0")) + 1))
            opened.close()
    assert not list((world.root / "one/snapshots").iterdir())


def test_main_store_goes_on_without_touching_the_image(world):
    backend, model = world.main("one"), {}
    publisher = world.publisher(backend, "one")
    change(backend, model, 1)
    image, _ = publisher.take(1).publish()
    expected = dict(model)
    second = world.main("two", image)
    assert dict(second.scan()) == expected
    change(second, model, 2)
    if hasattr(second, "compact"):
        second.compact()
    assert dict(second.scan()) == model
    second.close()
    again = world.read_only("three", image)
    assert dict(again.scan()) == expected
    again.close()


def test_opening_an_image_to_read_it_writes_no_file_of_the_checkpoint(rocksdb_world):
    """Whoever compares a file with its digest at that moment would find it damaged."""
    world = rocksdb_world
    backend = world.main("one")
    change(backend, {}, 1)
    image, _ = world.publisher(backend, "one").take(1).publish()
    paths = [world.root / "checkpoints/job" / file.path for file in image.files.values()]
    before = {path: path.stat().st_mtime_ns for path in paths}
    world.read_only("two", image)
    assert {path: path.stat().st_mtime_ns for path in paths} == before


def test_only_new_table_files_are_copied(rocksdb_world):
    world = rocksdb_world
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    backend.write([(key(f"{n:06}"), bytes(1000)) for n in range(2_000)])
    first, first_bytes = publisher.take(1).publish()
    assert first_bytes > 2_000_000
    # Not committed yet, but newer than the latest that is: 0.
    backend.write([(key("x"), b"y")])
    second, second_bytes = publisher.take(2).publish()
    assert 0 < second_bytes < 20_000
    tables = {name for name in first.files if name.endswith(".sst")}
    assert tables
    assert {name: second.files[name] for name in tables} == {name: first.files[name] for name in tables}
    assert second_bytes == sum(
        file.size_bytes for file in second.files.values() if file.path.startswith("files/000000000002/")
    )
    # Of two images of one checkpoint, the second brings no table that the first has brought.
    publisher.committed(2)
    backend.write([(key("z"), bytes(100_000))])
    pending = [publisher.take(3), publisher.take(3)]
    assert pending[0].image_id != pending[1].image_id
    (_, new), (image, again) = [image.publish() for image in pending]
    assert new > 100_000 > 20_000 > again
    assert len({file.path for file in image.files.values()}) == len(image.files)


def test_small_files_that_have_not_changed_are_named_again(rocksdb_world):
    """Of a store that changes, only tables and the manifest; none of one that stands still."""
    world = rocksdb_world
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    changed = []
    for number in (1, 2, 3):
        if number < 3:
            backend.write([(key(f"{number}"), b"1")])
        image, _ = publisher.take(number).publish()
        world.store.write_manifest(manifest_of(number, image.files.values()))
        publisher.committed(number)
        world.store.expire(1)
        own = {n for n, file in image.files.items() if file.path.startswith(f"files/{number:012}/")}
        changed.append({"sst" if name.endswith(".sst") else name.split("-")[0] for name in own})
    assert changed == [{"sst", "MANIFEST", "CURRENT", "OPTIONS", "rocksdict"}, {"sst", "MANIFEST"}, set()]
    assert dict(world.read_only("two", image).scan()) == {key("1"): b"1", key("2"): b"1"}


def test_entries_of_a_range_that_was_deleted_are_in_images_and_are_copied_once(rocksdb_world):
    world = rocksdb_world
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    entries = [(key(f"{n:06}"), bytes(1000)) for n in range(2_000)]
    backend.write([(name, b"left over") for name, _ in entries[::7]])
    _, first_bytes = publisher.take(1).publish()
    backend.delete_range(entries[0][0], key("z"))
    before, _ = publisher.take(2).publish()
    backend.write(entries)
    backend.write([(entries[3][0], b"newer")], [entries[4][0]])
    second, second_bytes = publisher.take(3).publish()
    third, third_bytes = publisher.take(4).publish()
    assert first_bytes < 100_000 < 2_000_000 < second_bytes
    assert third_bytes < 20_000
    assert list(world.read_only("two", before).scan()) == []
    want = [*entries[:3], (entries[3][0], b"newer"), *entries[5:]]
    assert list(world.read_only("three", third).scan()) == want
    again = world.main("four", second)
    backend.compact()
    again.compact()
    assert list(backend.scan()) == list(again.scan()) == want


def test_files_of_checkpoints_before_the_committed_one_are_not_relied_on(rocksdb_world):
    world = rocksdb_world
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    backend.write([(key(f"{n:06}"), bytes(1000)) for n in range(200)])
    _, first_bytes = publisher.take(1).publish()
    publisher.committed(2)
    image, new_bytes = publisher.take(3).publish()
    assert new_bytes >= first_bytes - 20_000
    assert all(file.path.startswith("files/000000000003/") for file in image.files.values())


def test_store_that_was_opened_from_an_image_does_not_copy_it_again(rocksdb_world):
    world = rocksdb_world
    backend = world.main("one")
    backend.write([(key(f"{n:06}"), bytes(1000)) for n in range(2_000)])
    image, _ = world.publisher(backend, "one").take(1).publish()
    second = world.main("two", image)
    publisher = world.publisher(second, "two", "store-2", opened_from=image, checkpoint_id=1)
    second.write([(key("x"), b"y")])
    _, new_bytes = publisher.take(2).publish()
    assert new_bytes < 20_000


def test_failed_publishing_leaves_nothing_on_the_disk_and_the_next_image_is_whole(rocksdb_world):
    world = rocksdb_world
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    backend.write([(key("a"), b"1")])
    blocker = world.root / "checkpoints/job/files/000000000001"
    blocker.parent.mkdir(parents=True)
    blocker.write_text("in the way")
    pending = publisher.take(1)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="a part of the path is a file"):
            pending.publish()
    assert not pending.directory.exists()
    image, _ = publisher.take(2).publish()
    opened = world.read_only("two", image)
    assert dict(opened.scan()) == {key("a"): b"1"}
    opened.close()


def test_discarded_image_is_gone(world):
    backend = world.main("one")
    pending = world.publisher(backend, "one").take(1)
    pending.discard()
    pending.discard()
    assert not pending.directory.exists()
    with pytest.raises(CheckpointError, match="was given up"):
        pending.publish()
    assert not world.files()


def test_images_that_nobody_published_go_with_the_next_checkpoint(world):
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    pending = [publisher.take(number) for number in (1, 2, 3, 4)]
    publisher.aborted(1)
    publisher.committed(3)
    assert [image.directory.exists() for image in pending] == [False, False, False, True]
    pending[3].publish()


def test_missing_news_of_a_commit_costs_one_checkpoint_only(rocksdb_world):
    """The file expired, and this store did not hear of the checkpoint that made it expire."""
    world = rocksdb_world
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    backend.write([(key("a"), b"1")])
    image, _ = publisher.take(1).publish()
    for number in (1, 2):
        world.store.write_manifest(manifest_of(number, image.files.values() if number == 1 else []))
    world.store.expire(1)
    image, _ = publisher.take(3).publish()
    with pytest.raises(CheckpointError, match="the checkpoint is given up"):
        world.store.write_manifest(manifest_of(3, image.files.values()))
    publisher.aborted(3)
    image, _ = publisher.take(4).publish()
    world.store.write_manifest(manifest_of(4, image.files.values()))
    assert dict(world.read_only("two", image).scan()) == {key("a"): b"1"}


def test_image_of_a_closed_store_is_one_clear_error(world):
    backend = world.main("one")
    publisher = world.publisher(backend, "one")
    backend.close()
    with pytest.raises(CheckpointError, match=r"checkpoint 7: no image could be taken: .*closed"):
        publisher.take(7)


@pytest.mark.parametrize("kind", ["damaged", "absent"])
def test_damaged_image_is_one_clear_error_and_nothing_stays(world, kind):
    backend = world.main("one")
    backend.write([(key("a"), b"1")])
    image, _ = world.publisher(backend, "one").take(1).publish()
    main = "CURRENT" if world.settings else "entries-1.arrow"
    path = world.root / "checkpoints/job" / image.files[main].path
    size_bytes = path.stat().st_size
    path.unlink()
    if kind == "damaged":
        path.write_bytes(b"x" * size_bytes)
    images = world.images("two")
    main = images.open_main(None)
    with pytest.raises((StateError, CheckpointError)) as first:
        images.open_whole(image)
    images.close()
    main.close()
    images = world.images("two")
    with pytest.raises((StateError, CheckpointError)) as second:
        images.open_main(image)
    for caught in (first, second):
        assert str(world.root) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not list((world.root / "two").glob("images/*"))
    # The directory was let go, and can be used again.
    images.open_main(None).close()


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "..", "a/b", ""])
def test_names_that_lead_out_of_the_store_are_refused(rocksdb_world, name):
    source = rocksdb_world.root / "source"
    source.write_bytes(b"evil")
    file = rocksdb_world.store.publish(source, "files/000000000001/x")
    with pytest.raises(StateError, match="not a plain file name"):
        rocksdb_world.read_only("two", StoreImage("image-1", {name: file}))
    with pytest.raises(StateError, match="not a plain file name"):
        rocksdb_world.read_only("three", StoreImage(name, {"CURRENT": file}))


def test_image_of_the_other_kind_of_store_can_be_opened(tmp_path):
    store = CheckpointStore.open(str(tmp_path / "checkpoints"), "job")
    entries = {key(str(n)): bytes(10) for n in range(12_000)}
    for kind, other in ((None, SMALL_SETTINGS), (SMALL_SETTINGS, None)):
        world = World(tmp_path / ("from-memory" if kind is None else "from-rocksdb"), kind, store, [])
        backend = world.main("one")
        backend.write(list(entries.items()))
        image, _ = world.publisher(backend, "one", f"store-{kind is None}").take(1).publish()
        world.settings = other
        second = world.main("two", image)
        assert dict(second.scan()) == entries
        for closable, _ in world.opened:
            closable.close()


def test_foreign_files_are_never_touched(world):
    foreign = world.root / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("x")
    with pytest.raises(StateError, match="it is not ours"):
        world.images("foreign").open_main(None)
    assert [path.name for path in foreign.iterdir()] == ["precious"]


def test_leftovers_of_a_killed_process_are_removed(world):
    backend = world.main("one")
    backend.write([(key("old"), b"1")])
    pending = world.publisher(backend, "one").take(1)
    (world.root / "one/images/x").mkdir(parents=True)
    for closable, _ in world.opened:
        closable.close()
    world.opened.clear()
    assert pending.directory.exists()
    assert not list(world.main("one").scan())
    assert not (world.root / "one/snapshots").exists()
    assert not (world.root / "one/images").exists()


def test_dropping_foreign_groups_keeps_the_others(world):
    backend = world.main("one")
    entries = {key(name, group, state): b"1" for group in range(6) for state in (1, 2, 3) for name in "ab"}
    backend.write(list(entries.items()))
    kept = {(1, 2), (1, 3), (2, 1), (4, 2)}
    assert drop_foreign(backend, kept) == 3
    expected = {name for name in entries if (name[1], name[3]) in kept}
    assert {name for name, _ in backend.scan()} == expected
    assert drop_foreign(backend, kept) == 0
    assert drop_foreign(backend, []) == 1
    assert not list(backend.scan())


# --- clients ---------------------------------------------------------------------------------------------------------


def two_images(world: World) -> tuple[Images, str, str]:
    """An image with a and b, and an older one with b and c; images of this kind are layered over each other."""
    ids = []
    images = world.images("restored")
    images.open_main(None).close()
    for store_id, content in (("new", {"a": b"new", "b": b"new"}), ("old", {"b": b"old", "c": b"old"})):
        backend = world.main(store_id)
        backend.write([(key(name), value) for name, value in content.items()] + [(key("x", 6), b"other")])
        image, _ = world.publisher(backend, store_id, store_id).take(1).publish()
        images.register([image])
        ids.append(image.image_id)
    return images, ids[0], ids[1]


def test_client_reads_an_image_like_a_peer(world):
    images, new, _ = two_images(world)
    client = images.connect(image_address(new, ""))
    assert client.get_many([key("c"), key("a"), key("a")]) == [None, b"new", b"new"]
    assert client.start_get([key("b")])() == [b"new"]
    prefix = key("")[:4]
    entries = [(key("a"), b"new"), (key("b"), b"new")]
    assert list(client.scan(key(""), None, prefixes=[prefix])) == entries
    assert list(client.scan(key(""), None, prefixes=[prefix], reverse=True)) == entries[::-1]
    assert list(client.scan(key("b"), key("c"), prefixes=[prefix])) == entries[1:]
    assert list(client.scan(key(""), None, prefixes=[prefix], bytes_max=1)) == entries[:1]
    for call in (lambda: client.write([(key("a"), b"1")]), lambda: client.delete_range(key("a"), key("b"))):
        with pytest.raises(StateError, match="belongs to a checkpoint"):
            call()
    client.close()


def test_layered_images_give_the_newer_entry(world):
    images, new, old = two_images(world)
    address = image_address(new, old)
    assert is_image(address)
    assert not is_image("host:1")
    assert image_ids_of(address) == (new, old)
    client = images.connect(address)
    names = ["a", "b", "c", "d"]
    assert client.get_many([key(name) for name in names]) == [b"new", b"new", b"old", None]
    prefix = key("")[:4]
    entries = [(key("a"), b"new"), (key("b"), b"new"), (key("c"), b"old")]
    assert list(client.scan(key(""), None, prefixes=[prefix])) == entries
    assert list(client.scan(key(""), None, prefixes=[prefix], reverse=True)) == entries[::-1]
    client.close()


def test_image_is_closed_and_its_files_go_with_its_last_client(world):
    images, new, old = two_images(world)
    folder = world.root / "restored/images"
    clients = [images.connect(image_address(new)), images.connect(image_address(new, old))]
    assert images.open_images() == sorted([new, old])
    clients[0].close()
    clients[0].close()
    assert images.open_images() == sorted([new, old])
    entries = clients[1].scan(key(""), None, prefixes=[key("")[:4]])
    assert next(entries) == (key("a"), b"new")
    clients[1].close()
    # A scan that has begun is not cut off.
    assert len(list(entries)) == 2
    assert images.open_images() == []
    assert not list(folder.iterdir())
    # Somebody who comes late is served, and leaves nothing.
    assert clients[1].get_many([key("c")]) == [b"old"]
    assert images.open_images() == []


def test_unknown_image_is_refused(world):
    images = world.images("restored")
    images.open_main(None).close()
    with pytest.raises(StateError, match="no image 'nobody'"):
        images.connect(image_address("nobody"))
    images.register([StoreImage("lost", {"CURRENT": FileRef("files/1/x", 1)})])
    with pytest.raises(CheckpointError, match="does not exist"):
        images.connect(image_address("lost"))
    assert images.image("lost").files


def test_image_outlives_the_checkpoint_store_while_it_is_open(rocksdb_world):
    images, new, _ = two_images(rocksdb_world)
    client = images.connect(image_address(new))
    shutil.rmtree(rocksdb_world.root / "checkpoints")
    assert client.get_many([key("a")]) == [b"new"]
    client.close()
