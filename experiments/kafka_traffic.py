"""The two ends of a job from Kafka to Kafka: a producer at a rate, and a reader that checks committed records."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from experiments.processes import ClusterError

_KEYS = 300
_PERIOD_S = 0.02
_ANSWER_TIMEOUT_S = 60.0
#: Brokers that were killed may be without a leader for minutes on a busy machine.
_TAKEN_TIMEOUT_S = 600.0
#: A consumer whose brokers are away may never have closed.
_CLOSE_TIMEOUT_S = 30.0
#: A prime: keys come in another order than numbers, and each as often as the others.
_STRIDE = 7919


def make_topics(bootstrap: str, *names: str, partitions: int, replicas: int) -> None:
    """Create topics, and return when the brokers have."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, replicas) for name in names]).values():
        made.result(_ANSWER_TIMEOUT_S)


class Producing:
    """Writes records ``{"key": ..., "number": ...}`` at a rate, each once and in order, until it is told to stop.

    Args:
        bootstrap: addresses of brokers.
        topic: where to.
        rate: records per second.
    """

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._topic, self._rate = topic, rate
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(_TAKEN_TIMEOUT_S * 1000),
                "linger.ms": 5,
                "on_delivery": self._note,
            }
        )
        self._failure = ""
        self._stopped = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, name="producing", daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stop; returns the number of records when the brokers have all.

        Raises:
            ClusterError: they have not.
        """
        self.halt()
        left = self._producer.flush(_TAKEN_TIMEOUT_S)
        if left or self._failure:
            raise ClusterError(f"{left} records were not taken by the brokers: {self._failure}")
        return self.count

    def halt(self) -> None:
        """Stop, whatever becomes of the records."""
        self._stopped.set()
        self._thread.join()

    def _note(self, error: Any, _: object) -> None:
        if error is not None:
            self._failure = str(error)

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._stopped.wait(_PERIOD_S):
            due = int((time.monotonic() - began_s) * self._rate)
            for number in range(self.count, due):
                key = f"key-{number * _STRIDE % _KEYS}"
                try:
                    self._producer.produce(self._topic, json.dumps({"key": key, "number": number}), key)
                except BufferError:
                    break
                self.count = number + 1
            self._producer.poll(0)


class Reading:
    """Reads committed records of the job's topic, and counts what is wrong with them, as they come."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "chaos", "auto.offset.reset": "earliest"}
        self._consumer = Consumer(
            settings | {"isolation.level": "read_committed", "enable.auto.commit": False}
        )
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self._seen: set[int] = set()
        #: By key: the latest number, and the records of the key.
        self._latest: dict[str, int] = defaultdict(lambda: -1)
        self._of_key: dict[str, int] = defaultdict(int)
        self.duplicated = self.out_of_order = self.wrong_counts = 0
        #: What was wrong first, for messages.
        self.first_wrong = ""
        self.gap_s_max = 0.0
        self._came_s = 0.0
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Different records so far."""
        return len(self._seen)

    def measure_gaps(self, *, on: bool) -> None:
        """Take note of the longest time without a record from now on, or no more."""
        self._came_s = time.monotonic() if on else 0.0

    def stop(self) -> None:
        """Read no more; a second time does nothing."""
        self._stopped.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                messages = self._consumer.consume(1000, 0.1)
            except KafkaException:
                # Brokers come and go.
                continue
            now_s = time.monotonic()
            good = [message for message in messages if message.error() is None]
            if good and self._came_s:
                self.gap_s_max = max(self.gap_s_max, now_s - self._came_s)
                self._came_s = now_s
            for message in good:
                self._check(json.loads(message.value() or b"{}"))
        self._consumer.close()

    def _check(self, row: dict[str, Any]) -> None:
        key, number = row["key"], row["number"]
        if number in self._seen:
            self.duplicated += 1
            self.first_wrong = self.first_wrong or f"came twice: {row}"
            return
        self._seen.add(number)
        if number < self._latest[key]:
            self.out_of_order += 1
            self.first_wrong = self.first_wrong or f"after {self._latest[key]}: {row}"
        self._latest[key] = number
        self._of_key[key] += 1
        if row["count"] != self._of_key[key]:
            self.wrong_counts += 1
            self.first_wrong = self.first_wrong or f"count should be {self._of_key[key]}: {row}"
