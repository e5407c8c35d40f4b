"""Fits a savepoint to the job that is to start from it: other parallelism, added and removed steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weir.errors import CheckpointError
from weir.protocol.checkpoints.aggregate_layout import renamed_layout
from weir.protocol.checkpoints.manifest import Json, Manifest, SubtaskPart
from weir.protocol.checkpoints.renames import names_now
from weir.protocol.routing import RoutingTable, initial_table
from weir.protocol.watermarks.input_times import (
    MIN_MS,
    has_waiting_rows,
    is_times_key,
    step_of,
    times_key,
    times_to_json,
)


@dataclass(frozen=True)
class StageNow:
    """A stage of the job that is to start."""

    #: Names of its steps, in order.
    steps: Sequence[str]
    parallelism: int
    has_groups: bool
    #: What the states of its steps are called in the job: ``step``, or ``step/state``.
    states: Sequence[str]
    #: Those of its steps after which event time is another one.
    assigners: Sequence[str] = ()


def fit_savepoint(
    manifest: Manifest,
    fingerprint: str,
    stages: Mapping[int, StageNow],
    max_parallelism: int,
    *,
    allow_dropped: bool = False,
) -> Manifest:
    """The manifest with the subtasks and routing tables of the job now; its parts stay as they are.

    Steps are matched by name. ``operator_names`` go on to say which steps the parts' stages had.

    Args:
        manifest: of the savepoint.
        fingerprint: of the job now.
        stages: of the job now, by index.
        max_parallelism: of the job now.
        allow_dropped: steps of the savepoint that the job has not got any more lose what they held.

    Raises:
        CheckpointError: another number of key groups; steps with state are gone and that is not allowed.
    """
    if max_parallelism != manifest.max_parallelism:
        raise CheckpointError(
            f"the savepoint has {manifest.max_parallelism} key groups, the job has {max_parallelism}: set "
            f"controlPlane.max_parallelism to {manifest.max_parallelism}"
        )
    _check_dropped(manifest, stages, allow_dropped=allow_dropped)
    routing = {}
    for index, stage in stages.items():
        if stage.has_groups:
            routing[index] = _table(index, stage.parallelism, manifest)
    return replace(
        manifest,
        parts=_with_times(manifest, stages),
        fingerprint=fingerprint,
        stages={index: tuple(range(stage.parallelism)) for index, stage in stages.items()},
        routing=routing,
    )


def _with_times(manifest: Manifest, stages: Mapping[int, StageNow]) -> tuple[SubtaskPart, ...]:
    """The parts, with the times of stages that begin with another step than before under its name, too."""
    told = {name for part in manifest.parts for name in part.operators if is_times_key(name)}
    then_of = {name: names for names in manifest.operator_names.values() for name in names}
    assigners = {step for stage in stages.values() for step in stage.assigners}
    #: By key now: the key then, and the step then that has made the times that count, if one has.
    copies: dict[str, tuple[str, str]] = {}
    for stage in stages.values():
        now = times_key(stage.steps[0])
        for step in stage.steps:
            names = then_of.get(step, ())
            if now not in told and names and times_key(names[0]) in told:
                before = [each for each in names[: names.index(step)] if each in assigners]
                copies[now] = times_key(names[0]), before[-1] if before else ""
                break
    return tuple(
        replace(part, operators={**part.operators, **dict(_times_now(part.operators, copies))})
        for part in manifest.parts
    )


def _times_now(
    operators: Mapping[str, Json], copies: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, Json]]:
    for now, (then, assigner) in copies.items():
        if then not in operators:
            continue
        assigned = operators.get(assigner)
        if assigner and isinstance(assigned, dict):
            at = assigned.get("watermark_ms")
            yield now, times_to_json(MIN_MS if at is None else at, ())
        else:
            yield now, operators[then]


def renamed(
    manifest: Manifest,
    steps: Mapping[str, str],
    states: Mapping[str, str],
    keys: Mapping[str, Mapping[str, str]] | None = None,
    aggregates: Mapping[str, Mapping[str, str]] | None = None,
) -> Manifest:
    """The manifest with the names that steps, their states, key columns and aggregates have now.

    Args:
        manifest: of a savepoint.
        steps: names then by names now; those that it has not are left out, and so are names that it has already.
        states: ``step/state`` then by ``step/state`` now, both with the step's name now.
        keys: by step now: names of key columns then by names now.
        aggregates: by step now: names of aggregates then by names now.

    Raises:
        CheckpointError: two names now stand for one then, or names have changed places.
    """
    taken = names_now("steps", steps, {name for names in manifest.operator_names.values() for name in names})

    def step(name: str) -> str:
        if is_times_key(name):
            return times_key(taken.get(step_of(name), step_of(name)))
        return taken.get(name, name)

    state_ids = {}
    for name, number in manifest.state_ids.items():
        of_step, slash, state = name.partition("/")
        state_ids[f"{step(of_step)}{slash}{state}"] = number
    moved = names_now("states", states, state_ids)
    state_ids = {moved.get(name, name): number for name, number in state_ids.items()}
    parts = tuple(
        replace(
            part,
            operators={
                step(name): _renamed_keys(
                    _renamed_states(value, step(name), moved), (keys or {}).get(step(name), {})
                )
                for name, value in part.operators.items()
            },
        )
        for part in manifest.parts
    )
    return replace(
        manifest,
        parts=parts,
        state_ids=state_ids,
        origins={
            step(name): tuple(tuple(sorted(map(step, names))) for names in inputs)
            for name, inputs in manifest.origins.items()
        },
        conditions={step(name): inputs for name, inputs in manifest.conditions.items()},
        makers={step(name): inputs for name, inputs in manifest.makers.items()},
        computed={step(name): inputs for name, inputs in manifest.computed.items()},
        late={step(name): rows for name, rows in manifest.late.items()},
        layouts={
            step(name): renamed_layout(step(name), layout, (aggregates or {}).get(step(name), {}))
            for name, layout in manifest.layouts.items()
        },
        operator_names={index: tuple(map(step, names)) for index, names in manifest.operator_names.items()},
    )


def _renamed_states(value: Json, step: str, moved: Mapping[str, str]) -> Json:
    """What a keyed step told, with other names of its states."""
    codec = value.get("codec") if isinstance(value, dict) else None
    if not isinstance(codec, dict) or not isinstance(codec.get("states"), dict):
        return value

    def now(name: str) -> str:
        return moved.get(f"{step}/{name}", f"{step}/{name}").partition("/")[2]

    found = {
        **value,
        "codec": {**codec, "states": {now(name): form for name, form in codec["states"].items()}},
    }
    times = value.get("times")
    if isinstance(times, dict):
        found["times"] = {
            part: {now(name): at for name, at in kept.items()} if isinstance(kept, dict) else kept
            for part, kept in times.items()
        }
    return found


def _renamed_keys(value: Json, columns: Mapping[str, str]) -> Json:
    """What a keyed step told, with other names of its key columns: alone, or with their forms."""
    codec = value.get("codec") if isinstance(value, dict) else None
    if not columns or not isinstance(codec, dict) or not isinstance(codec.get("keys"), list):
        return value
    now_of = names_now(
        "key columns", columns, [each if isinstance(each, str) else each[0] for each in codec["keys"]]
    )

    def now(each: Json) -> Json:
        return now_of.get(each, each) if isinstance(each, str) else [now_of.get(each[0], each[0]), *each[1:]]

    # Rows that are kept as they came have their key columns, too.
    told = {part: [now(each) for each in codec[part]] for part in ("keys", "columns") if part in codec}
    return {**value, "codec": {**codec, **told}}


def _check_dropped(manifest: Manifest, stages: Mapping[int, StageNow], *, allow_dropped: bool) -> None:
    steps = {step for stage in stages.values() for step in stage.steps}
    states = {state for stage in stages.values() for state in stage.states}
    held = {name for part in manifest.parts for name in part.operators if not is_times_key(name)}
    waiting = {
        step_of(name)
        for part in manifest.parts
        for name, told in part.operators.items()
        if is_times_key(name) and has_waiting_rows(told)
    }
    # A step in front of which no rows wait loses nothing with the state for them.
    kept = {
        name
        for name in manifest.state_ids
        if name.partition("/")[2] != _IN_ORDER or name.partition("/")[0] in waiting
    }
    gone = {name for name in held if name not in steps} | {
        name for name in kept if name not in states and name.partition("/")[0] not in steps
    }
    if gone and not allow_dropped:
        raise CheckpointError(
            "the savepoint holds state of steps that the job has not got: "
            f"{', '.join(sorted({name.partition('/')[0] for name in gone}))}; give them back their names, or let their "
            "state go with --allow-dropped-state"
        )
    dropped = sorted({state_text(name) for name in kept - states})
    waits = (name.partition("/") for name in sorted(kept - states))
    elsewhere = [step for step, _, state in waits if state == _IN_ORDER and step in steps]
    if elsewhere and not allow_dropped:
        raise CheckpointError(
            f"step {elsewhere[0]!r}: in the savepoint rows wait in front of it for their time, for a step with "
            "timers in its stage. In the job the stage is divided otherwise: give these steps the parallelism that "
            "they had, or let these rows go with --allow-dropped-state"
        )
    if dropped and not allow_dropped:
        raise CheckpointError(
            f"the savepoint holds states that the job's steps do not have: {', '.join(dropped)}; write the steps as "
            "they were, or let these states go with --allow-dropped-state"
        )


_IN_ORDER = "_in_order"
#: What the states hold that a step has besides those that authors declare, by their names there.
_RESERVED = {
    "": "its state without a name",
    "_event_timers": "its timers",
    "_processing_timers": "its timers",
    "_held": "rows that wait for rules",
    _IN_ORDER: "rows that wait for their time",
    "_late": "late rows that wait",
    "_recent": "rows that are kept for a time",
    "_expiry": "rows that are kept for a time",
}


def state_text(name: str) -> str:
    """Return a state's name, ``step`` or ``step/state``, as people know it."""
    step, _, state = name.partition("/")
    return f"{step} ({_RESERVED[state]})" if state in _RESERVED else name


def _table(stage_index: int, parallelism: int, manifest: Manifest) -> RoutingTable:
    """The savepoint's own table where it fits, so that state stays together; else a new one."""
    table = manifest.routing.get(stage_index)
    if table is not None and table.subtasks == tuple(range(parallelism)):
        return table
    return initial_table(stage_index, parallelism, manifest.max_parallelism)
