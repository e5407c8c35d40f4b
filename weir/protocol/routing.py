"""Which subtask owns which key group: a versioned table, balanced to within one group, with minimal moves.

Where a group would like to live comes from a consistent-hash ring over the subtasks; loads are bounded, so a
group walks along the ring to the first subtask with room. A rescale keeps every group that may stay: only
groups of removed subtasks and the surplus of overfull ones move. The result depends on nothing but the table
and the subtasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np
from uhashring import HashRing

from weir.errors import GraphError, StateError
from weir.types import MAX_PARALLELISM_MAX

#: Owner epoch of a group in the first table; 0 means that nobody has owned it.
FIRST_OWNER_EPOCH = 1
_RING_POINTS_PER_SUBTASK = 64


@dataclass(frozen=True, slots=True)
class GroupMove:
    """A key group changes its owner, from subtask index ``source`` to ``target``."""

    group: int
    source: int
    target: int


@dataclass(frozen=True)
class RoutingTable:
    """Owners of all key groups of one stage.

    Raises:
        ValueError: the parts contradict each other.
    """

    stage_index: int
    #: ``routing_version``: grows by one with every rescale.
    version: int
    #: Subtask indices that take part, ascending; with few groups one may own none.
    subtasks: tuple[int, ...]
    #: ``groups[g]`` is the subtask index that owns group g; ``max_parallelism`` entries.
    groups: tuple[int, ...]
    #: ``owner_epochs[g]`` fences writes to group g: a lower epoch is refused.
    owner_epochs: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.owner_epochs) != len(self.groups) or not self.groups:
            raise ValueError(f"{len(self.groups)} groups but {len(self.owner_epochs)} owner epochs")
        if list(self.subtasks) != sorted(set(self.subtasks)) or self.subtasks[0] < 0:
            raise ValueError(f"subtasks {self.subtasks} are not ascending indices")
        if not set(self.groups) <= set(self.subtasks):
            raise ValueError(f"groups name subtasks other than {self.subtasks}")

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return len(self.groups)

    @property
    def subtask_count(self) -> int:
        """Return one more than the highest subtask index: what ``weir.keys.hashing.partition_hashes`` takes."""
        return self.subtasks[-1] + 1

    @cached_property
    def group_to_subtask(self) -> np.ndarray:
        """``groups`` as a read-only int32 array of shape (max_parallelism,)."""
        array = np.array(self.groups, dtype=np.int32)
        array.flags.writeable = False
        return array

    def groups_of(self, subtask_index: int) -> list[int]:
        """Groups that a subtask owns, ascending."""
        return [group for group, owner in enumerate(self.groups) if owner == subtask_index]

    def to_dict(self) -> dict[str, object]:
        """JSON-able, as manifests and records hold it; :meth:`from_dict` is the inverse."""
        return {
            "stage": self.stage_index,
            "version": self.version,
            "subtasks": list(self.subtasks),
            "groups": list(self.groups),
            "owner_epochs": list(self.owner_epochs),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, object], stage_index: int | None = None) -> RoutingTable:
        """The table that :meth:`to_dict` described; ``stage_index`` if the document does not say it.

        Raises:
            StateError: the document is not one of a routing table.
        """
        try:
            return cls(
                stage_index=_integer(document["stage"] if stage_index is None else stage_index),
                version=_integer(document["version"]),
                subtasks=_integers(document["subtasks"]),
                groups=_integers(document["groups"]),
                owner_epochs=_integers(document["owner_epochs"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StateError(f"not a routing table: {error!r}") from error


def initial_table(stage_index: int, subtask_count: int, max_parallelism: int) -> RoutingTable:
    """The first table of a stage whose subtasks are ``0 .. subtask_count - 1``.

    Raises:
        GraphError: there are more subtasks than groups, or a count is out of range.
    """
    if not 1 <= max_parallelism <= MAX_PARALLELISM_MAX:
        raise GraphError(f"max_parallelism is {max_parallelism}; it must be in 1..{MAX_PARALLELISM_MAX}")
    subtasks = tuple(range(subtask_count))
    _check_subtasks(stage_index, subtasks, max_parallelism)
    owners = _first_owners(subtasks, max_parallelism)
    return RoutingTable(stage_index, 1, subtasks, owners, (FIRST_OWNER_EPOCH,) * max_parallelism)


@lru_cache(maxsize=32)
def _first_owners(subtasks: tuple[int, ...], group_count: int) -> tuple[int, ...]:
    """Owners where nobody has a group yet; kept, since stages and jobs of a process often ask for the same ones."""
    return _assign([None] * group_count, subtasks, _preferences(group_count, subtasks))


def rescaled(table: RoutingTable, subtasks: int | Iterable[int]) -> tuple[RoutingTable, list[GroupMove]]:
    """The next table, and the fewest moves that lead to it, by group.

    Args:
        table: the table in force.
        subtasks: the subtask indices from now on; a number n means ``0 .. n - 1``.

    Returns:
        A table with version + 1 and owner epoch + 1 for each moved group, and those moves.

    Raises:
        GraphError: there would be no subtask, or more subtasks than groups.
    """
    wanted = tuple(range(subtasks)) if isinstance(subtasks, int) else tuple(sorted(set(subtasks)))
    _check_subtasks(table.stage_index, wanted, table.max_parallelism)
    preferences = _preferences(table.max_parallelism, wanted)
    owners = _assign(_kept(table.groups, wanted, preferences), wanted, preferences)
    moves = [
        GroupMove(group, source, target)
        for group, (source, target) in enumerate(zip(table.groups, owners, strict=True))
        if source != target
    ]
    epochs = list(table.owner_epochs)
    for move in moves:
        epochs[move.group] += 1
    return RoutingTable(table.stage_index, table.version + 1, wanted, owners, tuple(epochs)), moves


def _check_subtasks(stage_index: int, subtasks: tuple[int, ...], max_parallelism: int) -> None:
    if not subtasks or subtasks[0] < 0:
        raise GraphError(f"stage {stage_index}: needs at least one subtask, and indices from 0")
    if len(subtasks) > max_parallelism:
        raise GraphError(
            f"stage {stage_index}: {len(subtasks)} subtasks, but only {max_parallelism} key groups to share; "
            "lower the parallelism or raise max_parallelism"
        )


def _quotas(loads: Mapping[int, int], subtasks: tuple[int, ...], group_count: int) -> dict[int, int]:
    """Groups that each subtask ends with. The odd groups stay where most are, which saves moves."""
    share, odd = divmod(group_count, len(subtasks))
    by_load = sorted(subtasks, key=lambda subtask: (-loads.get(subtask, 0), subtask))
    return {subtask: share + (position < odd) for position, subtask in enumerate(by_load)}


def _kept(
    groups: tuple[int, ...], subtasks: tuple[int, ...], preferences: list[list[int]]
) -> list[int | None]:
    """Owners of the groups that stay; None for those that must move.

    An overfull subtask gives up the groups on whose way along the ring it comes last.
    """
    loads = Counter(owner for owner in groups if owner in subtasks)
    quotas = _quotas(loads, subtasks, len(groups))
    owners: list[int | None] = [owner if owner in quotas else None for owner in groups]
    for subtask in subtasks:
        surplus = loads[subtask] - quotas[subtask]
        if surplus <= 0:
            continue
        own = [group for group, owner in enumerate(groups) if owner == subtask]
        own.sort(key=lambda group: (-preferences[group].index(subtask), group))
        for group in own[:surplus]:
            owners[group] = None
    return owners


def _assign(
    owners: list[int | None], subtasks: tuple[int, ...], preferences: list[list[int]]
) -> tuple[int, ...]:
    """Give each group without an owner to the first subtask with room on its way along the ring."""
    loads = Counter(owner for owner in owners if owner is not None)
    quotas = _quotas(loads, subtasks, len(owners))
    result = []
    for owner, preference in zip(owners, preferences, strict=True):
        if owner is None:
            owner = next(subtask for subtask in preference if loads[subtask] < quotas[subtask])
            loads[owner] += 1
        result.append(owner)
    return tuple(result)


def _preferences(group_count: int, subtasks: tuple[int, ...]) -> list[list[int]]:
    """Return for each group all subtasks, in the order in which a walk along the ring meets them."""
    indices = {f"subtask-{subtask}": subtask for subtask in subtasks}
    ring = HashRing(nodes=list(indices), hash_fn=_ring_hash, vnodes=_RING_POINTS_PER_SUBTASK)
    return [[indices[name] for name in ring.iterate_nodes(f"group-{group}")] for group in range(group_count)]


def _ring_hash(name: str) -> int:
    """Position on the ring; the same in every process and version, unlike ``hash()``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is not a list")
    return tuple(_integer(item) for item in value)
