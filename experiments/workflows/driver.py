"""Sends the commands of some workflows: open loop, in the order of the state benchmark's section F.

All workflows are started; then, for each task number, that task of all workflows is started, then completed. One
launch has one random prefix. Workflows are divided over partitions by their number, and partitions over drivers, so the
commands of a workflow keep their order.
"""

from __future__ import annotations

import base64
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.workflows.commands import COMPLETE_TASK, START_TASK, START_WORKFLOW, Encoder
from experiments.workflows.job import INPUT_TOPIC
from experiments.workflows.senders import Sender, sender
from weir.errors import WeirError

PAYLOADS = ("compressible", "random")
#: Records that are handed over at a time.
_CHUNK = 1000
_TOLD_EVERY_S = 1.0
_POOL_BYTES = 8 << 20


class LaunchError(WeirError):
    """Commands were not written, or nobody knows."""


@dataclass(frozen=True)
class Launch:
    """What to send.

    Attributes:
        workflows: how many.
        payload_bytes: of each CompleteTask.
        tasks: of each workflow.
        rate: commands per second over all drivers; 0: as fast as possible.
        drivers: threads, each with partitions of its own.
        payload: "compressible": 32 random hex digits again and again; "random": base64 of random bytes.
        chunk_s: with a rate, at most the commands of so many seconds are handed over at a time. What a chunk costs,
            driver, broker and sources together, goes by the chunk and not by its commands.
    """

    workflows: int
    payload_bytes: int
    tasks: int = 100
    rate: float = 0.0
    drivers: int = 1
    payload: str = "compressible"
    chunk_s: float = 0.0025
    prefix: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def commands(self) -> int:
        """How many there are."""
        return self.workflows * (1 + 2 * self.tasks)

    def ids(self, partition: int, partitions: int) -> list[str]:
        """The workflows of a partition."""
        return [f"{self.prefix}-{number}" for number in range(partition, self.workflows, partitions)]


@dataclass
class LaunchResult:
    """What became of a launch. ``behind_ms_max``: how late a paced command was sent, at most."""

    prefix: str
    commands: int
    acknowledged: int
    took_s: float
    commands_per_second: float
    behind_ms_max: float
    payload: str

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


class _Driver:
    """Sends to some partitions, in a thread of its own."""

    def __init__(self, launch: Launch, partitions: dict[int, Encoder], out: Sender, share: float) -> None:
        self._launch, self._partitions, self.out = launch, partitions, out
        self._rate = launch.rate * share
        self._payloads = _Payloads(launch)
        self.sent = 0
        self.behind_s = 0.0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether all is sent and answered; waits so long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            began_s = time.monotonic()
            for partition, records in self._records():
                if self._rate:
                    late_s = time.monotonic() - began_s - self.sent / self._rate
                    self.behind_s = max(self.behind_s, late_s)
                    if late_s < 0:
                        time.sleep(-late_s)
                self.out.send(partition, records)
                self.sent += len(records)
            self.out.close()
        except BaseException as error:
            self.error = error

    def _records(self) -> Iterator[tuple[int, list[bytes]]]:
        longest = max((len(encoder) for encoder in self._partitions.values()), default=0)
        chunk = _CHUNK if not self._rate else max(1, min(_CHUNK, int(self._rate * self._launch.chunk_s)))
        for kind, task in rounds(self._launch.tasks):
            for first in range(0, longest, chunk):
                for partition, encoder in self._partitions.items():
                    stop = min(first + chunk, len(encoder))
                    if stop <= first:
                        continue
                    if kind == COMPLETE_TASK:
                        payloads = self._payloads.some(stop - first)
                        yield partition, encoder.completions(task, first, payloads)
                    else:
                        yield partition, encoder.records(kind, task, first, stop)


class _Payloads:
    def __init__(self, launch: Launch) -> None:
        size = self._size = launch.payload_bytes
        self._pool = b""
        self._same = (secrets.token_hex(16).encode() * (size // 32 + 1))[:size]
        if launch.payload == "random":
            self._pool = base64.b64encode(os.urandom(max(_POOL_BYTES, 2 * size)))
        self._chance = random.Random(launch.prefix)

    def some(self, count: int) -> list[bytes]:
        if not self._pool:
            return [self._same] * count
        size, last = self._size, len(self._pool) - self._size
        return [self._pool[at : at + size] for at in self._chance.choices(range(last), k=count)]


def rounds(tasks: int) -> Iterator[tuple[str, int]]:
    """Kind and task of each round of commands, one for each workflow; of StartWf the number of tasks."""
    yield START_WORKFLOW, tasks
    for task in range(tasks):
        yield START_TASK, task
        yield COMPLETE_TASK, task


def run_launch(
    launch: Launch, log: str, bootstrap: str, partitions: int, say: Callable[[str], None]
) -> LaunchResult:
    """Send everything, and wait until the log has confirmed it.

    Raises:
        LaunchError: some was not confirmed.
        WeirError: the brokers do not answer.
    """
    drivers = []
    for number in range(min(launch.drivers, partitions)):
        mine = range(number, partitions, launch.drivers)
        encoders = {each: Encoder(launch.ids(each, partitions)) for each in mine}
        share = sum(map(len, encoders.values())) / max(1, launch.workflows)
        drivers.append(_Driver(launch, encoders, sender(log, bootstrap, INPUT_TOPIC, list(mine)), share))
    began_s = time.monotonic()
    for driver in drivers:
        driver.start()
    while not all([driver.join(_TOLD_EVERY_S / len(drivers)) for driver in drivers]):
        sent = sum(driver.sent for driver in drivers)
        passed_s = time.monotonic() - began_s
        if passed_s > 2 * _TOLD_EVERY_S:
            say(f"{sent:,} of {launch.commands:,} commands sent, {sent / passed_s:,.0f}/s")
    took_s = time.monotonic() - began_s
    for driver in drivers:
        if driver.error is not None:
            raise driver.error
    acknowledged = sum(driver.out.acknowledged for driver in drivers)
    failures = [failure for driver in drivers for failure in driver.out.failures]
    if acknowledged != launch.commands:
        raise LaunchError(
            f"{launch.commands - acknowledged:,} of {launch.commands:,} commands were not confirmed: "
            f"{failures[0] if failures else 'no answer'}; launch again when the brokers answer"
        )
    behind_ms = 1000 * max(driver.behind_s for driver in drivers)
    return LaunchResult(
        launch.prefix,
        launch.commands,
        acknowledged,
        round(took_s, 3),
        round(launch.commands / took_s, 1),
        round(behind_ms, 2),
        launch.payload,
    )
