"""Brokers of a real Kafka that are killed while they lead, as those of the log are in ``failover``, for comparison."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results import BenchmarkError
from benchmarks.wal.figures import TIMEOUT_S, median
from experiments.kafka_brokers import Brokers

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_TOPIC = "failover"
_KILLS = 3
_RECORD_BYTES = 100
_UNDER_WAY_MAX = 100_000
_WAIT_S_MAX = 120.0
_POLL_S = 0.05


class _Load:
    """One producer that sends as fast as it can until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 5,
                # As the log does: nothing twice, and nothing out of order.
                "enable.idempotence": True,
                "queue.buffering.max.messages": _UNDER_WAY_MAX,
                "on_delivery": self._report,
                # Of each connection that the killed broker closes.
                "log_level": 0,
            }
        )
        self.acknowledged = 0
        self.error = ""
        #: Longest time between two answers, and the latest.
        self.longest_gap_s = 0.0
        self.last_s = time.monotonic()
        #: It sends nothing meanwhile, so that a broker that comes back gets level.
        self.is_paused = False
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, name="kafka load")
        self._thread.start()

    def _report(self, error: Any, _: Any) -> None:
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        self.last_s = now_s
        if error is None:
            self.acknowledged += 1
        else:
            self.error = self.error or str(error)

    def _send(self) -> None:
        record = bytes(_RECORD_BYTES)
        while not self._is_stopped.is_set():
            if self.is_paused:
                self._producer.poll(_POLL_S)
                continue
            try:
                self._producer.produce(_TOPIC, record)
            except BufferError:
                self._producer.poll(0.01)
            else:
                self._producer.poll(0)

    def stop(self) -> None:
        """Send no more, and wait for all answers."""
        self._is_stopped.set()
        self._thread.join()
        self._producer.flush(TIMEOUT_S)


def kafka_failover(directory: Path, heap: str, report: Callable[[str, float], None]) -> dict[str, float]:
    """Kill the leader of a partition three times; returns the longest time without an answer, as a median.

    Args:
        directory: of the brokers, which are made there.
        heap: of each.
        report: called with what is being done.

    Raises:
        BenchmarkError: a record had no answer, or no other broker leads.
        ServiceError: there is no Java or no Maven.
    """
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    brokers = Brokers(directory, heap=heap)
    gaps_s = []
    try:
        bootstrap = brokers.start()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topic = NewTopic(_TOPIC, 1, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[_TOPIC].result(30)
        load = _Load(bootstrap)
        try:
            for kill in range(_KILLS):
                report(f"failover of Kafka: kill -9 of the leader, {kill + 1} of {_KILLS}", kill / _KILLS)
                load.is_paused = True
                _wait_for(lambda: _in_sync(admin) == brokers.count and brokers.all_serve, "whole replicas")
                load.is_paused = False
                _wait_for_answers(load)
                load.longest_gap_s = 0.0
                brokers.kill(_partition(admin).leader)
                _wait_for_answers(load)
                gaps_s.append(load.longest_gap_s)
                brokers.bring_back()
        finally:
            load.stop()
        if load.error:
            raise BenchmarkError(f"Kafka has not taken a record: {load.error}")
    finally:
        brokers.close()
    return {
        "kafka_failover_ms": median([gap_s * 1000 for gap_s in gaps_s]),
        "kafka_failover_acknowledged": load.acknowledged,
    }


def _partition(admin: AdminClient) -> Any:
    return admin.list_topics(_TOPIC, timeout=10).topics[_TOPIC].partitions[0]


def _in_sync(admin: AdminClient) -> int:
    return len(_partition(admin).isrs)


def _wait_for_answers(load: _Load) -> None:
    """Return after more answers than there are records under way: the latest of them were sent since."""
    wanted = load.acknowledged + _UNDER_WAY_MAX
    _wait_for(lambda: load.acknowledged > wanted, "answers")


def _wait_for(holds: Callable[[], bool], what: str) -> None:
    from confluent_kafka import KafkaException

    until_s = time.monotonic() + _WAIT_S_MAX
    while True:
        try:
            if holds():
                return
        except (KafkaException, KeyError):
            # Asked of the broker that was killed.
            pass
        if time.monotonic() > until_s:
            raise BenchmarkError(f"Kafka: {what} did not come within {_WAIT_S_MAX:g} s")
        time.sleep(_POLL_S)
