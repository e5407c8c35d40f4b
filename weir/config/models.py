"""The sections of ``config.json`` as frozen models: every key, default, unit, range and meaning.

A key of the file is the field's name, except for the few in :data:`JSON_NAMES` that keep the spelling
under which they have always been known. Values are checked strictly: ``"8008"`` is not a port.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from weir.config.state_strategy import StateStrategy
from weir.types import MAX_PARALLELISM_MAX, is_host, is_wildcard

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

#: Field name -> key in the file, where they differ.
JSON_NAMES = {
    "control_plane": "controlPlane",
    "task_manager": "taskManager",
    "file_name": "fileName",
    "operator_buffer_size": "operator_bufferSize",
    "use_hybrid": "useHybrid",
    "use_migrate": "useMigrate",
    "use_cache": "useCache",
    "rocksdb_path": "rocksDBPath",
}

#: A port to connect to.
Port = Annotated[int, Field(ge=1, le=65535)]
#: A port to listen on; 0: any free one, which the process then writes to its log.
ListenPort = Annotated[int, Field(ge=0, le=65535)]
#: A list in JSON, a tuple here, so that the model stays frozen; strict mode would refuse the list.
TextList = Annotated[tuple[str, ...], Field(strict=False)]


def setting(
    default: Any, meaning: str, unit: str = "", *, deprecated: bool = False, **constraints: Any
) -> Any:
    """A field with what the reference says about it; ``constraints`` go to pydantic's ``Field``."""
    return Field(
        default,
        description=meaning,
        json_schema_extra={"unit": unit, "deprecated": deprecated},
        **constraints,
    )


def _check_advertised(host: str, advertised: str) -> None:
    if is_wildcard(advertised) or (not advertised and is_wildcard(host)):
        raise PydanticCustomError(
            "advertised_host",
            "must be the name or address under which others reach this machine, since host is {host}",
            {"host": host},
        )
    if advertised and not is_host(advertised):
        raise PydanticCustomError("advertised_host", "must be a host name or an IP address, without a port")


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, no conversion between types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=AliasGenerator(alias=lambda name: JSON_NAMES.get(name, name)),
    )


