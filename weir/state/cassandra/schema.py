"""Tables of states: their names and the statements that create them, read and write them. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from weir.config.stores import CassandraConfig
from weir.errors import ConfigError
from weir.state.cassandra.settings import StateLayout, StateSettings, parse_states

#: Cassandra refuses longer names.
NAME_CHARACTERS_MAX = 48
RUNS_TABLE = "weir_runs"
#: Of that table: how many of each key group a run has, by the name of the table. They are part of where a row lies.
BUCKETS_COLUMN = "buckets map<text, int>"
_SUFFIX = "_weir_store"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DIGEST_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class StateTable:
    """The table of one state."""

    #: With the keyspace.
    name: str
    layout: StateLayout
    buckets: int
    time_to_live_s: int
    #: What comes after WITH when it is created.
    options: str
    counts: bool
    #: The state, for messages.
    state: str = "STATE"

    @property
    def no_order(self) -> str:
        """Why there are no ranges, for messages."""
        return (
            f"{self.name} has the layout global, whose rows have no order: no ranges, lists or maps; give the state "
            "the layout partitioned in taskManager.cassandra.states"
        )

    @property
    def not_counted(self) -> str:
        """Why rows are not counted, for messages."""
        return (
            f"rows of {self.name} are not counted, because that reads all of them: set {self.state}.counts=true in "
            "taskManager.cassandra.states"
        )


def table_name(job: str, state: str) -> str:
    """The table of a state unless the configuration names one: lower case, other characters as underscores.

    ``text-job`` and ``count/words`` make ``text_job_count_words_weir_store``. A name that would be too long ends with a
    digest of the whole.
    """
    text = f"{job}/{state}"
    name = re.sub(r"[^a-z0-9_]", "_", text.lower()) + _SUFFIX
    if not name[0].isalpha():
        name = f"t_{name}"
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{name[: NAME_CHARACTERS_MAX - _DIGEST_CHARACTERS - 1]}_{digest}"


def _by_state(
    job: str, state_ids: Mapping[str, int], settings: CassandraConfig, asked: Collection[str]
) -> dict[str, StateSettings]:
    """The settings of each state that has any, by its own name.

    A running aggregate is asked by its column, of which a step may have several; they are one state.
    """
    found: dict[str, tuple[str, StateSettings]] = {}
    for name, own in parse_states(settings.states).items():
        step = name.partition("/")[0]
        state = name if name in state_ids or name not in asked else step
        if state not in state_ids:
            raise ConfigError(
                f"taskManager.cassandra.states names {name!r}, which is no state of job {job}; its states: "
                f"{', '.join(sorted(state_ids)) or 'none'}"
            )
        other, settings_of_other = found.setdefault(state, (name, own))
        if settings_of_other != own:
            raise ConfigError(
                f"taskManager.cassandra.states names {other!r} and {name!r}, which are one state of job {job}: keep "
                "the settings of one of them"
            )
    return {state: own for state, (_, own) in found.items()}


def state_tables(
    job: str,
    state_ids: Mapping[str, int],
    settings: CassandraConfig,
    asked: Collection[str] = (),
    ordered: Collection[str] = (),
) -> dict[int, StateTable]:
    """The table of each state, by its number.

    Args:
        job: its name.
        state_ids: numbers of the states, by ``step`` or ``step/state``.
        settings: may name states so, or as they are asked.
        asked: what can be asked, as ``step/state``.
        ordered: states whose entries are read in order.

    Raises:
        ConfigError: a name is none, two states would share a table, the configuration names a state that is none, has
            an entry of another form, or gives a state that needs an order the layout without it.
    """
    configured = _by_state(job, state_ids, settings, asked)
    tables: dict[int, StateTable] = {}
    owners: dict[str, str] = {}
    for state, state_id in sorted(state_ids.items()):
        own = configured.get(state, StateSettings())
        name = own.table or table_name(job, state)
        if not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"taskManager.cassandra.states[{state!r}].table is {name!r}; a table has a name of a-z, 0-9 and _, "
                f"{NAME_CHARACTERS_MAX} characters at most, which begins with a letter"
            )
        if name in owners:
            raise ConfigError(
                f"states {owners[name]!r} and {state!r} of job {job} would share table {name}; name one of them in "
                "taskManager.cassandra.states"
            )
        owners[name] = state
        if own.layout == "global" and state in ordered:
            raise ConfigError(
                f"state {state!r} of job {job} has the layout global in taskManager.cassandra.states, whose rows have "
                "no order, and its entries are read in order: give it the layout partitioned"
            )
        tables[state_id] = StateTable(
            f"{settings.keyspace}.{name}",
            own.layout,
            1 if own.layout == "global" else own.buckets or settings.buckets,
            settings.time_to_live_s if own.time_to_live_s is None else own.time_to_live_s,
            settings.table_options if own.table_options is None else own.table_options,
            own.counts,
            state,
        )
    return tables


def keyspace_statement(settings: CassandraConfig) -> str:
    """Creates the keyspace."""
    return f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} WITH replication = {settings.replication}"


def runs_statement(settings: CassandraConfig) -> str:
    """Creates the table of runs: who writes, how far changes of checkpoints have been applied, how rows are divided."""
    return (
        f"CREATE TABLE IF NOT EXISTS {settings.keyspace}.{RUNS_TABLE} "
        f"(run text PRIMARY KEY, owner text, begun bigint, {BUCKETS_COLUMN})"
    )


def table_statement(table: StateTable) -> str:
    """Creates the table of a state."""
    key = "((run, key_group, bucket, key))" if table.layout == "global" else "((run, key_group, bucket), key)"
    options = f" WITH {table.options}" if table.options else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.name} (run text, key_group int, bucket int, key blob, value blob, "
        f"PRIMARY KEY {key}){options}"
    )


def keyspace_query(settings: CassandraConfig) -> str:
    """Has a row if the keyspace is there."""
    return f"SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = '{settings.keyspace}'"


def columns_query(name: str) -> str:
    """The columns of a table, given with its keyspace; none: it is not there."""
    keyspace, _, table = name.partition(".")
    return (
        "SELECT column_name, kind FROM system_schema.columns "
        f"WHERE keyspace_name = '{keyspace}' AND table_name = '{table}'"
    )


def misfit(table: StateTable, kinds: Mapping[str, str]) -> str:
    """Why the rows of a table that is there cannot be those of the state; empty: they can.

    Args:
        table: as the settings have it.
        kinds: of its columns, as the database calls them.
    """
    if not {"run", "key_group", "bucket", "key", "value"} <= kinds.keys():
        return (
            f"{table.name} is no table of Weir's: it has the columns {', '.join(sorted(kinds))}; name another one in "
            "taskManager.cassandra.states, as STATE.table=NAME"
        )
    layout = "global" if kinds["key"] == "partition_key" else "partitioned"
    if layout == table.layout:
        return ""
    return (
        f"{table.name} was created with the layout {layout}, and the state is to have {table.layout}: set "
        f"STATE.layout={layout} in taskManager.cassandra.states, or name another table"
    )


def changed_buckets(tables: Iterable[StateTable], known: Mapping[str, int]) -> str:
    """Why rows of a run would not be found where the settings have them looked for; empty: they would.

    Args:
        tables: as the settings have them.
        known: the buckets of a key group that the run's rows were written to, by the name of the table.
    """
    for table in tables:
        buckets = known.get(table.name, table.buckets)
        if buckets != table.buckets:
            return (
                f"{table.name} has the state in {buckets} buckets of each key group, and is to have {table.buckets} "
                f"now: its rows would not be found; set taskManager.cassandra.buckets back to {buckets}, or "
                f"{table.state}.buckets={buckets} in taskManager.cassandra.states, or start anew with --start-fresh"
            )
    return ""


_OF_PARTITION = "WHERE run = ? AND key_group = ? AND bucket = ?"


def _whole_group(table: StateTable) -> str:
    # Rows that lie each for itself have no order, and the database looks at all of them.
    return f"SELECT key, value FROM {table.name} {_OF_PARTITION} ALLOW FILTERING"


@dataclass(frozen=True, slots=True)
class TableStatements:
    """The statements over one table; the parameters that all begin with are run, key group and bucket."""

    #: Then a list of keys.
    read: str
    #: As ``read``, of several key groups, which are the second parameter.
    read_together: str
    #: Then key, value, timestamp, and a time to live if the table has one.
    put: str
    #: First a timestamp; in the end a key.
    delete: str
    #: By (reverse, has a stop): then start, stop if there is one, and the number of rows.
    scans: Mapping[tuple[bool, bool], str]
    #: As ``scans``, of several key groups, which are the second parameter; the number is that of each.
    together: Mapping[tuple[bool, bool], str]
    #: Nothing more.
    count: str


def statements_of(table: StateTable) -> TableStatements:
    """The statements over a table."""
    time_to_live = " AND TTL ?" if table.time_to_live_s else ""
    scans, together = {}, {}
    for reverse in (False, True):
        for has_stop in (False, True):
            stop = " AND key < ?" if has_stop else ""
            order = "DESC" if reverse else "ASC"
            scans[reverse, has_stop] = (
                f"SELECT key, value FROM {table.name} {_OF_PARTITION} AND key >= ?{stop} ORDER BY key {order} LIMIT ?"
            )
            # In the order of its keys each partition comes by itself; where several are put in one order, it is not.
            ordered = f" ORDER BY key {order}" if reverse else ""
            together[reverse, has_stop] = (
                f"SELECT key_group, key, value FROM {table.name} WHERE run = ? AND key_group IN ? AND bucket = ? "
                f"AND key >= ?{stop}{ordered} PER PARTITION LIMIT ?"
            )
    return TableStatements(
        read=f"SELECT key, value FROM {table.name} {_OF_PARTITION} AND key IN ?",
        read_together=(
            f"SELECT key_group, key, value FROM {table.name} WHERE run = ? AND key_group IN ? AND bucket = ? "
            "AND key IN ?"
        ),
        put=(
            f"INSERT INTO {table.name} (run, key_group, bucket, key, value) VALUES (?, ?, ?, ?, ?) "
            f"USING TIMESTAMP ?{time_to_live}"
        ),
        delete=f"DELETE FROM {table.name} USING TIMESTAMP ? {_OF_PARTITION} AND key = ?",
        scans=scans if table.layout == "partitioned" else {(False, False): _whole_group(table)},
        together=together,
        count=f"SELECT COUNT(*) AS rows FROM {table.name} {_OF_PARTITION}"
        + (" ALLOW FILTERING" if table.layout == "global" else ""),
    )
