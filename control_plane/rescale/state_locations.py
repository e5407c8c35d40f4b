"""Where the state of key groups is: with their owner, or in the store of an earlier one (hybrid state)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence


class StateLocations:
    """Addresses of stores per (stage, key group), as owners report them. Used in the event loop only."""

    def __init__(self, owner_address: Callable[[int, int], str]) -> None:
        """``owner_address`` returns the task manager of a group's owner, where state is unless known otherwise."""
        self._owner_address = owner_address
        self._addresses: dict[tuple[int, int], str] = {}

    def note(self, stage_index: int, groups: Iterable[int], addresses: Iterable[str]) -> None:
        """An owner reports where the state of its groups is."""
        for group, address in zip(groups, addresses, strict=True):
            self._addresses[stage_index, group] = address

    def pin(self, stage_index: int, groups: Iterable[int]) -> None:
        """The owners of these groups are about to change: their state stays where it is for now."""
        for group in groups:
            self._addresses.setdefault((stage_index, group), self._owner_address(stage_index, group))

    def moved_to_owner(self, stage_index: int, group: int) -> None:
        """The owner has fetched the state of a group."""
        self._addresses.pop((stage_index, group), None)

    def held_at(self, address: str) -> list[tuple[int, int]]:
        """(stage, group) of all state that was reported to be in this store."""
        return sorted(item for item, known in self._addresses.items() if known == address)

    def has_remote(self) -> bool:
        """Return whether the state of any group is not, or not completely, with its owner."""
        return any(True for _ in self._remote())

    def remote_counts(self) -> Counter[int]:
        """Key groups by stage whose state is not, or not completely, with their owner."""
        return Counter(stage for stage, _ in self._remote())

    def _remote(self) -> Iterator[tuple[int, int]]:
        for (stage, group), address in self._addresses.items():
            if address != self._owner_address(stage, group):
                yield stage, group

    def locate(self, stage_index: int, groups: Sequence[int]) -> list[str]:
        """The address of each group's store."""
        return [
            self._addresses.get((stage_index, group)) or self._owner_address(stage_index, group)
            for group in groups
        ]
