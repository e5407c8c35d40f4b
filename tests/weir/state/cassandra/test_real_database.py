"""What a real Cassandra does with statements, and what is said when it does not do them."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.weir.state.cassandra.cable import Cable
from tests.weir.state.cassandra.countries import COUNTRIES
from tests.weir.state.database_backend import node_settings
from weir.config.stores import CassandraConfig
from weir.errors import FailureKind, StateError
from weir.protocol.database_run import DatabaseRun
from weir.state.cassandra import durability
from weir.state.cassandra.errors import DatabaseAwayError
from weir.state.cassandra.schema import keyspace_statement, state_tables
from weir.state.cassandra.session import Session, leave_session, open_session
from weir.state.cassandra.tables import DatabaseTables
from weir.state.layout import encode_key

pytestmark = pytest.mark.service

STATE = 2
KEY = encode_key(1, STATE, b"belgium")
#: For what takes no time on a machine that has nothing else to do.
LONG_S = 180.0


def soon(is_true: Callable[[], bool]) -> None:
    """Wait until it is; while the database only does not answer, it is not."""
    until_s = time.monotonic() + LONG_S
    while True:
        try:
            if is_true():
                return
        except DatabaseAwayError:
            pass
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.fixture
def opened(cassandra_port: int) -> Iterator[Any]:
    sessions: list[Session] = []

    def open_tables(run: str = "", *, creates: bool = True, **settings: Any) -> DatabaseTables:
        made: CassandraConfig = node_settings(settings.pop("port", cassandra_port), **settings)
        session = open_session(made)
        sessions.append(session)
        tables = DatabaseTables(
            session, DatabaseRun(run or secrets.token_hex(8)), state_tables("real", {"count": STATE}, made)
        )
        if creates:
            tables.create()
        return tables

    yield open_tables
    while sessions:
        leave_session(sessions.pop())


@pytest.fixture
def cable(cassandra_node: Any) -> Iterator[Cable]:
    """To the database; it outlives the sessions if it is asked for before them."""
    made = Cable(cassandra_node.port)
    yield made
    made.cut()


@pytest.fixture
def beside(opened: Any) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait; whatever still waits when a test fails ends with its session."""
    threads = ThreadPoolExecutor()
    yield threads
    threads.shutdown(wait=False, cancel_futures=True)


def test_a_late_write_loses_and_a_repeated_one_changes_nothing(opened: Any) -> None:
    tables = opened()
    tables.write([(KEY, b"of 9")], 9)
    tables.write([(KEY, b"of 8, an hour late")], 8)
    tables.write([(KEY, None)], 8)
    tables.write([(KEY, b"of 9")], 9)
    assert tables.get_many([KEY]) == [b"of 9"]
    tables.write([(KEY, None)], 10)
    tables.write([(KEY, b"of 9")], 9)
    assert tables.get_many([KEY]) == [None]


def test_thousands_of_keys_come_back_in_the_order_asked(opened: Any) -> None:
    tables = opened(batch_rows_max=7, read_keys_max=5)
    keys = [encode_key(number % 3, STATE, b"%d" % number) for number in range(2_000)]
    tables.write([(key, key[-3:]) for key in keys], 1)
    asked = [*keys[::-1], KEY, keys[0]]
    assert tables.get_many(asked) == [*(key[-3:] for key in keys[::-1]), None, keys[0][-3:]]


def test_a_time_to_live_counts_from_the_write(opened: Any) -> None:
    tables = opened(time_to_live_s=1, states=("count.table=mortal",))
    tables.write([(KEY, b"v")], 1)
    soon(lambda: tables.get_many([KEY]) == [None])


