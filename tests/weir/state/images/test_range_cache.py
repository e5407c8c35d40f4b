"""Parts of files that are kept here are those of the files, and come in bounded lots."""

import contextlib

from weir.protocol.checkpoints.manifest import FileRef
from weir.state.images.range_cache import CHUNK_BYTES, RangeCache


def test_much_at_a_time_is_fetched_in_lots_and_once(tmp_path):
    """Answers are in memory until they are on the disk."""
    content = bytes(range(256)) * (400 * CHUNK_BYTES // 256) + b"end"
    file, lots = FileRef("file", len(content)), []

    def fetch(ranges):
        lots.append(len(ranges))
        return [content[offset : offset + size_bytes] for _, offset, size_bytes in ranges]

    with contextlib.closing(RangeCache(tmp_path, fetch)) as cache:
        wanted = [(file, offset, 10) for offset in range(0, len(content), 2 * CHUNK_BYTES)]
        cache.bring(wanted)
        assert (sum(lots), max(lots)) == (201, 64)
        cache.bring(wanted)
        assert [cache.read(*each) for each in wanted] == [content[at : at + 10] for _, at, _ in wanted]
        assert sum(lots) == 201
