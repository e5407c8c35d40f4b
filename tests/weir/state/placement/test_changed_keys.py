"""What has changed since the image of a checkpoint, against a plain history of all writes."""

import random

import pytest

from tests.effort import cases
from weir.state.placement.changed_keys import ChangedKeys

GROUPS = 4


def key(group, number):
    return group.to_bytes(2, "big") + b"\x00\x02" + str(number).encode()


class History:
    """Every event in order; what is known of a group is read off it."""

    def __init__(self):
        self.events = []

    def since(self, checkpoint_id, group):
        """The keys that have changed in a group since an image; None: that is not known."""
        if ("image", checkpoint_id) not in self.events:
            return None
        later = self.events[self.events.index(("image", checkpoint_id)) + 1 :]
        if ("unknown", group) in later:
            return None
        return sorted({event[2] for event in later if event[:2] == ("key", group)})


@pytest.mark.parametrize("seed", range(cases(20)))
def test_against_all_writes(seed):
    chance = random.Random(seed)
    changed, history = ChangedKeys(), History()
    last_id, base_id = 0, 0
    kept = []
    for _ in range(150):
        match chance.choice(["write"] * 6 + ["image", "image", "commit", "unknown", "seal"]):
            case "write":
                keys = [key(chance.randrange(GROUPS), chance.randrange(30)) for _ in range(5)]
                changed.note(keys)
                history.events += [("key", int.from_bytes(each[:2], "big"), each) for each in keys]
            case "image":
                # The one before it is given up, unless it was complete.
                last_id += 1
                changed.image_taken(last_id)
                history.events.append(("image", last_id))
            case "commit":
                base_id = last_id
                changed.committed(base_id)
            case "unknown" if chance.random() < 0.2:
                group = chance.randrange(GROUPS)
                changed.forget([group])
                history.events.append(("unknown", group))
            case "seal":
                wanted = {group: history.since(base_id, group) for group in range(GROUPS)}
                wanted = {group: keys for group, keys in wanted.items() if keys is not None}
                kept.append((changed.sealed(), base_id, wanted))
    assert kept
    # Later events change nothing in what was sealed.
    for sealed, checkpoint_id, wanted in kept:
        assert sealed.of(checkpoint_id, range(GROUPS)) == wanted


def test_nothing_is_known_before_an_image_and_of_a_checkpoint_that_was_given_up_for_good():
    changed = ChangedKeys()
    changed.note([key(1, 1)])
    assert changed.sealed().of(1, [1]) == {}
    changed.image_taken(1)
    changed.note([key(1, 2)])
    changed.image_taken(2)
    changed.committed(2)
    sealed = changed.sealed()
    assert sealed.of(1, [1]) == {}
    assert sealed.of(2, [1]) == {1: []}
    assert sealed.of(3, [1]) == {}


def test_too_many_keys_are_dropped_until_the_next_image():
    changed = ChangedKeys(bytes_max=1_000)
    changed.image_taken(1)
    changed.note(key(1, number) for number in range(5))
    assert len(changed.sealed().of(1, [1])[1]) == 5
    changed.note(key(1, number) for number in range(100))
    assert changed.sealed().of(1, [1]) == {}
    changed.note([key(1, 7)])
    changed.image_taken(2)
    changed.note([key(1, 8)])
    sealed = changed.sealed()
    assert sealed.of(1, [1]) == {}
    assert sealed.of(2, [1]) == {1: [key(1, 8)]}


def test_checkpoints_that_are_given_up_without_end_are_forgotten():
    changed = ChangedKeys()
    for checkpoint_id in range(1, 1_000):
        changed.image_taken(checkpoint_id)
        changed.note([key(1, checkpoint_id)])
    assert changed.sealed().of(1, [1]) == {}
    assert changed.sealed().of(999, [1]) == {1: [key(1, 999)]}