def test_rows_of_the_global_layout_are_read_by_key_or_all_and_are_counted_if_so_set(opened: Any) -> None:
    tables = opened(states=("count.table=spread", "count.layout=global", "count.counts=true"))
    prefix, end = KEY[:4], b"\0\1\0\3"
    keys = [encode_key(1, STATE, name) for name in (b"belarus", b"belgium", b"finland")]
    tables.write([(key, b"1") for key in keys], 1)
    tables.write([(keys[0], None)], 2)
    assert tables.get_many(keys) == [None, b"1", b"1"]
    assert list(tables.scan(prefix, end)) == [(keys[1], b"1"), (keys[2], b"1")]
    assert tables.count([prefix]) == 2
    for ends in ((keys[0], end), (prefix, keys[2])):
        with pytest.raises(StateError, match=r"spread has the layout global.*layout partitioned"):
            tables.scan(*ends)
    # Questions: all rows, a page of them from a key on, the reverse.
    whole = (KEY[:5], KEY[:4] + b"\1")
    for reverse in (False, True):
        rows = [(key, b"1") for key in keys[1:]]
        assert list(tables.scan(*whole, reverse=reverse, may_read_all=True)) == rows[:: -1 if reverse else 1]
    assert list(tables.scan(keys[1] + b"\0", whole[1], may_read_all=True)) == [(keys[2], b"1")]


def test_rows_are_counted_only_if_so_set(opened: Any) -> None:
    with pytest.raises(StateError, match=r"set count.counts=true"):
        opened().count([KEY[:4]])


def test_a_database_that_is_ahead_of_a_checkpoint_is_refused(opened: Any) -> None:
    tables = opened()
    tables.claim("job", 0)
    tables.begin("job", 7, lambda: None)
    tables.claim("job", 7)
    with pytest.raises(StateError, match=r"have changes of checkpoint 7, later ones than checkpoint 6"):
        tables.claim("job", 6)


def test_a_job_whose_state_another_job_has_taken_over_writes_no_more(opened: Any) -> None:
    tables = opened()
    tables.claim("first", 0)
    tables.claim("second", 0)
    with pytest.raises(StateError, match=r"job second has taken over the state of job first") as raised:
        tables.begin("first", 1, lambda: None)
    assert raised.value.failure_kind is FailureKind.PERMANENT


def test_a_change_of_buckets_is_refused_before_a_row_is_looked_for_where_it_is_not(opened: Any) -> None:
    tables = opened()
    tables.claim("job-1", 0)
    tables.write([(KEY, b"1")], 1)
    tables.claim("job-1", 1)
    more = opened(tables.run.name, buckets=8)
    with pytest.raises(StateError, match=r"in 1 buckets .* and is to have 8 now.*count.buckets=1") as raised:
        more.claim("job-1", 1)
    assert raised.value.failure_kind is FailureKind.PERMANENT
    tables.claim("job-1", 1)
    tables.begin("job-1", 2, lambda: None)
    # Another life of the state has rows of its own.
    anew = opened(buckets=8)
    anew.claim("job-2", 0)
    # Of two task managers with different settings that claim at the same moment one is found out before it writes.
    (table,) = anew.tables.values()
    text = f"UPDATE conformance.weir_runs SET buckets = {{'{table.name}': 4}} WHERE run = '{anew.run.name}'"
    anew.session.run(anew.session.execute_schema(text))
    with pytest.raises(StateError, match=r"in 4 buckets .* and is to have 8 now"):
        anew.begin("job-2", 1, lambda: None)


def test_a_table_of_runs_of_an_older_version_is_used_as_it_is(opened: Any, caplog: Any) -> None:
    made = opened(creates=False, keyspace="older")
    for text in (
        keyspace_statement(made.session.settings),
        "CREATE TABLE IF NOT EXISTS older.weir_runs (run text PRIMARY KEY, owner text, begun bigint)",
    ):
        made.session.run(made.session.execute_schema(text, "create"))
    made.create()
    made.claim("job-1", 0)
    made.begin("job-1", 1, lambda: None)
    assert made.begun() == 1
    assert "mend: ALTER TABLE older.weir_runs ADD buckets map<text, int>" in caplog.text


def test_a_node_that_may_forget_what_it_has_acknowledged_is_told_of(
    opened: Any, caplog: Any, monkeypatch: Any
) -> None:
    told: list[tuple[str, dict[str, str]]] = []

    def may_lose_writes(sync: str, replication: dict[str, str]) -> bool:
        told.append((sync, dict(replication)))
        return len(told) == 2

    monkeypatch.setattr(durability, "may_lose_writes", may_lose_writes)
    opened()
    assert "acknowledged" not in caplog.text
    opened()
    assert "has each row of keyspace" in caplog.text
    assert "set commitlog_sync to batch in its cassandra.yaml" in caplog.text
    (sync, replication), _ = told
    assert sync == "batch"
    assert replication["replication_factor"] == "1"


