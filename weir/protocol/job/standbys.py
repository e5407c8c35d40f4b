"""Which task managers keep the state of others, so as to take over from them at once. Pure.

The unit is the task manager, not the key group: its store has one image, with all of its key groups, which is opened as
a whole, and a placement moves the subtasks of a lost task manager together (``placement.place``). See docs/design/0020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from weir.protocol.job.placement import TaskManagerLoad

#: Names of the standbys of each task manager with state.
Standbys = Mapping[str, Sequence[str]]


def choose_standbys(
    owners: Mapping[str, int],
    members: Sequence[TaskManagerLoad],
    replicas: int,
    before: Standbys,
) -> dict[str, tuple[str, ...]]:
    """Choose other task managers for each one that has state, spread evenly, with as few changes as that takes.

    Candidates are those with free slots for all subtasks of the owner; where there are too few of them, those with any.
    Among these, the loads (for how many others each is the standby) differ by at most one, unless slots forbid it.

    Args:
        owners: by name of a task manager with state: subtasks that run there, all of which would have to move.
        members: who may be chosen, with what runs there.
        replicas: standbys of each owner; fewer where there are not so many others.
        before: what was chosen before; those who are still candidates have the tables already.

    Returns:
        By owner the names of its standbys, those that were chosen first before the others.
    """
    candidates = {owner: _candidates(owner, count, members, replicas) for owner, count in owners.items()}
    chosen = {
        owner: [name for name in before.get(owner, ()) if name in candidates[owner]][:replicas]
        for owner in sorted(owners)
    }
    loads = Counter(name for names in chosen.values() for name in names)
    running = {member.name: sum(member.running.values()) for member in members}
    # Who has least to choose from goes first.
    for owner in sorted(chosen, key=lambda each: (len(candidates[each]), each)):
        while len(chosen[owner]) < replicas and (free := candidates[owner] - set(chosen[owner])):
            name = min(free, key=lambda each: (loads[each], running[each], each))
            chosen[owner].append(name)
            loads[name] += 1
    while change := _evening(chosen, candidates, loads):
        owner, source, target = change
        chosen[owner].remove(source)
        chosen[owner].append(target)
        loads[source] -= 1
        loads[target] += 1
    return {owner: tuple(names) for owner, names in chosen.items()}


def _candidates(owner: str, subtasks: int, members: Iterable[TaskManagerLoad], replicas: int) -> set[str]:
    free = {member.name: member.free_slots for member in members if member.name != owner}
    roomy = {name for name, slots in free.items() if slots >= subtasks}
    return roomy if len(roomy) >= replicas else {name for name, slots in free.items() if slots}


def _evening(
    chosen: Mapping[str, Sequence[str]], candidates: Mapping[str, set[str]], loads: Mapping[str, int]
) -> tuple[str, str, str] | None:
    """Owner, its standby, and one with at least two less to keep; None: all is even.

    Each such change lowers the sum of the squares of all loads, so there is an end of them.
    """
    found = [
        (loads[target] - loads[source], owner, source, target)
        for owner, names in chosen.items()
        for source in names
        for target in candidates[owner] - set(names)
        if loads[source] - loads[target] >= 2
    ]
    return min(found)[1:] if found else None
