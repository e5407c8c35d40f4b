"""The log's producer for ``benchmarks wal``, as fast as it goes or one record at a time, and what all clients share.

Only bytes that are acknowledged before the time is up count.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal, Protocol

import weir.log
from benchmarks.results import BenchmarkError
from weir.errors import WeirError

TOPIC = "wal"
_SEED = 20220415
LINGER_MS = 5
COMPRESSION = {"random": "none", "words": "lz4"}
WARM_UP_S = 0.5
TIMEOUT_S = 60.0
#: Records between two looks at the clock, and of one ``send_many``.
_PART = {"send": 500, "send_many": 2_000, "sync": 1}


@dataclass(frozen=True)
class Case:
    """What is sent, and how."""

    mode: Literal["send", "send_many", "sync"]
    data: Literal["random", "words"]
    acks: Literal["all", "1", "0"] = "all"

    @property
    def name(self) -> str:
        """What ``--only`` looks into."""
        return f"{self.mode}, {self.data}, acks={self.acks}"


class Client(Protocol):
    """One of the systems."""

    system: str

    def measure(self, case: Case, seconds: float) -> dict[str, float]:
        """Run one case, after a warm-up; returns figures by name.

        Raises:
            BenchmarkError: a record was not acknowledged.
        """


@dataclass
class Done:
    """What was acknowledged."""

    count: int = 0
    size_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def add(self, count: int, size_bytes: int, latency_s: float) -> None:
        """Count what was acknowledged together."""
        self.count += count
        self.size_bytes += size_bytes
        self.latencies_s.append(latency_s)


def figures(count: int, size_bytes: int, latencies_s: Sequence[float], took_s: float) -> dict[str, float]:
    """Return what is told of one run of a case; MB are of 2**20 bytes, as in the figures of the predecessor.

    Raises:
        BenchmarkError: nothing was acknowledged.
    """
    if not latencies_s:
        raise BenchmarkError(f"nothing was acknowledged within {took_s:.1f} s; give it more --seconds")
    ordered = sorted(latencies_s)
    return {
        "acknowledged_mb_per_second": round(size_bytes / took_s / (1 << 20), 2),
        "records_per_second": round(count / took_s),
        **{f"p{part}_ms": round(ordered[len(ordered) * part // 100] * 1000, 3) for part in (50, 99)},
    }


def records(data: str, count: int = 20_000) -> list[bytes]:
    """Make records of the predecessor's sizes: "random" bytes that never repeat, or one repeated word."""
    chance = random.Random(_SEED)
    sizes = [6 * chance.randint(19, 199) for _ in range(count)]
    if data == "words":
        return [b"\5entry" * (size // 6) for size in sizes]
    content, ends = os.urandom(sum(sizes)), itertools.accumulate(sizes)
    return [content[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def record_parts(case: Case) -> list[list[bytes]]:
    """Make the records, in parts of as many as are sent between two looks at the clock."""
    data, size = records(case.data), _PART[case.mode]
    return [data[first : first + size] for first in range(0, len(data), size)]


class WeirClient:
    """Our own producer; its retries never double a record, which Kafka's do in these runs."""

    system = "weir"

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers

    def measure(self, case: Case, seconds: float) -> dict[str, float]:
        """Run one case, as :meth:`Client.measure` says."""
        parts = record_parts(case)
        with weir.log.Producer(
            self._brokers,
            topic=TOPIC,
            acks=case.acks,
            # Who sends one at a time has nothing that could join it.
            linger_ms=0 if case.mode == "sync" else LINGER_MS,
            compression=COMPRESSION[case.data],
        ) as producer:
            run = self._one_at_a_time if case.mode == "sync" else self._saturate
            run(producer, case, parts, WARM_UP_S)
            try:
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
