"""Statements go to any node, so all of them must know of a keyspace or table before it is used."""

import asyncio
from types import SimpleNamespace

import pytest

from weir.config.stores import CassandraConfig
from weir.state.cassandra import creation


class Nodes:
    """Answers what nodes say of themselves and of others, one look after the other; the last one again and again."""

    def __init__(self, *looks):
        self.looks, self.taken = list(looks), 0
        self.settings = CassandraConfig()

    async def read_schema(self, text):
        own, others = self.looks[min(self.taken, len(self.looks) - 1)]
        is_own = text.endswith("system.local")
        self.taken += not is_own
        return [SimpleNamespace(schema_version=version) for version in ([own] if is_own else others)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(creation, "_LOOK_AGAIN_S", 0.001)


@pytest.mark.parametrize(
    ("looks", "taken"),
    [
        ([("a", [])], 2),
        ([("a", ["a", "a"])], 2),
        ([("b", ["a", "a"]), ("b", ["b", "a"]), ("b", ["b", "b"])], 4),
        # The second look is of another node, which has not heard yet.
        ([("b", ["b"]), ("a", ["b"]), ("b", ["b"])], 4),
        ([("b", ["b"]), ("a", ["a"]), ("b", ["b"])], 4),
        # A node that was never reached.
        ([("a", ["a", None])], 2),
    ],
)
def test_all_nodes_have_one_schema_before_it_goes_on(looks, taken):
    nodes = Nodes(*looks)
    asyncio.run(creation.one_schema(nodes, 1_000))
    assert nodes.taken == taken


def test_a_node_that_is_down_is_told_of_and_not_awaited_for_ever(caplog):
    asyncio.run(creation.one_schema(Nodes(("b", ["a"])), 100))
    assert "have 2 versions of its schema after 100 ms" in caplog.text
