"""What all generations of a job in one process share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.author.operator import SourceReader
from weir.clock import Clock
from weir.local.channels import Interleaving
from weir.local.collected import Collection
from weir.plan.graph import PhysicalGraph


@dataclass(frozen=True)
class LocalSettings:
    """What config.json says for real jobs; the defaults are the same."""

    batch_size: int
    grace_period_ms: int
    idle_timeout_ms: int
    state_cache_bytes: int
    dead_letter_raw_bytes_max: int


@dataclass(frozen=True)
class JobParts:
    """What all generations of a job share."""

    graph: PhysicalGraph
    settings: LocalSettings
    clock: Clock
    #: Numbers of the states of keyed steps in the store.
    state_ids: Mapping[str, int]
    #: Steps whose rows are kept, by name.
    collections: Mapping[str, Collection]
    dead_letters: Path
    #: Readers in place of those of sources: step -> subtask index -> reader.
    readers: Mapping[str, Callable[[int], SourceReader]]
    #: Sources whose watermarks their readers alone move: no grace period, never idle.
    hand_moved: frozenset[str] = frozenset()
    #: Sinks that are not opened: their rows are only kept.
    replaced_sinks: frozenset[str] = frozenset()
    #: Chooses the order in which elements of different channels are taken; None: always the same one.
    interleaving: Interleaving | None = None
