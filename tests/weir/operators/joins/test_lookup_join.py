"""Joins with tables outside: files and Cassandra, against plain Python; the cache, changes of the table, errors."""

import datetime as dt
import random
import secrets
from decimal import Decimal

import deltalake
import numpy as np
import polars as pl
import pytest

import weir
from tests.effort import cases
from tests.weir.state.database_backend import node_settings
from weir import testing
from weir.errors import GraphError, InputError
from weir.operators.joins.file_table import FileTableReader
from weir.operators.joins.remembered_rows import spread_parts
from weir.state.cassandra.claim import bound
from weir.state.cassandra.session import leave_session, open_session
from weir.testing import ManualClock

BIDS = {"auction": weir.Nullable(int), "who": weir.Nullable(str), "at": int}
TABLE = {"id": weir.Nullable(int), "who": weir.Nullable(str), "n": weir.Nullable(float)}
TYPES = {"id": pl.Int64, "who": pl.String, "n": pl.Float64}


def write(frame, path, kind):
    if kind == "delta":
        deltalake.write_deltalake(path, frame.to_arrow(), mode="overwrite")
    else:
        {
            "parquet": frame.write_parquet,
            "csv": frame.write_csv,
            "json": frame.write_ndjson,
            "arrow": frame.write_ipc,
        }[kind](path)


def flow_of(table, on, parallelism=1, **settings):
    flow = weir.Dataflow("lookups", max_parallelism=4)
    bids = flow.source(
        "bids", weir.JsonLines("/absent", schema=BIDS, event_time="at"), parallelism=parallelism
    )
    bids.lookup_join("named", table, on, **settings).sink("out", weir.Collect())
    return flow


def expected(bids, rows, on, how):
    """Plain Python: each pair whose keys are equal, and not null."""
    said = []
    for bid in bids:
        keys = [bid[name] for name in on]
        found = [row for row in rows if None not in keys and [row[name] for name in on.values()] == keys]
        others = [name for name in TYPES if name not in on.values()]
        said += [(*bid.values(), *(row[name] for name in others)) for row in found]
        if not found and how == "left":
            said.append((*bid.values(), *(None for _ in others)))
    return said


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow", "delta"])
def test_rows_are_those_of_plain_python_in_any_cuts_and_with_restarts(kind, tmp_path):
    for seed in range(cases(1)):
        chance = random.Random(f"{kind}-{seed}")
        rows = [
            {
                "id": chance.choice([None, *range(8)]),
                "who": chance.choice([None, "ann", "bob", "é"]),
                "n": number / 2,
            }
            for number in range(chance.randrange(1, 25))
        ]
        path = tmp_path / f"table-{seed}"
        # A table of Delta Lake is a directory by itself; names of parts are no patterns.
        path.mkdir()
        write(pl.DataFrame(rows, schema=TYPES), path if kind == "delta" else path / f"part[{seed}]", kind)
        on = chance.choice([{"auction": "id"}, {"who": "who"}, {"auction": "id", "who": "who"}])
        how = chance.choice(["left", "inner"])
        bids = [
            {
                "auction": chance.choice([None, *range(10)]),
                "who": chance.choice([None, "ann", "é", "zoe"]),
                "at": at,
            }
            for at in range(24)
        ]
        table = weir.FileTable(str(path), schema=TABLE, format=kind)
        flow = flow_of(table, on, how=how, cache_rows=chance.choice([0, 1, 6, 1000]))
        told, left = [], list(bids)
        with testing.start(flow, collect_sinks=True) as job:
            while left:
                count = chance.randrange(1, 9)
                job.push("bids", left[:count])
                del left[:count]
                if chance.random() < 0.3:
                    job.checkpoint()
                if chance.random() < 0.3:
                    job.restart()
            told = job.finish()["out"].to_polars().rows()
        assert sorted(told, key=repr) == sorted(expected(bids, rows, on, how), key=repr), (seed, on, how)


