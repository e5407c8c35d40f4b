"""Images whose tables stay in another file system have what RocksDB reads of them, whatever was done to the store."""

import random
import threading
import time

import pytest
from rocksdict import CompactOptions

from tests.weir.state.conftest import SMALL_SETTINGS
from weir.checkpoints.arrow_files import open_arrow_files
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.config.stores import RocksDbConfig
from weir.errors import CheckpointError, StateError
from weir.state.images import remote_image
from weir.state.images.image_client import image_address
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.images.range_cache import CHUNK_BYTES
from weir.state.images.remote_image import RemoteImage
from weir.state.layout import encode_key
from weir.state.stores.rocksdb import open_store
from weir.state.stores.rocksdb_blocks import UnknownTableError
from weir.state.stores.rocksdb_settings import store_options
from weir.state.stores.rocksdb_tables import read_index

NAMES, GROUPS, STATE = 400, 6, 2


def key(name, group):
    return encode_key(group, STATE, str(name).encode())


def change(backend, model, chance):
    """Puts, deletes, a cleared range, now and then a table more or a merge of all."""
    puts = {
        key(chance.randrange(NAMES), chance.randrange(GROUPS)): chance.randbytes(chance.choice([0, 20, 3000]))
        for _ in range(200)
    }
    deletes = [key(chance.randrange(NAMES), chance.randrange(GROUPS)) for _ in range(60)]
    backend.write(list(puts.items()), deletes)
    model.update(puts)
    for each in deletes:
        model.pop(each, None)
    start, stop = sorted(key(chance.randrange(NAMES), chance.randrange(GROUPS)) for _ in range(2))
    if chance.random() < 0.3:
        backend.delete_range(start, stop)
        for each in [each for each in model if start <= each < stop]:
            del model[each]
    if chance.random() < 0.7:
        backend.flush()
    if chance.random() < 0.2:
        backend.compact()


def far_store(root):
    """A checkpoint store that is on this disk, and from which nothing can be linked."""
    return CheckpointStore(open_arrow_files(f"file://{root / 'far'}", ["job"]))


def published(store, root, settings, chance, model, changes=12):
    images = Images(store, root / "owner", settings)
    backend = images.open_main(None)
    for _ in range(changes):
        change(backend, model, chance)
    image, _ = ImagePublisher(store, backend, root / "owner", "owner").take(1).publish()
    backend.close()
    images.close()
    return image


@pytest.mark.parametrize(
    ("seed", "compression"), [(1, "none"), (2, "lz4"), (3, "zstd"), (4, "snappy"), (5, "none"), (6, "none")]
)
def test_it_has_what_the_store_had(tmp_path, seed, compression):
    chance, model = random.Random(seed), {}
    style = "universal" if seed == 6 else "level"
    settings = SMALL_SETTINGS.model_copy(update={"compression": compression, "compaction": style})
    store = far_store(tmp_path)
    image = published(store, tmp_path, settings, chance, model)
    images = Images(store, tmp_path / "reader", settings, fetched_bytes_max=0)
    images.register([image])
    images.open_main(None).close()
    address = image_address(image.image_id)
    client = images.connect(address)
    with images._using(image.image_id) as opened:
        assert isinstance(opened, RemoteImage)
        # As little as can be kept: every part is fetched anew.
        if seed == 5:
            opened._cache._slots_max = 1
        asked = [key(chance.randrange(NAMES), chance.randrange(GROUPS)) for _ in range(300)]
        assert client.get_many([*asked, key("none", 1), b""]) == [*map(model.get, asked), None, None]
        assert list(opened.scan()) == sorted(model.items())
        for _ in range(20):
            start, stop = (key(chance.randrange(NAMES), chance.randrange(GROUPS)) for _ in range(2))
            expected = sorted(item for item in model.items() if start <= item[0] < stop)
            assert list(opened.scan(start, stop)) == expected
            assert list(opened.scan(start, stop, reverse=True)) == expected[::-1]
            prefixes = [encode_key(chance.randrange(GROUPS), STATE, b"")[:4] for _ in range(3)]
            wanted = [item for item in expected if item[0][:4] in prefixes]
            assert list(client.scan(start, stop, prefixes=prefixes)) == wanted
            assert list(client.scan(start, stop, prefixes=prefixes, reverse=True)) == wanted[::-1]
    client.close()
    images.close()