class ControlPlaneConfig(Section):
    """Section ``controlPlane``."""

    host: str = setting(
        "127.0.0.1",
        "Address that the control plane listens on (`0.0.0.0`: all of the machine's); nothing is authenticated.",
        min_length=1,
    )
    advertised_host: str = setting(
        "",
        "Name or address under which others reach the control plane, where that is not `host`; needed where `host` is "
        "`0.0.0.0` or `::`. Empty: `host`.",
    )
    cp_grpc_port: ListenPort = setting(8008, "gRPC port, where task managers register; 0: any free one.")
    control_port: ListenPort = setting(
        9008, "HTTP port of `/status`, `/metrics` and the rest; 0: any free one."
    )
    allowed_hosts: TextList = setting(
        (),
        "Further names and addresses under which the HTTP interface may be asked for (header `Host`), without port; "
        "`*`: any. Always allowed: `localhost`, `127.0.0.1`, `[::1]`, `host` and `advertised_host`.",
    )
    allowed_origins: TextList = setting(
        (),
        "Web pages of other servers that may use the HTTP interface (header `Origin`), as "
        "`https://dashboard.example`; `*`: any. The control plane's own pages and programs like curl always may.",
    )
    min_task_managers: int = setting(
        1, "Registered task managers to wait for before the job is placed.", "processes", ge=1, le=1000
    )
    heartbeat_interval_ms: int = setting(
        200,
        "How often a task manager reports; half as often while its subtasks run and only their counters change, and "
        "while no row comes, every third of `lease_timeout_ms`, or 0.7 s.",
        "ms",
        ge=10,
        le=60_000,
    )
    lease_timeout_ms: int = setting(
        2000,
        "A task manager that has not reported for so long counts as lost; must exceed twice "
        "`heartbeat_interval_ms`.",
        "ms",
        ge=50,
        le=600_000,
    )
    max_parallelism: int = setting(
        128,
        "Number of key groups, hence the most subtasks that a keyed stage can have.",
        "groups",
        ge=1,
        le=MAX_PARALLELISM_MAX,
    )
    watermark_interval: float = setting(
        0.2,
        "How often sources emit a watermark; one that keeps up and reads many rows does so eight times as often.",
        "s",
        gt=0,
        le=3600,
    )
    out_of_order_grace_period: float = setting(
        2, "Subtracted from the highest event time seen, to give late events a chance.", "s", ge=0, le=86_400
    )
    idle_timeout_ms: int = setting(
        1000,
        "An input without data for so long no longer holds back the watermark.",
        "ms",
        ge=1,
        le=86_400_000,
    )
    checkpoint_uri: str = setting(
        "checkpoints",
        "The checkpoint store: a directory that all task managers reach, or a URI that `pyarrow.fs` understands "
        "(`s3://bucket/path`). Empty: no checkpoints, and a failure ends the job.",
    )
    checkpoint_interval_ms: int = setting(
        1000,
        "How often a checkpoint is begun; 0: only on request. A fifth as often, but every 10 s, while nothing comes "
        "that it would have to cover.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    checkpoint_pause_ms: int = setting(
        200,
        "At least so long between the end of a checkpoint and the next one's beginning.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    checkpoint_timeout_ms: int = setting(
        60_000, "A checkpoint that takes longer is given up.", "ms", ge=100, le=86_400_000
    )
    checkpoint_alignment_timeout_ms: int = setting(
        1000,
        "A barrier that waits longer for those of other inputs overtakes the rows before it, which become part of "
        "the checkpoint: back-pressure does not stop checkpoints.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    checkpoints_retained: int = setting(
        3, "Complete checkpoints that are kept.", "checkpoints", ge=1, le=1000
    )
    checkpoint_failures_max: int = setting(
        10,
        "Checkpoints in a row that may fail (a full disk, for example) before the job counts as failed; 0: any number.",
        "checkpoints",
        ge=0,
        le=1_000_000,
    )
    restart_attempts: int = setting(
        10,
        "Restarts from the latest checkpoint without a stable period in between, then the job fails; 0: no restart. "
        "Lost task managers and connections, and full disks, are not counted.",
        "restarts",
        ge=0,
        le=1_000_000,
    )
    restart_delay_ms: int = setting(
        100,
        "Wait before the second restart in a row; doubles up to `restart_delay_ms_max`.",
        "ms",
        ge=0,
        le=600_000,
    )
    restart_delay_ms_max: int = setting(10_000, "Longest wait before a restart.", "ms", ge=0, le=3_600_000)
    restart_stable_ms: int = setting(
        60_000,
        "A job that ran for so long without a failure starts to count, and to wait, anew.",
        "ms",
        ge=0,
        le=86_400_000,
    )
    poison_attempts: int = setting(
        3,
        "A step that raised in so many restarts meets the same rows each time: after the next restart, rows that make "
        "it raise go to the dead letters, and the job goes on. 0: never.",
        "restarts",
        ge=0,
        le=1000,
    )
    savepoint_roots: TextList = setting(
        ("savepoints",),
        "Directories, or URIs such as `s3://bucket/path`, below which `POST /savepoint` may write; relative ones are "
        "in the control plane's working directory. Empty: no savepoints.",
    )
    dead_letter_share_max: float = setting(
        0.01,
        "The job fails when a step has put aside more than this share of its rows (see `poison_attempts`) and more "
        "rows than `dead_letter_grace`; 1: never. Records that a source rejects do not count: see `strict`.",
        "fraction",
        ge=0,
        le=1,
    )
    dead_letter_grace: int = setting(
        100,
        "So many rows of a step may be put aside whatever their share; but at the end of the job at most half of them.",
        "rows",
        ge=0,
        le=1_000_000_000,
    )
    strict: bool = setting(
        False, "The job fails at the first record that a source rejects and the first row that is put aside."
    )
    state_path: str = setting(
        "control_plane.json",
        "File that holds what a control plane needs to take over a running job; empty: none.",
    )
    etcd_endpoints: TextList = setting(
        (),
        "etcd servers, `host:port` or `http://host:port`, tried in turn: they keep the record instead of "
        "`state_path`, and elect the one of several control planes that leads; the others wait.",
    )
    test_etcd_conn: bool = setting(
        False, "Accepted with a warning, and ignored: no etcd is used.", deprecated=True
    )

    @model_validator(mode="after")
    def _others_can_reach_it(self) -> Self:
        _check_advertised(self.host, self.advertised_host)
        return self

    @model_validator(mode="after")
    def _lease_outlives_a_lost_heartbeat(self) -> Self:
        if self.lease_timeout_ms <= 2 * self.heartbeat_interval_ms:
            raise PydanticCustomError(
                "lease_timeout_ms",
                "must exceed twice heartbeat_interval_ms ({heartbeat} ms), so at least {least}",
                {"heartbeat": self.heartbeat_interval_ms, "least": 2 * self.heartbeat_interval_ms + 1},
            )
        return self


