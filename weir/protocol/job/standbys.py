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

    Candidates are those with free slots for all subtasks of the owner. Where there are fewer of them than replicas, all
    of them are chosen, and others with any free slot beside them. Otherwise the loads (for how many others each is the
    standby) differ by at most one, unless slots forbid it.

    Args:
        owners: by name of a task manager with state: subtasks that run there, all of which would have to move.
        members: who may be chosen, with what runs there.
        replicas: standbys of each owner; fewer where there are not so many others.
        before: what was chosen before; those who are still candidates have the tables already.

    Returns:
        By owner the names of its standbys, those that were chosen first before the others.
    """
    roomy = {owner: _with_room(owner, count, members) for owner, count in owners.items()}
    candidates = {
        owner: names if len(names) >= replicas else _with_room(owner, 1, members)
        for owner, names in roomy.items()
    }
    chosen = {
        owner: _kept(before.get(owner, ()), roomy[owner], candidates[owner], replicas)
        for owner in sorted(owners)
    }
    loads = Counter(name for names in chosen.values() for name in names)
    running = {member.name: sum(member.running.values()) for member in members}
    # Who has least to choose from goes first.
    for owner in sorted(chosen, key=lambda each: (len(candidates[each]), each)):
        while len(chosen[owner]) < replicas and (free := candidates[owner] - set(chosen[owner])):
            name = min(free & roomy[owner] or free, key=lambda each: (loads[each], running[each], each))
            chosen[owner].append(name)
            loads[name] += 1
    while change := _evening(chosen, roomy, candidates, loads):
        owner, source, target = change
        chosen[owner].remove(source)
        chosen[owner].append(target)
        loads[source] -= 1
        loads[target] += 1
    return {owner: tuple(names) for owner, names in chosen.items()}


def _with_room(owner: str, slots: int, members: Iterable[TaskManagerLoad]) -> set[str]:
    return {member.name for member in members if member.name != owner and member.free_slots >= slots}


def _kept(before: Sequence[str], roomy: set[str], candidates: set[str], replicas: int) -> list[str]:
    """Return who stays of those chosen before; one without room for all does not take the place of one that has it."""
    others = [name for name in before if name in candidates - roomy][: max(0, replicas - len(roomy))]
    return [name for name in before if name in roomy or name in others][:replicas]


def _evening(
    chosen: Mapping[str, Sequence[str]],
    roomy: Mapping[str, set[str]],
    candidates: Mapping[str, set[str]],
    loads: Mapping[str, int],
) -> tuple[str, str, str] | None:
    """Owner, its standby, and one with at least two less to keep; None: all is even.

    Each such change lowers the sum of the squares of all loads, so there is an end of them.
    """
    found = [
        (loads[target] - loads[source], owner, source, target)
        for owner, names in chosen.items()
        for source in names
        for target in candidates[owner] - set(names)
        if loads[source] - loads[target] >= 2 and (source not in roomy[owner] or target in roomy[owner])
    ]
    return min(found)[1:] if found else None