def small_tables(settings, memory):
    """Many tables of little data, and level 1 has room for all of it."""
    options = store_options(settings, memory)
    options.set_target_file_size_base(16 << 10)
    options.set_level_compaction_dynamic_level_bytes(False)
    return options


def merged_down(backend):
    """Waits until no table is left in level 0."""
    deadline_s = time.monotonic() + 60
    while backend._store.property_value("rocksdb.num-files-at-level0") != "0":
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_range_that_a_table_deletes_counts_between_its_first_and_last_key(tmp_path, monkeypatch):
    """All tables of level 1 say the whole range; values that came after it lose their numbers in the lowest level."""
    monkeypatch.setattr("weir.state.stores.rocksdb.store_options", small_tables)
    settings = SMALL_SETTINGS.model_copy(update={"level_0_runs": 1})
    chance, store = random.Random(1), far_store(tmp_path)
    images = Images(store, tmp_path / "owner", settings)
    backend = images.open_main(None)
    keys = sorted(key(name, 1) for name in range(1_000))
    # Two tables of the same keys are merged to many.
    for part in (keys[::2], keys[1::2]):
        backend.write([(each, chance.randbytes(300)) for each in part])
        backend._store.flush(True)
        merged_down(backend)
    lowest = CompactOptions()
    lowest.set_change_level(True)
    lowest.set_target_level(2)
    backend._store.compact_range(None, None, lowest)
    backend.delete_range(keys[0], key("", 2))
    model = {each: chance.randbytes(300) for each in keys if chance.random() < 0.7}
    backend.write(list(model.items()))
    backend._store.flush(True)
    merged_down(backend)
    middle = keys[500]
    backend._compact_range(middle, middle)
    publisher = ImagePublisher(store, backend, tmp_path / "owner", "owner")
    image, _ = publisher.take(1).publish()
    backend.close()
    images.close()

    images = Images(store, tmp_path / "reader", settings, fetched_bytes_max=0)
    images.register([image])
    images.open_main(None).close()
    client = images.connect(image_address(image.image_id))
    with images._using(image.image_id) as opened:
        assert [len(run._places) > 1 for run in opened._runs] == [True, True]
        assert list(opened.scan()) == sorted(model.items())
        assert list(opened.scan(reverse=True)) == sorted(model.items(), reverse=True)
    assert client.get_many(keys) == [*map(model.get, keys)]
    client.close()
    images.close()


