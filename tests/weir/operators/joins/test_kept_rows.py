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
