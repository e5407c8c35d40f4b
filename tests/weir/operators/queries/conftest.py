"""A job, and a store in which its states have something."""

import datetime as dt

import pytest

from tests.weir.operators.queries.asked_states import GROUPS, Everything, build
from tests.weir.state.retained_steps import Step
from weir.author.states import declared_states
from weir.state.stores.memory import MemoryBackend


@pytest.fixture(scope="module")
def graph():
    return build()


@pytest.fixture
def written():
    """A store with some keys in every state; and the number of each state."""
    backend = MemoryBackend()
    states = {state.name: state for state in declared_states(Everything)}
    step = Step(backend, states, GROUPS)
    handles = step.handles
    for number, key in enumerate(("ann", "bob", "bea")):
        with step.at(key):
            handles["number"].value, handles["ratio"].value = number, number / 2
            handles["good"].value, handles["text"].value = number == 1, f"text of {key}"
            handles["day"].value, handles["short"].value = dt.date(2020, 1, 1 + number), 5
            handles["items"].extend([number, 7])
            handles["names"].update({"one": 1, "other": 2, "two": 3})
            handles["numbers"].update({-1: "a", 3: "b", 20: "c"})
            for at, price in ((0, 8), (4, 10), (17, 12), (38, 11), (53, 9)):
                handles["prices"].put(price, at)
                handles["windows"].put(price, at)
                handles["visits"].put(price, at - 2, at)
    step.tables.flush()
    return backend, {name: 2 + index for index, name in enumerate(sorted(states))}