def test_rows_keep_their_order_and_columns_that_are_not_read_are_left_out(tmp_path):
    path = str(tmp_path / "table.parquet")
    write(pl.DataFrame({"id": [2, 1], "who": ["x", "y"], "n": [0.5, 1.5]}), path, "parquet")
    table = weir.FileTable(path, schema=TABLE)
    flow = flow_of(table, {"auction": "id"}, columns=["who", "id"])
    rows = [{"auction": key, "who": "z", "at": at} for at, key in enumerate((2, None, 1, 3, 2))]
    found = testing.run(flow, {"bids": rows})["out"].to_polars()
    assert found.columns == ["auction", "who", "at", "who_right", "id"]
    assert found.select("who_right", "id").rows() == [
        ("x", 2),
        (None, None),
        ("y", 1),
        (None, None),
        ("x", 2),
    ]


def test_pairs_are_made_a_part_at_a_time():
    for seed in range(cases(40)):
        chance = np.random.default_rng(seed)
        counts = chance.integers(0, 5, chance.integers(0, 9))
        firsts, size = chance.integers(0, 99, len(counts)), int(chance.integers(1, 8))
        parts = list(spread_parts(firsts, counts, size))
        found = [pair for of, at in parts for pair in zip(of.tolist(), at.tolist(), strict=True)]
        assert found == [(of, firsts[of] + n) for of in range(len(counts)) for n in range(counts[of])]
        assert all(len(of) == size for of, _ in parts[:-1])
    # 16 bytes for each of 10**12 pairs are in no memory.
    of, _ = next(spread_parts(np.zeros(1_000, np.int64), np.full(1_000, 10**9), 10))
    assert of.tolist() == [0] * 10


def test_a_number_that_the_table_cannot_have_finds_nothing(tmp_path):
    path = str(tmp_path / "table.parquet")
    pl.DataFrame({"id": [2, 1], "n": ["x", "y"]}, schema={"id": pl.Int8, "n": pl.String}).write_parquet(path)
    flow = flow_of(weir.FileTable(path, schema={"id": pl.Int8, "n": str}), {"auction": "id"})
    rows = [{"auction": key, "who": "z", "at": at} for at, key in enumerate((2, 258, None, 1))]
    found = testing.run(flow, {"bids": rows})["out"].to_polars()
    assert found.select("auction", "n").rows() == [(2, "x"), (258, None), (None, None), (1, "y")]


@pytest.mark.parametrize("is_small_on_disk", [False, True])
def test_a_large_table_is_searched_for_the_keys_and_not_held(is_small_on_disk, tmp_path, monkeypatch):
    path, read, whole = tmp_path / "table.parquet", [], FileTableReader._read

    def seen(self, signature):
        read.append(whole(self, signature))
        return read[-1]

    names = [f"{'w' * 300}{number}" for number in range(3)]
    frame = pl.DataFrame({"id": range(400), "who": [names[number % 3] for number in range(400)], "n": 0.5})
    frame.write_parquet(path)
    held = path.stat().st_size if is_small_on_disk else 1
    assert frame.estimated_size() > 4 * held
    monkeypatch.setattr("weir.operators.joins.file_table._HELD_BYTES_MAX", held)
    monkeypatch.setattr(FileTableReader, "_read", seen)
    on = {"auction": "id", "who": "who"}
    flow = flow_of(weir.FileTable(str(path), schema=TABLE), on, how="inner", cache_rows=0)
    bids = [{"auction": 7 * at, "who": names[at % 2], "at": at} for at in range(60)]
    with testing.start(flow, collect_sinks=True) as job:
        for at in range(0, 60, 20):
            job.push("bids", bids[at : at + 20])
        found = job.finish()["out"].to_polars().rows()
    assert found == expected(bids, frame.rows(named=True), on, "inner")
    assert [type(each) for each in read] == [pl.LazyFrame]


