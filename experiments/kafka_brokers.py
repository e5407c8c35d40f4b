"""A cluster of three real brokers that lose one, and get it back, while a job runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from experiments.ports import free_port
from services import kafka
from services.errors import ServiceError

#: A broker that is gone is missed after so long; by default it takes 9 s, in which its partitions have no leader.
_PROPERTIES = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_HEAP = "384m"
_START_ATTEMPTS = 5


class Brokers:
    """Three brokers with three copies of everything. Not safe for several threads.

    Args:
        directory: for data and logs; made anew.
        heap: of each broker.
        properties: of the brokers, beside those that make them miss a dead one soon.
    """

    count = 3

    def __init__(
        self, directory: Path, heap: str = _HEAP, properties: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory
        self._heap = heap
        self._properties = _PROPERTIES | dict(properties or {})
        self._starting: threading.Thread | None = None
        self._failure = ""
        self._port = 0

    @property
    def all_serve(self) -> bool:
        """Whether none is dead, or on its way back.

        Raises:
            ServiceError: one did not come back.
        """
        if self._failure:
            raise ServiceError(self._failure)
        return self._starting is None or not self._starting.is_alive()

    @property
    def pids(self) -> list[int]:
        """Processes that live."""
        return [broker.pid for broker, _, _ in kafka.states(self._directory) if broker.pid]

    def start(self) -> str:
        """Start them all; returns their addresses.

        Raises:
            ServiceError: there is no Java or no Maven, or no free ports were found.
        """
        for attempt in range(_START_ATTEMPTS):
            self._port = free_port()
            try:
                return self._start()
            except ServiceError as error:
                # Only the first of the six ports is known to be free.
                if "cannot be used" not in str(error) or attempt == _START_ATTEMPTS - 1:
                    raise
        raise AssertionError

    def kill(self, number: int) -> None:
        """SIGKILL for broker 1, 2 or 3."""
        kafka.kill(self._directory, number)

    def bring_back(self) -> None:
        """Start what is dead, in a thread; returns at once."""
        self._starting = threading.Thread(target=self._start_again, name="brokers")
        self._starting.start()

    def close(self) -> None:
        """Kill them all, and delete their data."""
        if self._starting is not None:
            self._starting.join()
        kafka.stop(self._directory, wipe=True)

    def _start(self) -> str:
        return kafka.start(
            self._directory,
            brokers=self.count,
            base_port=self._port,
            heap=self._heap,
            properties=self._properties,
        )

    def _start_again(self) -> None:
        try:
            self._start()
        except ServiceError as error:
            self._failure = str(error)