def test_only_what_is_asked_for_is_fetched_and_not_all_of_it_is_kept_in_memory(tmp_path, monkeypatch):
    chance, model = random.Random(1), {}
    store = far_store(tmp_path)
    images = Images(store, tmp_path / "owner", RocksDbConfig())
    backend = images.open_main(None)
    for group in range(200):
        puts = [(key(number, group), chance.randbytes(3000)) for number in range(40)]
        backend.write(puts)
        model.update(puts)
    backend.compact()
    image, _ = ImagePublisher(store, backend, tmp_path / "owner", "owner").take(1).publish()
    backend.close()
    images.close()
    size_bytes = sum(file.size_bytes for file in image.files.values())
    images = Images(store, tmp_path / "reader", RocksDbConfig(), fetched_bytes_max=size_bytes // 2)
    images.register([image])
    images.open_main(None).close()
    client = images.connect(image_address(image.image_id))
    with images._using(image.image_id) as opened:
        opened.bring_indexes()
    asked = [key(7, 3), key(8, 3)]
    assert client.get_many(asked) == [model[each] for each in asked]
    once = images.fetched[1]
    assert 0 < once <= 20 * CHUNK_BYTES < size_bytes / 4
    assert client.get_many(asked) == [model[each] for each in asked]
    assert images.fetched[1] == once
    monkeypatch.setattr(remote_image, "_BLOCK_BYTES_MAX", 64 << 10)
    asked = [key(name, 5) for name in range(40)]
    assert client.get_many(asked) == [model[each] for each in asked]
    kept = [block.size_bytes for block in opened._blocks.values()]
    assert 32 << 10 < opened._block_bytes == sum(kept) <= 64 << 10
    client.close()
    images.close()


def test_of_a_key_that_changes_again_and_again_one_block_is_fetched(tmp_path):
    """Each table of level 0 has it: a restart from S3 fetched as many blocks for each key of the first rows."""
    store, chance = far_store(tmp_path), random.Random(1)
    settings = RocksDbConfig()
    images = Images(store, tmp_path / "owner", settings)
    backend = images.open_main(None)
    keys = [key(name, 1) for name in range(100)]
    model = {}
    for _ in range(3):
        # Others are between them, so that each has a chunk of its own.
        puts = {each: chance.randbytes(20) for each in keys}
        model.update(puts)
        backend.write([*puts.items(), *((each + b"x", chance.randbytes(CHUNK_BYTES)) for each in keys)])
        backend._store.flush(True)
    backend.write([], keys[50:60])
    backend._store.flush(True)
    image, _ = ImagePublisher(store, backend, tmp_path / "owner", "owner").take(1).publish()
    backend.close()
    images.close()
    images = Images(store, tmp_path / "reader", settings, fetched_bytes_max=0)
    images.register([image])
    images.open_main(None).close()
    client = images.connect(image_address(image.image_id))
    with images._using(image.image_id) as opened:
        assert len(opened._runs) == 4
        opened.bring_indexes()
    before = images.fetched[1]
    asked = [each for each in keys[:100:9] if each not in keys[50:60]]
    assert client.get_many(asked) == [model[each] for each in asked]
    assert images.fetched[1] - before <= 2 * len(asked) * CHUNK_BYTES
    assert client.get_many(keys) == [None if 50 <= at < 60 else model[each] for at, each in enumerate(keys)]
    client.close()
    images.close()


def test_what_is_opened_while_all_is_closed_is_closed_too(tmp_path, monkeypatch):
    chance, model = random.Random(4), {}
    store = far_store(tmp_path)
    image = published(store, tmp_path, SMALL_SETTINGS, chance, model, changes=4)
    for work in ("fetch_all", "read_ranges"):
        asked, let, told, now = threading.Event(), threading.Event(), [], getattr(store, work)

        def later(*args, asked=asked, let=let, now=now, **settings):
            asked.set()
            assert let.wait(60)
            return now(*args, **settings)

        monkeypatch.setattr(store, work, later)
        images = Images(store, tmp_path / work, SMALL_SETTINGS, fetched_bytes_max=0)
        images.register([image])
        images.open_main(None).close()

        def connect(images=images, told=told):
            with pytest.raises(StateError) as error:
                images.connect(image_address(image.image_id))
            told.append(str(error.value))

        thread = threading.Thread(target=connect)
        thread.start()
        assert asked.wait(60)
        images.close()
        let.set()
        thread.join(60)
        assert told == ["the images of this job are closed"]
        assert images.open_images() == []
        assert images._ranges is None or images._ranges._file.closed
        monkeypatch.undo()


@pytest.mark.parametrize("bits", [10, 0])
def test_a_filter_has_all_keys_and_few_others(tmp_path, bits):
    store = open_store(tmp_path / "store", RocksDbConfig(bloom_bits_per_key=bits), fresh=True)
    chance = random.Random(1)
    keys = [chance.randbytes(size) for size in (*range(1, 20), *range(20, 150, 7)) for _ in range(40)]
    store.write([(key, b"") for key in keys])
    store.flush()
    store.checkpoint(tmp_path / "image")
    store.close()
    (table,) = (tmp_path / "image").glob("*.sst")
    data = table.read_bytes()
    index = read_index(len(data), lambda offset, size_bytes: data[offset : offset + size_bytes])
    assert all(map(index.may_have, keys))
    for size in (12, 40):
        others = sum(index.may_have(chance.randbytes(size)) for _ in range(1_000))
        assert others < 50 if bits else others == 1_000


def test_damage_is_told_with_the_file(tmp_path):
    chance, model = random.Random(9), {}
    store = far_store(tmp_path)
    image = published(store, tmp_path, SMALL_SETTINGS, chance, model, changes=4)
    name, file = max(image.files.items(), key=lambda item: (item[0].endswith(".sst"), item[1].size_bytes))
    path = tmp_path / "far" / "job" / file.path
    whole = path.read_bytes()

    def read(images):
        images.connect(image_address(image.image_id)).get_many(sorted(model))

    def told(data):
        path.write_bytes(data)
        images = Images(store, tmp_path / "reader", SMALL_SETTINGS, fetched_bytes_max=0)
        images.register([image])
        images.open_main(None).close()
        with pytest.raises((StateError, CheckpointError)) as error:
            read(images)
        images.close()
        assert file.path in str(error.value), name
        assert "damaged" in str(error.value)

    told(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    told(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])
    told(whole[:-100])
    path.write_bytes(whole)
    for at in (-9, -53, -50):
        data = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] if at + 1 else whole
        with pytest.raises(UnknownTableError):
            read_index(len(data), lambda offset, size_bytes, data=data: data[offset : offset + size_bytes])