def test_a_table_that_changes_is_read_again_when_answers_are_too_old(tmp_path):
    path, clock = str(tmp_path / "table.csv"), ManualClock()
    write(pl.DataFrame({"id": [1], "who": ["old"]}), path, "csv")
    table = weir.FileTable(path, schema={"id": int, "who": str})
    flow = flow_of(table, {"auction": "id"}, cache_ttl="10s")
    with testing.start(flow, clock=clock) as job:
        job.push("bids", [{"auction": 1, "who": None, "at": 0}])
        write(pl.DataFrame({"id": [1, 2], "who": ["new", "second"]}), path, "csv")
        job.push("bids", [{"auction": 1, "who": None, "at": 1}, {"auction": 2, "who": None, "at": 2}])
        job.advance_time(10_001)
        job.push("bids", [{"auction": 1, "who": None, "at": 3}])
        assert job.rows("named").to_polars()["who_right"].to_list() == ["old", "old", "second", "new"]


@pytest.fixture
def asked(monkeypatch):
    """Keys that the table was asked for, by request."""
    asked, find = [], FileTableReader.find

    def counted(self, keys):
        asked.append(keys.column(0).to_pylist())
        return find(self, keys)

    monkeypatch.setattr(FileTableReader, "find", counted)
    return asked


def test_the_cache_holds_no_more_than_it_may_and_forgets_what_nobody_asks_for(tmp_path, asked):
    path = str(tmp_path / "table.parquet")
    write(pl.DataFrame({"id": [1, 2], "who": ["x", "y"], "n": [0.5, 1.5]}), path, "parquet")
    flow = flow_of(weir.FileTable(path, schema=TABLE), {"auction": "id"}, cache_rows=8)
    with testing.start(flow) as job:
        for keys in ((1, 9), (9, 1), (2, 3), (1, 9), (4, 5, 6), (7, 8), (10, 11, 12), (1,)):
            job.push("bids", [{"auction": key, "who": None, "at": 0} for key in keys])
    assert asked == [[1, 9], [2, 3], [4, 5, 6], [7, 8], [10, 11, 12], [1]]


def test_the_cache_holds_no_more_bytes_than_it_may(tmp_path, asked, monkeypatch):
    monkeypatch.setattr("weir.operators.joins.remembered_rows._BYTES_MAX", 4_000)
    path = str(tmp_path / "table.parquet")
    write(pl.DataFrame({"id": range(9), "who": "x" * 1_000, "n": 0.5}), path, "parquet")
    with testing.start(flow_of(weir.FileTable(path, schema=TABLE), {"auction": "id"})) as job:
        for key in (1, 2, 3, 4, 1, 4):
            job.push("bids", [{"auction": key, "who": None, "at": 0}])
    # The bytes of two rows are half of those that may be.
    assert asked == [[1], [2], [3], [4], [1]]


@pytest.mark.parametrize(
    ("table", "on", "message"),
    [
        (
            {"path": "x.parquet", "schema": {"id": str}},
            {"auction": "id"},
            "'auction' is int64, and 'id' of the table",
        ),
        (
            {"path": "x.parquet", "schema": {"id": int}},
            {"auction": "ids"},
            "no key column 'ids'; did you mean 'id'",
        ),
        ({"path": "x.parquet", "schema": {"id": float}}, {"auction": "id"}, "floating"),
        ({"path": "x.txt", "schema": {"id": int}}, {"auction": "id"}, "nothing says what the files"),
        ({"path": "x.csv", "schema": {"id": int}, "format": "xml"}, {"auction": "id"}, "format is 'xml'"),
        (
            {"path": "x.csv", "schema": {"id": int, "t": pl.Time}},
            {"auction": "id"},
            "a field of CSV cannot be time64",
        ),
        (
            {"path": "x.json", "schema": {"id": int, "t": pl.Time}},
            {"auction": "id"},
            "a value of JSON cannot be time64",
        ),
        ({"path": "x.csv", "schema": {"id": int, "at": int}}, "at", None),
    ],
)
def test_what_is_wrong_is_said_when_the_step_is_written_down(table, on, message):
    made = weir.FileTable(table["path"], **{key: value for key, value in table.items() if key != "path"})
    if message is None:
        flow_of(made, on)
        return
    with pytest.raises(GraphError, match=f"^step 'named': .*{message}"):
        flow_of(made, on)


