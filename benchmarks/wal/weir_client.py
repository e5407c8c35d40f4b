"""The log's producer for ``benchmarks wal``: as fast as it goes, one record at a time, or at a pace.

Only bytes that are acknowledged before the time is up count.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

import weir.log
from benchmarks.results import BenchmarkError
from benchmarks.wal.cases import IN_FLIGHT, PACE_PER_SECOND, SINGLE_RECORDS_MAX, Case, record_parts
from benchmarks.wal.figures import TIMEOUT_S, WARM_UP_S, Done, figures
from weir.errors import WeirError


class WeirClient:
    """Our own producer; its retries never double a record, which Kafka's do in these runs."""

    system = "weir"
    in_flight = IN_FLIGHT

    def __init__(self, brokers: str, topics: Mapping[str, str], pids: Sequence[int]) -> None:
        """``topics``: by the retention of a case."""
        self._brokers = brokers
        self._topics = topics
        self._pids = pids

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers."""
        return self._pids

    def measure(self, case: Case, seconds: float) -> dict[str, float]:
        """Run one case, as :meth:`Client.measure` says."""
        parts = record_parts(case)
        with weir.log.Producer(
            self._brokers,
            topic=self._topics[case.retention],
            acks=case.acks,
            linger_ms=case.linger_ms,
            compression=case.compression,
            in_flight_max=case.in_flight or self.in_flight,
            batch_bytes=1 if case.single else 1 << 20,
            buffer_bytes=SINGLE_RECORDS_MAX * 600 if case.single else 32 << 20,
        ) as producer:
            run = {"sync": self._one_at_a_time, "paced": self._paced}.get(case.mode, self._saturate)
            try:
                run(producer, case, parts, WARM_UP_S)
                done, took_s = run(producer, case, parts, seconds)
            except (WeirError, TimeoutError) as error:
                raise BenchmarkError(f"Weir, {case.name}: {error}") from error
        return figures(done.count, done.size_bytes, done.latencies_s, took_s)

    @staticmethod
    def _saturate(
        producer: weir.log.Producer, case: Case, parts: list[list[bytes]], seconds: float
    ) -> tuple[Done, float]:
        """Send as fast as there is room; the time of a record has the wait for room in it."""
        done, errors = Done(), list[Exception]()
        tickets: SimpleQueue[tuple[float, weir.log.Ticket, int, int] | None] = SimpleQueue()
        sizes = [sum(map(len, part)) for part in parts]
        start_s = time.perf_counter()
        stop_s = start_s + seconds

        def take() -> None:
            while (each := tickets.get()) is not None:
                sent_s, ticket, count, size_bytes = each
                try:
                    ticket.result(TIMEOUT_S)
                except (WeirError, TimeoutError) as error:
                    errors.append(error)
                    continue
                now_s = time.perf_counter()
                if now_s <= stop_s:
                    done.add(count, size_bytes, now_s - sent_s)

        taker = threading.Thread(target=take, name="taker")
        taker.start()
        number = 0
        try:
            for part, size_bytes in itertools.cycle(zip(parts, sizes, strict=True)):
                if time.perf_counter() >= stop_s or errors:
                    break
                if case.mode == "send_many":
                    sent_s = time.perf_counter()
                    ticket = producer.send_many(range(number, number + len(part)), part)
                else:
                    # The answers of one producer come in order: the last one is that of all.
                    for record_id, record in enumerate(part[:-1], number):
                        producer.send(record_id, record)
                    sent_s = time.perf_counter()
                    ticket = producer.send(number + len(part) - 1, part[-1])
                number += len(part)
                tickets.put((sent_s, ticket, len(part), size_bytes))
            producer.flush(TIMEOUT_S)
        finally:
            tickets.put(None)
            taker.join()
        if errors:
            raise errors[0]
        return done, seconds

    @staticmethod
    def _one_at_a_time(
        producer: weir.log.Producer, case: Case, parts: list[list[bytes]], seconds: float
    ) -> tuple[Done, float]:
        done = Done()
        start_s = time.perf_counter()
        for number, (record,) in enumerate(itertools.cycle(parts)):
            sent_s = time.perf_counter()
            if sent_s >= start_s + seconds:
                break
            producer.send(number, record).result(TIMEOUT_S)
            done.add(1, len(record), time.perf_counter() - sent_s)
        return done, time.perf_counter() - start_s

    @staticmethod
    def _paced(
        producer: weir.log.Producer, case: Case, parts: list[list[bytes]], seconds: float
    ) -> tuple[Done, float]:
        """Send at a fixed rate; the time of a record begins when it is due."""
        done, errors = Done(), list[Exception]()
        tickets: SimpleQueue[tuple[float, weir.log.Ticket, int] | None] = SimpleQueue()

        def take() -> None:
            while (each := tickets.get()) is not None:
                due_s, ticket, size_bytes = each
                try:
                    ticket.result(TIMEOUT_S)
                except (WeirError, TimeoutError) as error:
                    errors.append(error)
                    return
                done.add(1, size_bytes, time.perf_counter() - due_s)

        taker = threading.Thread(target=take, name="taker")
        taker.start()
        start_s = time.perf_counter()
        number = 0
        try:
            for part in itertools.cycle(parts):
                due_s = start_s + number / PACE_PER_SECOND
                if due_s >= start_s + seconds or errors:
                    break
                if (wait_s := due_s - time.perf_counter()) > 0:
                    time.sleep(wait_s)
                for record in part:
                    tickets.put((due_s, producer.send(number, record), len(record)))
                    number += 1
            producer.flush(TIMEOUT_S)
        finally:
            tickets.put(None)
            taker.join()
        if errors:
            raise errors[0]
        return done, max(time.perf_counter() - start_s, seconds)
