"""Channels within a process, and rows for them."""

from __future__ import annotations

import pyarrow as pa

from task_manager.exchange.channels import ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Inbox
from weir.clock import Clock, SystemClock
from weir.plan.graph import Edge, Exchange
from weir.types import ChannelId, SubtaskId


class NoWaker:
    def wake(self) -> None:
        pass


def batch(keys: list[str], start: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"key": keys, "n": pa.array(range(start, start + len(keys)), type=pa.int64())}
    )


def channel(
    index: int = 0, elements_max: int = 100, clock: Clock | None = None
) -> tuple[LocalChannel, Inbox]:
    inbox = Inbox()
    gate = CreditGate(ChannelLimits(elements_max, 1 << 30, 1e6), NoWaker(), clock or SystemClock())
    gate._rows_max = 1e9
    return LocalChannel(gate, inbox, ChannelId(SubtaskId(0, 0), SubtaskId(1, index))), inbox


def edge_of(exchange: Exchange) -> Edge:
    return Edge(0, 1, exchange, ("key",) if exchange is Exchange.HASH else (), 0)


def drain(inbox: Inbox) -> list:
    elements = []
    while (delivery := inbox.poll(0.0)) is not None:
        elements.append(delivery.element)
        delivery.release()
    return elements


def never_waits(timeout_s: float) -> None:
    raise AssertionError("the output waited for credit")
