"""Kafka's producer for ``benchmarks wal``: confluent-kafka, the fastest client in Python."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.results import BenchmarkError
from benchmarks.wal.cases import PACE_PER_SECOND, SINGLE_RECORDS_MAX, Case, record_parts
from benchmarks.wal.figures import TIMEOUT_S, WARM_UP_S, Done, figures
from experiments.kafka_brokers import Brokers

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: Of the reports one in so many tells its latency, as asking for it costs time.
_SAMPLE = 16


class _Reports(Done):
    """Kafka's reports of delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.first_error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.first_error = self.first_error or error
            return
        self.count += 1
        self.size_bytes += len(message)
        if not self.count % _SAMPLE:
            self.latencies_s.append(message.latency() or 0.0)


class KafkaClient:
    """confluent-kafka with the settings that were its fastest: no idempotence, three partitions."""

    system = "kafka"
    partitions = 3

    def __init__(self, bootstrap: str, topics: Mapping[str, str], brokers: Brokers) -> None:
        """``topics``: by the retention of a case."""
        self._bootstrap = bootstrap
        self._topics = topics
        self._brokers = brokers

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers."""
        return self._brokers.pids

    def create_topics(self, retention_ms: Mapping[str, int], retention_bytes: int) -> None:
        """Create the topics, on all three brokers; their segments are small, so that retention can work.

        Args:
            retention_ms: by the retention of a case; 0: for ever.
            retention_bytes: of each topic.

        Raises:
            BenchmarkError: the brokers do not.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        wanted = [
            NewTopic(
                self._topics[retention],
                self.partitions,
                3,
                config={
                    "retention.bytes": str(retention_bytes // self.partitions),
                    "retention.ms": str(kept_ms or -1),
                    "segment.bytes": str(64 << 20),
                    # As our own log does it.
                    **({"segment.ms": str(kept_ms // 4)} if kept_ms else {}),
                },
            )
            for retention, kept_ms in retention_ms.items()
        ]
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        try:
            for made in admin.create_topics(wanted).values():
                made.result(30)
        except (KafkaException, TimeoutError) as error:
            raise BenchmarkError(f"Kafka at {self._bootstrap} makes no topic: {error}") from error

    def measure(self, case: Case, seconds: float) -> dict[str, float]:
        """Run one case, as :meth:`Client.measure` says."""
        from confluent_kafka import KafkaException, Producer

        parts = record_parts(case)
        reports = _Reports()
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "acks": case.acks,
            "linger.ms": case.linger_ms,
            "compression.type": case.compression,
            **(
                {"batch.num.messages": 1, "queue.buffering.max.messages": SINGLE_RECORDS_MAX}
                if case.single
                else {}
            ),
            **({"max.in.flight": case.in_flight} if case.in_flight else {}),
            **({"enable.idempotence": True} if case.idempotent else {}),
        }
        producer = Producer(settings | {"on_delivery": lambda error, message: reports(error, message)})
        topic = self._topics[case.retention]
        run = {
            "send": self._saturate,
            "send_many": self._in_batches,
            "sync": self._one_at_a_time,
            "paced": self._paced,
        }[case.mode]
        try:
            self._finish(producer, case, run(producer, topic, reports, parts, WARM_UP_S)[0], reports)
            reports = _Reports()
            sent, took_s = run(producer, topic, reports, parts, seconds)
        except KafkaException as error:
            raise BenchmarkError(f"Kafka, {case.name}: {error}") from error
        # What is acknowledged after the time does not count.
        count, size_bytes, latencies_s = reports.count, reports.size_bytes, list(reports.latencies_s)
        self._finish(producer, case, sent, reports)
        return figures(count, size_bytes, latencies_s, took_s)

    @staticmethod
    def _finish(producer: Producer, case: Case, sent: int, reports: _Reports) -> None:
        producer.flush(TIMEOUT_S)
        if reports.first_error is not None or reports.count != sent:
            what = reports.first_error or f"{reports.count} of {sent} records were acknowledged"
            raise BenchmarkError(f"Kafka, {case.name}: {what}")

    @staticmethod
    def _saturate(
        producer: Producer, topic: str, reports: _Reports, parts: list[list[bytes]], seconds: float
    ) -> tuple[int, float]:
        sent = 0
        start_s = time.perf_counter()
        for part in itertools.cycle(parts):
            if time.perf_counter() - start_s >= seconds:
                break
            for record in part:
                while True:
                    try:
                        producer.produce(topic, record)
                        break
                    except BufferError:
                        producer.poll(0.01)
            sent += len(part)
            producer.poll(0)
        return sent, time.perf_counter() - start_s

    @staticmethod
    def _in_batches(
        producer: Producer, topic: str, reports: _Reports, parts: list[list[bytes]], seconds: float
    ) -> tuple[int, float]:
        messages = [[{"value": record} for record in part] for part in parts]
        sent = 0
        start_s = time.perf_counter()
        for part in itertools.cycle(messages):
            if time.perf_counter() - start_s >= seconds:
                break
            left = part
            while left:
                taken = producer.produce_batch(topic, left)
                sent += taken
                # Those for which there is no room are marked, and need not be the last ones.
                left = [each for each in left if each.pop("_error", None)] if taken < len(left) else []
                producer.poll(0.01 if left else 0)
        return sent, time.perf_counter() - start_s

    @staticmethod
    def _one_at_a_time(
        producer: Producer, topic: str, reports: _Reports, parts: list[list[bytes]], seconds: float
    ) -> tuple[int, float]:
        latencies_s: list[float] = []
        start_s = time.perf_counter()
        for record in itertools.chain.from_iterable(itertools.cycle(parts)):
            sent_s = time.perf_counter()
            if sent_s - start_s >= seconds or reports.first_error is not None:
                break
            producer.produce(topic, record)
            # Not flush(), which would send before the linger is over.
            while reports.count <= len(latencies_s) and reports.first_error is None:
                if not producer.poll(TIMEOUT_S):
                    raise BenchmarkError(f"Kafka: no report within {TIMEOUT_S:g} s")
            latencies_s.append(time.perf_counter() - sent_s)
        took_s = time.perf_counter() - start_s
        # All of them, as the log's are, and not the client's own, which end before its report is taken.
        reports.latencies_s = latencies_s
        return len(latencies_s), took_s

    @staticmethod
    def _paced(
        producer: Producer, topic: str, reports: _Reports, parts: list[list[bytes]], seconds: float
    ) -> tuple[int, float]:
        """Send at a fixed rate; the time of a record begins when it is due."""
        latencies_s: list[float] = []
        start_s = time.perf_counter()
        sent = 0
        for part in itertools.cycle(parts):
            due_s = start_s + sent / PACE_PER_SECOND
            if due_s >= start_s + seconds or reports.first_error is not None:
                break

            def report(error: KafkaError | None, message: Message, due_s: float = due_s) -> None:
                reports(error, message)
                latencies_s.append(time.perf_counter() - due_s)

            while (wait_s := due_s - time.perf_counter()) > 0:
                producer.poll(wait_s)
            for record in part:
                producer.produce(topic, record, on_delivery=report)
            sent += len(part)
            producer.poll(0)
        while len(latencies_s) < sent and reports.first_error is None:
            if not producer.poll(TIMEOUT_S):
                raise BenchmarkError(f"Kafka: no report within {TIMEOUT_S:g} s")
        reports.latencies_s = latencies_s
        return sent, max(time.perf_counter() - start_s, seconds)
