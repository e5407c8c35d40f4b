"""Identifiers that both processes share. Standard library only."""

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
