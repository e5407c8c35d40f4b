"""Clients of a real log that note when they called and when they were answered, for the checker of linearizability."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

import weir.log
from experiments.log_linear import NEVER, Append, Read, violations
from experiments.log_load import IDS_OF_A_PRODUCER
from weir.errors import WeirError

#: Answers are waited for so long; after that a record is there once, or not at all.
_TIMEOUT_S = 5.0
_END_S = 30.0


class History:
    """Producers that send one record at a time and readers that read what is new, in threads; a context manager."""

    def __init__(self, brokers: str, topic: str, producers: int = 2, readers: int = 2) -> None:
        """Begin at once; the topic has nothing yet."""
        self._brokers, self._topic = brokers, topic
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self.appends: list[Append] = []
        self.reads: list[Read] = []
        #: What ended a thread that was to go on.
        self.failures: list[Exception] = []
        works = [(self._produce, number + 1) for number in range(producers)]
        works += [(self._read, number) for number in range(readers)]
        self._threads = [
            threading.Thread(target=self._run, args=(work, number), daemon=True) for work, number in works
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let all clients end; safe to call twice."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(_END_S)
            if thread.is_alive():
                self.failures.append(TimeoutError(f"a client has not ended within {_END_S:g} s"))

    @property
    def acknowledged(self) -> int:
        """How many records are acknowledged so far."""
        with self._lock:
            return sum(each.offset is not None for each in self.appends)

    @property
    def reads_ended(self) -> int:
        """How many reads have come to their end so far."""
        return len(self.reads)

    def violations(self) -> list[str]:
        """Return why no order of all this explains it; empty: one does, and no client has failed."""
        self.end()
        return [repr(each) for each in self.failures] or violations(self.appends, self.reads)

    def _run(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except Exception as error:
            self.failures.append(error)

    def _produce(self, number: int) -> None:
        with weir.log.Producer(self._brokers, topic=self._topic, delivery_timeout_s=_TIMEOUT_S) as producer:
            record_id = number * IDS_OF_A_PRODUCER
            while not self._is_over.is_set():
                called_s = time.monotonic()
                try:
                    offset = producer.send(record_id, b"history").result()
                    append = Append(record_id, called_s, time.monotonic(), offset)
                except weir.log.LogRejectedError:
                    append = Append(record_id, called_s, time.monotonic(), is_rejected=True)
                except weir.log.LogUnknownError:
                    append = Append(record_id, called_s, NEVER)
                with self._lock:
                    self.appends.append(append)
                record_id += 1

    def _read(self, number: int) -> None:
        position = 0
        while not self._is_over.is_set():
            called_s = time.monotonic()
            reader = weir.log.Reader(
                self._brokers, topic=self._topic, start=position, latest=True, timeout_s=_TIMEOUT_S
            )
            try:
                records = tuple((record.offset, record.id) for record in reader)
            except WeirError:
                # Nobody leads for a while; what it has read so far is asked for again.
                continue
            finally:
                reader.close()
            self.reads.append(Read(called_s, time.monotonic(), position, reader.position, records))
            # One of them reads all of it again and again while that is little.
            position = 0 if number == 0 and reader.position < 20_000 else reader.position
