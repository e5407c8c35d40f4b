"""Settings of a database that keeps state; made of section ``taskManager.cassandra`` (``weir.config``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from weir.errors import ConfigError

#: How rows lie in the database: those of a key group together and in key order, or each for itself.
StateLayout = Literal["partitioned", "global"]
#: What happens while the database cannot be reached: rows wait, or the job fails and starts again.
WhenAway = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Of one state; None: as :class:`CassandraSettings` has it."""

    table: Annotated[str, Field(min_length=1)] = ""
    layout: StateLayout = "partitioned"
    buckets: Annotated[int, Field(ge=1, le=4096)] | None = None
    time_to_live_s: Annotated[int, Field(ge=0, le=630_720_000)] | None = None
    table_options: str | None = None
    counts: bool = False


@dataclass(frozen=True)
class CassandraSettings:
    """Where the database is and how it is used; equal settings share one session in a process."""

    contact_points: tuple[str, ...] = ("127.0.0.1",)
    port: int = 9042
    keyspace: str = "weir"
    username: str = ""
    password: str = field(default="", repr=False)
    #: PEM files: whose certificates are trusted (empty: no TLS), and what this side shows of itself.
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_private_key_file: str = ""
    local_datacenter: str = ""
    replication: str = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    creates_tables: bool = True
    table_options: str = ""
    #: Seconds from the write until the database forgets a row; 0: never.
    time_to_live_s: int = 0
    #: Database partitions of one key group of one state.
    buckets: int = 1
    ddl_consistency: str = "ALL"
    ddl_timeout_ms: int = 30_000
    dml_consistency: str = "LOCAL_QUORUM"
    dml_timeout_ms: int = 5_000
    requests_in_flight_max: int = 32
    #: Keys of one request; all of one database partition.
    read_keys_max: int = 64
    #: Rows and bytes of one batch of writes; all of one database partition.
    batch_rows_max: int = 500
    batch_bytes_max: int = 64 << 10
    #: How long writing the changes of a checkpoint may pause, in all; 0: those of every one are written, at once.
    apply_pause_ms_max: int = 60_000
    when_away: WhenAway = "wait"
    #: With ``fail``: how long it is tried before.
    give_up_after_ms: int = 10_000
    #: By ``step`` or ``step/state``, which may be that of questions.
    states: Mapping[str, StateSettings] = field(default_factory=dict, hash=False)

    @property
    def address(self) -> str:
        """For messages."""
        return ", ".join(f"{host}:{self.port}" for host in self.contact_points)


_STATE = TypeAdapter(StateSettings)


def parse_states(texts: Iterable[str]) -> dict[str, StateSettings]:
    """Settings of single states, each as ``STATE.SETTING=VALUE``; the setting is after the last dot before ``=``.

    Raises:
        ConfigError: one of them has another form, or a value that its setting has not.
    """
    values: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        state, dot, setting = name.rpartition(".")
        where = f"taskManager.cassandra.states: {text!r}"
        if not equals or not dot or not state:
            raise ConfigError(f"{where} must be STATE.SETTING=VALUE, as in count.layout=global")
        if setting not in StateSettings.__dataclass_fields__:
            known = ", ".join(StateSettings.__dataclass_fields__)
            raise ConfigError(f"{where}: there is no setting {setting!r}; there are {known}")
        values.setdefault(state, {})[setting] = value
        try:
            _STATE.validate_python({setting: value}, strict=False)
        except ValidationError as error:
            raise ConfigError(f"{where}: {error.errors()[0]['msg']}") from error
    return {state: _STATE.validate_python(found, strict=False) for state, found in values.items()}
