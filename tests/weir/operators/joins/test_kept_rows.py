"""Golden bytes of what a join keeps in the store: version 1 must stay readable."""

from tests.weir.operators.joins.join_jobs import TwoSubtasks

#: Store key (key group, state number, no namespace, length of the key, key, 00) and entry, of key 1.
INTERVAL = "".join(
    [
        "01" + "1f00000000000000" + "00000000",
        # A left row: size, flags, time 10, from 10, until 30; nulls, 1, 2, 3.
        "36000000" + "00" + "0a00000000000000" + "0a00000000000000" + "1e00000000000000",
        "00" + "0100000000000000" + "0200000000000000" + "0300000000000000",
        # A right row that has not matched: time 40, until 40; "ab".
        "1c000000" + "01" + "2800000000000000" + "2800000000000000" + "00" + "02000000" + "6162",
    ]
)


def test_entries_of_an_interval_join():
    job = TwoSubtasks(how="full", within=("0ms", "20ms"))
    job.take(0, [(1, 1, 2, 3, 10)])
    job.take(1, [(1, "ab", 40)])
    for tables in job.tables:
        tables.flush()
    ((key, entry),) = [item for item in job.store.scan() if item[0] in job.kept_entries()]
    assert key.hex()[4:] == "0000" + "00" + "00000008" + "8000000000000001" + "00"
    assert entry.hex() == INTERVAL


def test_entries_of_version_1_are_read():
    job = TwoSubtasks(how="full", within=("0ms", "20ms"))
    job.take(0, [(1, 9, 9, 9, 0)])
    for tables in job.tables:
        tables.flush()
    (key,) = job.kept_entries()
    job.restart()
    job.store.put_many([key], [bytes.fromhex(INTERVAL)])
    job.take(1, [(1, "c", 25)])
    assert job.rows == [(1, 1, 2, 3, "c", 25)]


def flushed(job):
    for tables in job.tables:
        tables.flush()
    kept = set(job.kept_entries())
    return {key[17:].hex(): entry for key, entry in job.store.scan() if key in kept}


#: The entry of a key with one chunk: version 2, no timer, one chunk (number 0, of the right side, 1 row of 20 bytes,
#: for ever, nothing is told of it), then the rows that lie in no chunk: none.
CHUNKED = "".join(
    [
        "02" + "ffffffffffffff7f" + "01000000",
        "00000000" + "01" + "01000000" + "14000000" + "ffffffffffffff7f" + "ffffffffffffff7f",
    ]
)
#: The chunk: version 1; the right row: size, flags, time 40; "ab".
CHUNK = "01" + "14000000" + "01" + "2800000000000000" + "00" + "02000000" + "6162"


def test_entries_with_chunks():
    job = TwoSubtasks(seal_bytes=20)
    job.take(1, [(1, "ab", 40)])
    assert {key: entry.hex() for key, entry in flushed(job).items()} == {"00": CHUNKED, "0100000000": CHUNK}


def test_entries_with_chunks_are_read():
    job = TwoSubtasks()
    job.take(1, [(1, "x", 1)])
    flushed(job)
    (key,) = job.kept_entries()
    job.restart()
    job.store.put_many(
        [key, key[:-1] + bytes.fromhex("0100000000")], list(map(bytes.fromhex, (CHUNKED, CHUNK)))
    )
    job.take(1, [(1, "c", 41)])
    job.take(0, [(1, 7, 8, 9, 50)])
    assert job.rows == [(1, 7, 8, 9, "ab", 50), (1, 7, 8, 9, "c", 50)]


def test_a_batch_writes_what_it_adds_to_a_key_with_many_rows():
    job = TwoSubtasks(batch_size=1000, how="left", within=("-10s", "10s"))
    for start in range(0, 20_000, 1000):
        job.take(1, [(1, f"row {number}", 100) for number in range(start, start + 1000)])
    before = flushed(job)
    assert sum(map(len, before.values())) > 20_000 * 30
    assert max(map(len, before.values())) < 100_000
    job.take(1, [(1, "one more", 100)])
    after = flushed(job)
    written = [key for key, entry in after.items() if before.get(key) != entry]
    assert written == ["00"]
    # The next left row finds them all, whatever they lie in.
    job.take(0, [(1, 1, 0, 0, 101)])
    assert len(job.rows) == 20_001
    for side in range(2):
        job.watermark(side, 50_000)
    assert flushed(job) == {}
