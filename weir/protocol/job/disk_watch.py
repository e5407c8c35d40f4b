"""When a job reads nothing more because a disk with its state is almost full, and when it reads on. Pure.

A full disk ends in failed checkpoints, restarts and merges that cannot be written, and frees nothing. While sources
read nothing, checkpoints go on: old ones go, and merges come to an end.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of small disks this share is enough, whatever the setting says.
_SHARE_MAX = 0.1
#: A disk is told of that has so many times the room at which reading stops; reading goes on with so many times.
_WARNED, _ENOUGH = 2.0, 1.5


@dataclass(frozen=True)
class DiskNote:
    """What an operator is to be told; ``is_bad``: it became worse."""

    message: str
    is_bad: bool


def reserved_bytes(hold_bytes: int, disk_bytes: int) -> int:
    """So much of a disk stays free of what is only there to be quick: with less, an operator is warned.

    Args:
        hold_bytes: as of ``DiskWatch``.
        disk_bytes: size of the disk.
    """
    return int(_WARNED * _bound(hold_bytes, disk_bytes))


def _bound(hold_bytes: int, disk_bytes: int) -> int:
    return min(hold_bytes, int(disk_bytes * _SHARE_MAX))


class DiskWatch:
    """The disks of the state of all task managers, by their addresses; called with each heartbeat.

    Args:
        hold_bytes: nothing is read while a disk has less room than this; 0: always.
    """

    def __init__(self, hold_bytes: int) -> None:
        self._hold_bytes = hold_bytes
        #: By address, why its disk holds the job back; and those that were warned of.
        self._held: dict[str, str] = {}
        self._warned: set[str] = set()

    @property
    def reason(self) -> str:
        """Why sources read nothing now, one line; empty: they read."""
        return "; ".join(self._held[address] for address in sorted(self._held))

    def held_by(self, address: str) -> str:
        """Why the disk of one task manager holds the job back; empty: it does not."""
        return self._held.get(address, "")

    def take(self, address: str, free_bytes: int, disk_bytes: int) -> DiskNote | None:
        """A task manager tells of its disk; 0 bytes in all: it does not know.

        Returns:
            What is new; None: nothing is.
        """
        if not disk_bytes or not self._hold_bytes:
            return None
        bound = _bound(self._hold_bytes, disk_bytes)
        if free_bytes >= _WARNED * bound:
            self._warned.discard(address)
        free = f"{free_bytes / 2**20:,.0f} MiB"
        if address in self._held:
            if free_bytes < _ENOUGH * bound:
                return None
            del self._held[address]
            return DiskNote(f"the disk of {address} has {free} free again: sources read on", is_bad=False)
        if free_bytes < bound:
            self._warned.add(address)
            self._held[address] = (
                f"the disk of {address} has {free} free, less than {bound / 2**20:,.0f} MiB; free some, or drain it"
            )
            return DiskNote(f"{self._held[address]}; sources read nothing until then", is_bad=True)
        if free_bytes < _WARNED * bound and address not in self._warned:
            self._warned.add(address)
            return DiskNote(
                f"the disk of {address} has {free} free; with less than {bound / 2**20:,.0f} MiB sources stop reading",
                is_bad=True,
            )
        return None

    def forget(self, address: str) -> None:
        """A task manager has left: its disk holds nobody back."""
        self._held.pop(address, None)
        self._warned.discard(address)
