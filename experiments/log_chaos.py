"""Brokers and the controller of the replicated log that are killed, paused and cut off in a row, under load."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import weir.log
from experiments.log_check import Findings, check_history, stored_ids
from experiments.log_cluster import LogCluster
from experiments.log_history import History
from experiments.log_load import IDS_OF_A_PRODUCER, Load
from experiments.processes import ClusterError

TOPIC, HISTORY = "wal", "history"
_CONTROLLER = 0
#: What happens in a round; the leader dies most of the time.
FAULTS = ("kill leader", "kill follower", "kill controller", "pause leader", "cut leader off")
_WEIGHTS = (5, 1, 1, 1, 1)
#: Answers after a fault that show that all goes on; more than are under way.
_FRESH = 300
_UNDER_WAY_MAX = 100
_PROGRESS_S_MAX = 60.0


@dataclass
class ChaosResult:
    """What has become of it."""

    #: Longest time without any answer after each fault; by kind.
    gaps_s: dict[str, list[float]]
    acknowledged: int
    findings: Findings
    #: Records that a replica has elsewhere, or lacks.
    replicas_wrong: list[int]
    #: Why what clients of the other topic have seen is not linearizable.
    violations: list[str]
    reads: int
    #: Why records have no answer: nobody gave one within the delivery timeout.
    unanswered: list[str]

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, doubled, out of order or stale, and everything has its answer."""
        return not (self.findings or self.replicas_wrong or self.violations or self.unanswered)


def run_chaos(
    directory: Path,
    rounds: int,
    seed: int,
    show: Callable[[str], None],
    only: str = "",
    lease_ms: int = 1000,
) -> ChaosResult:
    """Let so many faults happen, one after the other; two of three brokers live at each moment.

    Args:
        directory: of all data; made if it is absent, with nothing in it yet.
        rounds: how many.
        seed: of the faults.
        show: called with a line every now and then.
        lease_ms: a broker that is silent for so long is lost; on a busy machine one may be without any fault.
        only: one of ``FAULTS``, again and again; "": all of them, by chance.

    Raises:
        ClusterError: producers had no answers a minute after a fault.
    """
    chance = random.Random(seed)
    gaps_s: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    with LogCluster(directory, lease_ms=lease_ms, is_proxied=True) as cluster:
        for topic in (TOPIC, HISTORY):
            weir.log.create_topic(cluster.addresses, topic, segment_bytes=1 << 20)
        loads = [
            Load(
                cluster.addresses,
                TOPIC,
                number,
                under_way_max=_UNDER_WAY_MAX,
                delivery_timeout_s=_PROGRESS_S_MAX,
            )
            for number in (1, 2)
        ]
        for load in loads:
            load.start()
        with History(cluster.addresses, HISTORY) as history:
            _await_progress(loads, "at the beginning")
            for number in range(rounds):
                fault = only or chance.choices(FAULTS, _WEIGHTS)[0]
                for load in loads:
                    load.longest_gap_s = 0.0
                _happen(cluster, fault, partial(_await_progress, loads, f"after: {fault}"), chance)
                gaps_s[fault].append(max(load.longest_gap_s for load in loads))
                if number % 10 == 9:
                    count = sum(len(load.acknowledged) for load in loads)
                    show(f"{number + 1} of {rounds} faults, {count:,} records acknowledged")
        for load in loads:
            load.stop()
        return _judged(cluster, loads, history, gaps_s)


def _happen(
    cluster: LogCluster, fault: str, await_progress: Callable[[], None], chance: random.Random
) -> None:
    """Let a fault happen, wait until producers go on, and mend it."""
    leader = cluster.leader(TOPIC)
    if fault == "kill controller":
        cluster.kill(_CONTROLLER)
        await_progress()
        cluster.start(_CONTROLLER)
    elif fault == "pause leader":
        cluster.pause(leader)
        await_progress()
        cluster.resume(leader)
    elif fault == "cut leader off":
        proxies = (cluster.proxies[leader], cluster.controller_proxies[leader])
        # With or without its clients and the other brokers.
        some = proxies if chance.random() < 0.5 else proxies[1:]
        for proxy in some:
            proxy.cut()
        await_progress()
        for proxy in some:
            proxy.mend()
    else:
        others = [number for number in cluster.ports if number != leader]
        victim = leader if fault == "kill leader" else chance.choice(others)
        cluster.kill(victim)
        await_progress()
        cluster.start(victim)
    cluster.wait_for_brokers(len(cluster.ports))
    for topic in (TOPIC, HISTORY):
        cluster.wait_until_whole(topic, is_level=False)


def _await_progress(loads: list[Load], when: str) -> None:
    until_s = time.monotonic() + _PROGRESS_S_MAX
    pause = threading.Event()
    before = [len(load.acknowledged) for load in loads]
    while any(len(load.acknowledged) < count + _FRESH for load, count in zip(loads, before, strict=True)):
        if time.monotonic() > until_s:
            raise ClusterError(f"{when}: no answers within {_PROGRESS_S_MAX:g} s")
        pause.wait(0.01)


def _judged(
    cluster: LogCluster,
    loads: list[Load],
    history: History,
    gaps_s: dict[str, list[float]],
) -> ChaosResult:
    acknowledged = {key: value for load in loads for key, value in load.acknowledged.items()}
    read = [
        (batch.first_offset + index, record_id)
        for batch in weir.log.Reader(cluster.addresses, topic=TOPIC).batches()
        for index, record_id in enumerate(batch.ids.tolist())
    ]
    for topic in (TOPIC, HISTORY):
        cluster.wait_until_whole(topic)
    wrong = [
        number
        for number in cluster.ports
        if stored_ids(cluster.broker_directory(number) / f"{TOPIC}-0") != read
    ]
    return ChaosResult(
        gaps_s,
        len(acknowledged),
        check_history(acknowledged, read, IDS_OF_A_PRODUCER),
        wrong,
        history.violations(),
        len(history.reads),
        [str(error) for load in loads for error in load.errors],
    )
