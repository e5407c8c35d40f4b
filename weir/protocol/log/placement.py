"""Which brokers get the replicas of partitions: of new ones, of those of a broker that is to go, and after one came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar


def place_replicas(
    partitions: int, replication: int, brokers: Collection[int], first: int = 0
) -> list[list[int]]:
    """Spread the replicas of a new topic over brokers; each list begins with another broker, in turn.

    Args:
        partitions: of the topic.
        replication: replicas of each; at most as many as there are brokers.
        brokers: ids of those that live.
        first: how many partitions there are already, so that topics of one partition begin at different brokers.
    """
    ring = sorted(brokers)
    return [
        [ring[(first + partition + step) % len(ring)] for step in range(replication)]
        for partition in range(partitions)
    ]


PartitionT = TypeVar("PartitionT")


def without_broker(
    placed: Mapping[PartitionT, Sequence[int]], leaving: int, brokers: Collection[int]
) -> dict[PartitionT, list[int]]:
    """Give the replicas of a broker to others, in its places, each to the one that has the fewest.

    Args:
        placed: replicas of each partition.
        leaving: the broker.
        brokers: ids of those that live and may have replicas.

    Returns:
        The new replicas of the partitions that it has; those for which there is no other broker are left out.
    """
    load = Counter(each for replicas in placed.values() for each in replicas)
    found = {}
    for partition, replicas in placed.items():
        others = [each for each in brokers if each not in replicas and each != leaving]
        if leaving in replicas and others:
            heir = min(others, key=lambda each: (load[each], each))
            load[heir] += 1
            found[partition] = [heir if each == leaving else each for each in replicas]
    return found


def balanced(
    placed: Mapping[PartitionT, Sequence[int]], brokers: Collection[int]
) -> dict[PartitionT, list[int]]:
    """Move as few replicas as needed until brokers have equally many, and let equally many lead on each.

    Args:
        placed: replicas of each partition; the first one is to lead.
        brokers: ids of those that live and may have replicas; what others have stays there.

    Returns:
        The new replicas of the partitions that change.
    """
    result = {partition: list(replicas) for partition, replicas in placed.items()}
    load = Counter({each: 0 for each in brokers})
    load.update(each for replicas in result.values() for each in replicas if each in load)
    while move := _next_move(result, load):
        partition, giver, taker = move
        result[partition] = [taker if each == giver else each for each in result[partition]]
        load[giver] -= 1
        load[taker] += 1
    while path := _next_path(result, brokers):
        for partition, leader in path:
            result[partition].remove(leader)
            result[partition].insert(0, leader)
    return {
        partition: replicas for partition, replicas in result.items() if replicas != list(placed[partition])
    }


def _next_move(
    placed: Mapping[PartitionT, Sequence[int]], load: Mapping[int, int]
) -> tuple[PartitionT, int, int] | None:
    """Return a partition, who gives its replica away and who takes it; None: no move makes it more even."""
    by_load = sorted(load, key=lambda each: (load[each], each))
    for giver in reversed(by_load):
        for taker in by_load:
            if load[giver] - load[taker] < 2:
                break
            for partition, replicas in placed.items():
                if giver in replicas and taker not in replicas:
                    return partition, giver, taker
    return None


def _next_path(
    placed: Mapping[PartitionT, Sequence[int]], brokers: Collection[int]
) -> list[tuple[PartitionT, int]]:
    """Return partitions and who is to lead each of them instead, so that a broker with few gets one from one with many.

    A leadership may go from one to the other over several brokers in between, whose numbers stay.
    """
    leads = Counter({each: 0 for each in brokers})
    leads.update(replicas[0] for replicas in placed.values())
    for giver in sorted(leads, key=lambda each: (-leads[each], each)):
        paths: dict[int, list[tuple[PartitionT, int]]] = {giver: []}
        reached = [giver]
        for leader in reached:
            if leads[giver] - leads[leader] > 1:
                return paths[leader]
            for partition, replicas in placed.items():
                for other in replicas[1:] if replicas[0] == leader else ():
                    if other in brokers and other not in paths:
                        paths[other] = [*paths[leader], (partition, other)]
                        reached.append(other)
    return []
