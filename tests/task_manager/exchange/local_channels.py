"""A channel within a process, with its inbox and whoever waits for its credit."""

from __future__ import annotations

import threading

import pyarrow as pa

from task_manager.exchange.channels import ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Inbox
from weir.clock import Clock, SystemClock
from weir.types import ChannelId, SubtaskId

CHANNEL = ChannelId(SubtaskId(0, 0), SubtaskId(1, 0))


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(rows), type=pa.int64())})


class Waker:
    def __init__(self) -> None:
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()


def local(
    elements_max: int = 2, bytes_max: int = 1 << 20, in_flight_ms: float = 100.0, clock: Clock | None = None
):
    inbox, waker = Inbox(), Waker()
    gate = CreditGate(ChannelLimits(elements_max, bytes_max, in_flight_ms), waker, clock or SystemClock())
    return LocalChannel(gate, inbox, CHANNEL), inbox, waker
