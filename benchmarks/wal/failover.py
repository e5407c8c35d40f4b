"""Leaders that are killed while a producer sends as fast as it can; an independent checker reads everything back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import weir.log
from benchmarks.results import BenchmarkError
from benchmarks.wal.figures import median
from experiments.log_check import Findings, check_history, stored_ids
from experiments.log_cluster import LogCluster
from experiments.log_load import Load

TOPIC = "failover"
_KILLS = 3
_RECORD_BYTES = 100
_UNDER_WAY_MAX = 200_000
_ANSWERS_S_MAX = 60.0
_POLL_S = 0.01


def failover(directory: Path, report: Callable[[str, float], None]) -> dict[str, float]:
    """Kill the leader three times; returns the longest time without an answer, and what the checker found.

    Args:
        directory: of the log, which is made there.
        report: called with what is being done.

    Raises:
        BenchmarkError: a record had no answer, or the replicas differ.
    """
    gaps_s = []
    with LogCluster(directory) as cluster:
        weir.log.create_topic(cluster.addresses, TOPIC)
        load = Load(
            cluster.addresses,
            TOPIC,
            1,
            record_bytes=_RECORD_BYTES,
            acks="all",
            linger_ms=5,
            under_way_max=_UNDER_WAY_MAX,
        ).start()
        for kill in range(_KILLS):
            report(f"failover: kill -9 of the leader, {kill + 1} of {_KILLS}", kill / _KILLS)
            _wait_for_answers(load, f"before kill {kill + 1}")
            leader = cluster.leader(TOPIC)
            load.longest_gap_s = 0.0
            cluster.kill(leader)
            _wait_for_answers(load, f"after kill {kill + 1}")
            gaps_s.append(load.longest_gap_s)
            cluster.start(leader)
            cluster.wait_until_whole(TOPIC, is_level=False)
        load.stop()
        cluster.wait_until_whole(TOPIC)
        if load.errors:
            raise BenchmarkError(f"{len(load.errors)} records have no answer: {load.errors[0]}")
        report("failover: reading everything back", 1.0)
        read = [
            (batch.first_offset + index, record_id)
            for batch in weir.log.Reader(cluster.addresses, topic=TOPIC).batches()
            for index, record_id in enumerate(batch.ids.tolist())
        ]
        found = check_history(load.acknowledged, read)
        for number in cluster.ports:
            cluster.stop(number)
        _check_replicas(cluster, read)
    return {
        "failover_ms": median([gap_s * 1000 for gap_s in gaps_s]),
        "failover_acknowledged": len(load.acknowledged),
        **as_figures(found),
    }


def as_figures(found: Findings) -> dict[str, float]:
    """Return how many records are lost, there twice, or out of order."""
    return {
        "lost": len(found.lost) + len(found.misplaced),
        "duplicated": len(found.doubled),
        "reordered": len(found.reordered),
    }


def _check_replicas(cluster: LogCluster, read: list[tuple[int, int]]) -> None:
    for number in cluster.ports:
        if stored_ids(cluster.broker_directory(number) / f"{TOPIC}-0") != read:
            raise BenchmarkError(f"broker {number} has other records than the reader was given")


def _wait_for_answers(load: Load, when: str) -> None:
    """Return after more answers than there are records under way: the latest of them were sent since."""
    until_s = time.monotonic() + _ANSWERS_S_MAX
    wanted = len(load.acknowledged) + _UNDER_WAY_MAX
    while len(load.acknowledged) <= wanted:
        if time.monotonic() > until_s:
            raise BenchmarkError(f"{when}: no {_UNDER_WAY_MAX:,} answers within {_ANSWERS_S_MAX:g} s")
        time.sleep(_POLL_S)