class RocksDbConfig(Section):
    """Section ``taskManager.rocksdb``: one store per task manager, whatever the number of subtasks."""

    block_cache_bytes: int = setting(
        64 * MIB, "Cache of data, index and filter blocks; the bound of what reading takes.", "bytes", ge=MIB
    )
    write_buffer_bytes: int = setting(16 * MIB, "Size of one memory table.", "bytes", ge=64 * KIB)
    write_buffer_count: int = setting(
        3, "Memory tables, the one being filled included.", "tables", ge=2, le=64
    )
    write_buffer_total_bytes: int = setting(
        64 * MIB, "Bound of all memory tables together; at least `write_buffer_bytes`.", "bytes", ge=64 * KIB
    )
    block_bytes: int = setting(
        4 * KIB, "Size of a data block before compression.", "bytes", ge=KIB, le=16 * MIB
    )
    bloom_bits_per_key: int = setting(
        10, "Bits of the Bloom filter per key; 0: no filter.", "bits", ge=0, le=64
    )
    compression: Literal["none", "snappy", "lz4", "zstd"] = setting("none", "Compression of data blocks.")
    background_threads: int = setting(2, "Threads that flush and compact.", "threads", ge=1, le=64)
    level_0_runs: int = setting(
        12, "Flushed memory tables that may wait before they are merged into the rest.", "runs", ge=2, le=64
    )
    max_open_files: int = setting(
        512,
        "File handles that the store may keep open; with `mmap_reads` this bounds mapped memory, 8 MiB each. "
        "At least 20 more than `level_0_runs`, or reads open files again and again.",
        "files",
        ge=22,
    )
    mmap_reads: bool = setting(
        True,
        "Read uncompressed tables where the page cache has them instead of copying blocks: faster when state is "
        "larger than the block cache. Mapped pages count as resident and are not verified at every read.",
    )

    @model_validator(mode="after")
    def _a_memory_table_fits(self) -> Self:
        if self.write_buffer_total_bytes < self.write_buffer_bytes:
            raise PydanticCustomError(
                "write_buffer_total_bytes",
                "must be at least write_buffer_bytes ({least})",
                {"least": self.write_buffer_bytes},
            )
        return self


_CONSISTENCIES = Literal[
    "ANY",
    "ONE",
    "TWO",
    "THREE",
    "QUORUM",
    "ALL",
    "LOCAL_QUORUM",
    "EACH_QUORUM",
    "LOCAL_ONE",
]


