"""Which epoch wrote which offsets of a log, and up to where two logs are the same.

Truncation is by epoch and never by a remembered commit offset (KIP-101, KIP-279; ``next_anchors.md`` 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Lineage:
    """The epochs of one log in ascending order, each with the offset of its first entry."""

    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def last_epoch(self) -> int:
        """Epoch of the last entry; 0: there is none."""
        return self.starts[-1][0] if self.starts else 0

    def add(self, epoch: int, offset: int) -> None:
        """Note that an entry at this offset was written in this epoch."""
        if epoch > self.last_epoch:
            self.starts.append((epoch, offset))

    def truncate(self, end: int) -> None:
        """Forget epochs that wrote only at or behind ``end``."""
        while self.starts and self.starts[-1][1] >= end:
            self.starts.pop()

    def end_of(self, epoch: int, log_end: int) -> int:
        """Offset behind the last entry of an epoch, or of the latest one before it."""
        return next((start for each, start in self.starts if each > epoch), log_end)

    def agreement(self, log_end: int, others: Iterable[tuple[int, int]], others_end: int) -> int:
        """Offset up to which this log and another one hold the same entries, as far as their epochs tell.

        One leader wrote each epoch, so two logs that have an epoch both are equal up to where it ends first.

        Args:
            log_end: end of this log.
            others: epochs of the other log, as ``starts``.
            others_end: end of the other log.
        """
        other = Lineage(list(others))
        shared = {epoch for epoch, _ in self.starts} & {epoch for epoch, _ in other.starts}
        if not shared:
            return 0
        latest = max(shared)
        return min(self.end_of(latest, log_end), other.end_of(latest, others_end))
