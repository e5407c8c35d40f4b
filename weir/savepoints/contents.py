"""What is in a savepoint, without the job: entries and bytes of each state, and its largest key group."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weir.savepoints.checkpoint_reading import CheckpointReading, OpenCheckpoint
from weir.savepoints.saved_state import Moment
from weir.state.api import prefix_end
from weir.state.layout import state_prefix


class StateSize(NamedTuple):
    """The size of one state of one step in the store: a key may have several entries, and many keys may share one."""

    step: str
    #: Empty: the only one of its step.
    state: str
    entries: int
    #: Of keys and values, before they are compressed.
    size_bytes: int
    #: Key groups that have any, and the one that has most bytes; None: none has any.
    groups: int
    largest_group: int | None
    largest_bytes: int


def state_sizes(checkpoint: OpenCheckpoint, on_state: Callable[[str], None]) -> list[StateSize]:
    """Read all entries of a savepoint, and add up each state; ``on_state`` is told which one is read.

    Raises:
        StateError: a file is damaged.
    """
    return [
        _size_of(checkpoint, name, number, on_state)
        for name, number in sorted(checkpoint.manifest.state_ids.items())
    ]


def _size_of(
    checkpoint: OpenCheckpoint, name: str, number: int, on_state: Callable[[str], None]
) -> StateSize:
    on_state(name)
    step, _, state = name.partition("/")
    reading = CheckpointReading(checkpoint, step, state, None, Moment(checkpoint.manifest.created_ms))
    entries = 0
    by_group: dict[int, int] = {}
    for group in sorted(checkpoint.places(step)):
        prefix = state_prefix(group, number)
        stop = prefix_end(prefix)
        assert stop is not None, "it begins with a key group, which is not only 0xFF"
        size_bytes = 0
        for key, value in reading.scan(prefix, stop):
            entries += 1
            size_bytes += len(key) + len(value)
        if size_bytes:
            by_group[group] = size_bytes
    largest = max(by_group, key=by_group.__getitem__, default=None)
    return StateSize(
        step,
        state,
        entries,
        sum(by_group.values()),
        len(by_group),
        largest,
        0 if largest is None else by_group[largest],
    )