class CassandraConfig(Section):
    """Section ``taskManager.cassandra``: state in Cassandra or ScyllaDB, with ``state_backend`` ``cassandra``."""

    contact_points: TextList = setting(
        ("127.0.0.1",), "Hosts through which the others are found.", min_length=1
    )
    port: Port = setting(9042, "Port of all hosts.")
    keyspace: str = setting("weir", "Keyspace of the tables.", pattern="^[a-z][a-z0-9_]*$", max_length=48)
    username: str = setting("", "User; empty: none.")
    password: str = setting("", "Its password.")
    local_datacenter: str = setting("", "The data centre whose nodes are asked; empty: of the first node.")
    replication: str = setting(
        "{'class': 'SimpleStrategy', 'replication_factor': 1}",
        "Replication of the keyspace when it is created.",
        min_length=1,
    )
    creates_tables: bool = setting(
        True, "Create what is missing. false: the statements are logged, and the tables must exist."
    )
    table_options: str = setting(
        "compaction = {'class': 'LeveledCompactionStrategy'}",
        "Text after WITH when a table is created; no table is ever altered.",
    )
    time_to_live_s: int = setting(
        0,
        "Seconds after the write (not of event time) when the database forgets a row; 0: never.",
        "s",
        ge=0,
        le=630_720_000,
    )
    buckets: int = setting(
        1,
        "Database partitions of one key group of one state; not to be changed later.",
        "partitions",
        ge=1,
        le=4096,
    )
    ddl_consistency: _CONSISTENCIES = setting("ALL", "Consistency of statements that create tables.")
    ddl_timeout_ms: int = setting(30_000, "Timeout of such a statement.", "ms", ge=100, le=600_000)
    dml_consistency: _CONSISTENCIES = setting("LOCAL_QUORUM", "Consistency of reads and writes.")
    dml_timeout_ms: int = setting(5_000, "Timeout of a read or write.", "ms", ge=10, le=600_000)
    requests_in_flight_max: int = setting(
        32, "Requests of a task manager that are under way at a time.", "requests", ge=1, le=2048
    )
    read_keys_max: int = setting(64, "Keys of one read, all of one partition.", "keys", ge=1, le=1000)
    batch_rows_max: int = setting(
        100, "Rows of one batch of writes, all of one partition.", "rows", ge=1, le=10_000
    )
    batch_bytes_max: int = setting(64 * KIB, "Bytes of one batch of writes.", "bytes", ge=KIB, le=8 * MIB)
    when_away: Literal["wait", "fail"] = setting(
        "wait",
        "While the database cannot be reached: `wait`: rows wait, and the log says so. `fail`: the job fails, and "
        "starts again.",
    )
    give_up_after_ms: int = setting(
        10_000,
        "With `fail`, and when a job is deployed: how long it is tried before.",
        "ms",
        ge=0,
        le=3_600_000,
    )
    states: TextList = setting(
        (),
        "What differs for single states, each `STATE.SETTING=VALUE` with a state's `step` or `step/state`: "
        "`count.layout=global`; settings are `table`, `layout` (`partitioned`, `global`), `buckets`, "
        "`time_to_live_s`, `table_options`, `counts`.",
    )


