"""Parts of files that are kept here are those of the files, and come in bounded lots."""

import contextlib
import threading

import pytest

from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import FileRef
from weir.state import waits
from weir.state.images.range_cache import CHUNK_BYTES, RangeCache
from weir.testing import ManualClock


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
        assert (sum(lots), max(lots)) == (201, 24)
        cache.bring(wanted)
        assert [cache.read(*each) for each in wanted] == [content[at : at + 10] for _, at, _ in wanted]
        assert sum(lots) == 201


class Slow:
    """Fetches when it is let; the first request waits, later ones need not."""

    def __init__(self, content, *, fails=False):
        self._content, self._fails = content, fails
        self.asked, self.let, self.requests = threading.Event(), threading.Event(), []

    def __call__(self, ranges):
        self.requests.append([(offset, size_bytes) for _, offset, size_bytes in ranges])
        if len(self.requests) == 1:
            self.asked.set()
            assert self.let.wait(60)
            if self._fails:
                raise CheckpointError("no answer")
        return [self._content[offset : offset + size_bytes] for _, offset, size_bytes in ranges]


@pytest.mark.parametrize("fails", [False, True])
def test_what_another_thread_fetches_is_waited_for_and_fetched_once(tmp_path, fails):
    """Rows come while the ends of tables are brought: both want the same."""
    content = bytes(range(256)) * (4 * CHUNK_BYTES // 256)
    file, fetch, found = FileRef("file", len(content)), Slow(content, fails=fails), []

    def bring():
        with contextlib.suppress(CheckpointError):
            cache.bring([(file, 0, 2 * CHUNK_BYTES)])

    with contextlib.closing(RangeCache(tmp_path, fetch)) as cache:
        first = threading.Thread(target=bring)
        first.start()
        assert fetch.asked.wait(60)
        # It asks for the second chunk, which is under way, and the third one, which is not.
        second = threading.Thread(target=lambda: found.append(cache.read(file, CHUNK_BYTES + 7, CHUNK_BYTES)))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        fetch.let.set()
        for thread in (first, second):
            thread.join(60)
        assert found == [content[CHUNK_BYTES + 7 : 2 * CHUNK_BYTES + 7]]
        assert fetch.requests[:2] == [[(0, 2 * CHUNK_BYTES)], [(2 * CHUNK_BYTES, CHUNK_BYTES)]]
        # What failed there is fetched by who needs it.
        assert len(fetch.requests) == (3 if fails else 2)
        assert cache.fetched_bytes == sum(size for request in fetch.requests[fails:2] for _, size in request)


def test_what_another_thread_comes_to_later_is_not_waited_for(tmp_path):
    """A row waited for a second for one block: it was the last of hundreds with which a look for timers began."""
    content = bytes(range(256)) * (200 * CHUNK_BYTES // 256)
    file, fetch = FileRef("file", len(content)), Slow(content)
    wanted = [(file, offset, 10) for offset in range(0, len(content), 2 * CHUNK_BYTES)]
    with contextlib.closing(RangeCache(tmp_path, fetch)) as cache:
        first = threading.Thread(target=lambda: cache.bring(wanted))
        first.start()
        assert fetch.asked.wait(60)
        found = []
        second = threading.Thread(target=lambda: found.append(cache.read(*wanted[-1])))
        second.start()
        second.join(60)
        try:
            assert found == [content[wanted[-1][1] : wanted[-1][1] + 10]]
        finally:
            fetch.let.set()
            first.join(60)
            second.join(60)
        assert sorted(offset for request in fetch.requests for offset, _ in request) == [
            offset for _, offset, _ in wanted
        ]


def test_what_a_thread_waits_for_is_time_that_more_rows_would_share(tmp_path):
    """Else a subtask that waits for blocks gets few rows at a time: 5 for each 40 ms after a restore out of images."""
    clock, content = ManualClock(), bytes(5 * CHUNK_BYTES)

    def fetch(ranges):
        clock.advance_ms(40)
        return [content[offset : offset + size] for _, offset, size in ranges]

    file = FileRef("table", len(content))
    cache = RangeCache(tmp_path, fetch, clock=clock)
    before_s = waits.of_thread.seconds
    cache.bring([(file, 0, 10), (file, 2 * CHUNK_BYTES, 10)])
    assert waits.of_thread.seconds - before_s == pytest.approx(0.04)
    cache.read(file, 5, 10)
    assert waits.of_thread.seconds - before_s == pytest.approx(0.04)
    cache.read(file, 4 * CHUNK_BYTES, 10)
    assert waits.of_thread.seconds - before_s == pytest.approx(0.08)
    cache.close()