def test_what_cannot_be_joined_is_refused():
    flow = weir.Dataflow("changes")
    rows = flow.source("rows", weir.JsonLines("/absent", schema={"id": int, "_change": str}))
    table = weir.FileTable("x.csv", schema={"id": int, "name": str})
    with pytest.raises(GraphError, match="changelog"):
        rows.lookup_join("named", table, "id")
    with pytest.raises(GraphError, match=r"takes a weir.FileTable or weir.CassandraTable, not KeyedStream"):
        rows.lookup_join("named", rows.key_by("id"), "id")
    with pytest.raises(GraphError, match="keyspace is 'no-name'"):
        rows.lookup_join("named", weir.CassandraTable("t", keyspace="no-name", schema={"id": int}), "id")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"table .*table.csv cannot be read: No such file"),
        ("id,who\n1,\n", r"table .*table.csv cannot be read: .*at byte 7: field who is null$"),
        ("id,who\nx,y\n", r"table .*table.csv cannot be read: .*field id is not of type int64$"),
        # Polars takes what a record lacks for null.
        ("id,who\n1\n", r"table .*table.csv cannot be read: .*the record has 1 field, not 2$"),
        ("id\n1\n", r"table .*table.csv cannot be read: .*who"),
    ],
)
def test_a_table_that_is_wrong_is_named(content, message, tmp_path):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_text(content)
    table = weir.FileTable(str(path), schema={"id": int, "who": str})
    with pytest.raises(InputError, match=f"^step 'named': {message}"):
        testing.run(flow_of(table, {"auction": "id"}), {"bids": [{"auction": 1, "who": None, "at": 0}]})


def looked_up(path, dtype, **more):
    """What the table has of key 1, in a column ``v``."""
    table = weir.FileTable(str(path), schema={"id": int, "v": weir.Nullable(dtype)}, **more)
    found = testing.run(flow_of(table, {"auction": "id"}), {"bids": [{"auction": 1, "who": None, "at": 0}]})
    return found["out"].to_polars()["v"].to_list()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        # Polars casts make 1, minutes later or earlier, 0.1 s, inf and 1.23 of these.
        (pl.Series([1.5]), int),
        (pl.Series([dt.datetime(2026, 7, 1)]), pl.Datetime("us", "Europe/Berlin")),
        (pl.Series([dt.datetime(2026, 7, 1)]).dt.replace_time_zone("Europe/Berlin"), pl.Datetime("us")),
        (pl.Series([dt.datetime(2026, 7, 1, 0, 0, 0, 123_456)]), pl.Datetime("ms")),
        (pl.Series([1e300]), pl.Float32),
        (pl.Series(["1.239"]).cast(pl.Decimal(10, 3)), pl.Decimal(10, 2)),
        (pl.Series([[1.5]]), pl.List(pl.Int64)),
        (pl.Series([7]), bool),
        (pl.Series([7]), str),
    ],
)
def test_a_type_that_does_not_hold_what_files_have_is_refused(values, dtype, tmp_path):
    path = tmp_path / "table.parquet"
    pl.DataFrame({"id": [1], "v": values}).write_parquet(path)
    with pytest.raises(
        InputError, match=r"^step 'named': column 'v' of table .* is .*, the table's schema says .*: correct"
    ):
        looked_up(path, dtype)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (pl.Series([7], dtype=pl.Int16), int),
        (pl.Series([1.5], dtype=pl.Float32), float),
        (pl.Series([dt.datetime(2026, 7, 1)], dtype=pl.Datetime("ms")), pl.Datetime("us")),
        (pl.Series(["a"], dtype=pl.Categorical), str),
    ],
)
def test_a_wider_type_holds_what_files_have(values, dtype, tmp_path):
    pl.DataFrame({"id": [1], "v": values}).write_ipc(tmp_path / "table.arrow")
    assert looked_up(tmp_path / "table.arrow", dtype) == values.to_list()


