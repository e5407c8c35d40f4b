"""Who keeps the state of whom: never oneself, evenly, and the same as before where nothing has changed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weir.protocol.job.placement import TaskManagerLoad, place
from weir.protocol.job.standbys import choose_standbys
from weir.types import SubtaskId

NAMES = [f"tm-{letter}" for letter in "abcdefgh"]
MEMBERS = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(1, 9), st.integers(0, 4)))


def loads_of(members, quota=None):
    return [
        TaskManagerLoad(name, quota or slots, {1: count} if count else {})
        for name, (slots, count) in members.items()
    ]


@given(MEMBERS, st.sets(st.sampled_from(NAMES)), st.integers(0, 3), st.data())
def test_choices_are_even_stable_and_have_room(members, gone, replicas, data):
    """``gone``: who was there when the choice before was made, or was not."""
    owners = {name: count for name, (_, count) in members.items() if count}
    earlier = {name: load for name, load in members.items() if name not in gone}
    earlier_owners = {name: count for name, count in owners.items() if name in earlier}
    before = choose_standbys(earlier_owners, loads_of(earlier), replicas, {})
    loads = loads_of(members)
    chosen = choose_standbys(owners, loads, replicas, before)
    free = {load.name: load.free_slots for load in loads}
    assert chosen.keys() == owners.keys()
    for owner, names in chosen.items():
        others = {name: slots for name, slots in free.items() if name != owner}
        roomy = {name for name, slots in others.items() if slots >= owners[owner]}
        allowed = roomy if len(roomy) >= replicas else {name for name, slots in others.items() if slots}
        assert len(set(names)) == len(names) == min(replicas, len(allowed))
        assert set(names) <= allowed
        # Where there are too few with room for all, those come first.
        assert len(roomy) >= replicas or roomy <= set(names)
    # No single change would make it more even.
    kept = Counter(name for names in chosen.values() for name in names)
    for owner, names in chosen.items():
        others = {name: slots for name, slots in free.items() if name not in (owner, *names)}
        enough = [name for name, slots in others.items() if slots >= owners[owner]]
        assert all(kept[name] - kept[other] < 2 for name in names for other in enough)
    # The same facts lead to the same choice, in whatever order they come.
    assert choose_standbys(owners, loads, replicas, chosen) == chosen
    shuffled = data.draw(st.permutations(loads))
    assert choose_standbys(dict(reversed(owners.items())), shuffled, replicas, before) == chosen


@given(st.sets(st.sampled_from(NAMES), min_size=2), st.sets(st.sampled_from(NAMES)), st.integers(1, 3))
def test_with_room_everywhere_nobody_keeps_more_than_one_more_than_others(names, owning, replicas):
    owners = dict.fromkeys(sorted(names & owning), 2)
    loads = [TaskManagerLoad(name, 100, {1: 2} if name in owners else {}) for name in sorted(names)]
    chosen = choose_standbys(owners, loads, replicas, {})
    kept = [sum(name in standbys for standbys in chosen.values()) for name in names]
    assert max(kept) - min(kept) <= 1
    left = min(names)
    rest = [load for load in loads if load.name != left]
    after = choose_standbys({o: c for o, c in owners.items() if o != left}, rest, replicas, chosen)
    assert all(left not in standbys for standbys in after.values())


def test_subtasks_of_a_lost_task_manager_go_to_its_standby_as_far_as_it_has_room():
    subtasks = [SubtaskId(stage, index) for stage in range(2) for index in range(3)]
    preferred = {subtask: "tm-a" if subtask.stage_index else "tm-b" for subtask in subtasks}
    there = [TaskManagerLoad("tm-b", 5), TaskManagerLoad("tm-c", 9), TaskManagerLoad("tm-d", 9)]

    def places_of(standbys):
        placement = place(there, subtasks, preferred, {"tm-a": standbys})
        assert all(placement[subtask] == "tm-b" for subtask in subtasks if not subtask.stage_index)
        return Counter(placement[subtask] for subtask in subtasks if subtask.stage_index)

    assert places_of(["tm-d"]) == {"tm-d": 3}
    # One that is gone, too, and one with room for two only.
    assert places_of(["tm-x", "tm-b", "tm-d"]) == {"tm-b": 2, "tm-d": 1}
    assert places_of([]) == {"tm-c": 3}
