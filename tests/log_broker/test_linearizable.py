"""What clients of real brokers see could have happened one operation after the other, whatever fails."""

import pytest

import weir.log
from experiments.log_cluster import LogCluster
from experiments.log_history import History
from tests.log_broker.waiting import wait_for

pytestmark = pytest.mark.scenario

#: Answers of each kind that are waited for between two failures.
APPENDS, READS = 100, 6


@pytest.fixture
def cluster(tmp_path):
    with LogCluster(tmp_path / "log", is_proxied=True) as cluster:
        weir.log.create_topic(cluster.addresses, "wal")
        yield cluster


def wait_for_more(history):
    appends, reads = history.acknowledged + APPENDS, history.reads_ended + READS
    wait_for(lambda: history.failures or (history.acknowledged >= appends and history.reads_ended >= reads))


def test_appends_and_reads_of_killed_paused_and_cut_off_leaders(cluster):
    with History(cluster.addresses, "wal") as history:
        wait_for_more(history)
        leader = cluster.leader("wal")
        cluster.pause(leader)
        # Another one leads by then, and the old one comes back without having heard of it.
        wait_for_more(history)
        cluster.resume(leader)
        wait_for_more(history)
        leader = cluster.leader("wal")
        cluster.kill(leader)
        wait_for_more(history)
        cluster.start(leader)
        cluster.wait_until_whole("wal", is_level=False)
        # It is cut off from the controller, and not from its followers and clients.
        leader = cluster.leader("wal")
        cluster.controller_proxies[leader].cut()
        wait_for(lambda: cluster.leader("wal") != leader)
        wait_for_more(history)
        cluster.controller_proxies[leader].mend()
        # From clients and other brokers, and not from the controller: it leads, and nobody hears of it.
        leader = cluster.leader("wal")
        cluster.proxies[leader].cut()
        cluster.controller_proxies[leader].cut()
        wait_for_more(history)
        cluster.proxies[leader].mend()
        cluster.controller_proxies[leader].mend()
        wait_for_more(history)
    assert history.violations() == []
