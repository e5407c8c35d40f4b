"""Sections of ``config.json`` about where keyed state lives: every key, default, unit, range and meaning."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from weir.config.section import KIB, MIB, Port, Section, TextList, setting
from weir.types import is_host


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
    compaction: Literal["level", "universal"] = setting(
        "level",
        "How tables are merged. `level`: into sorted levels, each ten times as large, for few tables to read. "
        "`universal`: runs of about the same size with each other, which writes less, reads more and needs twice the "
        "disk for a while.",
    )
    background_threads: int = setting(2, "Threads that flush and compact.", "threads", ge=1, le=64)
    # A merge into the level below rewrites all of it: with few small runs, uniform updates cost 2 µs of background CPU
    # each, with 12 about 0.5; a read asks one Bloom filter per run, 0.1 µs.
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
    statistics: bool = setting(
        False,
        "Count what RocksDB's block cache has, by kind of block (`weir_store_block_cache_total`); reads take longer.",
    )
    direct_io: bool = setting(
        False,
        "Read and write tables past the page cache, so that `block_cache_bytes` bounds all the memory that they take, "
        "also the kernel's. Each block that is not in that cache is then read from the disk; `mmap_reads` is ignored.",
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


_READ_CONSISTENCIES = Literal[
    "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"
]
#: None is read with ANY.
_CONSISTENCIES = Literal["ANY", _READ_CONSISTENCIES]


class CassandraConfig(Section):
    """Section ``taskManager.cassandra``: state in Cassandra or ScyllaDB, with ``state_backend`` ``cassandra``."""

    contact_points: TextList = setting(
        ("127.0.0.1",), "Hosts through which the others are found.", min_length=1
    )
    port: Port = setting(9042, "Port of all hosts.")
    keyspace: str = setting("weir", "Keyspace of the tables.", pattern="^[a-z][a-z0-9_]{0,47}$")
    username: str = setting("", "User; empty: none.")
    password: str = setting("", "Its password.", repr=False)
    tls_ca_file: str = setting(
        "",
        "PEM file of the authority that has signed the nodes' certificates; with it connections are encrypted. Names "
        "in certificates are not compared. Empty: no TLS.",
    )
    tls_certificate_file: str = setting(
        "",
        "PEM file of this side's certificate chain, if the nodes ask for one; with `tls_private_key_file`.",
    )
    tls_private_key_file: str = setting("", "PEM file of its private key, without a password.")
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
    dml_consistency: _READ_CONSISTENCIES = setting("LOCAL_QUORUM", "Consistency of reads and writes.")
    dml_timeout_ms: int = setting(5_000, "Timeout of a read or write.", "ms", ge=10, le=600_000)
    requests_in_flight_max: int = setting(
        32, "Requests of a task manager that are under way at a time.", "requests", ge=1, le=2048
    )
    read_keys_max: int = setting(64, "Keys of one read, all of one partition.", "keys", ge=1, le=1000)
    batch_rows_max: int = setting(
        500, "Rows of one batch of writes, all of one partition.", "rows", ge=1, le=10_000
    )
    batch_bytes_max: int = setting(64 * KIB, "Bytes of one batch of writes.", "bytes", ge=KIB, le=8 * MIB)
    apply_pause_ms_max: int = setting(
        60_000,
        "Writing the changes of complete checkpoints takes a twentieth of the time, while pauses are no longer than "
        "this for all changes together. Until a change is written it is part of every checkpoint; a key that changes "
        "often is so written once in a while. 0: after every checkpoint, at once.",
        "ms",
        ge=0,
        le=3_600_000,
    )
    when_away: Literal["wait", "fail"] = setting(
        "wait",
        "While the database cannot be reached: `wait`: rows wait, and the log and `/status` say so. `fail`: the "
        "job ends; started again, it goes on from its latest checkpoint.",
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

    @property
    def address(self) -> str:
        """Where it is, for messages."""
        return ", ".join(f"{host}:{self.port}" for host in self.contact_points)

    @field_validator("contact_points")
    @classmethod
    def _are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        # The client would look for such a host as long as it takes, which looks like a database that is away.
        for host in hosts:
            if not is_host(host):
                raise PydanticCustomError(
                    "not_supported",
                    "must be names or addresses of hosts without ports, which {host} is not; port is that of all",
                    {"host": repr(host)},
                )
        return hosts

    @model_validator(mode="after")
    def _files_of_tls_go_together(self) -> Self:
        if bool(self.tls_certificate_file) != bool(self.tls_private_key_file):
            missing = "tls_private_key_file" if self.tls_certificate_file else "tls_certificate_file"
            raise PydanticCustomError(
                missing, "must be there, too: a certificate and its private key go together"
            )
        if self.tls_certificate_file and not self.tls_ca_file:
            raise PydanticCustomError("tls_ca_file", "must be there, too: without it connections have no TLS")
        return self

    @model_validator(mode="after")
    def _user_and_password_go_together(self) -> Self:
        if self.password and not self.username:
            raise PydanticCustomError("username", "must be the user whose password is given")
        if self.username and not self.password:
            raise PydanticCustomError("password", "must be that of the user {name}", {"name": self.username})
        return self
