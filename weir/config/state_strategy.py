"""What becomes of a key group's state in a rescale: one decision of the control plane, which every Deploy tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StateMove(Enum):
    """How the state of a group follows the group to an owner on another task manager."""

    #: It is sent first; the group changes hands when all of it is there.
    SHIPPED = "shipped"
    #: It stays in the old owner's store, which the new owner reads and writes.
    LEFT = "left"
    #: The new owner begins at once, fetches keys at first use, and the rest in the background.
    FETCHED = "fetched"


@dataclass(frozen=True, slots=True)
class StateStrategy:
    """The same in all processes of a job: the control plane's configuration counts, and task managers are told."""

    move: StateMove = StateMove.FETCHED
    #: The control plane is asked before every batch where state is, instead of remembering it; for comparison only.
    asks_for_places: bool = False
    #: With FETCHED: a new owner opens the images of the latest checkpoint instead, where that is possible
    #: (docs/design/0019).
    relinks: bool = False

    @classmethod
    def from_settings(
        cls, *, use_hybrid: bool, use_migrate: bool, use_cache: bool, use_relink: bool = False
    ) -> StateStrategy:
        """The strategy that four keys of section ``taskManager`` describe; without hybrid the others say nothing."""
        if not use_hybrid:
            return cls(StateMove.SHIPPED)
        if not use_migrate:
            return cls(StateMove.LEFT, asks_for_places=not use_cache)
        return cls(StateMove.FETCHED, asks_for_places=not use_cache, relinks=use_relink)

    def __str__(self) -> str:
        """Return the strategy as the keys of config.json that stand for it."""
        if self.move is StateMove.SHIPPED:
            return "useHybrid false"
        migrates = str(self.move is StateMove.FETCHED).lower()
        relinks = ", useRelink true" if self.relinks else ""
        return f"useHybrid true, useMigrate {migrates}, useCache {str(not self.asks_for_places).lower()}{relinks}"
