"""Section ``taskManager`` of ``config.json``: every key, default, unit, range and meaning."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from weir.config.section import GIB, KIB, MIB, ListenPort, Port, Section, TextList, check_advertised, setting
from weir.config.state_strategy import StateStrategy
from weir.config.stores import CassandraConfig, RocksDbConfig


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
    unix_sockets: bool = setting(
        True,
        "Take rows of task managers of the same machine by Unix sockets, which are never encrypted: nobody but the two "
        "processes can read them. false: by TCP, as between machines. Linux only.",
    )
    http_port: ListenPort = setting(
        0,
        "Port of the pages: `/state/...`, as the control plane's, and `/metrics`. 0: any free one, which the log and "
        "`/status` tell.",
    )
    niceness: int = setting(
        10,
        "How far a task manager puts the priority of its threads below that of the one that answers, as soon as 50 "
        "questions for single keys have come within a second, and until fewer than 50 come in ten. Where processors "
        "are busy, other programs of the same service or container (else: of the machine) go first, too. Without "
        "the right to raise priorities (CAP_SYS_NICE) it stays so until the task manager ends. 0: never. Linux only.",
        "steps of `nice`",
        ge=0,
        le=19,
    )
    one_processor: bool = setting(
        True,
        "Keep the threads that work on rows on one processor, the least busy one, while that has time for them: less "
        "CPU at low rates, since its caches are warm. false: they run wherever the kernel puts them. Linux only.",
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
        10,
        "Age after which a batch is sent, however few rows it has; 0: at once.",
        "ms",
        ge=0,
        le=60_000,
    )
    gather_ms: int = setting(
        25,
        "Sources with a rate that have few rows gather them for so long at most, since a batch costs about as much "
        "with one row as with a hundred; 0: not at all.",
        "ms",
        ge=0,
        le=1_000,
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
    use_relink: bool = setting(
        False,
        "With `useMigrate`: a new owner opens the tables of the latest checkpoint where they lie, and the old owner "
        "sends only what has changed since; where that is not possible, keys are fetched as ever. It takes a "
        "`checkpoint_uri` that all task managers reach.",
    )
    use_cache: bool = setting(
        True,
        "Hybrid: remember where state is until the routing changes; false: ask the control plane for every "
        "batch. No effect without `useHybrid`.",
    )
    migration_bytes_per_second: int = setting(
        24 * MIB,
        "Bound of the rate at which state follows in the background, or is shipped, and at which a standby fetches "
        "tables (`standby_replicas`).",
        "bytes/s",
        ge=64 * KIB,
    )
    migration_chunk_bytes: int = setting(
        1 * MIB, "State fetched by one call of the background migration.", "bytes", ge=4 * KIB, le=16 * MIB
    )
    fetched_image_bytes_max: int = setting(
        32 * MIB,
        "Where checkpoints are on another machine: a store's image of which more is missing here is not fetched as a "
        "whole before rows go on. Its tables stay there, and what is needed of them is fetched block by block.",
        "bytes",
        ge=0,
    )
    image_cache_bytes: int = setting(
        1024 * MIB, "Bound of the disk for what was fetched so.", "bytes", ge=1 * MIB
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
        check_advertised(self.host, self.advertised_host)
        return self

    @property
    def state_strategy(self) -> StateStrategy:
        """What ``useHybrid``, ``useMigrate``, ``useRelink`` and ``useCache`` describe; the control plane's counts."""
        return StateStrategy.from_settings(
            use_hybrid=self.use_hybrid,
            use_migrate=self.use_migrate,
            use_cache=self.use_cache,
            use_relink=self.use_relink,
        )