def test_each_profile_is_used_for_its_statements(opened: Any) -> None:
    # One node meets no consistency of two: neither reads nor writes take the profile of the schema, nor the reverse.
    schema = opened(ddl_consistency="TWO", dml_consistency="ONE")
    schema.write([(KEY, b"v")], 1)
    assert schema.get_many([KEY]) == [b"v"]
    data = opened(
        creates=False, ddl_consistency="ONE", dml_consistency="TWO", when_away="fail", give_up_after_ms=0
    )
    for call in (lambda: data.get_many([KEY]), lambda: data.write([(KEY, b"v")], 1)):
        with pytest.raises(DatabaseAwayError, match=r"lower taskManager.cassandra.dml_consistency") as raised:
            call()
        # It may be met later, but so set, the job does not wait for that.
        assert raised.value.failure_kind is FailureKind.PERMANENT


def test_a_missing_table_is_named_with_the_mend_and_its_statement_is_logged(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    states = ("count.table=absent",)
    tables = opened(creates=False, creates_tables=False, states=states)
    with pytest.raises(
        StateError, match=r"absent.*set taskManager.cassandra.creates_tables to true"
    ) as raised:
        tables.create()
    assert raised.value.failure_kind is FailureKind.PERMANENT
    assert "CREATE TABLE IF NOT EXISTS conformance.absent (run text" in caplog.text
    assert "must exist: CREATE KEYSPACE IF NOT EXISTS conformance WITH replication" in caplog.text


def test_a_table_that_another_process_creates_meanwhile_is_waited_for(opened: Any) -> None:
    states = ("count.table=created_later",)
    early, creator = opened(creates=False, states=states), opened(creates=False, states=states)
    with ThreadPoolExecutor(1) as pool:
        # As where the system's rows have the table already, and the node does not.
        prepared = pool.submit(early.session.run, early._prepare())
        with pytest.raises(TimeoutError):
            prepared.result(timeout=0.5)
        creator.create()
        prepared.result(timeout=60)


def test_what_the_database_refuses_is_told_with_the_setting(opened: Any) -> None:
    opened()
    admin = opened(states=("count.table=spread_out", "count.layout=global"))
    admin.session.run(
        admin.session.execute_schema("CREATE TABLE IF NOT EXISTS conformance.theirs (a int PRIMARY KEY)")
    )
    for settings, words in (
        (
            {"keyspace": "bad_1", "replication": "nonsense"},
            r"create keyspace bad_1: .*; correct .*replication$",
        ),
        (
            {"keyspace": "bad_2", "replication": "{'class': 'No', 'replication_factor': 1}"},
            r"create keyspace bad_2: .*; correct taskManager.cassandra.replication$",
        ),
        (
            {"states": ("count.table=odd", "count.table_options=foo = 1")},
            r"create table conformance.odd with foo = 1: .*property 'foo'; correct .*table_options, or those",
        ),
        (
            {"states": ("count.table=spread_out",)},
            r"spread_out was created with the layout global, and the state is to have partitioned: set STATE.layout",
        ),
        (
            {"states": ("count.table=theirs",)},
            r"conformance.theirs is no table of Weir's: it has the columns a; name another one",
        ),
        (
            {"keyspace": "absent", "creates_tables": False},
            r"keyspace absent does not exist; create the keyspace",
        ),
    ):
        with pytest.raises(StateError, match=words) as raised:
            opened(**settings)
        assert raised.value.failure_kind is FailureKind.PERMANENT
    with pytest.raises(
        DatabaseAwayError, match=r"; see whether taskManager.cassandra.local_datacenter names"
    ):
        opened(local_datacenter="elsewhere", when_away="fail", give_up_after_ms=0)


def test_whoever_deploys_a_job_is_told_what_the_database_said(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def give_up() -> None:
        if "trying again" in caplog.text or time.monotonic() > until_s:
            raise DatabaseAwayError("it does not answer")

    until_s = time.monotonic() + LONG_S
    made = node_settings(opened().session.settings.port, local_datacenter="elsewhere")
    with pytest.raises(
        DatabaseAwayError, match=r"it does not answer \(it said: .*local datacenter is valid\)"
    ):
        open_session(made, check_cancelled=give_up)


def test_a_user_of_the_keyspace_may_create_tables_and_one_of_the_tables_needs_not(opened: Any) -> None:
    admin = opened()
    for text in (
        "CREATE ROLE IF NOT EXISTS owner WITH PASSWORD = 'secret' AND LOGIN = true",
        "GRANT ALL ON KEYSPACE conformance TO owner",
        "CREATE ROLE IF NOT EXISTS writer WITH PASSWORD = 'secret' AND LOGIN = true",
        "GRANT SELECT ON KEYSPACE conformance TO writer",
        "GRANT MODIFY ON KEYSPACE conformance TO writer",
    ):
        admin.session.run(admin.session.execute_schema(text))
    for user, states in (("owner", ("count.table=of_the_owner",)), ("writer", ())):
        tables = opened(username=user, password="secret", states=states)
        tables.write([(KEY, b"v")], 1)
        assert tables.get_many([KEY]) == [b"v"]
    with pytest.raises(StateError, match=r"create table conformance.absent .*grant the permission"):
        opened(username="writer", password="secret", states=("count.table=absent",))


def test_a_missing_permission_and_a_wrong_password_are_told_with_the_mend(opened: Any) -> None:
    admin = opened()
    for text in (
        "CREATE ROLE IF NOT EXISTS reader WITH PASSWORD = 'secret' AND LOGIN = true",
        "GRANT SELECT ON KEYSPACE conformance TO reader",
    ):
        admin.session.run(admin.session.execute_schema(text))
    reader = opened(creates=False, username="reader", password="secret")
    assert reader.get_many([KEY]) == [None]
    with pytest.raises(StateError, match=r"grant the permission to taskManager.cassandra.username") as raised:
        reader.write([(KEY, b"v")], 1)
    assert raised.value.failure_kind is FailureKind.PERMANENT
    with pytest.raises(StateError, match=r"mend taskManager.cassandra.username and password") as raised:
        opened(username="reader", password="wrong")
    assert "Traceback" not in str(raised.value)


def test_rows_wait_for_a_database_that_does_not_answer_or_the_job_fails_as_set(
    cable: Cable, opened: Any, beside: ThreadPoolExecutor, cassandra_node: Any
) -> None:
    waits = opened("away", port=cable.port, dml_timeout_ms=1_000)
    # Its first time-out is its last one.
    fails = opened(
        "away",
        creates=False,
        port=cable.port,
        dml_timeout_ms=1_001,
        when_away="fail",
        give_up_after_ms=500,
    )
    stopped = opened("away", creates=False, dml_timeout_ms=1_002)
    waits.write([(KEY, b"v")], 1)
    assert stopped.get_many([KEY]) == [b"v"]
    soon(lambda: fails.get_many([KEY]) == [b"v"])
    cassandra_node.pause(signal.SIGSTOP)
    try:
        read, given_up = (beside.submit(tables.get_many, [KEY]) for tables in (waits, stopped))
        with pytest.raises(
            DatabaseAwayError, match=r"Cassandra at 127.0.0.1:\d+ cannot read conformance.real_count"
        ):
            fails.get_many([KEY])
        soon(lambda: waits.session.away_s > 0 and stopped.session.away_s > 0)
        leave_session(stopped.session)
        with pytest.raises(StateError, match="is closed"):
            given_up.result(LONG_S)
        assert not read.done()
    finally:
        cassandra_node.pause(signal.SIGCONT)
    assert read.result(LONG_S) == [b"v"]
    assert waits.session.away_s == 0
    # To kill and start the database takes 10 s; the scenario with states of all kinds does so.
    cable.cut()
    read = beside.submit(waits.get_many, [KEY])
    with pytest.raises(DatabaseAwayError, match=r"see whether it runs"):
        fails.get_many([KEY])
    assert not read.done()
    cable.mend()
    assert read.result(LONG_S) == [b"v"]


def test_a_database_that_is_slow_is_told_of_and_one_that_does_not_answer_in_time_too(
    cable: Cable, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tables = opened("slow", port=cable.port)
    tables.write([(KEY, b"v")], 1)
    before, session = tables.session.requests_s, tables.session
    cable.delay_s = 0.6
    assert tables.get_many([KEY]) == [b"v"]
    assert session.requests_s - before > 2 * cable.delay_s
    tables.write([(KEY, b"w")], 2)
    (table,) = (found.name for found in tables.tables.values())
    # Once in a while.
    told = [record.getMessage() for record in caplog.records if "is slow" in record.getMessage()]
    assert len(told) == 1
    assert f"at {session.settings.address} is slow: to read {table} took it 1." in told[0]
    assert session.retries == 0
    # Reads and writes that are given up say which they are, and what may be set. All else is done before.
    cable.delay_s = 0.0
    fails = opened(
        "slow", creates=False, port=cable.port, dml_timeout_ms=500, when_away="fail", give_up_after_ms=0
    )
    soon(lambda: fails.write([(KEY, b"w")], 2) is None and fails.get_many([KEY]) == [b"w"])
    cable.delay_s = 0.6
    mend = "see whether it runs and has time for it, or raise the time-out in taskManager.cassandra"
    with pytest.raises(DatabaseAwayError, match=f"cannot read {table}: .*; {mend}$"):
        fails.get_many([KEY])
    with pytest.raises(DatabaseAwayError, match=f"cannot write {table}: .*; {mend}$"):
        fails.write([(KEY, b"x")], 3)


@pytest.mark.parametrize("buckets", [1, 4])
def test_the_countries_of_europe_by_key_prefix_and_range(opened: Any, buckets: int) -> None:
    """The data and the expected values of the integration tests of the store that came before this one."""
    states = (f"count.table=countries{buckets}", f"count.buckets={buckets}", "count.counts=true")
    tables = opened(states=states)
    tables.write([(encode_key(0, STATE, name.encode()), b"1") for name in COUNTRIES], 1)

    def words(start: bytes, stop: bytes, *, reverse: bool = False) -> list[str]:
        start, stop = encode_key(0, STATE, start), encode_key(0, STATE, stop)
        return [key[5:].decode() for key, _ in tables.scan(start, stop, reverse=reverse)]

    assert words(b"bel", b"bem") == ["belarus", "belgium"]
    assert words(b"f", b"g") == ["finland", "france"]
    # Both ends included: up to the first key after the last one.
    between = ["lithuania", "luxembourg", "malta", "moldova"]
    assert words(b"lithuania", b"moldova\0") == between
    assert words(b"lithuania", b"moldova\0", reverse=True) == between[::-1]
    assert words(b"moldova", b"lithuania") == []
    assert words(b"", b"\xff") == COUNTRIES
    assert tables.count([encode_key(0, STATE, b"")[:4]]) == len(COUNTRIES) == 51
    assert tables.get_many([encode_key(0, STATE, b"belgium"), encode_key(0, STATE, b"atlantis")]) == [
        b"1",
        None,
    ]


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_for_a_question_share_requests_and_read_what_others_do(
    opened: Any, buckets: int, reverse: bool
) -> None:
    tables = opened(buckets=buckets, states=(f"count.table=asked{buckets}",))
    groups = range(64)
    # More rows than are read at first in some groups, none in others.
    rows = [
        (encode_key(group, STATE, b"%04d" % row), b"%d" % row) for group in groups for row in range(group * 3)
    ]
    tables.write(rows, 1)
    bounds = [
        (encode_key(group, STATE, b"0001"), None if group % 2 else encode_key(group, STATE, b"0120"))
        for group in groups
    ]
    ends = [(start, stop or encode_key(number + 1, 0, b"")) for number, (start, stop) in enumerate(bounds)]
    expected = [list(tables.scan(start, stop, reverse=reverse)) for start, stop in ends]
    before = tables.requests
    begun = [tables.scan(start, stop, reverse=reverse, may_read_all=True) for start, stop in ends]
    firsts = [next(scan, None) for scan in begun]
    assert firsts == [next(iter(each), None) for each in expected]
    assert tables.requests - before <= 2 * buckets * len(groups) / 8
    assert [[*filter(None, [first]), *scan] for first, scan in zip(firsts, begun, strict=True)] == expected
    before = tables.requests
    # What nobody wants any more is not read.
    begun = [tables.scan(start, stop, reverse=reverse, may_read_all=True) for start, stop in ends]
    del begun[1:]
    assert list(begun[0]) == expected[0]
    assert tables.requests - before == buckets
