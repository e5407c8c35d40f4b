"""Refuse writers that have been replaced: every key group carries an owner epoch, and lower ones are turned away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weir.errors import FencedError


@dataclass
class EpochFence:
    """Highest owner epoch seen per (stage, key group). Pure; the state service holds one per job."""

    _epochs: dict[tuple[int, int], int] = field(default_factory=dict)

    def admit(self, stage_index: int, groups: Iterable[tuple[int, int]]) -> None:
        """Accept a request that carries ``(key_group, owner_epoch)`` pairs, and remember higher epochs.

        Nothing is remembered unless every pair is accepted.

        Raises:
            FencedError: one of the epochs is older than the one in force.
        """
        pairs = list(groups)
        for group, epoch in pairs:
            current = self._epochs.get((stage_index, group), 0)
            if epoch < current:
                raise FencedError(
                    f"stage {stage_index}, key group {group}: owner epoch {epoch} was replaced by {current}; "
                    "the caller no longer owns this group"
                )
        for group, epoch in pairs:
            self._epochs[stage_index, group] = epoch
