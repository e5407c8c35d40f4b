"""Spans of a trace: what a checkpoint or a rescale did with its time, from what is recorded of it. Pure.

Names of spans are few; what differs stands in attributes. Times are ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import cast

from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord, CheckpointState
from weir.protocol.rescale.rescale_model import RescalePhase
from weir.subtask_names import NameOf
from weir.types import SubtaskId

#: A value of an attribute.
Attribute = str | int

_P = RescalePhase
#: What the phases of a rescale are for.
_AIMS: Mapping[RescalePhase, str] = {
    _P.PLANNING: "preparation",
    _P.DEPLOYING: "preparation",
    _P.PREPARING: "preparation",
    _P.REROUTING: "switch",
    _P.HANDING_OVER: "switch",
    _P.MIGRATING: "move",
    _P.CHECKPOINTING: "checkpoint",
    _P.REDEPLOYING: "redeployment",
    _P.ABORTING: "undoing",
}
#: Facts of a rescale's report that its span has.
_RESCALE_FACTS = (
    "from",
    "to",
    "groups_total",
    "groups_migrated",
    "groups_relinked",
    "bytes_moved",
    "bytes_sent",
)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with a name, and those within it."""

    name: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    #: Why it did not come to its end; one line, empty if it did.
    cause: str = ""
    children: tuple[Span, ...] = ()


def checkpoint_span(record: CheckpointRecord, offset_ms: int, name_of: NameOf) -> Span:
    """The span of a checkpoint that has ended: its wait, the way to each subtask's part, and the commit.

    Args:
        record: what is known of it.
        offset_ms: from the times of the record to the epoch.
        name_of: what subtasks are called.
    """
    end_ms = (record.created_ms if record.ended_ms is None else record.ended_ms) + offset_ms
    children: list[Span] = []
    if record.started_ms is not None:
        start_ms = record.started_ms + offset_ms
        if record.started_ms > record.created_ms:
            children.append(Span("checkpoint.wait", record.created_ms + offset_ms, start_ms))
        for subtask, came_ms in sorted(record.parts_ms.items()):
            facts = {**_subtask_facts(subtask), "weir.subtask": name_of(subtask)}
            children.append(Span("checkpoint.part", start_ms, came_ms + offset_ms, facts))
    if record.committing_ms is not None:
        children.append(Span("checkpoint.commit", record.committing_ms + offset_ms, end_ms))
    attributes: dict[str, Attribute] = {
        "weir.checkpoint.id": record.checkpoint_id,
        "weir.checkpoint.kind": "savepoint" if record.path else "checkpoint",
        "weir.checkpoint.state": record.state.value,
        "weir.checkpoint.new_bytes": record.new_bytes,
        "weir.checkpoint.size_bytes": record.size_bytes,
    }
    if record.path:
        attributes["weir.checkpoint.path"] = record.path
    if record.slowest is not None:
        attributes["weir.checkpoint.slowest"] = name_of(record.slowest)
    cause = "" if record.state is CheckpointState.COMPLETE else record.cause or record.state.value
    return Span("checkpoint", record.created_ms + offset_ms, end_ms, attributes, cause, tuple(children))


def rescale_span(report: Mapping[str, object]) -> Span | None:
    """The span of a rescale that has ended; None: it has not, or when it did is not known.

    Args:
        report: as of ``RescaleLog.to_list``.
    """
    final = RescalePhase(str(report["phase"]))
    times = [
        (RescalePhase(name), time_ms) for name, time_ms in cast(Mapping[str, int], report["phases"]).items()
    ]
    if not final.is_final or not times or times[-1][0] is not final:
        return None
    spans = [
        (phase, Span(_phase_name(phase), begun, ended)) for (phase, begun), (_, ended) in pairwise(times)
    ]
    children = []
    for aim, grouped in groupby(spans, key=lambda item: _AIMS[item[0]]):
        within = tuple(span for _, span in grouped)
        children.append(
            Span(
                f"rescale.{aim}", within[0].start_ms, within[-1].end_ms, children=within if within[1:] else ()
            )
        )
    attributes: dict[str, Attribute] = {
        "weir.rescale.id": _whole(report["id"]),
        "weir.stage": _whole(report["stage"]),
        "weir.rescale.phase": final.value,
        **{f"weir.rescale.{name}": _whole(report[name]) for name in _RESCALE_FACTS},
    }
    cause = "" if final is RescalePhase.COMPLETE else str(report["cause"]) or final.value
    return Span("rescale", times[0][1], times[-1][1], attributes, cause, tuple(children))


def _subtask_facts(subtask: SubtaskId) -> dict[str, Attribute]:
    return {"weir.stage": subtask.stage_index, "weir.subtask_index": subtask.subtask_index}


def _phase_name(phase: RescalePhase) -> str:
    return f"rescale.phase.{phase.value.lower()}"


def _whole(value: object) -> int:
    return int(str(value))
