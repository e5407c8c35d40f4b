"""The state of a key group on what Spark keeps: a store that lives for a trigger, against a plain dictionary."""

import random

import pytest

from tests.effort import cases
from weir.errors import StateError
from weir.spark.group_store import SparkStore
from weir.state.layout import state_prefix

STATES = (0, 1, 7)


class Kept:
    """What Spark keeps of a state, by what it answers: entries without an order, each in a tuple."""

    def __init__(self):
        self.entries = {}

    def exists(self):
        return bool(self.entries)

    def getValue(self, key):
        value = self.entries.get(key[0])
        return None if value is None else (bytearray(value),)

    def updateValue(self, key, value):
        self.entries[key[0]] = value[0]

    def removeKey(self, key):
        self.entries.pop(key[0], None)

    def iterator(self):
        entries = list(self.entries.items())
        random.Random(len(entries)).shuffle(entries)
        return iter([((bytearray(key),), (bytearray(value),)) for key, value in entries])


def some_key(dice):
    user_key = bytes(dice.choices((0, 1, 0xFF), k=dice.randrange(4)))
    return state_prefix(0, dice.choice(STATES)) + user_key


def one_step(dice, store, known):
    """Do something to both, and look at both."""
    first, last = sorted((some_key(dice), some_key(dice)))
    start, stop = dice.choice((first, None)), dice.choice((last, None))
    within = {
        key: value
        for key, value in known.items()
        if (start is None or key >= start) and (stop is None or key < stop)
    }
    match dice.randrange(5):
        case 0:
            keys = [some_key(dice) for _ in range(5)]
            assert store.get_many(keys) == [known.get(key) for key in keys]
        case 1:
            reverse = dice.random() < 0.5
            found = list(store.scan(start, stop, reverse=reverse))
            assert found == sorted(within.items(), reverse=reverse)
        case 2:
            puts = [(some_key(dice), dice.randbytes(3)) for _ in range(4)]
            deletes = [some_key(dice) for _ in range(2)]
            store.write(puts, deletes)
            known.update(puts)
            for key in deletes:
                known.pop(key, None)
        case 3 if dice.random() < 0.2:
            store.delete_range(start, stop)
            for key in within:
                del known[key]
        case _:
            prefix = first[: dice.randrange(len(first) + 1)]
            assert store.may_hold(prefix) or not any(key.startswith(prefix) for key in known)


@pytest.mark.parametrize("seed", range(cases(10)))
def test_a_store_of_one_trigger_goes_on_where_the_last_one_was(seed):
    dice, known, kept = random.Random(seed), {}, {number: Kept() for number in STATES}
    for _ in range(8):
        store = SparkStore(kept)
        for _ in range(dice.randrange(12)):
            one_step(dice, store, known)
        store.commit()
        committed = {
            state_prefix(0, number) + key: value
            for number, of in kept.items()
            for key, value in of.entries.items()
        }
        assert committed == known


def test_what_is_not_committed_is_not_kept():
    kept = {0: Kept()}
    SparkStore(kept).write([(state_prefix(0, 0) + b"k", b"1")])
    assert SparkStore(kept).get_many([state_prefix(0, 0) + b"k"]) == [None]


def test_a_state_that_the_step_does_not_have_is_an_error():
    with pytest.raises(StateError, match="no state 3"):
        SparkStore({0: Kept()}).write([(state_prefix(0, 3) + b"k", b"1")])