def test_a_scan_holds_its_image_when_no_group_needs_it_any_more(tmp_path):
    """A question begins a scan for each key group: when these had arrived each of them opened the image anew."""
    chance, model = random.Random(7), {}
    store = far_store(tmp_path)
    image = published(store, tmp_path, SMALL_SETTINGS, chance, model, changes=3)
    images = Images(store, tmp_path / "reader", SMALL_SETTINGS, fetched_bytes_max=0)
    images.register([image])
    images.open_main(None).close()
    client = images.connect(image_address(image.image_id))
    scans = [client.scan(b"", None, prefixes=[encode_key(group, STATE, b"")[:4]]) for group in range(GROUPS)]
    dropped = client.scan(b"", None, prefixes=[b""])
    client.close()
    fetched = images.fetched[0]
    assert images.open_images() == [image.image_id]
    assert [entry for scan in scans for entry in scan] == sorted(model.items())
    assert images.fetched[0] == fetched
    assert images.open_images() == [image.image_id]
    del dropped
    assert images.open_images() == []
    images.close()


def test_an_image_is_opened_with_one_request_for_its_first_table(tmp_path, monkeypatch):
    """The job starts again when all images are open: the footer and the index followed one another."""
    chance, store = random.Random(8), far_store(tmp_path)
    owner = Images(store, tmp_path / "owner", SMALL_SETTINGS)
    backend = owner.open_main(None)
    backend.write([(key(name, 1), chance.randbytes(300)) for name in range(20_000)])
    image, _ = ImagePublisher(store, backend, tmp_path / "owner", "owner").take(1).publish()
    backend.close()
    owner.close()
    images = Images(store, tmp_path / "reader", SMALL_SETTINGS, fetched_bytes_max=0)
    images.register([image])
    images.open_main(None).close()
    requests, read_ranges = [], store.read_ranges

    def noted(ranges):
        requests.append([(file.path, size_bytes) for file, _, size_bytes in ranges])
        return read_ranges(ranges)

    # What the thread that brings all indexes would fetch is not counted.
    monkeypatch.setattr(RemoteImage, "bring_indexes", lambda self: None)
    monkeypatch.setattr(store, "read_ranges", noted)
    images.connect(image_address(image.image_id)).close()
    assert len(requests) == len(requests[0]) == 1
    assert requests[0][0][1] > CHUNK_BYTES
    images.close()
