"""When the death of one node may lose what it has acknowledged."""

import pytest

from weir.state.cassandra.durability import may_lose_writes

SIMPLE = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "1"}
BY_CENTRE = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy"}


@pytest.mark.parametrize(
    ("sync", "replication", "may"),
    [
        ("periodic", SIMPLE, True),
        ("periodic", BY_CENTRE | {"dc1": "1"}, True),
        ("periodic", SIMPLE | {"replication_factor": "3"}, False),
        ("periodic", BY_CENTRE | {"dc1": "1", "dc2": "1"}, False),
        ("batch", SIMPLE, False),
        ("group", SIMPLE, False),
        ("", SIMPLE, False),
        ("periodic", {}, False),
    ],
)
def test_only_rows_that_one_node_has_and_acknowledges_early(sync, replication, may):
    assert may_lose_writes(sync, replication) == may
