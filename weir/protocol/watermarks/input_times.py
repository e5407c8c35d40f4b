"""The watermarks of a subtask's inputs in a checkpoint: a row that was late is late after a restart, too. Pure.

What one subtask tells, beside what its operators do::

    {"version": 2, "shown": 1700000000000,          its own watermark
     "inputs": [[0, 2, 1700000000500]],             input, subtask that sends, watermark of that channel, or null
     "combined": 1700000000500,                     of all inputs, where less is shown because rows are held back
     "waiting": 7}                                  rows that wait for their time in front of it, if there are some

A subtask of a source has no inputs. Version 1 leaves channels out that have come to nothing yet.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.errors import CheckpointError
from weir.protocol.watermarks.time_reached import channels_by_edge
from weir.types import ChannelId

VERSION = 2
#: It does not tell of all channels.
_SPARSE_VERSION = 1
_SUFFIX = "#times"
#: No time has come.
MIN_MS = -(2**63)
_MAX_MS = 2**63 - 1


def times_key(step: str) -> str:
    """The name under which a stage's subtasks tell this, by its first step; no step can be called like that."""
    return step + _SUFFIX


def is_times_key(name: str) -> bool:
    """Return whether :func:`times_key` made it: a step that goes takes nothing along that could be missed."""
    return name.endswith(_SUFFIX)


def has_waiting_rows(told: Any) -> bool:
    """Return whether rows waited for their time; ``told``: under a name of :func:`times_key`."""
    return isinstance(told, dict) and bool(told.get("waiting"))


def step_of(name: str) -> str:
    """The step of which :func:`times_key` made a name."""
    return name.removesuffix(_SUFFIX)


def times_to_json(
    shown_ms: int,
    channels: Iterable[tuple[ChannelId, int]],
    combined_ms: int | None = None,
    waiting_rows: int = 0,
) -> Any:
    """Return the watermarks of inputs as JSON. Channels that have come to the end of time are left out.

    Args:
        shown_ms: the watermark that is shown.
        channels: with their watermarks.
        combined_ms: what the inputs have come to together, where less was shown because rows are held back.
        waiting_rows: how many wait for their time.
    """
    known = sorted(
        (channel.edge_index, channel.producer.subtask_index, time_ms) for channel, time_ms in channels
    )
    inputs = [[edge, producer, _to_json(at)] for edge, producer, at in known if at != _MAX_MS]
    told: dict[str, Any] = {"version": VERSION, "shown": _to_json(shown_ms), "inputs": inputs}
    if waiting_rows:
        told["waiting"] = waiting_rows
    if combined_ms is None or combined_ms <= shown_ms or combined_ms == _MAX_MS:
        return told
    return told | {"combined": combined_ms}


@dataclass(frozen=True)
class InputTimes:
    """Where a subtask goes on by event time; as it stands, at a start from nothing."""

    shown_ms: int = MIN_MS
    #: By input and sending subtask; of others, what is known by input alone.
    by_channel: Mapping[tuple[int, int], int] = field(default_factory=dict)
    by_input: Mapping[int, int] = field(default_factory=dict)
    #: What the inputs had come to together, where that is more than was shown.
    combined_ms: int = MIN_MS
    #: They are those of this subtask, and all that was under way to it comes to it now.
    is_own: bool = False

    def of_all(self, channels: Collection[ChannelId]) -> dict[Hashable, int]:
        """The watermarks of all channels of the subtask that are there now.

        Where others send than did before, the rows of any of them may come from any now: the lowest time counts.
        """
        found: dict[Hashable, int] = {}
        for edge, own in channels_by_edge(channels).items():
            before = {producer: at for (e, producer), at in self.by_channel.items() if e == edge}
            lowest_ms = self.by_input.get(edge, min(before.values(), default=MIN_MS))
            is_same = before.keys() == {channel.producer.subtask_index for channel in own}
            for channel in own:
                found[channel] = before[channel.producer.subtask_index] if is_same else lowest_ms
        return found


def restored_times(told: Mapping[int, Any], index: int, indices: Collection[int]) -> InputTimes:
    """What a subtask begins with.

    Args:
        told: by the subtasks of the checkpoint, by their indices.
        index: of this subtask.
        indices: of all subtasks of its stage now. If they are others than those of the checkpoint, the lowest times
            of all of these count: nothing that one of them waited for may be late.

    Raises:
        CheckpointError: it has another form.
    """
    if not told:
        return InputTimes()
    own = [told[index]] if set(told) == set(indices) else list(told.values())
    try:
        versions = {value["version"] for value in own}
        if not versions <= {VERSION, _SPARSE_VERSION}:
            raise CheckpointError(
                f"the checkpoint holds watermarks of version {max(versions)}, this is Weir with version {VERSION}; "
                "start from it with the version of Weir that made it"
            )
        shown = [_from_json(value["shown"]) for value in own]
        combined = [int(value.get("combined", MIN_MS)) for value in own]
        maps = [{(int(e), int(p)): _from_json(at) for e, p, at in value["inputs"]} for value in own]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint holds watermarks that cannot be read ({type(error).__name__}: {error}); "
            "start from another one"
        ) from error
    if versions == {_SPARSE_VERSION} and MIN_MS in shown:
        # A channel that has come to nothing may have been left out.
        maps = [{} for _ in maps]
    if len(own) == 1:
        is_own = set(told) == set(indices)
        return InputTimes(shown[0], maps[0], combined_ms=max(shown[0], combined[0]), is_own=is_own)
    edges = {edge for known in maps for edge, _ in known}
    by_input = {edge: min(_lowest(known, edge) for known in maps) for edge in edges}
    together = [max(pair) for pair in zip(shown, combined, strict=True)]
    return InputTimes(min(shown), {}, by_input, min(together))


def _to_json(time_ms: int) -> int | None:
    return None if time_ms == MIN_MS else time_ms


def _from_json(time_ms: Any) -> int:
    return MIN_MS if time_ms is None else int(time_ms)


def _lowest(known: Mapping[tuple[int, int], int], edge: int) -> int:
    return min((at for (e, _), at in known.items() if e == edge), default=MIN_MS)
