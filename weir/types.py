"""Identifiers that both processes share. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

#: Position of a stage in the plan, 0-based; sources come first. The unit of ``/scale``.
StageIndex = NewType("StageIndex", int)
#: Ownership unit of keyed state: ``0 <= key_group < max_parallelism``.
KeyGroup = NewType("KeyGroup", int)
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
        return f"{self.host}:{self.port}"
