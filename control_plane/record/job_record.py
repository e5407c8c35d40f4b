"""What another control plane needs to take over a running job: a small JSON document, written whenever it changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from weir.config import StateMove, StateStrategy
from weir.errors import CheckpointError, StateError
from weir.protocol.job.event_counts import NO_EVENTS, EventCounts
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_log import StageNumbers
from weir.protocol.routing import RoutingTable
from weir.types import SubtaskId

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class JobRecord:
    """A job as it runs; all checkpoints are in the checkpoint store."""

    job_id: str
    fingerprint: str
    generation: int
    job_start_us: int
    #: Nothing runs any more.
    is_over: bool = False
    #: It is over because it failed: another start goes on from its latest checkpoint.
    has_failed: bool = False
    #: Every subtask runs, and no rescale is switching: the job can be taken over as it is.
    is_steady: bool = False
    stages: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    routing: Mapping[int, RoutingTable] = field(default_factory=dict)
    placement: Mapping[SubtaskId, str] = field(default_factory=dict)
    #: Of the job, in the form that JSON has for them; None: an older version of Weir wrote the record.
    parameters: Mapping[str, object] | None = None
    #: How often the job started again.
    restarts: int = 0
    #: The latest rescales for people (``RescaleMachine.to_dict``), oldest first.
    rescales: tuple[Mapping[str, object], ...] = ()
    #: With which the task managers were deployed; None: an older version of Weir wrote the record.
    strategy: StateStrategy | None = None
    #: The number at which the checkpoints of the control plane began that wrote this; 0: an older version wrote it.
    first_checkpoint_id: int = 0
    #: The checkpoint that counts, whatever else is in the store; 0: none does; None: the latest one in the store.
    checkpoint_id: int | None = None
    #: Which process of each task manager of ``placement`` has the subtasks; empty: an older version wrote the record.
    incarnations: Mapping[str, str] = field(default_factory=dict)
    #: Numbers that no further rescale of a stage may use; empty: no rescale yet, or an older version wrote the record.
    used_by_rescales: Mapping[int, StageNumbers] = field(default_factory=dict)
    #: How the job ended; None: it has not, or an older version wrote the record.
    ended_as: JobState | None = None
    #: See :class:`~control_plane.job.running_job.RunningJob`; none: an older version wrote the record.
    events_at_start: EventCounts = NO_EVENTS

    def to_bytes(self) -> bytes:
        """The document."""
        return orjson.dumps(
            {
                "format_version": _FORMAT_VERSION,
                "job_id": self.job_id,
                "fingerprint": self.fingerprint,
                "generation": self.generation,
                "job_start_us": self.job_start_us,
                "is_over": self.is_over,
                "has_failed": self.has_failed,
                "is_steady": self.is_steady,
                "stages": [[stage, list(indices)] for stage, indices in self.stages.items()],
                "routing": [table.to_dict() for table in self.routing.values()],
                "placement": [
                    [subtask.stage_index, subtask.subtask_index, name]
                    for subtask, name in self.placement.items()
                ],
                # As text: numbers may be larger than orjson takes.
                "parameters_json": None if self.parameters is None else json.dumps(dict(self.parameters)),
                "restarts": self.restarts,
                "rescales": self.rescales,
                "strategy": None
                if self.strategy is None
                else {
                    "move": self.strategy.move.value,
                    "asks_for_places": self.strategy.asks_for_places,
                    "relinks": self.strategy.relinks,
                },
                "first_checkpoint_id": self.first_checkpoint_id,
                "checkpoint_id": self.checkpoint_id,
                "incarnations": dict(self.incarnations),
                "used_by_rescales": [
                    [stage, used.next_index, used.last_version]
                    for stage, used in self.used_by_rescales.items()
                ],
                "ended_as": None if self.ended_as is None else self.ended_as.value,
                "events_at_start": [self.events_at_start.events_in, self.events_at_start.events_out],
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> JobRecord:
        """Read the document; ``source`` says where it was, for messages.

        Raises:
            CheckpointError: it is damaged, or a newer version of Weir wrote it.
        """
        try:
            value: dict[str, Any] = orjson.loads(data)
            if value["format_version"] != _FORMAT_VERSION:
                raise CheckpointError(
                    f"{source} has format version {value['format_version']}, this version of Weir reads "
                    f"{_FORMAT_VERSION}: use the version that wrote it, or remove it to start the job anew"
                )
            tables = [RoutingTable.from_dict(item) for item in value["routing"]]
            given = value.get("parameters_json")
            strategy, ended_as = value.get("strategy"), value.get("ended_as")
            return cls(
                value["job_id"],
                value["fingerprint"],
                value["generation"],
                value["job_start_us"],
                value["is_over"],
                value.get("has_failed", False),
                value["is_steady"],
                {stage: tuple(indices) for stage, indices in value["stages"]},
                {table.stage_index: table for table in tables},
                {SubtaskId(stage, index): name for stage, index, name in value["placement"]},
                # Earlier versions of Weir wrote none of these.
                None if given is None else json.loads(given),
                value.get("restarts", 0),
                tuple(value.get("rescales", ())),
                None
                if strategy is None
                else StateStrategy(
                    StateMove(strategy["move"]),
                    strategy["asks_for_places"],
                    strategy.get("relinks", False),
                ),
                value.get("first_checkpoint_id", 0),
                value.get("checkpoint_id"),
                value.get("incarnations", {}),
                {
                    stage: StageNumbers(next_index, last_version)
                    for stage, next_index, last_version in value.get("used_by_rescales", ())
                },
                None if ended_as is None else JobState(ended_as),
                EventCounts(*value.get("events_at_start", (0, 0))),
            )
        except (ValueError, KeyError, TypeError, StateError) as error:
            raise CheckpointError(
                f"{source} is damaged ({type(error).__name__}: {error}); remove it to start the job anew"
            ) from error