@pytest.mark.parametrize(
    ("text", "kind", "dtype"),
    [
        # Polars reads 1 February, infinity, and gives up the whole process's thread.
        ("id,v\n1,01/02/2026\n", "csv", pl.Date),
        ("id,v\n1,1e39\n", "csv", pl.Float32),
        ('{"id": 1, "v": 1e39}\n', "json", pl.Float32),
        ('{"id": 1, "v": 300}\n', "json", pl.Int8),
        ('{"id": 1, "v": 7}\n', "json", str),
    ],
)
@pytest.mark.parametrize("is_held", [True, False])
def test_texts_are_read_as_by_sources(text, kind, dtype, is_held, tmp_path, monkeypatch):
    if not is_held:
        monkeypatch.setattr("weir.operators.joins.file_table._HELD_BYTES_MAX", 1)
    path = tmp_path / "table"
    path.write_text(text)
    with pytest.raises(InputError, match=r"^step 'named': table .* cannot be read: .*field v "):
        looked_up(path, dtype, format=kind)
    path.write_text('{"v": 12.5, "id": 1}\n' if kind == "json" else "v,id\n12.5,1\n")
    assert looked_up(path, pl.Decimal(10, 2), format=kind) == [Decimal("12.50")]


@pytest.mark.parametrize("pattern", ["", "/**/*.csv"])
def test_what_others_are_about_to_write_is_no_part(pattern, tmp_path):
    for folder in ("", "_temporary/0", ".tmp"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "part.csv").write_text("id,v\n1,7\n")
    assert looked_up(f"{tmp_path}{pattern}", int, format="csv") == [7]


@pytest.mark.service
def test_a_table_in_cassandra_is_looked_up_in_batches(cassandra_port):
    session = open_session(node_settings(cassandra_port))
    name = f"looked_up_{secrets.token_hex(4)}"
    login = {
        "username": "cassandra",
        "password": "cassandra",
        "contact_points": "127.0.0.1",
        "port": cassandra_port,
    }
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    rows = [{"id": number % 5, "who": f"w{number % 2}", "n": number / 2} for number in range(10)]

    async def fill():
        await session.execute_schema(
            f"CREATE KEYSPACE IF NOT EXISTS conformance WITH replication = {replication}", "create"
        )
        await session.execute_schema(
            f"CREATE TABLE conformance.{name} (id bigint, who text, n double, PRIMARY KEY (id, who))",
            "create",
        )
        prepared = await session.prepare(f"INSERT INTO conformance.{name} (id, who, n) VALUES (?, ?, ?)")
        for row in rows:
            values = list(row.values())
            await session.execute(lambda values=values: bound(prepared, values), "insert")

    def flow(schema, **settings):
        table = weir.CassandraTable(name, keyspace="conformance", schema=schema, **{**login, **settings})
        return flow_of(table, {"auction": "id"}, parallelism=2)

    try:
        session.run(fill())
        bids = [{"auction": key, "who": "z", "at": at} for at, key in enumerate((4, None, 1, 7, 4) * 5)]
        found = testing.run(flow(TABLE), {"bids": bids})["out"].to_polars().rows()
        wanted = expected(bids, rows, {"auction": "id"}, "left")
        assert sorted(found, key=repr) == sorted(wanted, key=repr)
        with pytest.raises(InputError, match=r"table conformance.looked_up_\w+: Cassandra at .*: .*absent"):
            testing.run(flow({"id": int, "absent": str}), {"bids": bids})
        with pytest.raises(
            weir.WeirError, match=r"step 'named': table .*does not answer.*see contact_points and port"
        ):
            testing.run(flow(TABLE, port=9, patience="300ms"), {"bids": bids})
    finally:
        session.run(session.execute_schema(f"DROP TABLE IF EXISTS conformance.{name}", "drop"))
        leave_session(session)
