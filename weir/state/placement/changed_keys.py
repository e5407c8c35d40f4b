"""Which keys of a subtask's state have changed since an image of its store: what a relinked key group lacks.

Pure bookkeeping, no I/O. ``PlacedStore`` notes each write; see docs/design/0019. The images are those of checkpoints,
of which only some come to be complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

#: Keys that are noted at most, with what a set needs for each.
NOTED_BYTES_MAX = 64 << 20
_KEY_OVERHEAD_BYTES = 100
_SEGMENTS_MAX = 256

#: A key group as the two bytes with which its keys begin.
GroupBytes: TypeAlias = bytes


@dataclass(eq=False)
class _Segment:
    """What has changed between an image, or a moment when groups left, and the next one."""

    #: Number of the checkpoint whose image came before.
    checkpoint_id: int
    keys: set[bytes] = field(default_factory=set)
    #: Groups that came, or of which a range was deleted.
    unknown: set[GroupBytes] = field(default_factory=set)
    #: Too much has changed to be noted.
    is_lost: bool = False
    size_bytes: int = 0


@dataclass(frozen=True)
class ChangesSince:
    """The notes as they were when groups left; nothing in them changes any more."""

    segments: Sequence[_Segment] = ()

    def of(
        self, checkpoint_id: int, groups: Collection[int], after: ChangesSince | None = None
    ) -> dict[int, list[bytes]]:
        """The keys of each group that may have changed since the image of a checkpoint, in order.

        Groups of which that is not known are left out. Any thread may call it. ``after``: without what is in these
        earlier notes, unless it has changed again.
        """
        since = [each for each in self.segments if each.checkpoint_id >= checkpoint_id]
        is_known = bool(since) and since[0].checkpoint_id == checkpoint_id
        if not is_known or any(each.is_lost for each in since):
            return {}
        unknown = set().union(*(each.unknown for each in since))
        wanted = {group.to_bytes(2, "big"): group for group in groups}
        found: dict[int, list[bytes]] = {group: [] for name, group in wanted.items() if name not in unknown}
        seen = () if after is None else after.segments
        for key in sorted(set().union(*(each.keys for each in since if each not in seen))):
            group = wanted.get(key[:2])
            if group in found:
                found[group].append(key)
        return found


#: Of groups whose changes nobody has noted.
NO_CHANGES_KNOWN = ChangesSince()


class ChangedKeys:
    """Not thread-safe: the lock of the subtask's state guards it."""

    def __init__(self, bytes_max: int = NOTED_BYTES_MAX) -> None:
        """``bytes_max``: of noted keys; beyond it nothing is known until the next image."""
        self._bytes_max = bytes_max
        #: Oldest first. Empty before the first image: what came before it is in all images.
        self._segments: list[_Segment] = []

    def note(self, keys: Iterable[bytes]) -> None:
        """Note that keys were written or deleted."""
        if not self._segments or self._segments[-1].is_lost:
            return
        last, listed = self._segments[-1], list(keys)
        before = len(last.keys)
        last.keys.update(listed)
        if listed:
            key_bytes = sum(map(len, listed)) // len(listed) + _KEY_OVERHEAD_BYTES
            last.size_bytes += (len(last.keys) - before) * key_bytes
        if sum(each.size_bytes for each in self._segments) > self._bytes_max:
            self._segments = [_Segment(last.checkpoint_id, is_lost=True)]

    def forget(self, groups: Iterable[int]) -> None:
        """What changes in these groups is not known: they come from another owner, or lose a range."""
        if self._segments:
            self._segments[-1].unknown.update(group.to_bytes(2, "big") for group in groups)

    def image_taken(self, checkpoint_id: int) -> None:
        """The store's image for a checkpoint has everything until now."""
        if len(self._segments) >= _SEGMENTS_MAX:
            # Of checkpoints that were given up, one after the other.
            self._segments = []
        self._segments.append(_Segment(checkpoint_id))

    def committed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: nobody asks for changes since an earlier one."""
        if any(each.checkpoint_id == checkpoint_id for each in self._segments):
            self._segments = [each for each in self._segments if each.checkpoint_id >= checkpoint_id]

    def sealed(self) -> ChangesSince:
        """The notes until now, for groups that leave; later ones do not show in them."""
        if not self._segments:
            return NO_CHANGES_KNOWN
        last = self._segments[-1]
        segments = tuple(self._segments)
        self._segments.append(_Segment(last.checkpoint_id, is_lost=last.is_lost))
        return ChangesSince(segments)
