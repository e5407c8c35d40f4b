"""Identifiers that both processes share, and figures that both show. Standard library only."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import NewType

#: Position of a stage in the plan, 0-based; sources come first. The unit of ``/scale``.
StageIndex = NewType("StageIndex", int)
#: Ownership unit of keyed state: ``0 <= key_group < max_parallelism``.
KeyGroup = NewType("KeyGroup", int)
#: The largest ``max_parallelism``; a key group fits two bytes in the store with room to spare.
MAX_PARALLELISM_MAX = 4096
#: Fence of one deployment of a job; grows by one with every redeployment.
Generation = NewType("Generation", int)


@dataclass(frozen=True, order=True, slots=True)
class SubtaskId:
    """One parallel instance of a stage; ``subtask_index`` is 0-based."""

    stage_index: int
    subtask_index: int

    def __str__(self) -> str:
        return f"{self.stage_index}/{self.subtask_index}"


@dataclass(frozen=True, order=True, slots=True)
class ChannelId:
    """One producer-to-consumer link; ``edge_index`` counts the consumer stage's input edges from 0."""

    producer: SubtaskId
    consumer: SubtaskId
    edge_index: int = 0

    def __str__(self) -> str:
        return f"{self.producer}->{self.consumer}#{self.edge_index}"


@dataclass(frozen=True, order=True, slots=True)
class Address:
    """Where a process listens; written ``host:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


#: A name or IPv4 address: nothing that a resolver takes for a path or a scheme of its own.
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?", re.ASCII)


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Memory, disk and processors of a task manager and what it has in use; all 0: it is not known."""

    resident_bytes: int = 0
    #: Of the disk that has the state.
    disk_free_bytes: int = 0
    disk_bytes: int = 0
    #: Processors' time that the process has used, the processors and the memory that it may use.
    processor_us: int = 0
    processors: int = 0
    memory_bytes: int = 0


def is_host(text: str) -> bool:
    """Whether a text is the name or the address of a machine; IPv6 with or without brackets."""
    if ":" not in text:
        return _HOST_NAME.fullmatch(text) is not None
    try:
        return ipaddress.ip_address(_without_brackets(text)).version == 6
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether a server with this host listens on all addresses of its machine; nobody can connect to it."""
    try:
        return ipaddress.ip_address(_without_brackets(host)).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a server with this host can be reached from its own machine only; a name other than ``localhost`` is not.

    Names may lead elsewhere tomorrow.
    """
    try:
        return ipaddress.ip_address(_without_brackets(host)).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def join_address(host: str, port: int) -> str:
    """``host:port``; IPv6 addresses have brackets."""
    return f"[{_without_brackets(host)}]:{port}" if ":" in host else f"{host}:{port}"


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


@dataclass(frozen=True, slots=True)
class TableStats:
    """What a store that keeps tables on a disk is busy with: counters since it was opened, and sizes now."""

    #: Bytes of all table files, also of those that only scans and images still need.
    total_bytes: int = 0
    #: Keys, as RocksDB estimates them.
    keys: int = 0
    #: Bytes of memory tables that are not written out.
    memory_table_bytes: int = 0
    level_0_files: int = 0
    #: Bytes that merges have to rewrite before the levels have their sizes, as RocksDB estimates them.
    pending_merge_bytes: int = 0
    running_merges: int = 0
    running_flushes: int = 0
    background_errors: int = 0
    #: How often writes had to wait because memory tables or merges could not keep up, and for how long in all.
    stalls: int = 0
    stall_s: float = 0.0
    #: Time of all reads by key, and of all writes without stalls.
    get_s: float = 0.0
    write_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters since the store was opened, and sizes now."""

    gets: int = 0
    puts: int = 0
    deletes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    #: Bytes of memory that the store holds (block cache, memory tables, table readers).
    memory_bytes: int = 0
    #: Bytes of live files on disk.
    disk_bytes: int = 0
    #: Keys read from and written to the stores of peers, and bytes of keys and values that went over the wire.
    remote_gets: int = 0
    remote_puts: int = 0
    remote_bytes: int = 0
    #: Of state in a database: for how long it has not answered (0: it answers), complete checkpoints whose changes
    #: are not all there yet, and requests that it answered, with the time of all of them.
    away_s: float = 0.0
    waiting_checkpoints: int = 0
    requests: int = 0
    requests_s: float = 0.0
    #: None: it has no tables.
    tables: TableStats | None = None
