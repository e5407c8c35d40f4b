from __future__ import annotations

import contextlib
import json
import sqlite3
from functools import partial

import pyarrow as pa
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.examples.sqlite_sink import TransactionSink, UpsertSink
from weir.examples.sqlite_source import NewRows, TableRows, insert
from weir.operators.registry import create_operator, create_reader
from weir.rows.records import with_system_columns


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shop.db")


def found(path, query):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def opened(factory, parallelism=1, restored=None):
    spec = weir.UserSource(factory, schema={"id": int, "name": weir.Nullable(str)}).to_spec()
    readers = [create_reader(spec) for _ in range(parallelism)]
    for index, reader in enumerate(readers):
        reader.open(OperatorContext("job", "rows", 0, index, parallelism, restored=restored or {}))
    return readers


def read(readers, polls_max=1000):
    """Ids of each reader, until all have ended or nothing more is there."""
    ids = [[] for _ in readers]
    for reader, mine in zip(readers, ids, strict=True):
        for _ in range(polls_max):
            poll = reader.poll(30)
            if poll.batch is not None:
                mine += poll.batch.column("id").to_pylist()
            elif poll.finished or poll.next_poll_us:
                break
    return ids


def stop(readers):
    snapshots = {index: json.loads(json.dumps(reader.snapshot())) for index, reader in enumerate(readers)}
    for reader in readers:
        reader.close()
    return snapshots


def rows(*ids):
    return [{"id": number, "name": f"n{number}"} for number in ids]


def test_subtasks_share_the_ranges_of_a_table(path):
    insert(path, "orders", rows(*range(1000)))
    factory = partial(TableRows, path, "orders", rows_per_split=70)
    readers = opened(factory, 2)
    begun = read(readers, 3)
    assert all(begun)
    rest = opened(factory, 3, stop(readers))
    ids = [number for mine in (*begun, *read(rest)) for number in mine]
    stop(rest)
    assert sorted(ids) == list(range(1000))


def test_one_subtask_reads_a_table_in_order(path):
    insert(path, "orders", rows(*range(1000)))
    readers = opened(partial(TableRows, path, "orders", rows_per_split=70))
    assert read(readers) == [list(range(1000))]
    assert readers[0].poll(1).finished
    stop(readers)


def test_an_empty_table_ends_at_once(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id, name)")
    readers = opened(partial(TableRows, path, "orders"))
    assert readers[0].poll(1).finished
    stop(readers)


def test_new_rows_are_followed_also_after_a_restart(path):
    insert(path, "orders", rows(1, 2))
    readers = opened(partial(NewRows, path, "orders"))
    assert read(readers) == [[1, 2]]
    assert not readers[0].poll(1).finished
    insert(path, "orders", rows(3))
    again = opened(partial(NewRows, path, "orders"), 1, stop(readers))
    insert(path, "orders", rows(4))
    assert read(again) == [[3, 4]]
    stop(again)


def test_a_locked_database_is_an_outage_and_an_absent_table_a_mistake(path):
    insert(path, "orders", rows(1))
    readers = opened(partial(NewRows, path, "absent"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        read(readers)
    stop(readers)
    readers = opened(partial(NewRows, path, "orders"))
    readers[0]._source._connection.execute("PRAGMA busy_timeout = 1")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="database is locked"):
            read(readers)
    stop(readers)


def batch(**columns):
    return with_system_columns(
        pa.record_batch({name: pa.array(values) for name, values in columns.items()}), 1, 2
    )


def sink(factory, generation=1, restored=None):
    operator = create_operator(weir.UserSink(factory))
    operator.open(OperatorContext("job", "out", 1, 0, 1, generation=generation, restored=restored or {}))
    return operator


def checkpoint(operator, number):
    """What the runtime calls at the barrier; the snapshot as it comes back from a manifest."""
    operator.flush()
    return json.loads(json.dumps(operator.snapshot(number)))


def test_rows_that_come_again_do_no_harm_to_an_upsert(path):
    factory = partial(UpsertSink, path, "totals", key=("customer",))
    first = sink(factory)
    first.process(batch(customer=["a", "b", "a"], total=[1, 2, 3]))
    checkpoint(first, 1)
    assert found(path, "SELECT * FROM totals ORDER BY 1") == [("a", 3), ("b", 2)]
    first.process(batch(customer=["b"], total=[5]))
    first.close()
    second = sink(factory, 2, {0: None})
    second.process(batch(customer=["b", "c"], total=[5, 1]))
    checkpoint(second, 0)
    second.close()
    assert found(path, "SELECT * FROM totals ORDER BY 1") == [("a", 3), ("b", 5), ("c", 1)]


def test_transactions_deliver_once_over_a_crash(path):
    factory = partial(TransactionSink, path, "orders")
    first = sink(factory)
    first.process(batch(id=[1, 2], name=["x", "ü"]))
    checkpoint(first, 1)
    assert found(path, "SELECT count(*) FROM orders_pending") == [(1,)]
    first.commit(1)
    first.commit(1)
    first.process(batch(id=[3], name=["y"]))
    manifest = checkpoint(first, 2)
    first.process(batch(id=[4], name=["z"]))
    checkpoint(first, 3)
    assert found(path, "SELECT * FROM orders") == [(1, "x"), (2, "ü")]
    second = sink(factory, 2, {0: manifest})
    assert found(path, "SELECT id FROM orders") == [(1,), (2,), (3,)]
    assert found(path, "SELECT count(*) FROM orders_pending") == [(0,)]
    second.process(batch(id=[4, 5], name=["z", "q"]))
    checkpoint(second, 0)
    second.commit(0)
    assert found(path, "SELECT id FROM orders") == [(1,), (2,), (3,), (4,), (5,)]


def test_transactions_refuse_a_table_with_rows_of_an_earlier_run(path):
    factory = partial(TransactionSink, path, "orders")
    first = sink(factory)
    first.process(batch(id=[1]))
    manifest = checkpoint(first, 0)
    first.commit(0)
    with pytest.raises(
        InputError, match=r"table 'orders' in .* has rows of an earlier run; empty it or choose"
    ):
        sink(factory)
    sink(factory, 2, {0: manifest})
    assert found(path, "SELECT id FROM orders") == [(1,)]
