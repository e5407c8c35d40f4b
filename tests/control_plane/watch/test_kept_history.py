import asyncio
import zlib

import orjson
import pytest

from control_plane.watch import kept_history
from control_plane.watch.history import History, KeptHistory, Mark
from control_plane.watch.kept_history import (
    NAME,
    HistoryKeeping,
    history_from_bytes,
    history_to_bytes,
)
from tests.control_plane.virtual import Background, run
from tests.control_plane.watch.test_history import load
from weir.records.file_keeper import FileKeeper

#: The document of format version 1, unfolded.
DOCUMENT = (
    b'{"format_version":1,"job_id":"job-1","names":["rows_per_s","busy/3"],"points":[[1000,2.5,null],[11000,3,0.5]],'
    b'"marks":[{"time_ms":2000,"kind":"restart","text":"lost"}]}'
)
KEPT = KeptHistory(
    ("rows_per_s", "busy/3"),
    ((1_000, (2.5, None)), (11_000, (3, 0.5))),
    (Mark(2_000, "restart", "lost"),),
)


def test_the_bytes_are_a_promise():
    assert zlib.decompress(history_to_bytes(KEPT, "job-1")) == DOCUMENT
    assert history_from_bytes(zlib.compress(DOCUMENT), "job-1") == KEPT


def test_of_another_job_or_another_version_nothing_is_taken():
    assert history_from_bytes(zlib.compress(DOCUMENT), "job-2") is None
    other = DOCUMENT.replace(b'"format_version":1', b'"format_version":2')
    assert history_from_bytes(zlib.compress(other), "job-1") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"[1000,2.5,null]", b"[1000,2.5]"),
        (b"[1000,2.5,null]", b'[1000,2.5,"x"]'),
        (b"[1000,2.5,null]", b"[1000,2.5,true]"),
        (b"[1000,2.5,null]", b"[21000,2.5,null]"),
        (b"[1000,2.5,null]", b'["1000",2.5,null]'),
        (b"[1000,2.5,null]", b"7"),
        (b'"marks":', b'"others":'),
        (b"{", b""),
    ],
)
def test_a_damaged_one_is_no_history(before, after):
    with pytest.raises(ValueError, match="damaged"):
        history_from_bytes(zlib.compress(DOCUMENT.replace(before, after, 1)), "job-1")


def test_what_is_no_document_or_unfolds_to_too_much_is_none():
    for data in (b"", b"x", zlib.compress(b" " * (17 << 20), 1)):
        with pytest.raises(ValueError, match="damaged"):
            history_from_bytes(data, "job-1")


def test_it_is_bounded_and_the_newest_is_kept(monkeypatch):
    monkeypatch.setattr(kept_history, "BYTES_MAX", 64 << 10)
    names = tuple(f"busy/{number}" for number in range(200))
    points = tuple((at, tuple((at * 7919 + 31 * n) % 9973 / 100 for n in range(200))) for at in range(1, 361))
    data = history_to_bytes(KeptHistory(names, points, ()), "job")
    assert 16 << 10 < len(data) <= 64 << 10
    found = history_from_bytes(data, "job")
    assert found.points
    assert found.points == points[-len(found.points) :]


def test_another_process_goes_on_with_it():
    first, second = History(), History()
    for second_number in range(1, 100):
        first.add(second_number * 1_000, load(float(second_number)))
    first.marks.append(Mark(50_000, "rescale", "stage 3"))
    kept = first.kept()
    second.resume(kept, 120_000)
    before = second.document()
    assert before["times_ms"][0] < 11_000
    assert before["times_ms"][-1] > 90_000
    second.add(120_000, load(7.0))
    found = second.document()
    assert found["times_ms"] == [*before["times_ms"], 120_000]
    assert found["columns"]["rows_per_s"][-1] == 7.0
    assert found["marks"][0]["text"] == "stage 3"


def test_what_lies_in_the_future_of_a_clock_that_was_set_back_is_left_out():
    history = History()
    history.resume(KEPT, 5_000)
    assert history.document()["times_ms"] == [1_000]


def test_it_is_written_beside_the_record_and_read_by_the_next_process(tmp_path):
    async def test(clock):
        background, keeper = Background(), FileKeeper(tmp_path / "record")
        history = History()
        history.add(1_000, load(2.0))
        keeping = HistoryKeeping(history, "job-1", keeper, background)
        assert await keeping.load() is None
        running = asyncio.create_task(keeping.run())
        await asyncio.sleep(3)
        assert (tmp_path / f"record.{NAME}").stat().st_mode & 0o777 == 0o600
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        found = await HistoryKeeping(History(), "job-1", keeper, background).load()
        assert found.points[0][0] == 1_000
        assert found.points[0][1][0] == 2.0

    run(test)


def test_what_has_not_changed_is_not_written_again(tmp_path):
    async def test(clock):
        path = tmp_path / f"record.{NAME}"
        history = History()
        history.add(1_000, load(2.0))
        keeping = HistoryKeeping(history, "job-1", FileKeeper(tmp_path / "record"), Background())
        await keeping.save()
        path.unlink()
        await keeping.save()
        assert not path.exists()
        history.add(2_000, load(3.0))
        await keeping.save()
        assert path.exists()

    run(test)


def test_a_disk_that_takes_nothing_costs_the_history_and_is_told_once(tmp_path, caplog):
    async def test(clock):
        keeper = FileKeeper(tmp_path / "away" / "record")
        keeping = HistoryKeeping(History(), "job-1", keeper, Background())
        await keeping.save()
        await keeping.save()
        (tmp_path / "away").mkdir()
        (tmp_path / "away" / f"record.{NAME}").write_bytes(orjson.dumps({}))
        assert await keeping.load() is None

    run(test)
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "is not kept" in text]) == 1
    assert len([text for text in told if "begins anew" in text]) == 1
