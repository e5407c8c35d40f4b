"""Producers in threads that note every answer: what the checker of the log is given."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import weir.log
from weir.errors import WeirError

#: Ids of a producer begin at its number times this.
IDS_OF_A_PRODUCER = 1_000_000_000


class Load:
    """One producer that sends ascending ids until it is stopped."""

    def __init__(
        self,
        brokers: str,
        topic: str,
        number: int,
        *,
        record_bytes: int = 100,
        under_way_max: int = 20_000,
        pause_s: float = 0.001,
        **settings: Any,
    ) -> None:
        """Send nothing yet.

        Args:
            brokers: as clients take them.
            topic: its name.
            number: of the producer.
            record_bytes: of each record.
            under_way_max: no more is sent while so many records have no answer.
            pause_s: how long then; more than an answer takes makes bursts, with as many under way and little to do.
            settings: of the producer.
        """
        self._producer = weir.log.Producer(brokers, topic=topic, **settings)
        self._first_id = number * IDS_OF_A_PRODUCER
        self._record = bytes(record_bytes)
        self._under_way_max, self._pause_s = under_way_max, pause_s
        #: Offsets by id.
        self.acknowledged: dict[int, int] = {}
        #: What was refused or is not known.
        self.errors: list[WeirError] = []
        #: Longest time between two answers, and the latest.
        self.longest_gap_s = 0.0
        self._last_s = time.monotonic()
        self._is_stopped = threading.Event()
        self._tickets: deque[tuple[int, weir.log.Ticket]] = deque()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._taker = threading.Thread(target=self._take, daemon=True)

    def start(self) -> Load:
        """Begin to send."""
        self._sender.start()
        self._taker.start()
        return self

    def stop(self) -> None:
        """Send no more, and wait for all answers."""
        self._is_stopped.set()
        self._sender.join()
        self._taker.join()
        self._producer.close()

    def _send(self) -> None:
        record_id = self._first_id
        while not self._is_stopped.is_set():
            if len(self._tickets) > self._under_way_max:
                time.sleep(self._pause_s)
                continue
            self._tickets.append((record_id, self._producer.send(record_id, self._record)))
            record_id += 1

    def _take(self) -> None:
        while self._tickets or self._sender.is_alive():
            if not self._tickets:
                time.sleep(0.001)
                continue
            record_id, ticket = self._tickets.popleft()
            was_done = ticket.is_done
            try:
                self.acknowledged[record_id] = ticket.result()
            except WeirError as error:
                self.errors.append(error)
            if not was_done:
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
                self._last_s = now_s
            else:
                self._last_s = time.monotonic()