class TaskManagerConfig(Section):
    """Section ``taskManager``."""

    host: str = setting(
        "127.0.0.1", "Address that a task manager listens on (`0.0.0.0`: all of the machine's).", min_length=1
    )
    advertised_host: str = setting(
        "",
        "Name or address under which the control plane and other task managers reach this one, where that is not "
        "`host`; needed where `host` is `0.0.0.0` or `::`. Empty: `host`.",
    )
    tm_port: ListenPort = setting(
        8018, "gRPC port; a second task manager on the same host needs another one; 0: any free one."
    )
    exchange_port: ListenPort = setting(
        0,
        "Port on which rows from other task managers arrive; they ask for it at `tm_port`. 0: any free one.",
    )
    http_port: ListenPort = setting(
        0,
        "Port of the pages: `/state/...`, as the control plane's, and `/metrics`. 0: any free one, which the log and "
        "`/status` tell.",
    )
    cp_host: str = setting("127.0.0.1", "Host of the control plane.", min_length=1)
    cp_port: Port = setting(8008, "gRPC port of the control plane.")
    control_planes: TextList = setting(
        (),
        "Further control planes of the same job, `host:port`, tried in turn where that of `cp_host` does not answer: "
        "with `etcd_endpoints` one leads, and another one takes over.",
    )
    connect_timeout_s: float = setting(
        30,
        "How long a task manager without a job waits for a control plane that is not up.",
        "s",
        gt=0,
        le=86_400,
    )
    reconnect_timeout_s: float = setting(
        3600,
        "How long a task manager that has a job goes on with it while no control plane answers; then it ends.",
        "s",
        gt=0,
        le=31_536_000,
    )
    drain_timeout_s: float = setting(
        60,
        "At SIGTERM, how long to wait until other task managers have taken over what runs here; 0: stop at once.",
        "s",
        ge=0,
        le=86_400,
    )
    operator_quota: int = setting(5, "Subtasks that one task manager takes.", "subtasks", ge=1, le=1000)
    operator_buffer_size: int = setting(
        20,
        "Record batches in flight per channel; a sender waits when they are used up.",
        "batches",
        ge=1,
        le=10_000,
    )
    channel_buffer_bytes: int = setting(
        8 * MIB, "Bytes in flight per channel; a sender waits when they are used up.", "bytes", ge=64 * KIB
    )
    in_flight_ms: float = setting(
        100.0,
        "Rows in flight per channel are limited to what the receiver finishes in this time, as measured.",
        "ms",
        gt=0,
        le=600_000,
    )
    message_bytes_max: int = setting(
        64 * MIB, "Largest gRPC message; bigger batches are cut.", "bytes", ge=MIB, le=GIB
    )
    batch_size: int = setting(32_768, "Rows after which a batch is sent.", "rows", ge=1, le=1 << 24)
    batch_timeout_ms: int = setting(
        10, "Age after which a batch is sent, however few rows it has; 0: at once.", "ms", ge=0, le=60_000
    )
    use_hybrid: bool = setting(
        True,
        "After a rescale a new owner starts at once, on the store of the old one. false: state is shipped "
        "before its new owner processes it.",
    )
    use_migrate: bool = setting(
        True,
        "Hybrid: keys are fetched on first use and the rest follows in the background. No effect without "
        "`useHybrid`.",
    )
    use_cache: bool = setting(
        True,
        "Hybrid: remember where state is until the routing changes; false: ask the control plane for every "
        "batch. No effect without `useHybrid`.",
    )
    migration_bytes_per_second: int = setting(
        24 * MIB,
        "Bound of the rate at which state follows in the background, or is shipped.",
        "bytes/s",
        ge=64 * KIB,
    )
    migration_chunk_bytes: int = setting(
        1 * MIB, "State fetched by one call of the background migration.", "bytes", ge=4 * KIB, le=16 * MIB
    )
    state_backend: Literal["rocksdb", "memory", "cassandra"] = setting(
        "rocksdb",
        "Where keyed state lives; `memory` is lost with the process. `cassandra`: in the database of section "
        "`cassandra`, and what it has not got yet in `rocksDBPath`.",
    )
    rocksdb_path: str = setting(
        "data.db", "Directory of the store. One that Weir did not make is never touched.", min_length=1
    )
    state_cache_bytes: int = setting(
        256 * MIB, "Bound of the write-back cache of decoded state, per task manager.", "bytes", ge=MIB
    )
    state_flush_interval_ms: int = setting(
        1000, "How often changed keys are written from the cache to the store.", "ms", ge=1, le=3_600_000
    )
    rocksdb: RocksDbConfig = setting(RocksDbConfig(), "Settings of RocksDB.")
    cassandra: CassandraConfig = setting(CassandraConfig(), "Settings of Cassandra.")
    dead_letter_path: str = setting(
        "dead_letters",
        "Directory of the files that bad records go to, with position and reason.",
        min_length=1,
    )
    dead_letter_raw_bytes_max: int = setting(
        4 * KIB, "A bad record is cut to so many bytes in the dead-letter file.", "bytes", ge=0, le=64 * MIB
    )

    @model_validator(mode="after")
    def _others_can_reach_it(self) -> Self:
        _check_advertised(self.host, self.advertised_host)
        return self

    @property
    def state_strategy(self) -> StateStrategy:
        """What ``useHybrid``, ``useMigrate`` and ``useCache`` describe; that of the control plane counts."""
        return StateStrategy.from_settings(
            use_hybrid=self.use_hybrid, use_migrate=self.use_migrate, use_cache=self.use_cache
        )


class PrometheusConfig(Section):
    """Section ``prometheus``."""

    enabled: bool = setting(False, "Serve metrics of each task manager at `prometheus_host:prometheus_port`.")
    prometheus_host: str = setting("127.0.0.1", "Address that the metrics page listens on.", min_length=1)
    prometheus_port: ListenPort = setting(
        9089,
        "Port of the metrics page; a second process on the same host needs another one; 0: any free one.",
    )
    push_enabled: bool = setting(False, "Also push metrics to a Pushgateway.")
    pushgateway_host: str = setting("127.0.0.1", "Host of the Pushgateway.", min_length=1)
    pushgateway_port: Port = setting(9091, "Port of the Pushgateway.")
    push_interval_ms: int = setting(1000, "How often metrics are pushed.", "ms", ge=100, le=3_600_000)
    job_name: str = setting("weir", "Label `job` of pushed metrics.", min_length=1)


class Config(Section):
    """The whole file."""

    control_plane: ControlPlaneConfig = setting(ControlPlaneConfig(), "The process that decides.")
    task_manager: TaskManagerConfig = setting(TaskManagerConfig(), "The processes that execute.")
    prometheus: PrometheusConfig = setting(PrometheusConfig(), "Metrics.")
    file_name: str = setting(
        "data/events", "Input of the demo job: a file, a directory of parts or a glob.", min_length=1
    )
